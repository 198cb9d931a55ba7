"""Token shards, memory-mapped; `writer` writes them.

A shard is three raw little-endian arrays. `NAME.ids` holds the tokens of all sentences without special tokens, uint16
(uint32 if the vocabulary needs it). `NAME.sentences` holds the offset of every sentence in `NAME.ids`, and
`NAME.documents` the offset of every document in `NAME.sentences`; both are uint32 and end with the total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from albert_cli import store
from albert_cli.data.arrays import Ids, concatenate_ranges, offsets_from_lengths
from albert_cli.data.records import ShardRecord, Split, read_data_facts
from albert_cli.errors import CheckpointError
from albert_cli.randomness import Integers

Offsets: TypeAlias = NDArray[np.uint32]

SUFFIXES = (".ids", ".sentences", ".documents")
_MAX_MAPPED_FILES = 60_000  # Linux allows a process 65,530 maps
_REBUILD = "build the data directory again"


def id_type(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Return the narrowest integer type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _map_array(path: Path, dtype: str) -> NDArray[Any]:
    """Map a file as a read-only array; an empty file, which cannot be mapped, gives an empty array."""
    little_endian = np.dtype(dtype).newbyteorder("<")
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, little_endian)
        # A plain view: the class np.memmap slows down every later operation.
        return np.asarray(np.memmap(path, little_endian, mode="r"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {error.strerror}", _REBUILD) from None
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be mapped ({error})", _REBUILD) from None


def locate(offsets: Offsets, values: Integers, side: Literal["left", "right"]) -> Integers:
    """Run `searchsorted` on values that are cast first; NumPy would cast the whole mapped array instead.

    Negative values count as 0, because a cast to an unsigned type would wrap them.
    """
    return np.searchsorted(offsets, np.maximum(values, 0).astype(offsets.dtype), side)


@dataclass(frozen=True)
class Shard:
    """One shard: ids [tokens], sentences uint32 [sentences + 1], documents uint32 [documents + 1]."""

    ids: NDArray[np.unsignedinteger]
    sentences: Offsets
    documents: Offsets

    @classmethod
    def open(cls, prefix: Path, dtype: str) -> Shard:
        """Map the three files with this prefix; raises `CheckpointError` if their sizes contradict each other."""
        ids = _map_array(prefix.with_name(f"{prefix.name}.ids"), dtype)
        sentences = _map_array(prefix.with_name(f"{prefix.name}.sentences"), "uint32")
        documents = _map_array(prefix.with_name(f"{prefix.name}.documents"), "uint32")
        is_complete = sentences.size > 1 and documents.size > 1
        if not is_complete or sentences[-1] != ids.size or documents[-1] != sentences.size - 1:
            raise CheckpointError(f"{prefix}: the sizes of the ids and offsets contradict each other", _REBUILD)
        return cls(ids, sentences, documents)

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return int(self.ids.size)

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return int(self.documents.size) - 1


class MappedShards(Sequence[Shard]):
    """Lazily memory-mapped shards below a folder; the least recently used is closed when too many files are open.

    A mapped file counts against the process's limits, which a thousand shards exceed.
    """

    def __init__(self, folder: Path, records: Sequence[ShardRecord], dtype: str) -> None:
        self._folder = folder
        self._records = records
        self._dtype = dtype
        max_shards = max(1, _raise_open_file_limit() // len(SUFFIXES))
        self._open: Callable[[int], Shard] = lru_cache(maxsize=max_shards)(self._open_shard)

    def _open_shard(self, number: int) -> Shard:
        record = self._records[number]
        prefix = self._folder / record.name
        shard = Shard.open(prefix, self._dtype)
        if (shard.n_documents, shard.n_tokens) != (record.documents, record.tokens):
            raise CheckpointError(f"{prefix}: has another size than `data.json` lists", _REBUILD)
        return shard

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | Sequence[Shard]:
        """Return one shard, or the shards of a slice."""
        # Indexing a range resolves slices and negative numbers, and raises IndexError.
        if isinstance(index, slice):
            return [self._open(number) for number in range(len(self))[index]]
        return self._open(range(len(self))[index])


def _raise_open_file_limit() -> int:
    """Raise the process's limit of open files as far as the system allows; return a third of it.

    Two splits may be open at once, and a third is left for everything else.
    """
    try:
        import resource
    except ImportError:  # not a Unix system
        return 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_MAPPED_FILES
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit // 3


class TokenCorpus:
    """The shards of one split on one axis of global token positions, 0 to `tokens`; no text is held in memory.

    starts: the first token position of each shard and the total, int64 [shards + 1]; document_starts: the same for
    documents.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        directory: Path | None = None,
        records: Sequence[ShardRecord] | None = None,
    ) -> None:
        """Arrange the shards on one axis; with the sizes in `records`, no file is opened before it is read."""
        self.shards = shards
        self.directory = directory
        if records is None:
            records = [ShardRecord("", shard.n_documents, shard.n_tokens) for shard in shards]
        self.starts = offsets_from_lengths(np.array([record.tokens for record in records], np.int64))
        self.document_starts = offsets_from_lengths(np.array([record.documents for record in records], np.int64))
        self.tokens = int(self.starts[-1])
        self.documents = int(self.document_starts[-1])

    @classmethod
    def open(cls, directory: Path, split: Split = "train") -> TokenCorpus:
        """Open a split of a data directory; raises `CheckpointError` if the directory is not complete."""
        hint = "build one with: albert data SOURCE --vocab DIR --out DIR"
        if not directory.is_dir():
            raise CheckpointError(f"{directory}: no such directory", hint)
        manifest = store.read_manifest(directory)
        if manifest is None or manifest.kind != "data":
            raise CheckpointError(f"{directory}: not a complete data directory", hint)
        facts = read_data_facts(directory)
        records = facts.shards[split]
        return cls(MappedShards(directory / "shards", records, facts.dtype), directory, records)

    @property
    def vocabulary_dir(self) -> Path:
        """The copy of the vocabulary in the data directory."""
        assert self.directory is not None, "a corpus in memory has no directory"
        return self.directory / "vocabulary"

    def unigram_counts(self) -> Integers:
        """Read how often each token occurs in the train split: int64 [vocab_size]."""
        assert self.directory is not None, "a corpus in memory has no directory"
        return np.fromfile(self.directory / "unigram.counts", dtype="<i8").astype(np.int64)

    def unigram_entropy(self) -> float:
        """Return the entropy of the train split's tokens, in nats per token."""
        counts = self.unigram_counts()
        probabilities = counts[counts > 0] / counts.sum()
        return float(-(probabilities * np.log(probabilities)).sum())

    def read_ranges(self, starts: Integers, lengths: Integers) -> Ids:
        """Read the ids in R ranges of global token positions, one range after the other.

        starts, lengths: int64 [R]; each range lies within one shard. Returns int32 [sum of lengths].
        """
        ids = np.empty(int(lengths.sum()), np.int32)
        output_starts = np.cumsum(lengths) - lengths
        # An empty range may start at the end of the corpus, where no shard is.
        clamped_starts = np.minimum(starts, self.tokens - 1)
        for index, shard, first_token, _ in self.group_by_shard(clamped_starts, self.starts):
            positions = concatenate_ranges(starts[index] - first_token, lengths[index])
            ids[concatenate_ranges(output_starts[index], lengths[index])] = shard.ids[positions]
        return ids

    def group_by_shard(self, values: Integers, starts: Integers) -> Iterator[tuple[Integers, Shard, int, int]]:
        """Group values by shard; yield indices into `values`, the shard, its first token and its first document.

        values: token positions if `starts` is `self.starts`, document numbers if it is `self.document_starts`.
        """
        shard_of_value = np.searchsorted(starts, values, "right") - 1
        for number in np.unique(shard_of_value).tolist():
            index = np.flatnonzero(shard_of_value == number)
            yield index, self.shards[number], int(self.starts[number]), int(self.document_starts[number])
