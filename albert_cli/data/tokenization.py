"""One task of `albert data`: some parts of the sources, tokenised into one directory of shards, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from albert_cli import console, store
from albert_cli.data.shards import DATA_FORMAT, MAX_SHARD_TOKENS, ShardName, UnitCounts
from albert_cli.data.writer import DROPPED, GROUPS, HELDOUT, MORE, GroupWriter
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.randomness import Integers, repetitions
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.corpus import Document, hash_normalized_text
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.sentences import segment_paragraphs, split_paragraphs
from albert_cli.text.source_parts import ReadCounter
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.work_units import WORK_UNIT_BYTES, WorkUnit

_OfGroups = AfterValidator(store.require_keys(*GROUPS))
_CHUNK = 1 << 20  # characters tokenised at a time: enough to amortise the calls, little enough to hold

ProgressCallback = Callable[[int, int], None]  # bytes of sources, bytes of text done since the last call


@dataclass(frozen=True)
class BuildSettings:
    """How text becomes shards.

    holdout: share of the documents kept for evaluation; dedup: keep one of documents with equal text; split_bytes: the
    least size of the parts that plain files are read in, and to which small files are put together.
    """

    holdout: float = 0.01
    language: str = "en"
    read: ReadSettings = field(default_factory=ReadSettings)
    dedup: bool = False
    split_bytes: int = WORK_UNIT_BYTES
    max_shard_tokens: int = MAX_SHARD_TOKENS

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"--holdout {self.holdout:g}: must be at least 0 and below 1")


@dataclass(frozen=True)
class ShardTask(WorkUnit):
    """A portion of the sources; `directory` receives its shards."""

    name: str
    directory: Path
    vocabulary_dir: Path
    vocabulary: str
    settings: BuildSettings

    @property
    def is_finished(self) -> bool:
        """Whether its shards are there."""
        return (self.directory / store.MANIFEST).is_file()

    @property
    def identity(self) -> dict[str, Any]:
        """What `shard.json` must say, beside the hash of the text, for the shards to be this task's."""
        settings = self.settings
        return {
            "format": DATA_FORMAT,
            "vocabulary": self.vocabulary,
            "holdout": settings.holdout,
            "language": settings.language,
            "read": vars(settings.read),
            "max_shard_tokens": settings.max_shard_tokens,
            **self.sources,
        }


# ---------------------------------------------------------------- text to shards


@dataclass(frozen=True)
class ShardFacts:
    """What a task's `shard.json` says.

    task: its identity; sha256: of the text as it lies on the disk; bytes, pieces: of all the text, also of documents
    that a weight below one leaves out; shards, totals: by group; changed: how many documents a merge has taken out
    again, and the hash of which it has kept.
    """

    task: dict[str, Any]
    sha256: str
    bytes: int
    pieces: int
    skipped_lines: int
    shards: Annotated[dict[str, list[ShardName]], _OfGroups]
    totals: Annotated[dict[str, UnitCounts], _OfGroups]
    changed: dict[str, Any] | None = None


@lru_cache(maxsize=1)
def load_vocabulary_once(directory: Path, fingerprint: str) -> Vocabulary:
    """A task's vocabulary, loaded once a process."""
    return Vocabulary.load(directory)


def tokenize_task(task: ShardTask, count: ProgressCallback | None = None) -> ShardFacts:
    """Tokenise the task's parts into `task.directory`; `count` is called as the text is read."""
    settings, tally = task.settings, ReadCounter()
    vocabulary = load_vocabulary_once(task.vocabulary_dir, task.vocabulary)
    size = seen = pieces = 0
    with (
        store.commit_directory(task.directory, "shard") as staging,
        closing(GroupWriter(staging, vocabulary.size, settings.max_shard_tokens)) as writer,
    ):
        for chunk in _iter_chunks(task.documents(settings.read, tally)):
            ids, lengths, sizes, hashes = tokenize_documents(chunk, vocabulary, settings.language)
            writer.add(assign_groups(hashes, task), ids, lengths, sizes, hashes)
            pieces += ids.size
            chunk_size = sum(len(d.text.encode("utf-8", "replace")) for d in chunk)
            size += chunk_size
            if count is not None:
                count(tally.size - seen, chunk_size)
            seen = tally.size
        totals, shards = writer.finish()
        facts = ShardFacts(task.identity, tally.sha256.hexdigest(), size, pieces, tally.skipped, shards, totals)
        store.write_json(staging / "shard.json", asdict(facts))
    return facts


def assign_groups(hashes: NDArray[np.uint64], task: ShardTask) -> Integers:
    """The number of each document's group: held out by its hash, or in train as often as the weight says."""
    times = np.array([repetitions(task.weight, digest) for digest in hashes.tolist()], np.int64)
    groups = np.where(times > int(task.weight), MORE, 0)
    groups[hashes < np.uint64(int(task.settings.holdout * 2**64))] = HELDOUT
    groups[times == 0] = DROPPED
    return groups


def _iter_chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Groups of documents of about a million characters."""
    for document in documents:
        chunk, size = [document], len(document.text)
        while size < _CHUNK and (following := next(documents, None)):
            chunk.append(following)
            size += len(following.text)
        yield chunk


def tokenize_documents(
    documents: Sequence[Document], vocabulary: Vocabulary, language: str
) -> tuple[NDArray[np.int32], Integers, Integers, NDArray[np.uint64]]:
    """Documents to the arrays that `ShardWriter.add` takes; sentences and documents without a token left out."""
    texts = [split_paragraphs(document.text) for document in documents]
    hashes = np.fromiter((hash_normalized_text(" ".join(lines)) for lines in texts), np.uint64, len(texts))
    sentences = [segment_paragraphs(lines, language) for lines in texts]
    tokens = vocabulary.encode_cleaned(clean_normalized(list(chain.from_iterable(sentences)), vocabulary.cleaning))
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ids = np.fromiter(chain.from_iterable(tokens), np.int32, int(lengths.sum()))
    sizes = np.fromiter(map(len, sentences), np.int64, len(sentences))
    has_tokens = lengths > 0
    kept = np.append(0, np.cumsum(has_tokens))
    sizes = np.diff(kept[np.cumsum(sizes)], prepend=0)
    return ids, lengths[has_tokens], sizes[sizes > 0], hashes[sizes > 0]


def clean_normalized(sentences: Sequence[str], cleaning: Cleaning) -> list[str]:
    """`clean` for sentences that have single spaces already: ASCII then changes in its case at most."""
    lower = str.lower if cleaning.lowercase else str
    return [lower(s) if s.isascii() else clean(s, cleaning) for s in sentences]


# ---------------------------------------------------------------- finished tasks


def load_finished_task(task: ShardTask) -> ShardFacts | None:
    """What a finished task says, verified, or None when it has to run (again); unusable shards are removed."""
    if not task.directory.exists():
        return None
    store.remove_leftovers(task.directory)
    try:
        store.verify(task.directory, "shard")
        facts = store.read_record(task.directory / "shard.json", ShardFacts)
        if facts.task == task.identity and not task.is_stream and task.sha256() in (facts.sha256, None):
            return facts
    except CheckpointError as error:
        console.info(f"{error.message}; making it again")
    store.remove_directory(task.directory)
    return None
