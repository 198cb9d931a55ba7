"""Hold encoded examples, choose the examples of each batch, and pack them: concatenate them without padding.

`Features` is the interface that training and evaluation use. `PairFeatures` holds texts and pairs of texts. Other
features are `token_features.TokenFeatures` and `squad.windows.SpanFeatures`.
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

    `truncated` is the number of examples that lost tokens because they were too long.
    """

    truncated: int
    sequences_per_item: int = 1

    @property
    @abstractmethod
    def lengths(self) -> Int64:
        """The number of tokens of each item's longest sequence, int64 [N]."""

    @abstractmethod
    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        """Pack the items at `index` [B] in this order; return the batch and its labels, None if they are hidden.

        A subclass defines the shape of the labels.
        """

    def __len__(self) -> int:
        return len(self.lengths)

    def batch_index(self, seed: int, step: int, batch_size: int) -> Int64:
        """Return the indices of the items of a training step (from 0), int64 [batch_size].

        They are a function of the seed and the step. Every epoch is a permutation of all items; the batch at the end of
        an epoch takes its last items from the next epoch.
        """
        size = len(self)
        epochs, positions = np.divmod(step * batch_size + np.arange(batch_size, dtype=np.int64), size)
        index = np.empty(batch_size, dtype=np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            in_epoch = epochs == epoch
            index[in_epoch] = epoch_order(size, seed, epoch)[positions[in_epoch]]
        return index

    def eval_batches(self, max_tokens: int) -> Iterator[Int64]:
        """Yield the indices of batches that together have every item once, the longest items first.

        A batch of several items has at most `max_tokens` tokens, including the padding to its longest item that
        attention adds on a CPU. The first batch needs the most memory, so if memory is too small, evaluation fails at
        once.
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
    """W windows of N sequences; all fields are int64 [W].

    `sequence` is the index of a window's sequence. `start` and `length` are the range of tokens of the sequence in the
    window.
    """

    sequence: Int64
    start: Int64
    length: Int64


def slide_windows(lengths: Int64, size: Int64 | int, step: Int64 | int) -> SlidingWindows:
    """Cover sequences of these lengths [N] with windows of at most `size` tokens that begin `step` tokens apart.

    `size` and `step` are numbers or int64 [N]. A sequence of at most `size` tokens is a single window, even an empty
    sequence.
    """
    sizes = np.broadcast_to(size, lengths.shape)
    steps = np.broadcast_to(step, lengths.shape)
    beyond_first = np.maximum(0, lengths - sizes)  # tokens after the first window
    counts = 1 + (beyond_first + steps - 1) // steps  # the division rounds up
    sequence = np.repeat(np.arange(len(lengths)), counts)
    # The windows of each sequence are numbered from 0.
    window_number = concatenate_ranges(np.zeros_like(counts), counts)
    start = window_number * steps[sequence]
    return SlidingWindows(sequence, start, np.minimum(lengths[sequence] - start, sizes[sequence]))


class TokenSlices(NamedTuple):
    """Slices of an array of token ids, one for each of S texts: first indices and lengths, both int64 [S]."""

    start: Int64
    length: Int64

    def select(self, index: Int64) -> TokenSlices:
        """Return the slices at `index`."""
        return TokenSlices(self.start[index], self.length[index])


def tokenize(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Int32, TokenSlices]:
    """Tokenize each distinct text once; return the token ids of the distinct texts, and the slices of all texts."""
    index_by_text = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    encoded = vocabulary.encode_batch(list(index_by_text))
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
    index = np.fromiter((index_by_text[text] for text in texts), dtype=np.int64, count=len(texts))
    return ids, TokenSlices(offsets_from_lengths(lengths), lengths).select(index)


@dataclass(frozen=True)
class TokenizedTexts:
    """The tokens of N texts, and the characters from which they come.

    * `ids` int32 [P] are the ids of all P tokens.
    * `starts` and `ends` int32 [P]: each token has the characters [start, end) of its text.
    * `offsets` int64 [N + 1] are the index of each text's first token, and the end of the last text.
    """

    ids: Int32
    starts: Int32
    ends: Int32
    offsets: Int64

    @property
    def lengths(self) -> Int64:
        """The number of tokens of each text, int64 [N]."""
        return np.diff(self.offsets)

    def tokens_at(self, text: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """Return the first and the last token with characters of [start, end), for S spans of characters.

        `text` is the index of each span's text. Tokens are counted from the text's first token. All arguments and
        results are int64 [S]. If no token has any of the characters, the last token is before the first.
        """
        # Shift the positions in each text beyond those in the previous texts, so that one search finds all spans.
        stride = 1 + max(int(self.ends.max(initial=0)), int(end.max(initial=0)))
        shift = np.repeat(np.arange(len(self.lengths)) * stride, self.lengths)
        # The first token is the first that ends after `start`, the last token the last that begins before `end`.
        first = np.searchsorted(shift + self.ends, text * stride + start, side="right")
        last = np.searchsorted(shift + self.starts, text * stride + end, side="left") - 1
        first_of_text = self.offsets[:-1][text]
        return first - first_of_text, last - first_of_text


def tokenize_with_offsets(texts: Sequence[str], vocabulary: Vocabulary) -> TokenizedTexts:
    """Tokenize texts, with the characters from which each token comes."""
    encoded = list(vocabulary.encode_with_offsets(texts))
    lengths = np.array([len(tokens.ids) for tokens in encoded], dtype=np.int64)
    return TokenizedTexts(
        ids=_concatenate([tokens.ids for tokens in encoded]),
        starts=_concatenate([tokens.starts for tokens in encoded]),
        ends=_concatenate([tokens.ends for tokens in encoded]),
        offsets=offsets_from_lengths(lengths),
    )


def _concatenate(arrays: Sequence[Int32]) -> Int32:
    """Concatenate arrays; the result is empty if there are none."""
    return np.concatenate([np.empty(0, np.int32), *arrays]).astype(np.int32)


@dataclass(frozen=True)
class PairFeatures(Features):
    """N examples of `sequences_per_item` sequences `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    * `ids` int32 holds the tokens of all distinct texts, from which `batch` assembles sequences.
    * `first` and `second` are the slices of texts A and B in `ids`, for all S = N * `sequences_per_item` sequences.
    * `is_pair` bool [S] is true for a sequence with a text B.
    * `labels` are int64 or float32 [N], or float32 [N, classes]; None if they are hidden.
    * `option_counts` int64 [N] is the number of options of each multiple-choice question; the sequences
      beyond this number are padding. None if there is no padding.
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
        """The labels of a split that has labels."""
        assert self.labels is not None, "only labeled splits are scored"
        return self.labels

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        """Pack the examples at `index` [B]; return the batch and its labels, None if they are hidden.

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
    """Return the length of each sequence [S]: both texts, [CLS], [SEP], and a second [SEP] in pairs."""
    return first.length + second.length + 2 + is_pair


def pack_pairs(
    first: tuple[Int32, TokenSlices],
    second: tuple[Int32, TokenSlices],
    is_pair: NDArray[np.bool_],
    cls_id: int,
    sep_id: int,
) -> PackedBatch:
    """Pack sequences `[CLS] A [SEP]` of segment 0, followed in pairs by `B [SEP]` of segment 1.

    `first` are token ids and the slices of the texts A in them, `second` the same for the texts B. `is_pair` [S] is
    true for a sequence with a text B. The batch has no masked tokens and no order labels. Positions count from 0 in
    every sequence.
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
    no_tokens = np.empty(0, dtype=np.int32)
    return PackedBatch(
        ids,
        segment_ids,
        positions,
        offsets.astype(np.int32),
        masked_index=no_tokens,
        masked_labels=no_tokens,
        order_labels=no_tokens,
    )
