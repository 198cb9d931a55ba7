"""Sample packed training batches: a pure function of the corpus, the seed and the examples' indices.

`PretrainRecipe.examples_of` returns the indices of a step. A rank samples only some of them, and gets the same examples
as a process that samples all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from albert_cli.data.arrays import Ids
from albert_cli.data.masking import mask_spans, select_spans
from albert_cli.data.pairs import PairSettings, pack_sequences, sample_pairs
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import InputError
from albert_cli.randomness import Integers
from albert_cli.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class PackedBatch:
    """N sequences, one after the other without padding; together they have T positions.

    ids, segment_ids, position_ids: int32 [T], positions from 0 in every sequence; offsets: int32 [N + 1].
    masked_index: int32 [M], packed positions to predict, ascending; masked_labels: int32 [M], the original tokens;
    order_labels: int32 [N], 0 in order, 1 swapped, -1 none (`data.pairs.SegmentPairs` has all).
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
    """Sample and mask the examples whose indices are `index`, int64 [N]; each depends only on the seed and its index.

    Raises `InputError` if the corpus has no tokens.
    """
    if corpus.tokens == 0:
        raise InputError("the data has no tokens to sample from", "build it with another --holdout, or from more text")
    pairs = sample_pairs(corpus, index, settings, seed)
    sequences = pack_sequences(corpus, pairs, vocabulary.cls_id, vocabulary.sep_id)
    spans = select_spans(sequences, vocabulary, settings, seed, index)
    masked = mask_spans(sequences, spans, vocabulary, seed, index)
    starts = np.repeat(sequences.offsets[:-1], np.diff(sequences.offsets))
    return PackedBatch(
        ids=masked.ids,
        segment_ids=sequences.segment_ids,
        position_ids=(np.arange(sequences.ids.size) - starts).astype(np.int32),
        offsets=sequences.offsets.astype(np.int32),
        masked_index=masked.index,
        masked_labels=masked.labels,
        order_labels=pairs.order_labels.astype(np.int32),
    )


def sample_lengths(corpus: TokenCorpus, settings: PairSettings, seed: int, index: Integers) -> Integers:
    """Return the number of tokens of each example, special tokens included: int64 [N]."""
    pairs = sample_pairs(corpus, index, settings, seed)
    length_b = pairs.b.length
    return pairs.a.length + 2 + length_b + (length_b > 0)  # [CLS] A [SEP], or [CLS] A [SEP] B [SEP]


def original_ids(packed: PackedBatch) -> Ids:
    """Return the ids before masking: int32 [T]."""
    ids = packed.ids.copy()
    ids[packed.masked_index] = packed.masked_labels
    return ids
