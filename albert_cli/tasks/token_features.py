"""Texts with tagged words as windows of tokens, `[CLS] window [SEP]`.

A text that is longer than a window is split into windows that overlap, so that a word near the edge of a window has
context on both sides in another one. Shapes: P tokens of all texts, N texts, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from albert_cli.data.arrays import concatenate_ranges
from albert_cli.data.batches import PackedBatch
from albert_cli.tasks.features import Features, Int32, Int64, TokenSlices, pack_pairs, slide_windows

IGNORED: Final = -100  # the label of tokens that are not the first one of a word
_OVERLAP_FRACTION: Final = 4  # neighboring windows share a quarter of their tokens


class TokenWindows(NamedTuple):
    """W windows of texts: the text int64 [W], the slice of its tokens, and the part whose words the window labels.

    The labeled parts of a text's windows follow one another: two windows divide the tokens that they share.
    """

    text: Int64
    tokens: TokenSlices
    labeled: TokenSlices

    def labeled_tokens(self, window: int) -> slice:
        """Return the slice of the tokens whose words a window labels."""
        start = int(self.labeled.start[window])
        return slice(start, start + int(self.labeled.length[window]))


def window_overlap(size: int) -> int:
    """Return the number of tokens that neighboring windows of `size` tokens share."""
    return size // _OVERLAP_FRACTION


def split_into_windows(offsets: Int64, size: int) -> TokenWindows:
    """Split texts into windows of at most `size` tokens; a text that fits, also an empty one, is a single window.

    `offsets` int64 [N + 1] are the first tokens of the texts. The windows are those of a tokenizer of `transformers`
    with `return_overflowing_tokens` and `stride=window_overlap(size)`.
    """
    lengths = np.diff(offsets)
    step = size - window_overlap(size)
    text, number, start, length = slide_windows(lengths, size, step)
    end = start + length
    # Each of two windows labels the half of their common tokens that is farther from its edge.
    is_last = end == lengths[text]
    labeled_start = np.where(number == 0, 0, start + window_overlap(size) // 2)
    labeled_end = np.where(is_last, end, start + step + window_overlap(size) // 2)
    base = offsets[:-1][text]
    return TokenWindows(
        text=text,
        tokens=TokenSlices(base + start, length),
        labeled=TokenSlices(base + labeled_start, labeled_end - labeled_start),
    )


@dataclass(frozen=True)
class TokenFeatures(Features):
    """N texts as W windows.

    `ids` int32, `begun_word` and `labels` int64 are [P]; `offsets` int64 [N + 1] are the texts' first tokens. A token
    that is the first of a word has the word's index in its text and the label of its tag; the others have -1 and
    `IGNORED`. `labels` is None if the tags are hidden. No token is truncated.
    """

    ids: Int32
    begun_word: Int64
    labels: Int64 | None
    offsets: Int64
    windows: TokenWindows
    cls_id: int
    sep_id: int
    truncated: int = 0

    @property
    def lengths(self) -> Int64:
        return self.windows.tokens.length + 2

    def batch(self, index: Int64) -> tuple[PackedBatch, Int64 | None]:
        """Pack the windows at `index`; labels int64 [T] are `IGNORED` except where a word begins that is labeled here.

        Every word is labeled in one window.
        """
        tokens = self.windows.tokens.select(index)
        empty = TokenSlices(np.zeros_like(tokens.start), np.zeros_like(tokens.length))
        is_pair = np.zeros(len(index), dtype=bool)
        packed = pack_pairs((self.ids, tokens), (self.ids, empty), is_pair, self.cls_id, self.sep_id)
        if self.labels is None:
            return packed, None
        labels = np.full(len(packed.ids), IGNORED, dtype=np.int64)
        labeled = self.windows.labeled.select(index)
        first = packed.offsets[:-1].astype(np.int64) + 1 + labeled.start - tokens.start
        position = concatenate_ranges(first, labeled.length)
        labels[position] = self.labels[concatenate_ranges(labeled.start, labeled.length)]
        return packed, labels

    def words_of_texts(self) -> list[int]:
        """Return the number of words of each text up to the last one that has a token."""
        bounds = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
        return [int(self.begun_word[start:stop].max(initial=-1)) + 1 for start, stop in bounds]
