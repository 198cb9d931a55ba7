"""Build and read data directories, and turn finished ones into unfinished ones."""

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
TENTH_HELD_OUT = BuildSettings(holdout=0.1, split_bytes=30_000)  # few bytes, so several work units per file


def build(sources: list[str], vocabulary: Path, out: Path, settings: BuildSettings, workers: int = 1) -> BuildReport:
    """Build a data directory in this process, unless more workers are required; return its report."""
    report = build_data(sources, vocabulary, out, settings, workers)
    assert isinstance(report, BuildReport)
    return report


def unfinish(out: Path) -> None:
    """Restore a finished build to its state before the last write: with its plan, without a manifest."""
    (out / store.MANIFEST).unlink()
    facts = read_data_facts(out)
    names = sorted(path.name for path in out.glob("shards/*"))
    store.write_json(out / "plan.json", asdict(BuildPlan(facts.vocabulary, facts.settings, facts.sources, names)))


def contents(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every file by its relative path, without the lock and the record of verified files."""
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in paths
        if path.name not in (".lock", ".verified.json")
    }


def iter_documents(shard: Shard) -> Iterator[TokenizedDocument]:
    """Yield each document of a shard as a tuple of sentences, which are tuples of ids."""
    for number in range(shard.n_documents):
        sentences = range(shard.document_offsets[number], shard.document_offsets[number + 1])
        yield tuple(
            tuple(shard.ids[shard.sentence_offsets[s] : shard.sentence_offsets[s + 1]].tolist()) for s in sentences
        )


def document_set(directory: Path, split: Split) -> set[TokenizedDocument]:
    """Return the documents of a split as a set: equal documents count once."""
    return {document for shard in TokenCorpus.open(directory, split).shards for document in iter_documents(shard)}
