"""Examples as token ids: what training draws its batches from, and in which order."""

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
        """The items at `index` [B], packed in that order, and what is to be predicted (None where it is hidden)."""

    def __len__(self) -> int:
        return len(self.lengths)

    def batch_index(self, seed: int, step: int, batch_size: int) -> Int64:
        """The items of a training step (counted from 0), int64 [batch_size], a pure function of (seed, step).

        Every epoch is a permutation of all items; a batch runs over its end into the next, so that none is short.
        """
        size = len(self)
        epoch, slot = np.divmod(step * batch_size + np.arange(batch_size, dtype=np.int64), size)
        index = np.empty(batch_size, dtype=np.int64)
        for number in range(int(epoch[0]), int(epoch[-1]) + 1):
            here = epoch == number
            index[here] = epoch_order(size, seed, number)[slot[here]]
        return index

    def eval_batches(self, max_tokens: int) -> Iterator[Int64]:
        """Index arrays that hold every item exactly once, grouped by length, the longest first.

        A batch's size times its longest item is at most `max_tokens`, unless it is a single item; memory runs out in
        the first batch or never.
        """
        lengths = self.lengths * self.group
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            size = max(1, max_tokens // int(lengths[order[start]]))
            yield order[start : start + size]
            start += size


class TokenSlices(NamedTuple):
    """A stretch of tokens for each of S sequences: where it starts in an array of ids, and its length, int64 [S]."""

    start: Int64
    length: Int64

    def at(self, index: Int64) -> TokenSlices:
        return TokenSlices(self.start[index], self.length[index])


def tokenize(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Int32, TokenSlices]:
    """The tokens of some texts, each distinct text stored once, and where those of each text are."""
    slots = {text: slot for slot, text in enumerate(dict.fromkeys(texts))}
    encoded = vocabulary.encode_batch(list(slots))
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
    slot_of_text = np.fromiter((slots[t] for t in texts), dtype=np.int64, count=len(texts))
    return ids, TokenSlices(offsets_from_lengths(lengths), lengths).at(slot_of_text)


@dataclass(frozen=True)
class PairFeatures(Features):
    """N examples of `group` sequences `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, made when a batch is drawn.

    `first` and `second` are the stretches of `ids` int32 that the S = N * group sequences show; `is_pair` bool [S] says
    which have a second text, `labels` int64 or float32 [N] is None where they are hidden.
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

    @property
    def lengths(self) -> Int64:
        sequences = self.first.length + self.second.length + 2 + self.is_pair
        return np.asarray(sequences.reshape(-1, self.group).max(axis=1, initial=0))

    @property
    def gold(self) -> NDArray[Any]:
        """The labels of a split that has them."""
        assert self.labels is not None, "only labelled splits are scored"
        return self.labels

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        rows = (index[:, None] * self.group + np.arange(self.group)).ravel()
        parts = ((self.ids, self.first.at(rows)), (self.ids, self.second.at(rows)))
        packed = pack_pairs(*parts, self.is_pair[rows], self.cls_id, self.sep_id)
        return packed, None if self.labels is None else self.labels[index]


def pack_pairs(
    first: tuple[Int32, TokenSlices],
    second: tuple[Int32, TokenSlices],
    is_pair: NDArray[np.bool_],
    cls_id: int,
    sep_id: int,
) -> PackedBatch:
    """B sequences `[CLS] A [SEP]` with segment 0 and, of pairs, `B [SEP]` with segment 1; a text is (ids, stretches).

    Nothing is masked and there are no order labels; position ids count from 0 in every sequence.
    """
    length_a, length_b = first[1].length, second[1].length
    lengths = length_a + length_b + 2 + is_pair
    offsets = offsets_from_lengths(lengths)
    ids = np.full(int(offsets[-1]), sep_id, dtype=np.int32)  # what the texts leave over is [SEP]
    segment_ids = np.zeros_like(ids)
    starts = offsets[:-1]
    ids[starts] = cls_id
    ids[concatenate_ranges(starts + 1, length_a)] = first[0][concatenate_ranges(*first[1])]
    start_b = starts + 2 + length_a
    ids[concatenate_ranges(start_b, length_b)] = second[0][concatenate_ranges(*second[1])]
    segment_ids[concatenate_ranges(start_b, length_b + is_pair)] = 1
    positions = concatenate_ranges(np.zeros_like(lengths), lengths).astype(np.int32)
    none = np.empty(0, dtype=np.int32)
    return PackedBatch(ids, segment_ids, positions, offsets.astype(np.int32), none, none, none)
