"""Sample segment pairs with sentence-order labels during training (§3.1).

An example is a function of (seed, index). A pass over the corpus cuts it into strides of one sequence and visits them
in random order. A random phase shifts the strides, so no two passes cut at the same positions and every token of a
longer document is covered equally often. A document shorter than a sequence is sampled in proportion to its length.

Memory does not grow with the corpus: the order is a keyed permutation, and sentences and documents are located by
bisection in the shards' offsets, which stay on disk.

Intended differences from the released data generator:
- the target length is sampled for every sequence, not for every document;
- a sequence that meets the end of its document grows backwards, so it is full if the document is long enough;
- a chunk is a single sentence only if its document has one. Such a document gives one segment without a label; the
  generator adds a random document and labels the pair as swapped;
- the number of tokens cut from the front of an overlong segment is uniform; the generator tosses a coin per token;
- the other document of a next-sentence pair always differs from the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from albert_cli.config import NonNegativeInt, PositiveFraction, PositiveInt
from albert_cli.data.arrays import Flags, Ids, offsets_from_lengths, truncated_lengths
from albert_cli.data.shards import Shard, TokenCorpus, locate
from albert_cli.randomness import HashKeys, Integers, Stream, bounded_ints, hash_keys, permute, uniform
from albert_cli.text.words import WordRule

SPECIALS = 3  # [CLS] A [SEP] B [SEP]
Codes: TypeAlias = NDArray[np.int8]
SentenceLoss: TypeAlias = Literal["sop", "nsp", "none", "three-way"]

# Relations of segment B to segment A; "three-way" uses them as labels.
IN_ORDER: Final = 0
SWAPPED: Final = 1
OTHER_DOCUMENT: Final = 2
NO_LABEL: Final = -1


@dataclass(frozen=True)
class PairSettings:
    """Rules for cutting and masking sequences; the defaults are the paper's (§4.1).

    max_predictions: cap on the masked positions of a sequence; 0 means no cap, the released generator's default is 20.
    sentence_loss: "sop" predicts the order of two segments, "nsp" if the second is from another document, "three-way"
    both in one question, "none" nothing.
    word_rule: where words begin, see `text.words`; "reference" reproduces the released generator.
    """

    max_seq_length: Annotated[int, Ge(SPECIALS + 2)] = 512
    short_sequence_probability: Annotated[float, Ge(0), Le(1)] = 0.1
    sentence_loss: SentenceLoss = "sop"
    masked_lm_probability: PositiveFraction = 0.15
    max_predictions: NonNegativeInt = 0
    ngram: PositiveInt = 3
    favor_shorter_ngram: bool = True
    whole_word: bool = True
    word_rule: WordRule = "script"


@dataclass(frozen=True)
class Segments:
    """Runs of global token positions [start, stop), int64 [B] each."""

    start: Integers
    stop: Integers

    @property
    def length(self) -> Integers:
        """Number of tokens, int64 [B]."""
        return self.stop - self.start


@dataclass(frozen=True)
class SegmentPairs:
    """Two segments for each of B examples, in the order in which the model reads them.

    b is empty (start = stop) in a sequence of one segment. order_labels: int8 [B]; 0 = in order, 1 = swapped ("sop",
    "three-way") or from another document ("nsp"), 2 = from another document ("three-way"), -1 = no label.
    """

    a: Segments
    b: Segments
    order_labels: Codes


@dataclass(frozen=True)
class PackedSequences:
    """N sequences of T positions in all: [CLS] A [SEP] B [SEP], or [CLS] A [SEP] if B is empty.

    ids, segment_ids: int32 [T]; is_special: bool [T], the positions of [CLS] and [SEP]; offsets: int64 [N + 1].
    """

    ids: Ids
    segment_ids: Ids
    is_special: Flags
    offsets: Integers


@dataclass(frozen=True)
class Chunks:
    """Consecutive sentences of one document, divided in two: global positions and the document's number, int64 [B]."""

    start: Integers
    boundary: Integers
    stop: Integers
    document: Integers


