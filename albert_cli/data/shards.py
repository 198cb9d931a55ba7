"""Read token shards as memory-mapped arrays; `data.writer` writes them.

A shard consists of three files, which are raw little-endian arrays:
- `NAME.ids`: the tokens of all sentences without special tokens, uint16 (uint32 for a vocabulary above 65,536);
- `NAME.sentences`: the position in `NAME.ids` at which each sentence begins, and last the number of tokens, uint32;
- `NAME.documents`: the index in `NAME.sentences` of each document's first sentence, and last the number of sentences,
  uint32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import Ids, concatenate_ranges, offsets_from_lengths
from albert_cli.data.records import ShardRecord, Split, read_data_facts, require_data_directory
from albert_cli.errors import CheckpointError
from albert_cli.randomness import Integers

Offsets: TypeAlias = NDArray[np.uint32]

SUFFIXES = (".ids", ".sentences", ".documents")
_MAX_MAPPED_FILES = 60_000  # by default Linux allows a process 65,530 memory maps (vm.max_map_count)
_MAX_OPEN_FILES_MACOS = 10_240  # OPEN_MAX, which every process may open
_MAX_OPEN_FILES_ELSEWHERE = 512  # the default of the C runtime on Windows
_REBUILD = "build the data directory again"


def id_type(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Return the dtype of the ids in a shard: the narrowest integer type that holds every id of the vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _map_array(path: Path, dtype: str) -> NDArray[Any]:
    """Map a file as a read-only array of little-endian numbers.

    Raises `CheckpointError` if the file is missing, or if its size is not a multiple of the size of a number.
    """
    little_endian = np.dtype(dtype).newbyteorder("<")
    try:
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            return np.zeros(0, little_endian)
        # `asarray` returns a plain view of the map. The subclass np.memmap would slow down every later operation.
        return np.asarray(np.memmap(path, little_endian, mode="r"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {error.strerror}", _REBUILD) from None
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be mapped ({error})", _REBUILD) from None


@dataclass(frozen=True)
class Shard:
    """The mapped arrays of one shard.

    ids: [tokens]; sentence_offsets: positions in `ids`, uint32 [sentences + 1]; document_offsets: indices in
    `sentence_offsets`, uint32 [documents + 1].
    """

    ids: NDArray[np.unsignedinteger]
    sentence_offsets: Offsets
    document_offsets: Offsets

    @classmethod
    def open(cls, prefix: Path, dtype: str) -> Shard:
        """Map the three files of a shard; raise `CheckpointError` if their sizes do not match.

        prefix: the path of the files without their suffixes; dtype: of the ids.
        """
        ids = _map_array(prefix.with_name(f"{prefix.name}.ids"), dtype)
        sentence_offsets = _map_array(prefix.with_name(f"{prefix.name}.sentences"), "uint32")
        document_offsets = _map_array(prefix.with_name(f"{prefix.name}.documents"), "uint32")
        n_sentences = sentence_offsets.size - 1
        n_documents = document_offsets.size - 1
        is_empty = n_sentences < 1 or n_documents < 1
        if is_empty or sentence_offsets[-1] != ids.size or document_offsets[-1] != n_sentences:
            raise CheckpointError(f"{prefix}: the sizes of the ids and offsets contradict each other", _REBUILD)
        return cls(ids, sentence_offsets, document_offsets)

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return int(self.ids.size)

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return int(self.document_offsets.size) - 1


class OffsetsOfShards:
    """The sentence or document offsets of several shards, read for values that are sorted by shard.

    NumPy takes most of the time of a small array for the call, so this class calls it once for each shard, and its
    callers compute everything else for all shards at once.
    """

    def __init__(self, arrays: Sequence[Offsets], ends: Sequence[int]) -> None:
        """arrays: uint32, one per shard; ends: for each shard, the end of its values in the methods' arguments."""
        self._parts = [
            (array, slice(start, end)) for array, start, end in zip(arrays, [0, *ends][:-1], ends, strict=True)
        ]

    def __getitem__(self, index: Integers) -> Integers:
        """Return the offsets at positions of their shards' arrays: int64 [N]."""
        offsets = np.empty_like(index)
        for array, part in self._parts:
            offsets[part] = array[index[part]]
        return offsets

    def locate(self, values: Integers, side: Literal["left", "right"]) -> Integers:
        """Search the arrays like `np.searchsorted`, without reading all of a mapped array; return int64 [N].

        Negative values count as 0.
        """
        # If the dtypes differed, NumPy would cast a whole array, so the values are cast instead. Without `maximum`, the
        # cast to an unsigned type would wrap negative values.
        unsigned_values = np.maximum(values, 0).astype(np.uint32)
        index = np.empty_like(values)
        for array, part in self._parts:
            index[part] = array.searchsorted(unsigned_values[part], side)
        return index


