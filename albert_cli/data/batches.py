"""Packed training batches: a pure function of (seed, indices) over a corpus.

`PretrainRecipe.examples_of` says which examples a step takes; a rank or a micro-batch draws a part of these indices and
gets the same examples as whoever draws them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from albert_cli.data.arrays import Flags, Ids, offsets_from_lengths
from albert_cli.data.masking import mask_batch
from albert_cli.data.pairs import PairSettings, SegmentPairs, sample_pairs
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import InputError
from albert_cli.randomness import Integers
from albert_cli.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class PackedBatch:
    """N sequences of T positions in all, one after the other, without padding.

    ids, segment_ids, position_ids: int32 [T], positions from 0 in every sequence; offsets: int32 [N + 1].
    masked_index: int32 [M], packed positions to predict, ascending; masked_labels: int32 [M], the tokens that were
    there; order_labels: int32 [N], see `data.pairs.Pairs`.
    """

    ids: Ids
    segment_ids: Ids
    position_ids: Ids
    offsets: Ids
    masked_index: Ids
    masked_labels: Ids
    order_labels: Ids


def sample_batch(
    corpus: TokenCorpus, vocabulary: Vocabulary, settings: PairSettings, seed: int, index: Integers
) -> PackedBatch:
    """Draw and mask the examples `index`, int64 [N]; each depends on nothing but (seed, its index).

    Raises `InputError` when the corpus has no tokens.
    """
    if corpus.tokens == 0:
        raise InputError("no text to draw examples from", "make the data with another --holdout, or from more text")
    pairs = sample_pairs(corpus, index, settings, seed)
    ids, special, segment_ids, offsets = pack_pairs(corpus, pairs, vocabulary.cls_id, vocabulary.sep_id)
    changed, masked_index, masked_labels = mask_batch(ids, special, offsets, vocabulary, settings, seed, index)
    positions = np.arange(ids.size, dtype=np.int32) - np.repeat(offsets[:-1].astype(np.int32), np.diff(offsets))
    return PackedBatch(
        changed,
        segment_ids,
        positions,
        offsets.astype(np.int32),
        masked_index,
        masked_labels,
        pairs.order_labels.astype(np.int32),
    )


def sample_lengths(corpus: TokenCorpus, settings: PairSettings, seed: int, index: Integers) -> Integers:
    """How many tokens, special ones included, each of the examples `index` will have: int64 [N]."""
    pairs = sample_pairs(corpus, index, settings, seed)
    first, second = pairs.a_stop - pairs.a_start, pairs.b_stop - pairs.b_start
    return first + 2 + second + (second > 0)


def pack_pairs(corpus: TokenCorpus, pairs: SegmentPairs, cls_id: int, sep_id: int) -> tuple[Ids, Flags, Ids, Integers]:
    """Lay pairs out as [CLS] A [SEP] B [SEP], or [CLS] A [SEP]: ids int32 [T], special bool [T] (where
    [CLS] and [SEP] stand), segment ids int32 [T], offsets int64 [N + 1].
    """  # fmt: skip
    starts = np.stack([pairs.a_start, pairs.b_start], axis=1).ravel()
    sizes = np.stack([pairs.a_stop, pairs.b_stop], axis=1).ravel() - starts
    first, second = sizes[::2] + 2, sizes[1::2] + (sizes[1::2] > 0)  # with their special tokens
    offsets = offsets_from_lengths(first + second)
    special = np.zeros(int(offsets[-1]), bool)
    ids = np.full(special.size, sep_id, np.int32)
    special[offsets[:-1]] = special[offsets[:-1] + first - 1] = special[offsets[1:] - 1] = True
    ids[offsets[:-1]] = cls_id
    ids[~special] = corpus.take(starts, sizes)
    segment = np.tile(np.array([0, 1], np.int32), first.size)
    return ids, special, np.repeat(segment, np.stack([first, second], axis=1).ravel()), offsets


def original_ids(packed: PackedBatch) -> Ids:
    """The ids before masking: int32 [T]."""
    ids = packed.ids.copy()
    ids[packed.masked_index] = packed.masked_labels
    return ids
