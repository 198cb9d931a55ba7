"""Find the tokens that begin a word, in every script, for whole-word and n-gram masking.

Most scripts separate words by spaces. In these, a word begins only at SentencePiece's word mark ▁, and punctuation
belongs to the word that it touches. Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and some related scripts do
not separate words. In these, every token is a word, because nothing in the text shows longer units.

In text that is not tokenized, `word_pattern` finds words for classical baselines, and `tagging_pattern` finds the units
that have a tag in named entity recognition.
"""

from __future__ import annotations

import re
import string
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby
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
# Hangul: syllables and the consonants that begin a decomposed one, and the letters that continue a decomposed one.
_HANGUL_STARTS: Final = "\uac00-\ud7a3\u1100-\u115f\ua960-\ua97c"
_HANGUL_FURTHER: Final = "\u1160-\u11ff\ud7b0-\ud7fb"
_UNSPACED_STARTS: Final = [first for first, _ in _UNSPACED_RANGES]
# The planes of Unicode that have marks, 0, 1 and 14: the other planes have ideographs, private characters, or nothing.
_MARK_PLANES: Final = (range(0x20000), range(0xE0000, 0xF0000))


@cache
def word_pattern() -> str:
    r"""Return a regular expression of a word: letters and digits (\w) with the marks that follow them.

    Python's \w does not match marks, such as accents in NFD and vowels in Hindi and Thai.
    """
    return rf"\w[\w{_marks()}]*"


@cache
def tagging_pattern() -> re.Pattern[str]:
    r"""Return a regular expression of a unit that has a tag in named entity recognition.

    A unit is a letter with its marks in scripts without spaces, a syllable in Hangul, whose particles follow names
    without a space, a word of `word_pattern` in other scripts, or any other single character that is not blank.
    """
    unspaced = "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSPACED_RANGES)
    marks = _marks()
    other_letter = rf"[^\W{unspaced}{_HANGUL_STARTS}]"
    return re.compile(
        rf"[{_HANGUL_STARTS}][{_HANGUL_FURTHER}{marks}]*"
        rf"|{other_letter}(?:{other_letter}|[{marks}])*"
        rf"|\w[{marks}]*"  # a letter of a script without spaces
        r"|[^\w\s]"
    )


@cache
def _marks() -> str:
    """Return the ranges of marks for a character class: categories Mn and Mc, and the joiners U+200C and U+200D.

    The ranges are found when they are used, because that takes some hundredths of a second.
    """

    def is_mark(code: int) -> bool:
        return unicodedata.category(chr(code)) in ("Mn", "Mc") or code in (0x200C, 0x200D)

    runs = [list(codes) for is_run, codes in groupby(chain(*_MARK_PLANES), is_mark) if is_run]
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)


def is_unspaced(character: str) -> bool:
    """Return True if the character belongs to a script in which no spaces separate words."""
    code = ord(character)
    index = bisect_right(_UNSPACED_STARTS, code) - 1  # of the last range that begins at or before the character
    if index < 0:
        return False
    _, last = _UNSPACED_RANGES[index]
    return code <= last


def need_blank(left: str, right: str) -> bool:
    """Return True if two tokens or lines that end and begin with these characters are joined with a blank.

    Two characters need no blank if each is of a script without spaces, or fullwidth, such as the comma U+FF0C.
    """
    return not all(is_unspaced(side) or unicodedata.east_asian_width(side) == "F" for side in (left, right))


@dataclass(frozen=True)
class WordBoundaries:
    """Three flags for each token of a vocabulary, which decide where words begin: bool [V] each.

    starts: the token begins a word, whatever token precedes it; separates: the next token begins a word, unless that
    token has the flag `continues`; continues: the token belongs to the word before it, such as a combining mark.
    """

    starts: Flags
    separates: Flags
    continues: Flags

    def find_starts(self, ids: NDArray[np.integer]) -> Flags:
        """Return a flag for each token of a text, which is set if the token begins a word: bool [T] for ids [T]."""
        is_start: Flags = self.starts[ids]
        is_start[1:] |= self.separates[ids[:-1]] & ~self.continues[ids[1:]]
        return is_start


def find_word_boundaries(pieces: Sequence[str], rule: WordRule) -> WordBoundaries:
    """Return the word boundaries of a vocabulary.

    pieces: the pieces by id, with the word mark; "" for tokens that are not text. rule: "script" is the rule in this
    module's docstring, "reference" that of ALBERT's released code, in which tokens that are not text begin words, too.
    """
    if rule == "reference":
        return WordBoundaries(
            starts=np.array([piece == "" or _starts_word_in_reference(piece) for piece in pieces], np.bool_),
            separates=np.zeros(len(pieces), np.bool_),
            continues=np.zeros(len(pieces), np.bool_),
        )
    return WordBoundaries(
        starts=np.array([_starts_word(piece) for piece in pieces], np.bool_),
        separates=np.array([piece != "" and is_unspaced(piece[-1]) for piece in pieces], np.bool_),
        continues=np.array([piece != "" and _is_attached(piece[0]) for piece in pieces], np.bool_),
    )


def _starts_word(piece: str) -> bool:
    """Return True if a token begins a word, whatever token precedes it; False for "", which is not text."""
    if piece == "" or _is_attached(piece[0]):
        return False
    return piece[0] == WORD_MARK or is_unspaced(piece[0])


def _is_attached(character: str) -> bool:
    """Return True for marks (categories Mn, Mc, Me) and format characters (Cf): they belong to the character before."""
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")


def _starts_word_in_reference(piece: str) -> bool:
    """Return True if a piece begins a word by `_is_start_piece_sp` of ALBERT's `create_pretraining_data.py`.

    A word begins at a piece that begins with the word mark or "<", at a single ASCII punctuation character, and at a
    piece with any character other than ASCII letters and punctuation. So a piece with a digit or a letter of another
    script always begins a word.
    """
    if piece.startswith((WORD_MARK, "<")):
        return True
    if len(piece) == 1 and piece in string.punctuation:
        return True
    return not _ASCII_WORD_CHARACTERS.issuperset(piece)