def examples_per_pass(corpus: TokenCorpus, settings: PairSettings) -> int:
    """Return the number of examples that visit every token of a corpus about once."""
    stride = settings.max_seq_length - SPECIALS
    return max(1, -(-corpus.tokens // stride))


def sample_pairs(corpus: TokenCorpus, index: Integers, settings: PairSettings, seed: int) -> SegmentPairs:
    """Sample the segment pairs of the examples `index`, int64 [B], at most `max_seq_length - 3` tokens each."""
    target = _sample_target_lengths(index, settings, seed)
    anchor = _sample_anchors(corpus, index, settings, seed)
    chunks = choose_boundaries(corpus, anchor, target, hash_keys(seed, Stream.BOUNDARY, index))
    has_two_segments = chunks.stop > chunks.boundary
    relation, order_labels = choose_relation(
        hash_keys(seed, Stream.SWAP, index), has_two_segments, settings.sentence_loss, corpus.documents > 1
    )
    a, b = apply_relation(corpus, chunks, relation, target, index, seed)
    length_a, length_b = truncated_lengths(a.length, b.length, settings.max_seq_length - SPECIALS)
    a = _truncate_segments(a, length_a, hash_keys(seed, Stream.CUT_A, index))
    b = _truncate_segments(b, length_b, hash_keys(seed, Stream.CUT_B, index))
    return SegmentPairs(a, b, order_labels)


def _sample_target_lengths(index: Integers, settings: PairSettings, seed: int) -> Integers:
    """Sample the tokens requested for each example: the maximum, or with some probability fewer, but at least 2."""
    longest = settings.max_seq_length - SPECIALS
    is_short = uniform(hash_keys(seed, Stream.SHORT, index)) < settings.short_sequence_probability
    short_length = 2 + bounded_ints(hash_keys(seed, Stream.TARGET, index), longest - 1)
    return np.where(is_short, short_length, longest)


def _sample_anchors(corpus: TokenCorpus, index: Integers, settings: PairSettings, seed: int) -> Integers:
    """Sample an anchor token for each example, whose sentence the example includes: global positions, int64 [B]."""
    stride = settings.max_seq_length - SPECIALS
    size = examples_per_pass(corpus, settings)
    pass_number, number = np.divmod(index, size)
    slot = permute(number, size, hash_keys(seed, Stream.ORDER, pass_number))
    phase = bounded_ints(hash_keys(seed, Stream.PHASE, pass_number), corpus.tokens)
    return (slot * stride + phase) % corpus.tokens


def choose_boundaries(corpus: TokenCorpus, anchor: Integers, target: Integers, random: HashKeys) -> Chunks:
    """Choose whole sentences around each anchor, about `target` tokens, and the boundary between two segments."""
    start = np.empty_like(anchor)
    boundary = np.empty_like(anchor)
    stop = np.empty_like(anchor)
    document = np.empty_like(anchor)
    for rows, shard, first_token, first_document in corpus.group_by_shard(anchor, corpus.starts):
        chunks = _choose_local_boundaries(shard, anchor[rows] - first_token, target[rows], random[rows])
        start[rows] = chunks.start + first_token
        boundary[rows] = chunks.boundary + first_token
        stop[rows] = chunks.stop + first_token
        document[rows] = chunks.document + first_document
    return Chunks(start, boundary, stop, document)


def _choose_local_boundaries(shard: Shard, anchor: Integers, target: Integers, random: HashKeys) -> Chunks:
    """Choose the sentences and the boundary within one shard; positions and documents count from the shard's start.

    Example: a document of sentences of 5, 7, 4 and 6 tokens, the anchor in the third, a target of 12. Forwards there
    are only 4 + 6 = 10 tokens, so the chunk begins at the second sentence and has 17.
    """
    sentences = shard.sentences
    anchor_sentence = locate(sentences, anchor, "right") - 1
    document = locate(shard.documents, anchor_sentence, "right") - 1
    document_begin = shard.documents[document].astype(np.int64)
    document_end = shard.documents[document + 1].astype(np.int64)

    # Forwards from the anchor's sentence until `target`, at least two sentences, within the document.
    end = locate(sentences, sentences[anchor_sentence].astype(np.int64) + target, "left")
    end = np.minimum(np.maximum(end, anchor_sentence + 2), document_end)

    # If the document ended too early: backwards, to the latest begin that still reaches `target`.
    latest_begin = locate(sentences, sentences[end].astype(np.int64) - target, "right") - 1
    begin = np.minimum(anchor_sentence, np.minimum(latest_begin, end - 2))
    begin = np.maximum(begin, document_begin)

    inner = begin + 1 + bounded_ints(random, np.maximum(end - begin - 1, 1))
    inner = np.minimum(inner, end)  # a single sentence has no inner boundary
    start, boundary, stop = sentences[np.stack([begin, inner, end])].astype(np.int64)
    return Chunks(start, boundary, stop, document)


def choose_relation(
    random: HashKeys, has_two_segments: Flags, sentence_loss: SentenceLoss, has_other_documents: bool
) -> tuple[Codes, Codes]:
    """Choose each pair's relation and order label, int8 [B] each; one segment is in order and has no label."""
    coin = (random >> np.uint64(63)).astype(np.int8)
    if sentence_loss == "sop":
        relation = coin * np.int8(SWAPPED)
        label = coin
    elif sentence_loss == "nsp" and has_other_documents:
        relation = coin * np.int8(OTHER_DOCUMENT)
        label = coin
    elif sentence_loss == "three-way":
        relation = (random % np.uint64(3 if has_other_documents else 2)).astype(np.int8)
        label = relation
    else:  # no question, or "nsp" on a single document, where every pair is in order
        relation = np.full_like(coin, IN_ORDER)
        label = np.full_like(coin, NO_LABEL)
    relation = np.where(has_two_segments, relation, np.int8(IN_ORDER))
    label = np.where(has_two_segments, label, np.int8(NO_LABEL))
    return relation, label


def apply_relation(
    corpus: TokenCorpus, chunks: Chunks, relation: Codes, target: Integers, index: Integers, seed: int
) -> tuple[Segments, Segments]:
    """Return segments A and B: the chunk's two parts, swapped, or the second replaced by another document's text."""
    first = Segments(chunks.start, chunks.boundary)
    second = Segments(chunks.boundary, chunks.stop)
    rows = np.flatnonzero(relation == OTHER_DOCUMENT)
    if rows.size:
        missing = np.maximum(target - first.length, 1)
        other = _sample_other_document(corpus, chunks.document[rows], missing[rows], index[rows], seed)
        second = Segments(second.start.copy(), second.stop.copy())
        second.start[rows] = other.start
        second.stop[rows] = other.stop
    is_swapped = relation == SWAPPED
    a = Segments(np.where(is_swapped, second.start, first.start), np.where(is_swapped, second.stop, first.stop))
    b = Segments(np.where(is_swapped, first.start, second.start), np.where(is_swapped, first.stop, second.stop))
    return a, b


def _sample_other_document(
    corpus: TokenCorpus, document: Integers, target: Integers, index: Integers, seed: int
) -> Segments:
    """Sample about `target` tokens that begin at a random sentence of a random document other than `document`."""
    other = bounded_ints(hash_keys(seed, Stream.OTHER_DOCUMENT, index), corpus.documents - 1)
    other += other >= document
    random = hash_keys(seed, Stream.OTHER_SENTENCE, index)
    start = np.empty_like(document)
    stop = np.empty_like(document)
    for rows, shard, first_token, first_document in corpus.group_by_shard(other, corpus.document_starts):
        local = other[rows] - first_document
        begin = shard.documents[local].astype(np.int64)
        end = shard.documents[local + 1].astype(np.int64)
        first = begin + bounded_ints(random[rows], end - begin)
        first_position = shard.sentences[first].astype(np.int64)
        last = np.minimum(locate(shard.sentences, first_position + target[rows], "left"), end)
        start[rows] = first_position + first_token
        stop[rows] = shard.sentences[last].astype(np.int64) + first_token
    return Segments(start, stop)


def _truncate_segments(segments: Segments, length: Integers, random: HashKeys) -> Segments:
    """Truncate to `length`: cut a uniformly random part of the excess at the front and the rest at the back."""
    front = bounded_ints(random, segments.length - length + 1)
    start = segments.start + front
    return Segments(start, start + length)


def pack_sequences(corpus: TokenCorpus, pairs: SegmentPairs, cls_id: int, sep_id: int) -> PackedSequences:
    """Read the tokens of the pairs and lay them out one sequence after the other, with special tokens."""
    starts = np.stack([pairs.a.start, pairs.b.start], axis=1).ravel()
    lengths = np.stack([pairs.a.length, pairs.b.length], axis=1).ravel()
    packed_a = pairs.a.length + 2  # with [CLS] and [SEP]
    packed_b = pairs.b.length + (pairs.b.length > 0)
    offsets = offsets_from_lengths(packed_a + packed_b)
    is_special = np.zeros(int(offsets[-1]), bool)
    is_special[offsets[:-1]] = True
    is_special[offsets[:-1] + packed_a - 1] = True
    is_special[offsets[1:] - 1] = True
    ids = np.full(is_special.size, sep_id, np.int32)
    ids[offsets[:-1]] = cls_id
    ids[~is_special] = corpus.read_ranges(starts, lengths)
    segment_of_part = np.tile(np.array([0, 1], np.int32), packed_a.size)
    segment_ids = np.repeat(segment_of_part, np.stack([packed_a, packed_b], axis=1).ravel())
    return PackedSequences(ids, segment_ids, is_special, offsets)
