"""Examples as packed arrays of token ids, and the order in which they are trained on and evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.tasks.task import Example

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
_SPECIAL_IN_PAIR = 3  # [CLS] A [SEP] B [SEP]


class Tokenizer(Protocol):
    """What encoding needs of a `Vocabulary`."""

    @property
    def cls_id(self) -> int:
        """The id of [CLS]."""

    @property
    def sep_id(self) -> int:
        """The id of [SEP]."""

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The piece ids of each text, without special tokens."""


@dataclass(frozen=True)
class Features:
    """N encoded examples, one after the other.

    `ids` and `segment_ids` int32 [T], `offsets` int64 [N+1] into them, `labels` int64 [N] (classes),
    float32 [N] (values) or None (hidden); `truncated` counts the examples that were longer than the limit.
    """

    ids: Int32
    segment_ids: Int32
    offsets: Int64
    labels: NDArray[Any] | None
    truncated: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """Tokens of each example, int64 [N]."""
        return np.diff(self.offsets)

    def batch(self, index: Int64) -> tuple[PackedBatch, NDArray[Any] | None]:
        """The examples at `index` [B], packed in that order, and their labels [B] (None if hidden).

        Masked positions and order labels are empty; position ids count from 0 in every example.
        """
        starts = self.offsets[:-1][index]
        lengths = self.lengths[index]
        tokens = ranges(starts, lengths)
        packed = packed_batch(self.ids[tokens], self.segment_ids[tokens], offsets_of(lengths))
        return packed, None if self.labels is None else self.labels[index]

    def batch_index(self, seed: int, step: int, batch_size: int) -> Int64:
        """The examples of a training step (counted from 0), int64 [batch_size].

        A pure function of (seed, step). Every epoch is a permutation of all examples; a batch runs over its
        end into the next, so that no batch is short and no example is left out.
        """
        return step_index(len(self), seed, step, batch_size)

    def eval_batches(self, max_tokens: int) -> Iterator[Int64]:
        """Index arrays that hold every example exactly once, grouped by length, the longest first.

        A batch's size times its longest example is at most `max_tokens`, unless it is a single example;
        memory runs out in the first batch or never.
        """
        return by_length(self.lengths, max_tokens)


def packed_batch(ids: Int32, segment_ids: Int32, offsets: Int64) -> PackedBatch:
    """Sequences with nothing masked and no order label: ids and segment ids int32 [T], offsets int64 [N + 1].

    Position ids count from 0 in every sequence.
    """
    none, lengths = np.empty(0, dtype=np.int32), np.diff(offsets)
    positions = ranges(np.zeros_like(lengths), lengths).astype(np.int32)
    return PackedBatch(ids, segment_ids, positions, offsets.astype(np.int32), none, none, none)


def step_index(size: int, seed: int, step: int, batch_size: int) -> Int64:
    """The examples of a training step out of `size`; see `Features.batch_index`."""
    position = step * batch_size + np.arange(batch_size, dtype=np.int64)
    epoch, slot = np.divmod(position, size)
    index = np.empty(batch_size, dtype=np.int64)
    for number in range(int(epoch[0]), int(epoch[-1]) + 1):
        here = epoch == number
        index[here] = epoch_order(size, seed, number)[slot[here]]
    return index


