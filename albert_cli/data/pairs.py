"""Sample segment pairs with sentence-order labels during training (§3.1).

An example is a function of the seed and of the example's index. A pass divides the whole corpus, across documents, into
strides, and visits them in random order. A stride has as many tokens as a sequence without its special tokens. In each
stride one token is the anchor of an example: the example consists of the anchor's sentence and of neighboring
sentences. A random bit for each example decides whether the following or the preceding ones are added first. A random
phase shifts the anchors of each pass, so the inner tokens of a long document are covered equally often. Tokens less
than one sequence length from the document's ends are covered 0.5 to 1.5 times as often. A document shorter than a
sequence is sampled in proportion to its length.

Memory does not grow with the corpus: the order of the strides is a permutation that is computed from the seed, and
bisection finds sentences and documents in the shards' offsets, which stay on disk.

Intended differences from the released data generator (`create_pretraining_data.py`):
- the target length is sampled for every sequence, not for every document;
- a sequence is full if its document is long enough; the generator's last sequence of a document is short;
- a document of one sentence gives one segment without a label; the generator adds a segment of a random document and
  labels the pair as swapped;
- the number of tokens removed from the front of an overlong segment is uniform; the generator tosses a coin per token;
- the other document of a next-sentence pair is never the first document, nor a copy that a source weight made of it;
- the other document is sampled in proportion to its length, and its segment is about as long as the segment that it
  replaces. The generator samples all documents with equal probability and fills the sequence; the pair's length would
  then often reveal the label.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Annotated, Final, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from albert_cli.config import NonNegativeInt, PositiveFraction, PositiveInt
from albert_cli.data.arrays import Flags, Ids, offsets_from_lengths, truncated_lengths
from albert_cli.data.shards import OffsetsOfShards, TokenCorpus
from albert_cli.randomness import HashKeys, Integers, Stream, bounded_ints, hash_keys, permute, uniform
from albert_cli.text.words import WordRule

SPECIALS = 3  # number of special tokens in [CLS] A [SEP] B [SEP]
Codes: TypeAlias = NDArray[np.int8]  # the relation, or the order label, of each example
SentenceLoss: TypeAlias = Literal["sop", "nsp", "none", "three-way"]

# Relations of segment B to segment A; the sentence loss "three-way" uses these numbers as labels.
IN_ORDER: Final = 0
SWAPPED: Final = 1
OTHER_DOCUMENT: Final = 2
# The order label of an example whose relation the model does not predict.
NO_LABEL: Final = -1

# A batch keeps these many shards open in addition to those of `MappedShards`, so a higher number needs more open files.
_SHARDS_AT_A_TIME: Final = 32


@dataclass(frozen=True)
class PairSettings:
    """Rules for sampling and masking sequences; the defaults are the paper's (§4.1).

    * `max_seq_length`: number of positions, special tokens included.
    * `short_sequence_probability`: probability that a sequence has a random shorter length.
    * `sentence_loss`: "sop" predicts the order of two segments, "nsp" predicts if the second is from another document,
      "three-way" predicts both with one label, "none" predicts nothing.
    * `masked_lm_probability`: fraction of the positions to predict.
    * `max_predictions`: maximum number of positions to predict in a sequence, 0 for no maximum (the released
      generator's default is 20).
    * `ngram`: maximum number of words in a masked span.
    * `favor_shorter_ngram`: sample n with p(n) proportional to 1/n, else with these probabilities in reverse order.
    * `whole_word`: mask whole words, else single tokens.
    * `word_rule`: the rule that decides which tokens begin a word, see `text.words`; "reference" reproduces the
      released generator.
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
    """One segment for each of B examples: its global token positions [start, stop)."""

    start: Integers  # int64 [B]
    stop: Integers  # int64 [B]

    @property
    def length(self) -> Integers:
        """Number of tokens, int64 [B]."""
        return self.stop - self.start


@dataclass(frozen=True)
class SegmentPairs:
    """Two segments for each of B examples, in the order in which the model reads them.

    b: empty (start = stop) in a sequence of one segment. order_labels: int8 [B]; 0 = in order, 1 = swapped ("sop",
    "three-way") or from another document ("nsp"), 2 = from another document ("three-way"), -1 = no label.
    """

    a: Segments
    b: Segments
    order_labels: Codes

    def packed_lengths(self) -> tuple[Integers, Integers]:
        """Return the number of positions of "[CLS] A [SEP]" and of "B [SEP]" (0 if B is empty): int64 [B] each."""
        return self.a.length + 2, self.b.length + (self.b.length > 0)


@dataclass(frozen=True)
class PackedSequences:
    """N sequences, one after the other: [CLS] A [SEP] B [SEP], or [CLS] A [SEP] if B is empty; T positions in total.

    ids, segment_ids: int32 [T]; is_special: bool [T], True for [CLS] and [SEP]; offsets: the position at which each
    sequence begins, and last T, int64 [N + 1].
    """

    ids: Ids
    segment_ids: Ids
    is_special: Flags
    offsets: Integers


@dataclass(frozen=True)
class Chunks:
    """Consecutive sentences of one document for each of B examples, divided into two parts at a sentence boundary.

    start, boundary, stop: global token positions, int64 [B]; the parts are [start, boundary) and [boundary, stop), and
    the second part is empty in a document of one sentence. document: the document's global number, int64 [B].
    """

    start: Integers
    boundary: Integers
    stop: Integers
    document: Integers


def examples_per_pass(corpus: TokenCorpus, settings: PairSettings) -> int:
    """Return the number of examples that visit every token of a corpus about once."""
    stride = settings.max_seq_length - SPECIALS
    return max(1, -(-corpus.n_tokens // stride))


def sample_pairs(corpus: TokenCorpus, index: Integers, settings: PairSettings, seed: int) -> SegmentPairs:
    """Sample the segment pair of each example in `index`, int64 [B]; a pair has at most `max_seq_length - 3` tokens."""
    target = _sample_target_lengths(index, settings, seed)
    anchor = _sample_anchors(corpus, index, settings, seed)
    chunks = choose_chunks(corpus, anchor, target, hash_keys(seed, Stream.CHUNK, index))
    has_two_segments = chunks.stop > chunks.boundary
    relation, order_labels = choose_relation(
        hash_keys(seed, Stream.SWAP, index), has_two_segments, settings.sentence_loss, corpus.n_distinct_documents > 1
    )
    a, b = apply_relation(corpus, chunks, relation, index, seed)
    length_a, length_b = truncated_lengths(a.length, b.length, settings.max_seq_length - SPECIALS)
    a = _truncate_segments(a, length_a, hash_keys(seed, Stream.CUT_A, index))
    b = _truncate_segments(b, length_b, hash_keys(seed, Stream.CUT_B, index))
    return SegmentPairs(a, b, order_labels)


def _sample_target_lengths(index: Integers, settings: PairSettings, seed: int) -> Integers:
    """Sample the target number of tokens of each example, int64 [B].

    A target is the maximum or, with `short_sequence_probability`, uniform between 2 and the maximum.
    """
    longest = settings.max_seq_length - SPECIALS
    is_short = uniform(hash_keys(seed, Stream.SHORT, index)) < settings.short_sequence_probability
    short_length = 2 + bounded_ints(hash_keys(seed, Stream.TARGET, index), longest - 1)
    return np.where(is_short, short_length, longest)


def _sample_anchors(corpus: TokenCorpus, index: Integers, settings: PairSettings, seed: int) -> Integers:
    """Sample each example's anchor, a token whose sentence the example includes: global positions, int64 [B]."""
    stride = settings.max_seq_length - SPECIALS
    n_strides = examples_per_pass(corpus, settings)
    pass_number, number_in_pass = np.divmod(index, n_strides)
    stride_number = permute(number_in_pass, n_strides, hash_keys(seed, Stream.ORDER, pass_number))
    phase = bounded_ints(hash_keys(seed, Stream.PHASE, pass_number), corpus.n_tokens)
    return (stride_number * stride + phase) % corpus.n_tokens


def choose_chunks(
    corpus: TokenCorpus, anchor: Integers, target: Integers, bits: HashKeys, least_sentences: int = 2
) -> Chunks:
    """Choose whole sentences of about `target` tokens around each anchor, and the boundary between their two parts.

    anchor: global token positions, int64 [B]; target: numbers of tokens, int64 [B]; bits: random, for directions and
    boundaries, uint64 [B]; least_sentences: number of sentences that a chunk has at least, if its document has them.
    """
    start = np.empty_like(anchor)
    boundary = np.empty_like(anchor)
    stop = np.empty_like(anchor)
    document = np.empty_like(anchor)
    groups = corpus.group_by_shard(anchor, corpus.token_starts)
    while several := list(islice(groups, _SHARDS_AT_A_TIME)):
        rows_of_shards, shards, first_tokens, first_documents = zip(*several, strict=True)
        rows = np.concatenate(rows_of_shards)
        counts = [len(shard_rows) for shard_rows in rows_of_shards]
        first_token = np.repeat(first_tokens, counts)
        first_document = np.repeat(first_documents, counts)
        ends = list(accumulate(counts))
        sentences = OffsetsOfShards([shard.sentence_offsets for shard in shards], ends)
        documents = OffsetsOfShards([shard.document_offsets for shard in shards], ends)
        local_anchor = anchor[rows] - first_token
        chunks = _choose_local_chunks(sentences, documents, local_anchor, target[rows], bits[rows], least_sentences)
        start[rows] = chunks.start + first_token
        boundary[rows] = chunks.boundary + first_token
        stop[rows] = chunks.stop + first_token
        document[rows] = chunks.document + first_document
    return Chunks(start, boundary, stop, document)


def _choose_local_chunks(
    offsets: OffsetsOfShards,
    document_offsets: OffsetsOfShards,
    anchor: Integers,
    target: Integers,
    bits: HashKeys,
    least_sentences: int,
) -> Chunks:
    """Choose the chunks like `choose_chunks`; positions and documents count from the start of the anchor's shard.

    offsets, document_offsets: the sentence offsets and the document offsets of the anchors' shards.

    Half of the chunks add sentences forwards from the anchor's sentence, and backwards if the document ends too early;
    the other half add them backwards, and forwards if the document begins too late. If all grew forwards, hardly any
    chunk would contain the first sentences of a long document.

    Example: a document has sentences of 5, 7, 4 and 6 tokens, the anchor is in the third one, and the target is 12.
    Forwards, there are only 4 + 6 = 10 tokens, so the chunk begins with the second sentence and has 17. Backwards, the
    chunk is the second and the third sentence, and has 11 tokens: it grows to the first one, and has 16.
    """
    anchor_sentence = offsets.locate(anchor, "right") - 1
    document = document_offsets.locate(anchor_sentence, "right") - 1
    # The document's sentences are [document_first, document_end).
    document_first = document_offsets[document]
    document_end = document_offsets[document + 1]

    def grow_forwards(first: Integers, end: Integers) -> Integers:
        """Add sentences after [first, end) until there are enough tokens and sentences; return the new end."""
        enough_tokens = offsets.locate(offsets[first] + target, "left")
        return np.minimum(np.maximum.reduce([end, enough_tokens, first + least_sentences]), document_end)

    def grow_backwards(first: Integers, end: Integers) -> Integers:
        """Add sentences before [first, end) under the same conditions; return the new first sentence."""
        enough_tokens = offsets.locate(offsets[end] - target, "right") - 1
        return np.maximum(np.minimum.reduce([first, enough_tokens, end - least_sentences]), document_first)

    # One random number decides the direction (by its highest bit) and, below, the boundary (by its remainder), because
    # the remainder is almost independent of the highest bit.
    is_forward = (bits >> np.uint64(63)) == 0
    end_sentence = np.where(is_forward, grow_forwards(anchor_sentence, anchor_sentence + 1), anchor_sentence + 1)
    first_sentence = grow_backwards(anchor_sentence, end_sentence)
    end_sentence = grow_forwards(first_sentence, end_sentence)

    n_inner_boundaries = end_sentence - first_sentence - 1
    boundary_sentence = first_sentence + 1 + bounded_ints(bits, np.maximum(n_inner_boundaries, 1))
    boundary_sentence = np.minimum(boundary_sentence, end_sentence)  # a single sentence has no inner boundary
    return Chunks(offsets[first_sentence], offsets[boundary_sentence], offsets[end_sentence], document)


def choose_relation(
    bits: HashKeys, has_two_segments: Flags, sentence_loss: SentenceLoss, has_other_documents: bool
) -> tuple[Codes, Codes]:
    """Choose the relation and the order label of each example, int8 [B] each.

    An example of one segment has the relation IN_ORDER and no label. bits: random, uint64 [B]; has_two_segments: bool
    [B]; has_other_documents: True if the corpus has several distinct documents.
    """
    coin = (bits >> np.uint64(63)).astype(np.int8)  # the highest bit: 0 or 1 with equal probability
    if sentence_loss == "sop":
        relation = coin * np.int8(SWAPPED)
        label = coin
    elif sentence_loss == "nsp" and has_other_documents:
        relation = coin * np.int8(OTHER_DOCUMENT)
        label = coin
    elif sentence_loss == "three-way":
        n_relations = 3 if has_other_documents else 2
        relation = (bits % np.uint64(n_relations)).astype(np.int8)
        label = relation
    else:  # "none", or "nsp" on a single document
        relation = np.full_like(coin, IN_ORDER)
        label = np.full_like(coin, NO_LABEL)
    relation = np.where(has_two_segments, relation, np.int8(IN_ORDER))
    label = np.where(has_two_segments, label, np.int8(NO_LABEL))
    return relation, label


def apply_relation(
    corpus: TokenCorpus, chunks: Chunks, relation: Codes, index: Integers, seed: int
) -> tuple[Segments, Segments]:
    """Return segments A and B of each example, before truncation.

    The segments are the two parts of the example's chunk in order, or swapped, or the first part and text of another
    document.
    """
    first = Segments(chunks.start, chunks.boundary)
    second = Segments(chunks.boundary.copy(), chunks.stop.copy())  # copies, which are changed below
    rows = np.flatnonzero(relation == OTHER_DOCUMENT)
    if rows.size:
        other = _sample_other_document(corpus, chunks.document[rows], second.length[rows], index[rows], seed)
        second.start[rows] = other.start
        second.stop[rows] = other.stop
    is_swapped = relation == SWAPPED
    a = Segments(np.where(is_swapped, second.start, first.start), np.where(is_swapped, second.stop, first.stop))
    b = Segments(np.where(is_swapped, first.start, second.start), np.where(is_swapped, first.stop, second.stop))
    return a, b


def _sample_other_document(
    corpus: TokenCorpus, document: Integers, target: Integers, index: Integers, seed: int
) -> Segments:
    """Sample whole sentences of about `target` tokens around a random token outside of `document` and its copies.

    A shorter document gives fewer tokens. document: global number of the document to avoid; target: number of tokens;
    index: the example; int64 [B] each.
    """
    local_start = np.empty_like(document)  # the first token of `document`, counted from its shard's start
    length = np.empty_like(document)
    for rows, shard, _, first_document in corpus.group_by_shard(document, corpus.document_starts):
        local_document = document[rows] - first_document
        first_and_end = shard.document_offsets[np.stack([local_document, local_document + 1])]
        start, stop = shard.sentence_offsets[first_and_end].astype(np.int64)
        local_start[rows] = start
        length[rows] = stop - start
    shard_index = np.searchsorted(corpus.document_starts, document, "right") - 1
    copies = corpus.copies[shard_index]
    anchor = bounded_ints(hash_keys(seed, Stream.OTHER_ANCHOR, index), corpus.n_tokens - copies * length)
    for number in range(int(copies.max())):
        # Skip the copies in ascending order: an anchor at or after the start of a copy moves up by the copy's length.
        # Rows with fewer copies stay unchanged (`number < copies`).
        copy_shard = corpus.first_copies[shard_index] + np.minimum(number, copies - 1)
        is_after = (number < copies) & (anchor >= corpus.token_starts[copy_shard] + local_start)
        anchor += is_after * length
    chunks = choose_chunks(corpus, anchor, target, hash_keys(seed, Stream.OTHER_CHUNK, index), least_sentences=1)
    return Segments(chunks.start, chunks.stop)


def _truncate_segments(segments: Segments, length: Integers, bits: HashKeys) -> Segments:
    """Truncate each segment to `length` tokens, int64 [B].

    A uniformly random number of the excess tokens is removed at the front, and the rest at the back. bits: random,
    uint64 [B].
    """
    removed_at_front = bounded_ints(bits, segments.length - length + 1)
    start = segments.start + removed_at_front
    return Segments(start, start + length)


def pack_sequences(corpus: TokenCorpus, pairs: SegmentPairs, cls_id: int, sep_id: int) -> PackedSequences:
    """Read the tokens of the pairs and concatenate the sequences, with special tokens and without padding."""
    packed_a, packed_b = pairs.packed_lengths()
    offsets = offsets_from_lengths(packed_a + packed_b)
    sequence_starts = offsets[:-1]
    is_special = np.zeros(int(offsets[-1]), bool)
    is_special[sequence_starts] = True
    is_special[sequence_starts + packed_a - 1] = True
    is_special[offsets[1:] - 1] = True
    # In these arrays the segments A and B of each example alternate, as they do in the sequences.
    starts = np.stack([pairs.a.start, pairs.b.start], axis=1).ravel()
    lengths = np.stack([pairs.a.length, pairs.b.length], axis=1).ravel()
    packed_lengths = np.stack([packed_a, packed_b], axis=1).ravel()
    ids = np.full(is_special.size, sep_id, np.int32)
    ids[sequence_starts] = cls_id
    ids[~is_special] = corpus.read_ranges(starts, lengths)
    segment_ids = np.repeat(np.tile(np.array([0, 1], np.int32), packed_a.size), packed_lengths)
    return PackedSequences(ids, segment_ids, is_special, offsets)
