"""Find the tokens that begin a word, for whole-word and n-gram masking, in every script.

Most scripts separate words by spaces: there the word mark ▁ of SentencePiece alone begins a word, and punctuation
belongs to the word that it touches. Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and some related scripts do
not separate words: there every token is a word, because a token is the longest unit that the text itself suggests.
"""

from __future__ import annotations

import string
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

WordRule: TypeAlias = Literal["script", "reference"]
Flags: TypeAlias = NDArray[np.bool_]

WORD_MARK: Final = "▁"
_ASCII_WORD_CHARACTERS: Final = frozenset(string.ascii_letters + string.punctuation)

# First and last code points of the scripts without spaces between words, in ascending order.
_UNSPACED_RANGES: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x312F),  # CJK radicals and punctuation, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x9FFF),  # Bopomofo, CJK strokes, Katakana, CJK ideographs
    (0xA980, 0xA9FF),  # Javanese, Myanmar
    (0xAA60, 0xAADF),  # Myanmar, Tai Viet
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0xFF61, 0xFF9F),  # halfwidth Katakana and its punctuation
    (0x1AFF0, 0x1B16F),  # Kana
    (0x20000, 0x3FFFF),  # CJK ideographs
)
_UNSPACED_STARTS: Final = [first for first, _ in _UNSPACED_RANGES]


def is_unspaced(character: str) -> bool:
    """Return whether the character belongs to a script that does not separate words by spaces."""
    code = ord(character)
    number = bisect_right(_UNSPACED_STARTS, code) - 1
    return number >= 0 and code <= _UNSPACED_RANGES[number][1]


@dataclass(frozen=True)
class WordBoundaries:
    """Facts about each token of a vocabulary that decide where words begin, bool [V] each.

    starts: begins a word; separates: the next token begins a word; continues: never begins a word.
    """

    starts: Flags
    separates: Flags
    continues: Flags

    def find_starts(self, ids: NDArray[np.integer]) -> Flags:
        """Flag the tokens of a text that begin a word: [T] to bool [T]."""
        is_start: Flags = self.starts[ids]
        is_start[1:] |= self.separates[ids[:-1]] & ~self.continues[ids[1:]]
        return is_start


def find_word_boundaries(pieces: Sequence[str], rule: WordRule) -> WordBoundaries:
    """Return the word boundaries of a vocabulary from its pieces as text; "" for tokens that are not text.

    rule: "script" uses spaces or, in scripts without them, tokens; "reference" is the rule of the released generator.
    """
    if rule == "reference":
        starts = [piece == "" or _starts_word_in_reference(piece) for piece in pieces]
        nothing = np.zeros(len(pieces), np.bool_)
        return WordBoundaries(np.array(starts, np.bool_), nothing, nothing)
    return WordBoundaries(
        starts=np.array([_starts_word(piece) for piece in pieces], np.bool_),
        separates=np.array([piece != "" and is_unspaced(piece[-1]) for piece in pieces], np.bool_),
        continues=np.array([piece != "" and _is_attached(piece[0]) for piece in pieces], np.bool_),
    )


def _starts_word(piece: str) -> bool:
    """Return whether a token begins a word in any context; "" is a special token and does not."""
    if piece == "" or _is_attached(piece[0]):
        return False
    return piece[0] == WORD_MARK or is_unspaced(piece[0])


def _is_attached(character: str) -> bool:
    """Return True for combining marks, joiners and format characters, which belong to the character before them."""
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")


def _starts_word_in_reference(piece: str) -> bool:
    """Apply the released generator's rule.

    A word begins at a piece with the word mark or of the form "<…>", at a single ASCII punctuation character, and at a
    piece with any character other than ASCII letters and punctuation. So digits and all letters of other scripts are
    words by themselves.
    """
    if piece.startswith((WORD_MARK, "<")):
        return True
    if len(piece) == 1 and piece in string.punctuation:
        return True
    return not _ASCII_WORD_CHARACTERS.issuperset(piece)
