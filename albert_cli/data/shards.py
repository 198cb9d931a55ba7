"""Token shards: three raw arrays for each, memory-mapped (`writer` makes them).

`NAME.ids` holds the tokens of all sentences one after the other, without special tokens; `NAME.sentences` the offset
into it of every sentence, `NAME.documents` the offset into `sentences` of every document, each with the end as its last
entry. All are little-endian: ids uint16 (uint32 where the vocabulary needs it), offsets uint32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator
from typing_extensions import TypedDict

from albert_cli import store
from albert_cli.data.arrays import Ids, concatenate_ranges
from albert_cli.errors import CheckpointError
from albert_cli.randomness import Integers

Split: TypeAlias = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
Offsets: TypeAlias = NDArray[np.uint32]

DATA_FORMAT = 2  # of `data.json` and the shards
UNITS = ("documents", "sentences", "tokens")
SUFFIXES = (".ids", ".sentences", ".documents")
_MAPS = 60_000  # files kept mapped at most; Linux lets a process have 65,530 maps
MAX_SHARD_TOKENS = 64 << 20  # 128 MB of ids: a merge that counts or rewrites a shard holds some 0.7 GB


def _check_format_version(number: int) -> int:
    if number != DATA_FORMAT:
        raise ValueError("data of another version of albert, which are to be made again")
    return number


# A name below `shards/`.
ShardName = Annotated[str, AfterValidator(store.check_relative)]
_OfSplits = AfterValidator(store.require_keys(*SPLITS))
UnitCounts = Annotated[dict[str, int], AfterValidator(store.require_keys(*UNITS))]  # by unit


class DataFacts(TypedDict):
    """`data.json`: how a data directory was made, and what is in it."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]  # noqa: RUF012
    format: Annotated[int, AfterValidator(_check_format_version)]
    dtype: Literal["uint16", "uint32"]
    vocabulary: str
    settings: dict[str, Any]
    sources: list[dict[str, Any]]
    vocab_size: int
    bytes_read: int
    tokens_read: int
    skipped_lines: int
    duplicates_dropped: int
    totals: Annotated[dict[str, UnitCounts], _OfSplits]
    bytes_per_token_on_disk: float
    unknown_rate: float
    unigram_entropy_nats: float | None
    heldout_entropy_nats: float | None
    shards: Annotated[dict[str, list[ShardName]], _OfSplits]
    fingerprints: dict[ShardName, str]


def read_data_facts(directory: Path) -> DataFacts:
    """The `data.json` of a data directory; raises `CheckpointError` for a damaged one."""
    return store.read_record(directory / "data.json", DataFacts)


