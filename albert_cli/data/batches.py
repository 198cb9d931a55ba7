"""Sample packed training batches.

A batch is a pure function of the corpus, the settings, the seed and the indices of its examples.
`PretrainRecipe.batch_index` returns the indices of a training step. Ranks divide these indices among them, and an
example does not depend on the rank that samples it.
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

    ids: the masked input, segment_ids, position_ids (from 0 in every sequence): int32 [T].
    offsets: the packed position at which each sequence begins, and last T, int32 [N + 1].
    masked_index: packed positions to predict, ascending, int32 [M]; masked_labels: the original tokens, int32 [M].
    order_labels: int32 [N], for SOP 0 = in order, 1 = swapped, -1 = no label; `data.pairs.SegmentPairs` documents the
    labels of the other sentence losses.
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
    """Sample and mask the N examples with the indices `index`, int64 [N].

    Raises `InputError` if the corpus has no tokens.
    """
    if corpus.n_tokens == 0:
        origin = corpus.directory or "the corpus"
        raise InputError(
            f"{origin}: has no tokens to sample from", "build it with another --holdout, or from more text"
        )
    pairs = sample_pairs(corpus, index, settings, seed)
    sequences = pack_sequences(corpus, pairs, vocabulary.cls_id, vocabulary.sep_id)
    spans = select_spans(sequences, vocabulary, settings, seed, index)
    masked = mask_spans(sequences, spans, vocabulary, seed, index)
    # The start of the sequence that contains each position, int64 [T].
    sequence_start = np.repeat(sequences.offsets[:-1], np.diff(sequences.offsets))
    return PackedBatch(
        ids=masked.ids,
        segment_ids=sequences.segment_ids,
        position_ids=(np.arange(sequences.ids.size) - sequence_start).astype(np.int32),
        offsets=sequences.offsets.astype(np.int32),
        masked_index=masked.index,
        masked_labels=masked.labels,
        order_labels=pairs.order_labels.astype(np.int32),
    )


def sample_lengths(corpus: TokenCorpus, settings: PairSettings, seed: int, index: Integers) -> Integers:
    """Return the length of each example's sequence, special tokens included, without reading its tokens: int64 [N]."""
    packed_a, packed_b = sample_pairs(corpus, index, settings, seed).packed_lengths()
    return packed_a + packed_b


def original_ids(packed: PackedBatch) -> Ids:
    """Restore the ids of a batch as they were before masking: int32 [T]."""
    ids = packed.ids.copy()
    ids[packed.masked_index] = packed.masked_labels
    return ids
