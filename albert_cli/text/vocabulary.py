"""Define the interface of a vocabulary, which encodes text, decodes ids, and knows its special tokens.

Two backends implement it. `SentencePieceVocabulary` is the faster one (25 MB/s per core), and `albert vocab` builds its
files. `TokenizersVocabulary` reads every other `tokenizer.json` or `vocab.txt`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from albert_cli.text.clean import Cleaning
from albert_cli.text.words import WORD_MARK, WordBoundaries, WordRule, find_word_boundaries

Int32 = NDArray[np.int32]
MODEL_FILE = "spiece.model"
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
WORDPIECE_FILE = "vocab.txt"
# This program does not read these files, but transformers builds a tokenizer.json from them.
OTHER_TOKENIZER_FILES = ("vocab.json", "merges.txt", "sentencepiece.bpe.model", "tokenizer.model", "spm.model")
REQUEST_FILE = "request.json"  # exists while `albert vocab` builds the vocabulary
_BATCH_TEXTS = 256  # encoded by `tokenizers` at a time; an encoding takes about 100 bytes per token
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenOffsets(NamedTuple):
    """The tokens of a text, and the characters `text[start:end]` that each token comes from; each field is int32 [n].

    Starts and ends never decrease. White space around a token is not included.
    """

    ids: Int32
    starts: Int32
    ends: Int32


class SpecialIds(NamedTuple):
    """The ids of the special tokens by role; `pad` and `unk` are [SEP]'s id if the tokenizer lacks such a token."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Vocabulary(ABC):
    """A tokenizer with its special tokens.

    pieces: its tokens by id, as its files spell them; text_pieces: the tokens by id as text, with the word mark ▁ where
    a word begins, and "" for tokens that are not text; special: the ids of the special tokens; cleaning: applied to a
    text before it is encoded, None if the tokenizer normalizes text itself.
    """

    marks_words: bool = True  # False if the pieces do not show where words begin, so that every token is a word
    word_suffix: str = ""  # of the last piece of a word, such as "</w>"; `text_pieces` lack it

    def __init__(
        self, pieces: list[str], text_pieces: list[str], special: SpecialIds, cleaning: Cleaning | None
    ) -> None:
        self.cleaning = cleaning
        self.pieces = pieces
        self.text_pieces = text_pieces
        self.size = len(pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special
        self._word_boundaries: dict[WordRule, WordBoundaries] = {}

    @staticmethod
    def load(directory: Path | str) -> Vocabulary:
        """Load the vocabulary in a directory of `albert vocab`, `albert data` or a model.

        Raises `CheckpointError` if the directory has no vocabulary.
        """
        # Imported here, because it imports the backends, which import this module.
        from albert_cli.text.load_vocabulary import load_vocabulary

        return load_vocabulary(Path(directory))

    @cached_property
    @abstractmethod
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change if the token ids of any text change."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens; runs on the calling thread."""

    @abstractmethod
    def encode_continuation(self, text: str) -> list[int]:
        """Return the token ids of a text that follows directly after a special token, such as [MASK].

        Unlike in `encode`, the start of the text need not be the start of a word.
        """

    @abstractmethod
    def _encode_by_tokenizers(self, texts: list[str]) -> list[Any]:
        """Return an `Encoding` of the `tokenizers` library, with offsets, for each text, without special tokens."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name, padding is left out."""

    @abstractmethod
    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write the vocabulary's files; model_max_length: tokens to which other programs truncate a text."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_sentences(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return what `encode_batch` does, for sentences with only single spaces and none at their ends.

        `SentencePieceVocabulary` has a faster implementation for such sentences.
        """
        return self.encode_batch(sentences)

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[TokenOffsets]:
        """Yield the token ids of each text, without special tokens, with the characters that they come from.

        Both backends use `tokenizers`, which traces the characters through all steps, at 3 MB/s per core.
        """
        is_word_mark = np.array([piece == WORD_MARK for piece in self.text_pieces], dtype=np.bool_)
        for batch in iter_text_batches(texts):
            for text, encoding in zip(batch, self._encode_by_tokenizers(batch), strict=True):
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                yield _trim_offsets(text, ids, offsets, is_word_mark[ids])

    @cached_property
    def ordinary_ids(self) -> Int32:
        """The ids of the tokens that are text, ascending, int32 [n]."""
        return np.flatnonzero([piece != "" for piece in self.text_pieces]).astype(np.int32)

    def word_boundaries(self, rule: WordRule = "script") -> WordBoundaries:
        """Return the flags of the tokens that begin a word, for whole-word and n-gram masking (see `words`)."""
        if rule not in self._word_boundaries:
            self._word_boundaries[rule] = find_word_boundaries(self.text_pieces, rule)
        return self._word_boundaries[rule]


def iter_text_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in batches; lone surrogates, which `tokenizers` does not accept, become U+FFFD."""
    for start in range(0, len(texts), _BATCH_TEXTS):
        yield [_LONE_SURROGATE.sub("\ufffd", text) for text in texts[start : start + _BATCH_TEXTS]]


def _trim_offsets(text: str, ids: Int32, offsets: Int32, is_word_mark: NDArray[np.bool_]) -> TokenOffsets:
    """Return the tokens with offsets that exclude the white space around them, and include dropped combining marks.

    ids: int32 [n]; offsets: the start and end of each token as `tokenizers` returns them, int32 [n, 2]; is_word_mark:
    the token is nothing but the word mark, bool [n].

    A token that is nothing but the word mark becomes empty: it starts and ends where the next visible character starts.
    If an earlier token comes from this character, the word mark's token ends where the earlier token ends. A combining
    mark that the cleaning has dropped from the text belongs to the token of its letter.
    """
    length = len(text)
    positions = np.arange(length + 1, dtype=np.int32)
    # The position after the text counts as visible, so every position has a next visible one.
    is_visible = np.array([*(not character.isspace() for character in text), True])
    next_visible = _next_flagged(is_visible)
    # By position: the end of the last visible character up to this position.
    visible_end = np.maximum.accumulate(np.where(is_visible, positions + 1, 0))
    starts = np.minimum(next_visible[offsets[:, 0]], offsets[:, 1])
    trimmed_ends = np.maximum(visible_end[offsets[:, 1] - 1], starts)
    ends = np.where(is_word_mark, starts, trimmed_ends)
    if not text.isascii():
        # Extend every token that is not empty over the marks after it, but not into the next token.
        is_no_mark = np.array([*(combining(character) == 0 for character in text), True])
        next_token_start = np.append(starts[1:], length)
        end_with_marks = np.minimum(_next_flagged(is_no_mark)[ends], np.maximum(next_token_start, ends))
        ends = np.where(starts == ends, ends, end_with_marks)
    # A character may become several words: "ﷺ" becomes four, which all come from this one character. Without the next
    # line, the word marks of the later words would end at its start, before the end of the first word.
    ends = np.maximum.accumulate(ends)
    return TokenOffsets(ids, starts.astype(np.int32), ends.astype(np.int32))


def _next_flagged(flags: NDArray[np.bool_]) -> Int32:
    """Return for each position the first flagged position at or after it, int32 [n].

    flags: bool [n]; the last one must be set.
    """
    last = len(flags) - 1
    flagged_positions = np.where(flags, np.arange(len(flags), dtype=np.int32), np.int32(last))
    next_flagged: Int32 = np.minimum.accumulate(flagged_positions[::-1])[::-1]
    return next_flagged
