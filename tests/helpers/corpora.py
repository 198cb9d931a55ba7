"""Corpora in memory, one of them with ids that show their position, and a vocabulary for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import cast

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import Ids
from albert_cli.data.batches import PackedBatch
from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.words import WordBoundaries, WordRule

FIRST_ORDINARY = 5


def FakeVocabulary(**changes: object) -> Vocabulary:
    """Return an object with the attributes of a vocabulary that sampling a batch needs; `changes` set attributes."""
    return cast(Vocabulary, _Facts(**changes))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Facts:
    size: int = 30_000
    unk_id: int = 1
    cls_id: int = 2
    sep_id: int = 3
    mask_id: int = 4
    first_ordinary_id: int = FIRST_ORDINARY
    pieces: Sequence[str] = ()
    word_suffix: str = ""

    @property
    def text_pieces(self) -> list[str]:
        return ["" if index < self.first_ordinary_id else piece for index, piece in enumerate(self.pieces)]

    @property
    def ordinary_ids(self) -> NDArray[np.int32]:
        return np.arange(self.first_ordinary_id, self.size, dtype=np.int32)

    is_word_start: NDArray[np.bool_] = field(default_factory=lambda: word_starts(30_000))
    boundaries: Mapping[WordRule, WordBoundaries] = field(default_factory=dict)

    def word_boundaries(self, rule: WordRule = "script") -> WordBoundaries:
        """Return the boundaries of this rule; without any, words begin at the tokens of `is_word_start`."""
        nothing = np.zeros_like(self.is_word_start)
        return self.boundaries.get(rule, WordBoundaries(self.is_word_start, nothing, nothing))


def word_starts(size: int, fraction: float = 0.7) -> NDArray[np.bool_]:
    """Return for each id whether it begins a word, bool [size]: all special tokens and a random fraction do."""
    starts: NDArray[np.bool_] = np.random.default_rng(3).random(size) < fraction
    starts[:FIRST_ORDINARY] = True
    return starts


def numbered_corpus(shards: Sequence[Sequence[Sequence[int]]]) -> TokenCorpus:
    """Return a corpus with these sentence lengths, by shard and document.

    The id at position p, counted over all shards, is p + 5, so that an id shows where it comes from.
    """
    corpus_shards = []
    position = FIRST_ORDINARY
    for documents in shards:
        lengths = [n for document in documents for n in document]
        sentences = np.cumsum([0, *lengths]).astype(np.uint32)
        ids = np.arange(position, position + int(sentences[-1]), dtype=np.uint32)
        position += ids.size
        corpus_shards.append(Shard(ids, sentences, np.cumsum([0, *map(len, documents)]).astype(np.uint32)))
    return TokenCorpus(corpus_shards)


def text_like_corpus(documents: int = 300, shards: int = 1, size: int = 30_000, seed: int = 0) -> TokenCorpus:
    """Return a corpus of random ids, in sentences of about 25 tokens and documents of about 20 sentences."""
    rng = np.random.default_rng(seed)
    corpus_shards = []
    for _ in range(shards):
        bounds = np.cumsum([0, *np.maximum(2, rng.geometric(1 / 20, documents // shards))]).astype(np.uint32)
        sentences = np.cumsum([0, *np.maximum(1, rng.poisson(25, int(bounds[-1])))]).astype(np.uint32)
        ids = rng.integers(FIRST_ORDINARY, size, int(sentences[-1])).astype(np.uint16)
        corpus_shards.append(Shard(ids, sentences, bounds))
    return TokenCorpus(corpus_shards)


def document_of(corpus: TokenCorpus, position: int) -> int:
    """Return the number of the document at a position; both are counted over all shards."""
    shard = int(np.searchsorted(corpus.token_starts, position, "right")) - 1
    local = position - int(corpus.token_starts[shard])
    sentence = int(np.searchsorted(corpus.shards[shard].sentence_offsets, local, "right")) - 1
    document = int(np.searchsorted(corpus.shards[shard].document_offsets, sentence, "right")) - 1
    return int(corpus.document_starts[shard]) + document


def concatenate_batches(batches: Sequence[PackedBatch]) -> PackedBatch:
    """Join batches into one, in order."""
    sizes = np.cumsum([0, *(b.ids.size for b in batches)])
    shifted = [(b.offsets[1:] + n, b.masked_index + n) for b, n in zip(batches, sizes[:-1].tolist(), strict=True)]

    def join(parts: Sequence[Ids]) -> Ids:
        return np.concatenate(parts).astype(np.int32)

    return PackedBatch(
        join([b.ids for b in batches]),
        join([b.segment_ids for b in batches]),
        join([b.position_ids for b in batches]),
        join([np.zeros(1, np.int32), *(offsets for offsets, _ in shifted)]),
        join([index for _, index in shifted]),
        join([b.masked_labels for b in batches]),
        join([b.order_labels for b in batches]),
    )


def assert_equal_batches(first: PackedBatch, second: PackedBatch) -> None:
    """Check that two batches have the same arrays, all of int32."""
    for entry in fields(PackedBatch):
        left = getattr(first, entry.name)
        right = getattr(second, entry.name)
        assert left.dtype == right.dtype == np.int32, entry.name
        assert np.array_equal(left, right), entry.name
