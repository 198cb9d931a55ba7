"""Write tokenized documents to token shards (see `data.shards`) in one pass, with separate shards for each group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.records import GROUPS, Group, ShardRecord, TextCounts
from albert_cli.data.shards import id_type
from albert_cli.randomness import Integers

# Indices of `GROUPS`. `weight` is the weight of a document's source in a pass over the training text.
TRAIN: Final = 0  # a pass uses each document floor(weight) times
TRAIN_MORE: Final = 1  # a pass uses each document floor(weight) + 1 times
HELDOUT: Final = 2  # only for evaluation
DROPPED: Final = -1  # in no group: a duplicate, or a document that a pass uses 0 times because of a weight below 1


@dataclass(frozen=True)
class TokenizedDocuments:
    """Consecutive documents, none of them empty.

    ids: the tokens of all documents, [tokens]; sentence_lengths: tokens of each sentence, int64 [sentences];
    document_sizes: sentences of each document, int64 [documents]; hashes: of the documents' texts, uint64 [documents].
    """

    ids: NDArray[np.integer]
    sentence_lengths: Integers
    document_sizes: Integers
    hashes: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.document_sizes.size

    def select(self, is_selected: NDArray[np.bool_]) -> TokenizedDocuments:
        """Return the documents whose element of `is_selected`, bool [documents], is True."""
        if is_selected.all():
            return self
        is_selected_sentence = np.repeat(is_selected, self.document_sizes)
        is_selected_token = np.repeat(is_selected_sentence, self.sentence_lengths)
        return TokenizedDocuments(
            self.ids[is_selected_token],
            self.sentence_lengths[is_selected_sentence],
            self.document_sizes[is_selected],
            self.hashes[is_selected],
        )

    def count(self) -> TextCounts:
        """Count the documents, sentences and tokens."""
        first_sentence = np.cumsum(self.document_sizes) - self.document_sizes
        # A document of one sentence gives no pair for sentence order prediction.
        lone_sentence_indices = first_sentence[self.document_sizes == 1]
        unpaired_tokens = int(self.sentence_lengths[lone_sentence_indices].sum())
        return TextCounts(len(self), self.sentence_lengths.size, self.ids.size, unpaired_tokens)

    def split(self) -> list[TokenizedDocuments]:
        """Split the documents into one `TokenizedDocuments` for each."""
        document_ends = np.cumsum(self.document_sizes)
        token_ends = np.cumsum(self.sentence_lengths)[document_ends - 1]
        ids = np.split(self.ids, token_ends[:-1])
        sentence_lengths = np.split(self.sentence_lengths, document_ends[:-1])
        return [
            TokenizedDocuments(ids[n], sentence_lengths[n], self.document_sizes[n : n + 1], self.hashes[n : n + 1])
            for n in range(len(self))
        ]


class ShardWriter:
    """Writer of the shards `PREFIX-00`, `PREFIX-01`, … and of the documents' hashes, `PREFIX.hashes`.

    A shard has at most `max_tokens` tokens unless it consists of one longer document. `add` writes ids and hashes
    (little-endian uint64) immediately. The offsets of the current shard stay in memory until the next shard begins or
    `close` is called.
    """

    def __init__(self, directory: Path, prefix: str, dtype: str, max_tokens: int) -> None:
        self.directory = directory
        self.prefix = prefix
        self.max_tokens = max_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.shards: list[ShardRecord] = []  # finished shards
        self.totals = TextCounts()
        self._hashes: IO[bytes] | None = None
        # The current shard. Sentence offsets count tokens, document offsets count sentences. Both begin with 0, and
        # each call of `add` appends an array. So the last offsets are the shard's totals.
        self._name = ""
        self._ids: IO[bytes] | None = None
        self._sentence_offsets = [np.zeros(1, "<u4")]
        self._document_offsets = [np.zeros(1, "<u4")]

    def add(self, documents: TokenizedDocuments) -> None:
        """Append documents to the current shard, or to new shards if they do not fit."""
        if len(documents) == 0:
            return
        n_tokens = int(self._sentence_offsets[-1][-1])
        n_sentences = int(self._document_offsets[-1][-1])
        is_too_large = n_tokens + documents.ids.size > self.max_tokens
        if is_too_large and len(documents) > 1:
            # One by one, the documents fill the current shard; one that no longer fits begins a new shard.
            for document in documents.split():
                self.add(document)
            return
        if self._ids is None or is_too_large:
            self._close_shard()
            self._name = f"{self.prefix}-{len(self.shards):02d}"
            self._ids = (self.directory / f"{self._name}.ids").open("wb")
            self._sentence_offsets = [np.zeros(1, "<u4")]
            self._document_offsets = [np.zeros(1, "<u4")]
            n_tokens = 0
            n_sentences = 0
        if self._hashes is None:
            self._hashes = (self.directory / f"{self.prefix}.hashes").open("wb")
        self._ids.write(documents.ids.astype(self.dtype).tobytes())
        self._hashes.write(documents.hashes.astype("<u8").tobytes())
        self._sentence_offsets.append((n_tokens + np.cumsum(documents.sentence_lengths)).astype("<u4"))
        self._document_offsets.append((n_sentences + np.cumsum(documents.document_sizes)).astype("<u4"))
        self.totals += documents.count()

    def _close_shard(self) -> None:
        """Write the offsets of the current shard, if there is one, and record its size."""
        if self._ids is None:
            return
        self._ids.close()
        self._ids = None
        sentence_offsets = np.concatenate(self._sentence_offsets)
        document_offsets = np.concatenate(self._document_offsets)
        (self.directory / f"{self._name}.sentences").write_bytes(sentence_offsets.tobytes())
        (self.directory / f"{self._name}.documents").write_bytes(document_offsets.tobytes())
        n_documents = document_offsets.size - 1
        self.shards.append(ShardRecord(self._name, documents=n_documents, tokens=int(sentence_offsets[-1])))

    def close(self) -> None:
        """Write the last shard's offsets and close the files."""
        self._close_shard()
        if self._hashes is not None:
            self._hashes.close()
            self._hashes = None


class GroupWriter:
    """Writer of the shards of all groups into one directory, and of the token counts of the train groups.

    `GROUP.counts` lists how often each token of the vocabulary occurs in a group: little-endian uint32, or uint64 if a
    count needs it. Call `finish` at the end, or `close` after an error.
    """

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
        """Append documents to their groups.

        group_of_document: an index of `GROUPS` for each document, or DROPPED for none, int64 [documents].
        """
        for number in np.unique(group_of_document[group_of_document != DROPPED]).tolist():
            selected = documents.select(group_of_document == number)
            group = GROUPS[number]
            self._writers[group].add(selected)
            if number != HELDOUT:  # the held-out text is small, and `data.merge` counts its tokens
                counts = self._token_counts.setdefault(group, np.zeros(self._vocab_size, np.int64))
                counts += np.bincount(selected.ids, minlength=self._vocab_size)

    def finish(self) -> tuple[dict[Group, TextCounts], dict[Group, list[ShardRecord]]]:
        """Close the shards, write the token counts, and return the totals and the shards by group."""
        self.close()
        for group, counts in self._token_counts.items():
            dtype = "<u4" if counts.max(initial=0) < 2**32 else "<u8"
            (self._staging / f"{group}.counts").write_bytes(counts.astype(dtype).tobytes())
        totals = {group: writer.totals for group, writer in self._writers.items()}
        shards = {group: writer.shards for group, writer in self._writers.items()}
        return totals, shards
