"""Encoded examples, the order in which training and evaluation batch them, and the assembly of batches.

`Features` is the interface; `PairFeatures` holds texts and pairs of texts. Other kinds of task define their features
next to their data: `token_features.TokenFeatures` and `squad.windows.SpanFeatures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import concatenate_ranges, offsets_from_lengths
from albert_cli.data.batches import PackedBatch
from albert_cli.randomness import epoch_order
from albert_cli.text.vocabulary import Vocabulary

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class Features(ABC):
    """N encoded items (examples, or windows of examples) of `sequences_per_item` sequences each.

    `truncated` counts the examples that were longer than the limit.
    """

    truncated: int
    sequences_per_item: int = 1

    @property
    @abstractmethod
    def lengths(self) -> Int64:
        """The number of tokens of each item's longest sequence, int64 [N]."""

    @abstractmethod
    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        """Pack the items at `index` [B] in this order; return them with their labels, None if those are hidden.

        A subclass defines the shape of the labels.
        """

    def __len__(self) -> int:
        return len(self.lengths)

    def batch_index(self, seed: int, step: int, batch_size: int) -> Int64:
        """Return the items of a training step (counted from 0), int64 [batch_size], as a function of seed and step.

        Every epoch is a permutation of all items. A batch at the end of an epoch is filled up from the next epoch.
        """
        size = len(self)
        epochs, positions = np.divmod(step * batch_size + np.arange(batch_size, dtype=np.int64), size)
        index = np.empty(batch_size, dtype=np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            in_epoch = epochs == epoch
            index[in_epoch] = epoch_order(size, seed, epoch)[positions[in_epoch]]
        return index

    def eval_batches(self, max_tokens: int) -> Iterator[Int64]:
        """Yield the indices of batches that cover every item once, in the order of falling length.

        A batch padded to its longest item has at most `max_tokens` tokens, unless it is a single item. The first batch
        needs the most memory.
        """
        padded_lengths = self.lengths * self.sequences_per_item
        order = np.argsort(-padded_lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = int(padded_lengths[order[start]])
            size = max(1, max_tokens // longest)
            yield order[start : start + size]
            start += size


class SlidingWindows(NamedTuple):
    """W windows of N sequences, all int64 [W].

    `sequence` is the index of a window's sequence, `number` counts the windows of this sequence from 0, `start` and
    `length` are the window's range of the sequence's tokens.
    """

    sequence: Int64
    number: Int64
    start: Int64
    length: Int64


def slide_windows(lengths: Int64, size: Int64 | int, step: Int64 | int) -> SlidingWindows:
    """Cover sequences of these lengths [N] with windows of at most `size` tokens that begin `step` tokens apart.

    `size` and `step` are numbers or int64 [N]. A sequence of at most `size` tokens, even of none, is a single window.
    """
    sizes = np.broadcast_to(size, lengths.shape)
    steps = np.broadcast_to(step, lengths.shape)
    beyond_first = np.maximum(0, lengths - sizes)  # tokens after the first window
    counts = 1 + (beyond_first + steps - 1) // steps  # the division rounds up
    sequence = np.repeat(np.arange(len(lengths)), counts)
    number = concatenate_ranges(np.zeros_like(counts), counts)
    start = number * steps[sequence]
    return SlidingWindows(sequence, number, start, np.minimum(lengths[sequence] - start, sizes[sequence]))


class TokenSlices(NamedTuple):
    """Slices of an array of token ids, one for each of S texts: first index and length, int64 [S]."""

    start: Int64
    length: Int64

    def select(self, index: Int64) -> TokenSlices:
        """Return the slices at `index`."""
        return TokenSlices(self.start[index], self.length[index])


def tokenize(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Int32, TokenSlices]:
    """Tokenize each distinct text once; return the tokens of the distinct texts, and the slice of each of `texts`."""
    index_by_text = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    encoded = vocabulary.encode_batch(list(index_by_text))
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
    index = np.fromiter((index_by_text[text] for text in texts), dtype=np.int64, count=len(texts))
    return ids, TokenSlices(offsets_from_lengths(lengths), lengths).select(index)


@dataclass(frozen=True)
class PairFeatures(Features):
    """N examples of `sequences_per_item` sequences `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    * `ids` int32 holds the tokens of all texts, each once; `batch` assembles the sequences from them.
    * `first` and `second` are the slices of texts A and B in `ids`, for all S = N * `sequences_per_item` sequences.
    * `is_pair` bool [S] is true for a sequence with a text B.
    * `labels` are int64 or float32 [N], or float32 [N, classes]; None if they are hidden.
    * `option_counts` int64 [N] is the number of options of each multiple-choice question, whose further sequences are
      padding; None if there is no padding.
    """

    ids: Int32
    first: TokenSlices
    second: TokenSlices
    is_pair: NDArray[np.bool_]
    labels: NDArray[Any] | None
    truncated: int
    cls_id: int
    sep_id: int
    sequences_per_item: int = 1
    option_counts: Int64 | None = None

    @property
    def lengths(self) -> Int64:
        sequence_lengths = _pair_lengths(self.first, self.second, self.is_pair)
        return np.asarray(sequence_lengths.reshape(-1, self.sequences_per_item).max(axis=1, initial=0))

    @property
    def gold(self) -> NDArray[Any]:
        """The labels; only for a split that has labels."""
        assert self.labels is not None, "only labeled splits are scored"
        return self.labels

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        """Pack the examples at `index` [B]; return them with their labels, None if those are hidden.

        With `option_counts` the labels are int64 [B, 2]: the correct option, and the number of options.
        """
        sequences = (index[:, None] * self.sequences_per_item + np.arange(self.sequences_per_item)).ravel()
        first = (self.ids, self.first.select(sequences))
        second = (self.ids, self.second.select(sequences))
        packed = pack_pairs(first, second, self.is_pair[sequences], self.cls_id, self.sep_id)
        if self.labels is None:
            return packed, None
        if self.option_counts is None:
            return packed, self.labels[index]
        return packed, np.stack([self.labels[index], self.option_counts[index]], axis=1)


def _pair_lengths(first: TokenSlices, second: TokenSlices, is_pair: NDArray[np.bool_]) -> Int64:
    """Return the tokens of each sequence: both texts, [CLS], [SEP], and a second [SEP] in pairs."""
    return first.length + second.length + 2 + is_pair


def pack_pairs(
    first: tuple[Int32, TokenSlices],
    second: tuple[Int32, TokenSlices],
    is_pair: NDArray[np.bool_],
    cls_id: int,
    sep_id: int,
) -> PackedBatch:
    """Pack sequences `[CLS] A [SEP]` of segment 0, followed in pairs by `B [SEP]` of segment 1.

    `first` is (ids, slices) of the texts A, `second` of the texts B. The batch has no masked tokens and no order
    labels. Positions count from 0 in every sequence.
    """
    ids_a, slices_a = first
    ids_b, slices_b = second
    lengths = _pair_lengths(slices_a, slices_b, is_pair)
    offsets = offsets_from_lengths(lengths)
    starts = offsets[:-1]
    starts_b = starts + 2 + slices_a.length  # after [CLS] A [SEP]
    ids = np.full(int(offsets[-1]), sep_id, dtype=np.int32)  # the positions that are not overwritten below are [SEP]
    ids[starts] = cls_id
    ids[concatenate_ranges(starts + 1, slices_a.length)] = ids_a[concatenate_ranges(slices_a.start, slices_a.length)]
    ids[concatenate_ranges(starts_b, slices_b.length)] = ids_b[concatenate_ranges(slices_b.start, slices_b.length)]
    segment_ids = np.zeros_like(ids)
    segment_ids[concatenate_ranges(starts_b, slices_b.length + is_pair)] = 1
    positions = concatenate_ranges(np.zeros_like(lengths), lengths).astype(np.int32)
    none = np.empty(0, dtype=np.int32)
    return PackedBatch(
        ids,
        segment_ids,
        positions,
        offsets.astype(np.int32),
        masked_index=none,
        masked_labels=none,
        order_labels=none,
    )
