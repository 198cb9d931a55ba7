"""Text to pieces at the speed of a word cache: a word that was seen before is looked up, not segmented again.

SentencePiece's unigram model finds the best segmentation of a whole line; where no piece crosses a space, that
is the best one of each word, one after the other. A word is encoded alone, always, so that the result does not
depend on what the cache holds. It differs from encoding the line only where two segmentations of a word have
the same score up to the rounding of 32-bit sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from albert_cli.text.clean import clean_batch
from albert_cli.text.vocabulary import Vocabulary

_MOST_WORDS = 1 << 19  # with their pieces about 150 MB
_BREAK = "\n"  # stands between sentences; cleaned text has none


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are first looked up; `new` are those not encoded yet."""

    def __init__(self) -> None:
        super().__init__({_BREAK: 0})
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


class WordEncoder:
    """Encodes sentences to arrays; holds the words that it has met, at most half a million of them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._by_word = vocabulary.encodes_word_by_word
        self._forget()

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._pieces = np.zeros(0, np.int32)
        self._starts = np.zeros(1, np.int64)  # of each word in _pieces
        self._lengths = np.zeros(1, np.int64)

    def encode(self, sentences: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The piece ids of sentences that have single spaces only, cleaned first; no special tokens.

        Returns ids int32 [pieces] of all sentences one after the other, and int64 [sentences] of how many
        belong to each.
        """
        if not sentences:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        if not self._by_word:
            return flatten(self.vocabulary.encode_batch(sentences))
        if len(self._numbers) > _MOST_WORDS:
            self._forget()
        words = f" {_BREAK} ".join(clean_batch(sentences, self.vocabulary.cleaning)).split(" ")
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        self._learn()
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        # Within a word its pieces follow one another: a running index, shifted to where the word's begin.
        place = np.repeat(self._starts[numbers] - ends + lengths, lengths) + np.arange(ends[-1])
        borders = np.append(ends[numbers == 0], ends[-1])
        return self._pieces[place], np.diff(borders, prepend=0)

    def _learn(self) -> None:
        """Encode the words that were met for the first time."""
        if self._numbers.new:
            pieces, lengths = flatten(self.vocabulary.encode_cleaned(self._numbers.new))
            starts = self._pieces.size + np.cumsum(lengths) - lengths
            self._pieces = np.concatenate([self._pieces, pieces])
            self._starts = np.concatenate([self._starts, starts])
            self._lengths = np.concatenate([self._lengths, lengths])
            self._numbers.new = []


def flatten(pieces: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Lists of ids as one array int32 [sum of the lengths] and their lengths int64 [lists]."""
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return np.fromiter(chain.from_iterable(pieces), np.int32, int(lengths.sum())), lengths