def by_length(lengths: Int64, max_tokens: int) -> Iterator[Int64]:
    """Index arrays over `lengths` [N], each index once; see `Features.eval_batches`."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, max_tokens // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


@lru_cache(maxsize=4)
def epoch_order(size: int, seed: int, epoch: int) -> Int64:
    """The order of `size` examples in an epoch, int64 [size], read-only.

    Drawn by sorting Philox's raw numbers (keyed by seed and epoch): NumPy keeps their stream between
    versions, which it does not promise of `Generator.permutation`.
    """
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    order.flags.writeable = False
    return order


def encode(examples: Sequence[Example], vocabulary: Tokenizer, max_seq_length: int) -> Features:
    """`[CLS] A [SEP]` with segment 0, and for pairs `B [SEP]` with segment 1, cut to `max_seq_length` tokens.

    The longer of two texts loses its last token first, text B on a tie, as in the reference. Every distinct
    text is tokenised once. Raises `ConfigError` where the limit leaves no token of either text.
    """
    if max_seq_length < _SPECIAL_IN_PAIR + 2:
        raise ConfigError(f"data.max_seq_length = {max_seq_length} leaves no room for two texts", "5 or more")
    pieces = Pieces([e.text_a for e in examples] + [e.text_b or "" for e in examples], vocabulary)
    size = len(examples)
    is_pair = np.fromiter((e.text_b is not None for e in examples), dtype=bool, count=size)
    all_a, all_b = pieces.lengths[:size], pieces.lengths[size:]
    room = max_seq_length - 2 - is_pair
    kept_a, kept_b = truncated_lengths(all_a, all_b, room)

    offsets = offsets_of(kept_a + kept_b + 2 + is_pair)
    ids = np.full(int(offsets[-1]), vocabulary.sep_id, dtype=np.int32)  # what the texts leave over is [SEP]
    segment_ids = np.zeros_like(ids)
    starts = offsets[:-1]
    ids[starts] = vocabulary.cls_id
    ids[ranges(starts + 1, kept_a)] = pieces.first(np.arange(size), kept_a)
    start_b = starts + 2 + kept_a
    ids[ranges(start_b, kept_b)] = pieces.first(size + np.arange(size), kept_b)
    segment_ids[ranges(start_b, kept_b + is_pair)] = 1
    truncated = int(np.count_nonzero(all_a + all_b > room))
    return Features(ids, segment_ids, offsets, _labels(examples), truncated)


def truncated_lengths(length_a: Int64, length_b: Int64, room: Int64) -> tuple[Int64, Int64]:
    """Tokens kept of each text, [N] each, when the longer loses its last token until both fit in `room` [N].

    The closed form of that loop: a text shorter than half the room stays whole, two longer ones share it.
    """
    kept_b = np.minimum(length_b, np.maximum(room - length_a, room // 2))
    return np.minimum(length_a, room - kept_b), kept_b


class Pieces:
    """The tokens of all texts, each distinct text stored once; `lengths` int64, one a text."""

    def __init__(self, texts: list[str], vocabulary: Tokenizer) -> None:
        slots = {text: slot for slot, text in enumerate(dict.fromkeys(texts))}
        encoded = vocabulary.encode_batch(list(slots))
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        self._ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
        slot_of_text = np.fromiter((slots[t] for t in texts), dtype=np.int64, count=len(texts))
        self._starts = offsets_of(lengths)[slot_of_text]
        self.lengths: Int64 = lengths[slot_of_text]

    def first(self, texts: Int64, kept: Int64) -> Int32:
        """The first `kept` tokens of each text of `texts`, one after the other."""
        return self._ids[ranges(self._starts[texts], kept)]

    def last(self, texts: Int64, kept: Int64) -> Int32:
        """The last `kept` tokens of each text of `texts`, one after the other."""
        return self._ids[ranges(self._starts[texts] + self.lengths[texts] - kept, kept)]


def _labels(examples: Sequence[Example]) -> NDArray[Any] | None:
    labels = [e.label for e in examples]
    if any(label is None for label in labels):
        return None
    is_value = any(isinstance(label, float) for label in labels)
    return np.array(labels, dtype=np.float32 if is_value else np.int64)


def offsets_of(lengths: Int64) -> Int64:
    """Where each of `lengths` [N] begins when they follow one another, and where the last ends: int64 [N + 1]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


def ranges(starts: Int64, lengths: Int64) -> Int64:
    """All of `start, start + 1, …` for each start and length, one after the other."""
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