def id_type(vocab_size: int) -> str:
    """The narrowest integer type that holds every id: "uint16" or "uint32"."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _map_array(path: Path, dtype: str) -> NDArray[Any]:
    """A file's content as a read-only array that stays on the disk; an empty file cannot be mapped."""
    little = np.dtype(dtype).newbyteorder("<")
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, little)
        # A plain view: np.memmap's own class slows every later operation down.
        return np.asarray(np.memmap(path, little, mode="r"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {error.strerror}", "make the data directory again") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})", "make the data directory again") from None


def locate(offsets: Offsets, values: Integers, side: Literal["left", "right"]) -> Integers:
    """`searchsorted` that casts the few values rather than (as NumPy would) the whole mapped array."""
    return np.searchsorted(offsets, np.maximum(values, 0).astype(offsets.dtype), side)


@dataclass(frozen=True)
class Shard:
    """One shard: ids [tokens], sentences uint32 [sentences + 1], documents uint32 [documents + 1]."""

    ids: NDArray[np.unsignedinteger]
    sentences: Offsets
    documents: Offsets

    @classmethod
    def open(cls, prefix: Path, dtype: str) -> Shard:
        """Map the three files that share the prefix; raises `CheckpointError` when they do not fit together."""
        types = (dtype, "uint32", "uint32")
        ids, sentences, documents = (
            _map_array(prefix.with_name(prefix.name + s), t) for s, t in zip(SUFFIXES, types, strict=True)
        )
        fits = sentences.size > 1 and documents.size > 1
        if not fits or sentences[-1] != ids.size or documents[-1] != sentences.size - 1:
            raise CheckpointError(f"{prefix}: ids and offsets do not fit together", "make the data directory again")
        return cls(ids, sentences, documents)

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return int(self.ids.size)


class MappedShards(Sequence[Shard]):
    """The shards of a directory, mapped when they are read; the one unread for the longest time is closed.

    A mapped file stays open and counts against the process's limits, which a thousand shards reach.
    """

    def __init__(self, prefixes: Sequence[Path], dtype: str) -> None:
        self._prefixes = prefixes
        keep = lru_cache(maxsize=max(1, _max_open_files() // len(SUFFIXES)))
        self._mapped = keep(lambda number: Shard.open(prefixes[number], dtype))

    def __len__(self) -> int:
        return len(self._prefixes)

    def __getitem__(self, number: Any) -> Any:
        """The shard of that number."""
        return self._mapped(number)


def _max_open_files() -> int:
    """How many files one split may keep open: a third of the limit, which is raised as far as the system allows."""
    try:
        import resource
    except ImportError:  # not a Unix
        return 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAPS if hard == resource.RLIM_INFINITY else min(_MAPS, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit // 3


class TokenCorpus:
    """The shards of one split behind one axis of global token positions, 0 to `tokens`; no text is held in memory.

    starts: int64 [shards + 1], the position at which each begins; document_starts: the same for documents.
    """

    def __init__(self, shards: Sequence[Shard], directory: Path | None = None) -> None:
        self.shards = shards
        self.directory = directory
        sizes = np.array([(s.n_tokens, s.documents.size - 1) for s in shards], np.int64).reshape(-1, 2)
        self.starts, self.document_starts = np.concatenate([np.zeros((1, 2), np.int64), sizes.cumsum(0)]).T
        self.tokens = int(self.starts[-1])
        self.documents = int(self.document_starts[-1])

    @classmethod
    def open(cls, directory: Path, split: Split = "train") -> TokenCorpus:
        """Open a data directory; raises `CheckpointError` when it is not a complete one."""
        manifest = store.read_manifest(directory) if directory.is_dir() else None
        if manifest is None or manifest.kind != "data":
            what = "not a complete data directory" if directory.is_dir() else "no such directory"
            raise CheckpointError(f"{directory}: {what}", "one is made by: albert data SOURCE --vocab DIR --out DIR")
        facts = read_data_facts(directory)
        names = facts["shards"][split]
        return cls(MappedShards([directory / "shards" / name for name in names], facts["dtype"]), directory)

    @property
    def vocabulary_dir(self) -> Path:
        """Where the copy of the vocabulary lies."""
        assert self.directory is not None, "a corpus in memory has none"
        return self.directory / "vocabulary"

    def unigram_counts(self) -> Integers:
        """How often each token occurs in the train split: int64 [vocab_size]."""
        assert self.directory is not None, "a corpus in memory has none"
        return np.fromfile(self.directory / "unigram.counts", dtype="<i8").astype(np.int64)

    def unigram_entropy(self) -> float:
        """Entropy of the tokens of the train split, nats a token."""
        counts = self.unigram_counts()
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def take(self, start: Integers, length: Integers) -> Ids:
        """The ids of runs at global positions, each within a shard: int64 [R] and [R] to int32 [sum of `length`]."""
        ids = np.empty(int(length.sum()), np.int32)
        target = np.cumsum(length) - length
        for rows, shard, base, _ in self.group_by_shard(np.minimum(start, self.tokens - 1), self.starts):
            ids[concatenate_ranges(target[rows], length[rows])] = shard.ids[
                concatenate_ranges(start[rows] - base, length[rows])
            ]
        return ids

    def group_by_shard(self, number: Integers, starts: Integers) -> Iterator[tuple[Integers, Shard, int, int]]:
        """The rows of each shard, with the shard and the position and the document at which it begins.

        number: of a position where `starts` are those of the shards' positions, of a document where they are theirs.
        """
        number = np.searchsorted(starts, number, "right") - 1
        for which in np.unique(number).tolist():
            rows = np.flatnonzero(number == which)
            yield rows, self.shards[which], int(self.starts[which]), int(self.document_starts[which])
