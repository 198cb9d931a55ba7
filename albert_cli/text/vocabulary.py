"""The SentencePiece vocabulary in use: encode text, decode ids, and know which tokens begin a word."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning, TokenizerConfig, clean
from albert_cli.text.tokenizer_json import build_tokenizer, build_tokenizer_config, build_tokenizer_json
from albert_cli.text.unigram import SPECIAL_TOKENS, penalize_digit_comma, read_model
from albert_cli.text.words import WordBoundaries, WordRule, find_word_boundaries

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Int32 = NDArray[np.int32]
MODEL_FILE = "spiece.model"
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
_OFFSET_BATCH = 256  # texts; an encoding takes some 100 bytes a token
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenOffsets(NamedTuple):
    """Token ids int32 [n] with the characters of the text that each comes from: `text[start:end]`, int32 [n].

    Starts and ends never decrease, and white space around a token is not included.
    """

    ids: Int32
    starts: Int32
    ends: Int32


class Vocabulary:
    """A SentencePiece unigram model with its cleaning: encodes text and describes its tokens."""

    def __init__(self, model: bytes, cleaning: Cleaning, source: Path | None = None) -> None:
        """Parse the bytes of an ALBERT `spiece.model`; raise `CheckpointError` if they are something else.

        source: the directory that errors name.
        """
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor

        self._path = source / MODEL_FILE if source else Path(MODEL_FILE)
        try:
            self.model = read_model(model)
            penalize_digit_comma(self.model)
            self._processor = SentencePieceProcessor(model_proto=self.model.SerializeToString())
        except (DecodeError, RuntimeError) as error:
            raise CheckpointError(f"{self._path}: not a SentencePiece model") from error
        self._bytes = model
        self.cleaning = cleaning
        self.pieces: list[str] = [p.piece for p in self.model.pieces]
        self.size = len(self.pieces)
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        missing = [token for token in SPECIAL_TOKENS.values() if token not in ids]
        if missing:
            message = f"{self._path}: not an ALBERT vocabulary, it has no piece {', '.join(missing)}"
            raise CheckpointError(message, "build one with `albert vocab`; SentencePiece's default ids do not fit")
        self.pad_id = ids[SPECIAL_TOKENS["pad"]]
        self.unk_id = ids[SPECIAL_TOKENS["unk"]]
        self.cls_id = ids[SPECIAL_TOKENS["cls"]]
        self.sep_id = ids[SPECIAL_TOKENS["sep"]]
        self.mask_id = ids[SPECIAL_TOKENS["mask"]]
        self._word_boundaries: dict[WordRule, WordBoundaries] = {}

    @classmethod
    def load(cls, directory: Path | str) -> Vocabulary:
        """Read a vocabulary, data or ALBERT model directory; raise `CheckpointError` if it contains no such model."""
        directory = Path(directory)
        if not (directory / MODEL_FILE).is_file() and (directory / "vocabulary" / MODEL_FILE).is_file():
            directory = directory / "vocabulary"
        if not (directory / MODEL_FILE).is_file():
            reason = f"no {MODEL_FILE} in it" if directory.is_dir() else "no such directory"
            raise CheckpointError(f"{directory}: {reason}", "name a directory of `albert vocab`, or a model's")
        config_file = directory / CONFIG_FILE
        config = TokenizerConfig()
        if store.is_listed(config_file):
            config = store.read_record(config_file, TokenizerConfig)
        return cls(store.read_bytes(directory / MODEL_FILE), config.cleaning, directory)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the pieces or the cleaning."""
        return hashlib.sha256(self._bytes + repr(self.cleaning).encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, cleaned first; no special tokens."""
        ids: list[int] = self._processor.encode(clean(text, self.cleaning))
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """Encode text that continues right after a special token: no word begins at its first character."""
        ids: list[int] = self._continuation_processor.encode(clean(text, self.cleaning))
        return ids

    @cached_property
    def _continuation_processor(self) -> Any:
        from sentencepiece import SentencePieceProcessor

        proto = type(self.model)()
        proto.CopyFrom(self.model)
        proto.normalizer_spec.add_dummy_prefix = False
        return SentencePieceProcessor(model_proto=proto.SerializeToString())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts, on the calling thread."""
        return self.encode_cleaned([clean(text, self.cleaning) for text in texts])

    def encode_cleaned(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts that are clean already, on the calling thread."""
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return ids

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[TokenOffsets]:
        """Yield the token ids of each text with the characters that each token comes from.

        Uses `tokenizers`, which keeps track of characters through all of `clean`, at 3 MB/s a core.
        """
        is_word_mark = np.array([piece == "▁" for piece in self.pieces], dtype=np.bool_)
        for start in range(0, len(texts), _OFFSET_BATCH):
            batch = [_LONE_SURROGATE.sub("\ufffd", text) for text in texts[start : start + _OFFSET_BATCH]]
            encodings = self._tokenizer.encode_batch(batch, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                yield _trim_offsets(text, ids, offsets, is_word_mark[ids])

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return build_tokenizer(self.model, self.cleaning)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name, padding is left out."""
        parts: list[str] = []
        for index in ids:
            if index == self.pad_id:
                continue
            piece = self.pieces[index]
            parts.append(f" {piece} " if index < self.first_ordinary_id else piece.replace("▁", " "))
        return " ".join("".join(parts).split())

    @cached_property
    def first_ordinary_id(self) -> int:
        """The first piece of text; lower ids are padding, unknown and control pieces."""
        special = {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}
        for index, piece in enumerate(self.model.pieces):
            if piece.type in (piece.NORMAL, piece.USER_DEFINED) and index not in special:
                return index
        return self.size

    def word_boundaries(self, rule: WordRule = "script") -> WordBoundaries:
        """Return the tokens that begin a word, for whole-word and n-gram masking."""
        if rule not in self._word_boundaries:
            self._word_boundaries[rule] = find_word_boundaries(self.pieces, self.first_ordinary_id, rule)
        return self._word_boundaries[rule]

    @cached_property
    def _tokenizer_json(self) -> str:
        """The content of `tokenizer.json`; it takes a second to build, and every checkpoint has a copy."""
        try:
            return build_tokenizer_json(self.model, self.cleaning)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in `tokenizers` is not an `Exception`
            raise CheckpointError(f"{self._path}: its normalizer or its pieces are damaged ({error})") from None

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write the vocabulary's files; model_max_length: where other programs truncate what they encode."""
        store.write_bytes(directory / MODEL_FILE, self._bytes)
        store.write_text(directory / TOKENIZER_FILE, self._tokenizer_json + "\n")
        store.write_json(directory / CONFIG_FILE, build_tokenizer_config(self.cleaning, model_max_length))


def _trim_offsets(text: str, ids: Int32, offsets: Int32, is_word_mark: NDArray[np.bool_]) -> TokenOffsets:
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
