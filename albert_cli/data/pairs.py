"""Segment pairs with sentence-order labels, drawn while training (§3.1).

An example is a function of (seed, index). A pass over the corpus cuts it into strides of one sequence, visits them in
random order, and shifts all of them by a random phase, so that no two passes cut at the same places and every token of
a longer document is covered equally often. A document shorter than a sequence is drawn in proportion to its length
("by-length", the default), or has a stride to itself ("once": at most one is drawn twice, where the last stride
overlaps the first).

Memory does not grow with the corpus, except that "once" keeps a number for every 64 documents: the order is a keyed
permutation, and sentences and documents are found by bisection in the shards' offsets, which stay on the disk.

Where this departs from the released data generator on purpose:
- the target length is drawn for every sequence, not for every document;
- a sequence that meets the end of its document grows backwards, so it is full wherever the document is long enough;
- a chunk is never a single sentence where its document has two; from a document of one sentence comes one segment
  without a label, where the generator adds a random document and labels it as swapped;
- what is cut from the front of an overlong segment is uniform between nothing and everything that has to go, where the
  generator tosses a coin for each token;
- the other document of next-sentence pairs is always another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from albert_cli.config import NonNegativeInt, PositiveFraction, PositiveInt
from albert_cli.data.arrays import truncated_lengths
from albert_cli.data.shards import Shard, TokenCorpus, locate
from albert_cli.randomness import Integers, Stream, bounded_ints, hash_keys, permute, uniform

SPECIALS = 3  # [CLS] A [SEP] B [SEP]


@dataclass(frozen=True)
class PairSettings:
    """How sequences are cut and masked; the defaults are the paper's (§4.1).

    short_documents: whether a pass draws a document shorter than a sequence in proportion to its length, or once.
    max_predictions caps the masked positions of a sequence (0: no cap; the released generator's default is 20).
    sentence_loss: whether the order of two segments is asked for ("sop"), whether the second follows at all ("nsp"),
    both in one question of three answers ("three-way"), or nothing.
    """

    max_seq_length: Annotated[int, Ge(SPECIALS + 2)] = 512
    short_sequence_probability: Annotated[float, Ge(0), Le(1)] = 0.1
    sentence_loss: Literal["sop", "nsp", "none", "three-way"] = "sop"
    masked_lm_probability: PositiveFraction = 0.15
    max_predictions: NonNegativeInt = 0
    ngram: PositiveInt = 3
    favor_shorter_ngram: bool = True
    whole_word: bool = True
    short_documents: Literal["by-length", "once"] = "by-length"


@dataclass(frozen=True)
class SegmentPairs:
    """Two runs of global token positions for each example, in the order in which they are shown.

    a_start, a_stop, b_start, b_stop: int64 [B]; B is empty (b_start = b_stop) in a sequence of one segment.
    order_labels: int8 [B]; 0 = in order, 1 = swapped ("sop", "three-way") or from another document ("nsp"), 2 = from
    another document ("three-way"), -1 = none.
    """

    a_start: Integers
    a_stop: Integers
    b_start: Integers
    b_stop: Integers
    order_labels: NDArray[np.int8]


def examples_per_pass(corpus: TokenCorpus, settings: PairSettings) -> int:
    """How many examples visit every token of a corpus about once, or each of its short documents once."""
    return max(1, -(-_axis_length(corpus, settings) // (settings.max_seq_length - SPECIALS)))


def _axis_length(corpus: TokenCorpus, settings: PairSettings) -> int:
    """The length of the axis that a pass cuts into strides."""
    is_by_length = settings.short_documents == "by-length"
    return corpus.tokens if is_by_length else int(corpus.stretched_axis(settings.max_seq_length - SPECIALS)[-1])


def sample_pairs(corpus: TokenCorpus, index: Integers, settings: PairSettings, seed: int) -> SegmentPairs:
    """Draw the segment pairs of the examples `index`, int64 [B], at most `max_seq_length - 3` tokens each."""
    longest = settings.max_seq_length - SPECIALS
    anchor = _sample_anchors(corpus, settings, index, seed)
    # Tokens that are asked for: all that fit, or for `short_sequence_probability` of the examples fewer, from 2 up.
    short = uniform(hash_keys(seed, Stream.SHORT, index)) < settings.short_sequence_probability
    target = np.where(short, 2 + bounded_ints(hash_keys(seed, Stream.TARGET, index), longest - 1), longest)
    toss = hash_keys(seed, Stream.BOUNDARY, index)
    a_start, b_start, b_stop, home = (np.empty(index.size, np.int64) for _ in range(4))
    for rows, shard, start, document in corpus.group_by_shard(anchor, corpus.starts):
        *cuts, own = _choose_boundaries(shard, anchor[rows] - start, target[rows], toss[rows])
        a_start[rows], b_start[rows], b_stop[rows] = (cut + start for cut in cuts)
        home[rows] = own + document
    a_stop = b_start.copy()

    paired = b_stop > b_start
    key, several = hash_keys(seed, Stream.SWAP, index), corpus.documents > 1
    coin = (key >> np.uint64(63)).astype(bool) & paired
    swapped = away = unlabelled = np.zeros_like(coin)
    labelled, label = paired, coin.astype(np.int64)
    match settings.sentence_loss:
        case "sop":
            swapped = coin
        case "nsp" if several:
            away = coin
        case "three-way":
            label = (key % np.uint64(3 if several else 2)).astype(np.int64)
            swapped, away = paired & (label == 1), paired & (label == 2)
        case _:  # nothing is asked, or of a single document, where every pair is in order
            labelled = unlabelled
    if away.any():
        rows = np.flatnonzero(away)
        wanted = np.maximum(target - (a_stop - a_start), 1)[rows]
        b_start[rows], b_stop[rows] = _sample_other_document(corpus, home[rows], wanted, index[rows], seed)
    a_start, b_start = np.where(swapped, b_start, a_start), np.where(swapped, a_start, b_start)
    a_stop, b_stop = np.where(swapped, b_stop, a_stop), np.where(swapped, a_stop, b_stop)
    a_length, b_length = truncated_lengths(a_stop - a_start, b_stop - b_start, longest)
    a_start, a_stop = _truncate_segment(a_start, a_stop, a_length, seed, Stream.CUT_A, index)
    b_start, b_stop = _truncate_segment(b_start, b_stop, b_length, seed, Stream.CUT_B, index)
    labels = np.where(labelled, label, -1).astype(np.int8)
    return SegmentPairs(a_start, a_stop, b_start, b_stop, labels)


def _sample_anchors(corpus: TokenCorpus, settings: PairSettings, index: Integers, seed: int) -> Integers:
    """A token that each example must start at (the sentence that holds it): global positions [B]."""
    stride, places = settings.max_seq_length - SPECIALS, _axis_length(corpus, settings)
    turn, number = np.divmod(index, size := examples_per_pass(corpus, settings))
    slot = permute(number, size, hash_keys(seed, Stream.ORDER, turn))
    place = (slot * stride + bounded_ints(hash_keys(seed, Stream.PHASE, turn), places)) % places
    return place if settings.short_documents == "by-length" else corpus.token_at(place, stride)


def _choose_boundaries(
    shard: Shard, anchor: Integers, target: Integers, toss: NDArray[np.uint64]
) -> tuple[Integers, Integers, Integers, Integers]:
    """Whole sentences around each anchor, until `target`: local positions of their start, inner boundary and end, and
    the number of their document.

    In a document of sentences of 5, 7, 4 and 6 tokens, with the anchor in the third and a target of 12: forwards
    there are 4 + 6 = 10, too few, so the example begins at the second sentence instead, which gives 17.
    """
    sentences, documents = shard.sentences, shard.documents
    first = locate(sentences, anchor, "right") - 1
    document = locate(documents, first, "right") - 1
    begin, end = documents[document].astype(np.int64), documents[document + 1].astype(np.int64)
    forward_end = locate(sentences, sentences[first].astype(np.int64) + target, "left")
    last = np.minimum(np.maximum(forward_end, first + 2), end)
    # Where the document ended too early: the latest start that still gives `target`; else a no-op.
    backward_start = locate(sentences, sentences[last].astype(np.int64) - target, "right") - 1
    first = np.maximum(np.minimum(first, np.minimum(backward_start, last - 2)), begin)
    boundary = np.minimum(first + 1 + bounded_ints(toss, np.maximum(last - first - 1, 1)), last)
    start, inner, stop = sentences[np.stack([first, boundary, last])].astype(np.int64)
    return start, inner, stop, document


def _sample_other_document(
    corpus: TokenCorpus, home: Integers, wanted: Integers, index: Integers, seed: int
) -> tuple[Integers, Integers]:
    """Text of about `wanted` tokens from a random sentence on, in a random document other than number `home`."""
    other = bounded_ints(hash_keys(seed, Stream.OTHER_DOCUMENT, index), corpus.documents - 1)
    other += other >= home
    toss = hash_keys(seed, Stream.OTHER_SENTENCE, index)
    start, stop = np.empty_like(home), np.empty_like(home)
    for rows, shard, base, document in corpus.group_by_shard(other, corpus.document_starts):
        begin, end = shard.documents[other[rows] - document + [[0], [1]]].astype(np.int64)
        first = begin + bounded_ints(toss[rows], end - begin)
        enough = locate(shard.sentences, shard.sentences[first].astype(np.int64) + wanted[rows], "left")
        start[rows] = shard.sentences[first].astype(np.int64) + base
        stop[rows] = shard.sentences[np.minimum(enough, end)].astype(np.int64) + base
    return start, stop


def _truncate_segment(
    start: Integers, stop: Integers, length: Integers, seed: int, stream: Stream, index: Integers
) -> tuple[Integers, Integers]:
    """Bring segments down to `length`: a random part of what is too much is cut at the front, the rest at the back."""
    front = bounded_ints(hash_keys(seed, stream, index), stop - start - length + 1)
    return start + front, start + front + length
