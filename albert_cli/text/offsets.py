"""Where each token of a text lies in the text as it was written, through cleaning and SentencePiece.

Cleaning works on letters one at a time (with the marks that follow them), so the place of every cleaned character
is known as it is made; nothing has to be aligned afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from albert_cli.text.clean import Cleaning, clean, normalize_characters
from albert_cli.text.vocabulary import Vocabulary

Int32 = NDArray[np.int32]
# Several words at once as long as they are ASCII with single spaces between, else one.
_WORDS = re.compile(r"[!-~]+(?: [!-~]+)*(?!\S)|\S+")


class PlacedText(NamedTuple):
    """A cleaned text, and for each of its characters the `starts` and `ends` of what it came from."""

    text: str
    starts: list[int]
    ends: list[int]


class PlacedTokens(NamedTuple):
    """Token ids int32 [n] with their places in the original text, int32 [n]: `original[start:end]`, no outer spaces.

    Starts and ends never decrease. A token of nothing but a space is empty, before the character that follows.
    """

    ids: Int32
    starts: Int32
    ends: Int32


def clean_with_places(text: str, cleaning: Cleaning) -> PlacedText:
    """`clean`, and where each character of the result came from."""
    characters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for word in _WORDS.finditer(text):
        begin = word.start()
        if characters:
            characters.append(" ")
            starts.append(ends[-1])
            ends.append(begin)
        for made, firsts, lasts in _placed_word(word[0], begin, cleaning):
            characters.extend(made)
            starts.extend(firsts)
            ends.extend(lasts)
    text = "".join(characters)
    if "  " in f" {text} " or any(c != " " and c.isspace() for c in set(text)):
        # Single spaces, none at the ends: words may have vanished, and compatibility forms bring spaces.
        kept = [i for i, c in enumerate(characters) if not c.isspace() or (i > 0 and not characters[i - 1].isspace())]
        if kept and characters[kept[-1]].isspace():
            kept.pop()
        text = "".join(" " if characters[i].isspace() else characters[i] for i in kept)
        starts, ends = [starts[i] for i in kept], [ends[i] for i in kept]
    return PlacedText(text, starts, ends)


def _placed_word(word: str, begin: int, cleaning: Cleaning) -> list[tuple[str, Sequence[int], Sequence[int]]]:
    """(characters made, where each begins, where each ends) for each letter of a word and the marks on it."""
    if word.isascii():  # or several words: each character stays in its place
        places = range(begin, begin + len(word) + 1)
        return [(word.lower() if cleaning.lowercase else word, places[:-1], places[1:])]
    cuts = [i for i, letter in enumerate(word) if i == 0 or not combining(letter)] + [len(word)]
    made = [normalize_characters(word[a:b], cleaning) for a, b in pairwise(cuts)]
    whole = normalize_characters(word, cleaning)
    if len(whole) != sum(map(len, made)):  # letters that compose with one another, as the parts of Hangul do
        return [(whole, [begin] * len(whole), [begin + len(word)] * len(whole))]
    placed: list[tuple[str, Sequence[int], Sequence[int]]] = []
    taken = 0
    for part, (a, b) in zip(made, pairwise(cuts), strict=True):
        size = len(part)
        # From the whole word, because a letter's form may depend on its place: the Greek final sigma.
        placed.append((whole[taken : taken + size], [begin + a] * size, [begin + b] * size))
        taken += size
    return placed


def encode_with_places(texts: Sequence[str], vocabulary: Vocabulary) -> list[PlacedTokens]:
    """The tokens of each text, as `Vocabulary.encode_batch` gives them, with their places in it."""
    cleaned = [clean(text, vocabulary.cleaning) for text in texts]
    written = vocabulary.pieces
    size = np.array([len(piece) for piece in written], dtype=np.int32)
    has_space = np.array([piece.startswith("▁") for piece in written], dtype=np.int32)
    placed = []
    for text, tidy, found in zip(texts, cleaned, vocabulary.encode_cleaned(cleaned), strict=True):
        ids = np.array(found, dtype=np.int32)
        if "".join(map(written.__getitem__, found)) == "▁" + tidy.replace(" ", "▁"):
            # SentencePiece changed nothing: lengths alone tell the places.
            ends = np.cumsum(size[ids], dtype=np.int32) - 1
            starts = ends - size[ids] + has_space[ids]
        else:  # without the space before a word
            spans = vocabulary.spans_of_cleaned(tidy)
            starts = np.array([end - len(tidy[begin:end].lstrip(" ")) for _, begin, end in spans], dtype=np.int32)
            ends = np.array([end for _, _, end in spans], dtype=np.int32)
        if not text.isascii() or len(text) != len(tidy):  # from places in the cleaned text to those in the original
            origin = clean_with_places(text, vocabulary.cleaning)
            is_empty = starts == ends
            starts = np.array([*origin.starts, len(text)], dtype=np.int32)[starts]
            ends = np.where(is_empty, starts, np.array([0, *origin.ends], dtype=np.int32)[ends])
        placed.append(PlacedTokens(ids, starts, ends))
    return placed
