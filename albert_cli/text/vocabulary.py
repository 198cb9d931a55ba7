"""The interface of a vocabulary: encode text, decode ids, and know which tokens are special or begin a word.

Two backends implement it. SentencePiece is the fast path (25 MB/s per core) and the kind that `albert vocab` builds.
The `tokenizers` library serves every other `tokenizer.json` or `vocab.txt`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from albert_cli.text.clean import Cleaning
from albert_cli.text.words import WordBoundaries, WordRule, find_word_boundaries

Int32 = NDArray[np.int32]
MODEL_FILE = "spiece.model"
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
WORDPIECE_FILE = "vocab.txt"


class TokenOffsets(NamedTuple):
    """Token ids int32 [n] with the characters of the text that each comes from: `text[start:end]`, int32 [n].

    Starts and ends never decrease, and white space around a token is not included.
    """

    ids: Int32
    starts: Int32
    ends: Int32


class SpecialIds(NamedTuple):
    """The ids of the special tokens by role."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Vocabulary(ABC):
    """A tokenizer with its special tokens.

    `pieces` are its tokens by id. `text_pieces` are the same as text, with the word mark where a word begins; "" for
    tokens that are not text.
    """

    def __init__(self, pieces: list[str], text_pieces: list[str], special: SpecialIds) -> None:
        self.pieces = pieces
        self.text_pieces = text_pieces
        self.size = len(pieces)
        self.pad_id = special.pad
        self.unk_id = special.unk
        self.cls_id = special.cls
        self.sep_id = special.sep
        self.mask_id = special.mask
        self._word_boundaries: dict[WordRule, WordBoundaries] = {}

    @staticmethod
    def load(directory: Path | str) -> Vocabulary:
        """Read a vocabulary, data or model directory of either backend; raise `CheckpointError` if it has none."""
        from albert_cli.text.load_vocabulary import load_vocabulary  # imports the backends, which import this module

        return load_vocabulary(Path(directory))

    @property
    @abstractmethod
    def cleaning(self) -> Cleaning | None:
        """The cleaning before SentencePiece; None if the tokenizer normalizes text itself."""

    @cached_property
    @abstractmethod
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the ids of some text."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, on the calling thread; no special tokens."""

    @abstractmethod
    def encode_sentences(self, sentences: Sequence[str]) -> list[list[int]]:
        """Encode sentences that have only single spaces, and none at their ends."""

    @abstractmethod
    def encode_continuation(self, text: str) -> list[int]:
        """Encode text that continues right after a special token."""

    @abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[TokenOffsets]:
        """Yield the token ids of each text with the characters that each token comes from."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name, padding is left out."""

    @abstractmethod
    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write the vocabulary's files; model_max_length: where other programs truncate what they encode."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; no special tokens."""
        return self.encode_batch([text])[0]

    @cached_property
    def ordinary_ids(self) -> Int32:
        """The ids of the tokens of text, ascending int32."""
        return np.flatnonzero([piece != "" for piece in self.text_pieces]).astype(np.int32)

    def word_boundaries(self, rule: WordRule = "script") -> WordBoundaries:
        """Return the tokens that begin a word, for whole-word and n-gram masking."""
        if rule not in self._word_boundaries:
            self._word_boundaries[rule] = find_word_boundaries(self.text_pieces, rule)
        return self._word_boundaries[rule]


def trim_offsets(text: str, ids: Int32, offsets: Int32, is_word_mark: NDArray[np.bool_]) -> TokenOffsets:
    """Leave out the white space around each token, and include combining marks that the cleaning has dropped.

    A token of nothing but the word mark becomes empty, before the character that follows.
    """
    length = len(text)
    positions = np.arange(length + 1, dtype=np.int32)
    is_visible = np.array([*(not character.isspace() for character in text), True])
    next_visible = np.minimum.accumulate(np.where(is_visible, positions, length)[::-1])[::-1]
    visible_end = np.maximum.accumulate(np.where(is_visible, positions + 1, 0))
    starts = np.minimum(next_visible[offsets[:, 0]], offsets[:, 1])
    ends = np.where(is_word_mark, starts, np.maximum(visible_end[offsets[:, 1] - 1], starts))
    if not text.isascii():
        is_letter = np.array([*(combining(character) == 0 for character in text), True])
        next_letter = np.minimum.accumulate(np.where(is_letter, positions, length)[::-1])[::-1]
        next_start = np.append(starts[1:], length)
        with_marks = np.minimum(next_letter[ends], np.maximum(next_start, ends))
        ends = np.where(starts < ends, with_marks, ends)
    return TokenOffsets(ids, starts.astype(np.int32), ends.astype(np.int32))
