"""Read data directories, and put them back into an unfinished state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from albert_cli import store
from albert_cli.data.build import build_data
from albert_cli.data.build_report import BuildReport
from albert_cli.data.records import BuildPlan, BuildSettings, Split, read_data_facts
from albert_cli.data.shards import Shard, TokenCorpus

WriteFiles = Callable[[int], list[str]]
TokenizedDocument = tuple[tuple[int, ...], ...]  # sentences of ids
TENTH = BuildSettings(holdout=0.1, split_bytes=30_000)


def build(sources: list[str], vocabulary: Path, out: Path, settings: BuildSettings, workers: int = 0) -> BuildReport:
    """Build a whole data directory."""
    report = build_data(sources, vocabulary, out, settings, workers)
    assert isinstance(report, BuildReport)
    return report


def unfinish(out: Path) -> None:
    """Put a finished build back to the moment before its last write: its plan, and no manifest."""
    (out / store.MANIFEST).unlink()
    facts = read_data_facts(out)
    names = sorted(path.name for path in out.glob("shards/*"))
    store.write_json(out / "plan.json", asdict(BuildPlan(facts.vocabulary, facts.settings, facts.sources, names)))


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file but the lock and the cache of verified files, by name."""
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in paths
        if path.name not in (".lock", ".verified.json")
    }


def iter_documents(shard: Shard) -> Iterator[TokenizedDocument]:
    """Yield the documents of a shard, each as its sentences' ids."""
    for number in range(shard.n_documents):
        sentences = range(shard.document_offsets[number], shard.document_offsets[number + 1])
        yield tuple(
            tuple(shard.ids[shard.sentence_offsets[s] : shard.sentence_offsets[s + 1]].tolist()) for s in sentences
        )


def document_set(directory: Path, split: Split) -> set[TokenizedDocument]:
    """Return the different documents of a split."""
    return {document for shard in TokenCorpus.open(directory, split).shards for document in iter_documents(shard)}
