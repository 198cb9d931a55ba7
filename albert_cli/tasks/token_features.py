"""Hold encoded texts with tagged words, split into windows of tokens that are encoded as `[CLS] window [SEP]`.

A text with more tokens than fit into one window is split into windows that overlap. A word near the edge of a window
then has context on both sides in the neighboring window. Shapes: P tokens of all texts, N texts, W windows, B windows
of a batch with T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from albert_cli.data.arrays import concatenate_ranges
from albert_cli.data.batches import PackedBatch
from albert_cli.tasks.features import Features, Int32, Int64, TokenSlices, pack_pairs, slide_windows

IGNORED: Final = -100  # the label of tokens without a class, which the loss ignores: PyTorch's `ignore_index`
_OVERLAP_DIVISOR: Final = 4  # neighboring windows share a quarter of their tokens


class TokenWindows(NamedTuple):
    """W windows of N texts.

    * `text` int64 [W] is the index of each window's text.
    * `tokens` are the tokens of each window, a slice of the tokens of all texts [P].
    * `tagged` are the tokens whose tags are learned and predicted in this window, a slice within that of `tokens`. Of
      the tokens that two windows share, each is tagged in one of them, so the tagged slices of a text do not overlap.
    """

    text: Int64
    tokens: TokenSlices
    tagged: TokenSlices

    def tagged_tokens(self, window: int) -> slice:
        """Return a window's tagged slice of all texts' tokens."""
        start = int(self.tagged.start[window])
        return slice(start, start + int(self.tagged.length[window]))


def window_overlap(size: int) -> int:
    """Return the number of tokens that neighboring windows of `size` tokens share."""
    return size // _OVERLAP_DIVISOR


def split_into_windows(offsets: Int64, size: int) -> TokenWindows:
    """Split texts into windows of at most `size` tokens; a text of at most `size` tokens is a single window.

    `offsets` int64 [N + 1] are the index of each text's first token, and the end of the last text. A tokenizer of
    `transformers` makes the same windows with `return_overflowing_tokens` and `stride=window_overlap(size)`.
    """
    lengths = np.diff(offsets)
    overlap = window_overlap(size)
    step = size - overlap
    text, start, length = slide_windows(lengths, size, step)
    end = start + length
    # If two windows share tokens, the first half of these is tagged in the earlier window and the second half in the
    # later one, because they have more context there.
    tagged_start = np.where(start == 0, 0, start + overlap // 2)
    tagged_end = np.where(end == lengths[text], end, start + step + overlap // 2)
    text_start = offsets[:-1][text]
    return TokenWindows(
        text=text,
        tokens=TokenSlices(text_start + start, length),
        tagged=TokenSlices(text_start + tagged_start, tagged_end - tagged_start),
    )


@dataclass(frozen=True)
class TokenFeatures(Features):
    """N texts as W windows.

    * `ids` int32 [P] are the tokens of all texts; those of text n are `ids[offsets[n] : offsets[n + 1]]`.
    * `begun_word` int64 [P] is the index of the word that a token begins, among the words of its text; -1 for a token
      that begins no word.
    * `further_words` int64 [P] is the number of the next words that lie within the token that begins a word.
    * `labels` int64 [P] is the class of each token; a token that begins a word has the class of the word's tag.
      `labels` is None if the tags are hidden.
    * `truncated` is 0, because windows cover all tokens.
    """

    ids: Int32
    begun_word: Int64
    further_words: Int64
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
        """Pack the windows at `index` [B]; return the batch and the labels of its tokens, int64 [T].

        Tokens outside a window's tagged slice have the label `IGNORED`, so every token has a label in only one window.
        """
        tokens = self.windows.tokens.select(index)
        no_tokens = TokenSlices(np.zeros_like(tokens.start), np.zeros_like(tokens.length))
        is_pair = np.zeros(len(index), dtype=bool)
        packed = pack_pairs((self.ids, tokens), (self.ids, no_tokens), is_pair, self.cls_id, self.sep_id)
        if self.labels is None:
            return packed, None
        labels = np.full(len(packed.ids), IGNORED, dtype=np.int64)
        tagged = self.windows.tagged.select(index)
        first_token = packed.offsets[:-1].astype(np.int64) + 1  # after [CLS]
        positions = concatenate_ranges(first_token + tagged.start - tokens.start, tagged.length)
        labels[positions] = self.labels[concatenate_ranges(tagged.start, tagged.length)]
        return packed, labels

    def count_words(self) -> list[int]:
        """Return the number of words of each text, up to the last word that has a token."""
        bounds = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
        last_word = self.begun_word + self.further_words
        return [int(last_word[start:stop].max(initial=-1)) + 1 for start, stop in bounds]
