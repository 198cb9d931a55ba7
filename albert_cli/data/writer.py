"""Writing token shards: documents in the order they come, in one pass, those of each group in shards of their own."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.shards import MAX_SHARD_TOKENS, UNITS, id_type
from albert_cli.randomness import Integers

# Of a source whose weight has a fraction, some documents are used once more in a pass than the others.
GROUPS = ("train", "train-more", "heldout")
DROPPED, MORE, HELDOUT = -1, 1, 2  # numbers of groups; a dropped document is in none


class ShardWriter:
    """Append documents to shards `PREFIX-00`, `PREFIX-01`, ... in one directory, each of at most `max_tokens` unless
    one document has more, and their hashes to `PREFIX.hashes` (little-endian uint64, a document's in its place).

    Only the offsets of the shard being written are held in memory. `close` at the end.
    """

    def __init__(self, directory: Path, prefix: str, dtype: str, max_tokens: int = MAX_SHARD_TOKENS) -> None:
        self.directory, self.prefix, self.max_tokens = directory, prefix, max_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.names: list[str] = []
        self.tokens = self.sentences = self.documents = 0
        self._ids: IO[bytes] | None = None
        self._hashes: IO[bytes] | None = None
        self._sentences, self._documents = [np.zeros(1, "<u4")], [np.zeros(1, "<u4")]

    def add(self, ids: NDArray[np.integer], lengths: Integers, sizes: Integers, hashes: NDArray[np.uint64]) -> None:
        """Append documents, none of them empty.

        ids: their tokens [tokens]; lengths: of each sentence, none of them 0 [sentences]; sizes: sentences of
        each document [documents]; hashes: uint64 [documents].
        """
        is_too_much = int(self._sentences[-1][-1]) + ids.size > self.max_tokens
        if sizes.size > 1 and is_too_much:
            sentence_ends = np.cumsum(sizes)
            token_ends = np.cumsum(lengths)[sentence_ends - 1]
            own = zip(np.split(ids, token_ends[:-1]), np.split(lengths, sentence_ends[:-1]), strict=True)
            for number, (own_ids, own_lengths) in enumerate(own):
                self.add(own_ids, own_lengths, sizes[number : number + 1], hashes[number : number + 1])
            return
        if sizes.size == 0:
            return
        if self._ids is None or is_too_much:
            self._close_shard()
            self.names.append(f"{self.prefix}-{len(self.names):02d}")
            self._ids = (self.directory / f"{self.names[-1]}.ids").open("wb")
            self._sentences, self._documents = [np.zeros(1, "<u4")], [np.zeros(1, "<u4")]
        if self._hashes is None:
            self._hashes = (self.directory / f"{self.prefix}.hashes").open("wb")
        self._ids.write(ids.astype(self.dtype).tobytes())
        self._hashes.write(hashes.astype("<u8").tobytes())
        self._sentences.append((self._sentences[-1][-1] + np.cumsum(lengths)).astype("<u4"))
        self._documents.append((self._documents[-1][-1] + np.cumsum(sizes)).astype("<u4"))
        self.tokens += ids.size
        self.sentences += lengths.size
        self.documents += sizes.size

    def _close_shard(self) -> None:
        if self._ids is not None:
            self._ids.close()
            self._ids = None
            for suffix, offsets in ((".sentences", self._sentences), (".documents", self._documents)):
                path = self.directory / f"{self.names[-1]}{suffix}"
                path.write_bytes(np.concatenate(offsets).astype("<u4").tobytes())

    def close(self) -> None:
        """Write what is left."""
        self._close_shard()
        if self._hashes is not None:
            self._hashes.close()
            self._hashes = None


class GroupWriter:
    """The shards of every group in one staged directory, and how often each token occurs in those of train."""

    def __init__(self, staging: Path, vocab_size: int, max_tokens: int) -> None:
        self._staging, self._vocab_size = staging, vocab_size
        self._writers = {name: ShardWriter(staging, name, id_type(vocab_size), max_tokens) for name in GROUPS}
        self._counts: dict[str, NDArray[np.int64]] = {}

    def close(self) -> None:
        """Write what is left of the shards."""
        for writer in self._writers.values():
            writer.close()

    def add(
        self, groups: Integers, ids: NDArray[np.integer], lengths: Integers, sizes: Integers, hashes: NDArray[np.uint64]
    ) -> None:
        """`ShardWriter.add` to the documents' groups, int64 [documents]; a negative one leaves a document out."""
        for number in np.unique(groups[groups >= 0]).tolist():
            of_document = groups == number
            of_sentence = np.repeat(of_document, sizes)
            own = ids if of_document.all() else ids[np.repeat(of_sentence, lengths)]
            name = GROUPS[number]
            self._writers[name].add(own, lengths[of_sentence], sizes[of_document], hashes[of_document])
            if number != HELDOUT:  # little text, counted when all is there
                counts = self._counts.setdefault(name, np.zeros(self._vocab_size, np.int64))
                counts += np.bincount(own, minlength=self._vocab_size)

    def finish(self) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
        """Close the shards, write the counts, and return totals and shards' names by group."""
        self.close()
        for name, counts in self._counts.items():
            kind = "<u4" if counts.max(initial=0) < 2**32 else "<u8"
            (self._staging / f"{name}.counts").write_bytes(counts.astype(kind).tobytes())
        totals = {name: {unit: getattr(w, unit) for unit in UNITS} for name, w in self._writers.items()}
        return totals, {name: writer.names for name, writer in self._writers.items()}