class MappedShards(Sequence[Shard]):
    """The shards below a folder, each mapped when it is first read.

    A shard has three files, which stay open while they are mapped, and the system limits a process's open files and
    memory maps. If too many shards are open, the least recently used shard is closed.
    """

    def __init__(self, folder: Path, records: Sequence[ShardRecord], dtype: str) -> None:
        self._folder = folder
        self._records = records
        self._dtype = dtype
        # Two splits may be open at once, with a third of the files each. The last third is left for everything else.
        max_open_files = _raise_open_file_limit() // 3
        max_open_shards = max(1, max_open_files // len(SUFFIXES))
        self._open_cached: Callable[[int], Shard] = lru_cache(maxsize=max_open_shards)(self._open)

    def _open(self, number: int) -> Shard:
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
        # `range(len(self))[index]` resolves slices and negative numbers, and raises IndexError.
        if isinstance(index, slice):
            return [self._open_cached(number) for number in range(len(self))[index]]
        return self._open_cached(range(len(self))[index])


def _raise_open_file_limit() -> int:
    """Raise the process's limit of open files as far as the system allows, up to `_MAX_MAPPED_FILES`.

    Returns the number of files that may be open and mapped.
    """
    try:
        import resource
    except ImportError:  # not a Unix system
        return _MAX_OPEN_FILES_ELSEWHERE
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return _MAX_MAPPED_FILES
    maximum = _MAX_MAPPED_FILES
    if hard_limit != resource.RLIM_INFINITY:
        maximum = min(maximum, hard_limit)
    # macOS may reject `maximum`, because kern.maxfilesperproc is lower; then the second limit is tried.
    for limit in (maximum, min(maximum, _MAX_OPEN_FILES_MACOS)):
        if soft_limit < limit:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
                return limit
    return min(soft_limit, _MAX_MAPPED_FILES)


class TokenCorpus:
    """The shards of one split, addressed by global token positions from 0 to `n_tokens`; no text is held in memory.

    * `token_starts` int64 [shards + 1]: the global position of each shard's first token, and last the total.
    * `document_starts` int64 [shards + 1]: the global number of each shard's first document, and last the total.
    * `copies` int64 [shards]: number of copies of each shard, which are adjacent.
    * `first_copies` int64 [shards]: the index of each shard's first copy.
    * `n_distinct_documents`: number of documents if each shard is counted once.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        directory: Path | None = None,
        records: Sequence[ShardRecord] | None = None,
    ) -> None:
        """Assign global numbers to the tokens and documents of all shards.

        directory: the data directory, None for a corpus in memory. records: the names and the sizes of the shards;
        copies of a shard have equal names. Without records, every shard is opened to count its tokens.
        """
        self.shards = shards
        self.directory = directory
        if records is None:
            records = [ShardRecord(str(n), shard.n_documents, shard.n_tokens) for n, shard in enumerate(shards)]
        self.token_starts = offsets_from_lengths(np.array([record.tokens for record in records], np.int64))
        self.document_starts = offsets_from_lengths(np.array([record.documents for record in records], np.int64))
        self.n_tokens = int(self.token_starts[-1])
        self.n_documents = int(self.document_starts[-1])
        # Copies of a shard have equal names, so each distinct name is one distinct shard.
        names = [record.name for record in records]
        _, first_index, name_index, n_copies = np.unique(
            names, return_index=True, return_inverse=True, return_counts=True
        )
        self.first_copies = first_index[name_index].astype(np.int64)
        self.copies = n_copies[name_index].astype(np.int64)
        self.n_distinct_documents = int(np.diff(self.document_starts)[first_index].sum())

    @classmethod
    def open(cls, directory: Path, split: Split = "train") -> TokenCorpus:
        """Open a split of a data directory; raise `CheckpointError` if the directory is not complete."""
        require_data_directory(directory)
        facts = read_data_facts(directory)
        records = facts.shards[split]
        return cls(MappedShards(directory / "shards", records, facts.dtype), directory, records)

    @property
    def vocabulary_dir(self) -> Path:
        """The copy of the vocabulary in the data directory."""
        assert self.directory is not None, "a corpus in memory has no directory"
        return self.directory / "vocabulary"

    def unigram_counts(self) -> Integers:
        """Read how often each token occurs in the train split, whichever split this is: int64 [vocab_size]."""
        assert self.directory is not None, "a corpus in memory has no directory"
        return np.fromfile(self.directory / "unigram.counts", dtype="<i8").astype(np.int64)

    def unigram_entropy(self) -> float:
        """Return the entropy of the train split's unigram distribution, in nats per token."""
        counts = self.unigram_counts()
        probabilities = counts[counts > 0] / counts.sum()
        return float(-(probabilities * np.log(probabilities)).sum())

    def read_ranges(self, starts: Integers, lengths: Integers) -> Ids:
        """Read the ids in R ranges of global token positions, and concatenate them: int32 [sum of lengths].

        starts, lengths: int64 [R]; each range lies within one shard.
        """
        ids = np.empty(int(lengths.sum()), np.int32)
        output_starts = offsets_from_lengths(lengths)[:-1]
        # An empty range may start at the end of the corpus, which is in no shard.
        clamped_starts = np.minimum(starts, self.n_tokens - 1)
        for rows, shard, first_token, _ in self.group_by_shard(clamped_starts, self.token_starts):
            input_positions = concatenate_ranges(starts[rows] - first_token, lengths[rows])
            output_positions = concatenate_ranges(output_starts[rows], lengths[rows])
            ids[output_positions] = shard.ids[input_positions]
        return ids

    def group_by_shard(self, values: Integers, starts: Integers) -> Iterator[tuple[Integers, Shard, int, int]]:
        """Group global token positions, or global document numbers, by the shard that contains them.

        values: token positions with `self.token_starts` as `starts`, or document numbers with `self.document_starts`.
        Yields for each shard with a value: the indices of its values in `values`, int64; the shard; the global position
        of its first token; and the global number of its first document.
        """
        shard_of_value = np.searchsorted(starts, values, "right") - 1
        order = np.argsort(shard_of_value, kind="stable")
        numbers, first = np.unique(shard_of_value[order], return_index=True)
        ends = [*first.tolist(), len(order)][1:]
        for number, start, end in zip(numbers.tolist(), first.tolist(), ends, strict=True):
            rows = order[start:end]
            yield rows, self.shards[number], int(self.token_starts[number]), int(self.document_starts[number])
