"""Write token shards in one pass; the documents of each group go to separate shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.records import GROUPS, MAX_SHARD_TOKENS, Group, ShardRecord, UnitCounts
from albert_cli.data.shards import id_type
from albert_cli.randomness import Integers

# Indices of `GROUPS`; a dropped document belongs to no group.
TRAIN: Final = 0
TRAIN_MORE: Final = 1
HELDOUT: Final = 2
DROPPED: Final = -1


@dataclass(frozen=True)
class TokenizedDocuments:
    """Consecutive documents, none of them empty.

    ids: all tokens; lengths: tokens of each sentence, int64 [sentences]; sizes: sentences of each document, int64
    [documents]; hashes: uint64 [documents].
    """

    ids: NDArray[np.integer]
    lengths: Integers
    sizes: Integers
    hashes: NDArray[np.uint64]

    def select(self, is_selected: NDArray[np.bool_]) -> TokenizedDocuments:
        """Return some of the documents; is_selected: bool [documents]."""
        if is_selected.all():
            return self
        selected_sentences = np.repeat(is_selected, self.sizes)
        return TokenizedDocuments(
            self.ids[np.repeat(selected_sentences, self.lengths)],
            self.lengths[selected_sentences],
            self.sizes[is_selected],
            self.hashes[is_selected],
        )

    def count(self) -> UnitCounts:
        """Count the documents, sentences and tokens."""
        first_sentence = np.cumsum(self.sizes) - self.sizes
        unpaired_tokens = int(self.lengths[first_sentence[self.sizes == 1]].sum())
        return UnitCounts(self.sizes.size, self.lengths.size, self.ids.size, unpaired_tokens)

    def split(self) -> list[TokenizedDocuments]:
        """Return the documents one by one."""
        sentence_ends = np.cumsum(self.sizes)
        token_ends = np.cumsum(self.lengths)[sentence_ends - 1]
        ids = np.split(self.ids, token_ends[:-1])
        lengths = np.split(self.lengths, sentence_ends[:-1])
        return [
            TokenizedDocuments(ids[n], lengths[n], self.sizes[n : n + 1], self.hashes[n : n + 1])
            for n in range(self.sizes.size)
        ]


class ShardWriter:
    """Writer of the shards `PREFIX-00`, `PREFIX-01`, … and of all documents' hashes to `PREFIX.hashes`.

    A shard has at most `max_tokens` tokens unless it consists of one longer document. Hashes are little-endian uint64.
    Only the offsets of the current shard are held in memory. Call `close` at the end.
    """

    def __init__(self, directory: Path, prefix: str, dtype: str, max_tokens: int = MAX_SHARD_TOKENS) -> None:
        self.directory = directory
        self.prefix = prefix
        self.max_tokens = max_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.shards: list[ShardRecord] = []
        self._name = ""
        self.totals = UnitCounts()
        self._ids: IO[bytes] | None = None
        self._hashes: IO[bytes] | None = None
        self._sentences = [np.zeros(1, "<u4")]
        self._documents = [np.zeros(1, "<u4")]

    def add(self, documents: TokenizedDocuments) -> None:
        """Append documents."""
        is_too_large = int(self._sentences[-1][-1]) + documents.ids.size > self.max_tokens
        if documents.sizes.size == 0:
            return
        if documents.sizes.size > 1 and is_too_large:
            for document in documents.split():
                self.add(document)
            return
        if self._ids is None or is_too_large:
            self._close_shard()
            self._name = f"{self.prefix}-{len(self.shards):02d}"
            self._ids = (self.directory / f"{self._name}.ids").open("wb")
            self._sentences = [np.zeros(1, "<u4")]
            self._documents = [np.zeros(1, "<u4")]
        if self._hashes is None:
            self._hashes = (self.directory / f"{self.prefix}.hashes").open("wb")
        self._ids.write(documents.ids.astype(self.dtype).tobytes())
        self._hashes.write(documents.hashes.astype("<u8").tobytes())
        self._sentences.append((self._sentences[-1][-1] + np.cumsum(documents.lengths)).astype("<u4"))
        self._documents.append((self._documents[-1][-1] + np.cumsum(documents.sizes)).astype("<u4"))
        self.totals += documents.count()

    def _close_shard(self) -> None:
        if self._ids is None:
            return
        self._ids.close()
        self._ids = None
        sentences = np.concatenate(self._sentences)
        documents = np.concatenate(self._documents)
        (self.directory / f"{self._name}.sentences").write_bytes(sentences.tobytes())
        (self.directory / f"{self._name}.documents").write_bytes(documents.tobytes())
        self.shards.append(ShardRecord(self._name, documents=documents.size - 1, tokens=int(sentences[-1])))

    def close(self) -> None:
        """Write the last shard's offsets and close the files."""
        self._close_shard()
        if self._hashes is not None:
            self._hashes.close()
            self._hashes = None


class GroupWriter:
    """Writer of the shards of every group in one staged directory, and of the train groups' token counts."""

    def __init__(self, staging: Path, vocab_size: int, max_tokens: int) -> None:
        self._staging = staging
        self._vocab_size = vocab_size
        self._writers = {group: ShardWriter(staging, group, id_type(vocab_size), max_tokens) for group in GROUPS}
        self._token_counts: dict[Group, Integers] = {}

    def close(self) -> None:
        """Close the shards of all groups."""
        for writer in self._writers.values():
            writer.close()

    def add(self, group_of_document: Integers, documents: TokenizedDocuments) -> None:
        """Append documents to their groups, indices of `GROUPS` int64 [documents]; negative ones are dropped."""
        for number in np.unique(group_of_document[group_of_document >= 0]).tolist():
            selected = documents.select(group_of_document == number)
            group = GROUPS[number]
            self._writers[group].add(selected)
            if number != HELDOUT:  # held-out text is small and counted when the build is merged
                counts = self._token_counts.setdefault(group, np.zeros(self._vocab_size, np.int64))
                counts += np.bincount(selected.ids, minlength=self._vocab_size)

    def finish(self) -> tuple[dict[Group, UnitCounts], dict[Group, list[ShardRecord]]]:
        """Close the shards, write the token counts, and return the totals and the shards by group."""
        self.close()
        for group, counts in self._token_counts.items():
            dtype = "<u4" if counts.max(initial=0) < 2**32 else "<u8"
            (self._staging / f"{group}.counts").write_bytes(counts.astype(dtype).tobytes())
        totals = {group: writer.totals for group, writer in self._writers.items()}
        shards = {group: writer.shards for group, writer in self._writers.items()}
        return totals, shards
