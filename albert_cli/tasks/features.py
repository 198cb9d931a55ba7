"""Examples as token ids, and the order in which training and evaluation batch them."""

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
    """N encoded items (examples, or windows of examples) of `group` sequences each.

    `truncated` counts the examples that were longer than the limit.
    """

    truncated: int
    group: int = 1

    @property
    @abstractmethod
    def lengths(self) -> Int64:
        """Tokens of each item's longest sequence, int64 [N]."""

    @abstractmethod
    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        """Pack the items at `index` [B] in that order; return them with their labels (None if hidden).

        Labels are [B], or [B, 2] with the number of options of each item.
        """

    def __len__(self) -> int:
        return len(self.lengths)

    def batch_index(self, seed: int, step: int, batch_size: int) -> Int64:
        """Return the items of a training step (counted from 0), int64 [batch_size], as a function of (seed, step).

        Every epoch is a permutation of all items. A batch continues into the next epoch, so that none is short.
        """
        size = len(self)
        epochs, positions = np.divmod(step * batch_size + np.arange(batch_size, dtype=np.int64), size)
        index = np.empty(batch_size, dtype=np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            in_epoch = epochs == epoch
            index[in_epoch] = epoch_order(size, seed, epoch)[positions[in_epoch]]
        return index

    def eval_batches(self, max_tokens: int) -> Iterator[Int64]:
        """Yield index arrays that hold every item once, grouped by length, the longest first.

        A batch's size times its longest item is at most `max_tokens`, unless it is a single item. If memory runs out,
        it does so in the first batch.
        """
        lengths = self.lengths * self.group
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            size = max(1, max_tokens // int(lengths[order[start]]))
            yield order[start : start + size]
            start += size


class SlidingWindows(NamedTuple):
    """W windows of N sequences, all int64 [W].

    `number` counts the windows of a `sequence` from 0; `start` and `length` are the range of its tokens.
    """

    sequence: Int64
    number: Int64
    start: Int64
    length: Int64


def slide_windows(lengths: Int64, size: Int64 | int, step: Int64 | int) -> SlidingWindows:
    """Cover sequences of these lengths [N] with windows of at most `size` tokens that begin `step` tokens apart.

    `size` and `step` are numbers or int64 [N]. A sequence that fits, also an empty one, is a single window.
    """
    sizes = np.broadcast_to(size, lengths.shape)
    steps = np.broadcast_to(step, lengths.shape)
    counts = 1 + np.maximum(0, -(-(lengths - sizes) // steps))
    sequence = np.repeat(np.arange(len(lengths)), counts)
    number = concatenate_ranges(np.zeros_like(counts), counts)
    start = number * steps[sequence]
    return SlidingWindows(sequence, number, start, np.minimum(lengths[sequence] - start, sizes[sequence]))


class TokenSlices(NamedTuple):
    """Slices of an array of token ids, one for each of S sequences: first index and length, int64 [S]."""

    start: Int64
    length: Int64

    def select(self, index: Int64) -> TokenSlices:
        """Return the slices at `index`."""
        return TokenSlices(self.start[index], self.length[index])


def tokenize(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Int32, TokenSlices]:
    """Tokenize each distinct text once; return all tokens, and the slice of each of `texts`."""
    index_by_text = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    encoded = vocabulary.encode_batch(list(index_by_text))
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
    index = np.fromiter((index_by_text[text] for text in texts), dtype=np.int64, count=len(texts))
    return ids, TokenSlices(offsets_from_lengths(lengths), lengths).select(index)


@dataclass(frozen=True)
class PairFeatures(Features):
    """N examples of `group` sequences `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, assembled when a batch is sampled.

    `first` and `second` are slices of `ids` int32, one for each of S = N * group sequences. `is_pair` bool [S] is true
    for sequences with a second text. `labels` int64 or float32 [N] is None if they are hidden. `options` [N] is the
    number of sequences of each example without padding; None if no example has padding.
    """

    ids: Int32
    first: TokenSlices
    second: TokenSlices
    is_pair: NDArray[np.bool_]
    labels: NDArray[Any] | None
    truncated: int
    cls_id: int
    sep_id: int
    group: int = 1
    options: Int64 | None = None

    @property
    def lengths(self) -> Int64:
        sequences = self.first.length + self.second.length + 2 + self.is_pair
        return np.asarray(sequences.reshape(-1, self.group).max(axis=1, initial=0))

    @property
    def gold(self) -> NDArray[Any]:
        """Labels of a split that has them."""
        assert self.labels is not None, "only labeled splits are scored"
        return self.labels

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        rows = (index[:, None] * self.group + np.arange(self.group)).ravel()
        first = (self.ids, self.first.select(rows))
        second = (self.ids, self.second.select(rows))
        packed = pack_pairs(first, second, self.is_pair[rows], self.cls_id, self.sep_id)
        if self.labels is None:
            return packed, None
        if self.options is None:
            return packed, self.labels[index]
        return packed, np.stack([self.labels[index], self.options[index]], axis=1)


def pack_pairs(
    first: tuple[Int32, TokenSlices],
    second: tuple[Int32, TokenSlices],
    is_pair: NDArray[np.bool_],
    cls_id: int,
    sep_id: int,
) -> PackedBatch:
    """Pack sequences `[CLS] A [SEP]` of segment 0, followed in pairs by `B [SEP]` of segment 1.

    `first` is (ids, slices) of the texts A, `second` of the texts B. Nothing is masked, there are no order labels, and
    positions count from 0 in every sequence.
    """
    ids_a, slices_a = first
    ids_b, slices_b = second
    lengths = slices_a.length + slices_b.length + 2 + is_pair
    offsets = offsets_from_lengths(lengths)
    starts = offsets[:-1]
    starts_b = starts + 2 + slices_a.length
    ids = np.full(int(offsets[-1]), sep_id, dtype=np.int32)  # every position that is not overwritten is [SEP]
    ids[starts] = cls_id
    ids[concatenate_ranges(starts + 1, slices_a.length)] = ids_a[concatenate_ranges(slices_a.start, slices_a.length)]
    ids[concatenate_ranges(starts_b, slices_b.length)] = ids_b[concatenate_ranges(slices_b.start, slices_b.length)]
    segment_ids = np.zeros_like(ids)
    segment_ids[concatenate_ranges(starts_b, slices_b.length + is_pair)] = 1
    positions = concatenate_ranges(np.zeros_like(lengths), lengths).astype(np.int32)
    empty = np.empty(0, dtype=np.int32)
    return PackedBatch(ids, segment_ids, positions, offsets.astype(np.int32), empty, empty, empty)
