"""The SentencePiece vocabulary in use: loading one, ids of text and back, which tokens begin a word (for masking)."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning, TokenizerConfig, clean
from albert_cli.text.tokenizer_json import build_tokenizer_config, build_tokenizer_json
from albert_cli.text.unigram import SPECIAL_TOKENS, penalize_digit_comma, read_model

MODEL_FILE, TOKENIZER_FILE, CONFIG_FILE = "spiece.model", "tokenizer.json", "tokenizer_config.json"
_ASCII_WORD_CHARACTERS = frozenset(string.ascii_letters + string.punctuation)


class Vocabulary:
    """A SentencePiece unigram model with its cleaning: ids of text, and what masking must know of them."""

    def __init__(self, model: bytes, cleaning: Cleaning, source: Path | None = None) -> None:
        """Take the bytes of ALBERT's kind of `spiece.model`, from `source`; raises `CheckpointError` for any other."""
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor

        self._where = where = source / MODEL_FILE if source else Path(MODEL_FILE)
        try:
            self.model = read_model(model)
            penalize_digit_comma(self.model)
            self._processor = SentencePieceProcessor(model_proto=self.model.SerializeToString())
        except (DecodeError, RuntimeError) as error:
            raise CheckpointError(f"{where}: not a SentencePiece model") from error
        self._bytes, self.cleaning = model, cleaning
        self.pieces: list[str] = [p.piece for p in self.model.pieces]
        self.size = len(self.pieces)
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        missing = [token for token in SPECIAL_TOKENS.values() if token not in ids]
        if missing:
            what = f"{where}: not an ALBERT vocabulary, it has no piece {', '.join(missing)}"
            raise CheckpointError(what, "make one with `albert vocab`; SentencePiece's default ids do not fit")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[t] for t in SPECIAL_TOKENS.values())

    @classmethod
    def load(cls, directory: Path | str) -> Vocabulary:
        """Read a vocabulary, data or ALBERT model directory; raises `CheckpointError` where it has no such model."""
        directory = Path(directory)
        if not (directory / MODEL_FILE).is_file() and (directory / "vocabulary" / MODEL_FILE).is_file():
            directory = directory / "vocabulary"
        if not (directory / MODEL_FILE).is_file():
            reason = f"no {MODEL_FILE} in it" if directory.is_dir() else "no such directory"
            raise CheckpointError(f"{directory}: {reason}", "give a directory made by `albert vocab`, or a model's")
        config = directory / CONFIG_FILE
        written = store.read_record(config, TokenizerConfig) if store.is_listed(config) else TokenizerConfig()
        return cls(store.read_bytes(directory / MODEL_FILE), written.cleaning, directory)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the pieces or with the cleaning."""
        return hashlib.sha256(self._bytes + repr(self.cleaning).encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, cleaned first; no special tokens."""
        ids: list[int] = self._processor.encode(clean(text, self.cleaning))
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """`encode` for text that goes on right after a special token: no word begins at its first character."""
        ids: list[int] = self._continuing.encode(clean(text, self.cleaning))
        return ids

    @cached_property
    def _continuing(self) -> Any:
        from sentencepiece import SentencePieceProcessor

        proto = type(self.model)()
        proto.CopyFrom(self.model)
        proto.normalizer_spec.add_dummy_prefix = False
        return SentencePieceProcessor(model_proto=proto.SerializeToString())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once, on the calling thread."""
        return self.encode_cleaned([clean(text, self.cleaning) for text in texts])

    def encode_cleaned(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts that need no cleaning any more, on the calling thread."""
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return ids

    def spans_of_cleaned(self, text: str) -> list[tuple[int, int, int]]:
        """(id, begin, end) of each token of a cleaned text, where `text[begin:end]` has the space before a word too."""
        from sentencepiece.sentencepiece_pb2 import SentencePieceText

        # Of the forms that tell places this is the one that every release of SentencePiece 0.2 has.
        found = SentencePieceText.FromString(self._processor.encode(text, out_type="serialized_proto"))
        if text.isascii():
            return [(p.id, p.begin, p.end) for p in found.pieces]
        place = [0]  # of each byte's character
        for number, character in enumerate(text, start=1):
            place += [number] * len(character.encode())
        return [(p.id, place[p.begin], place[p.end]) for p in found.pieces]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens are shown by name, padding is left out."""
        parts: list[str] = []
        for index in ids:
            if index != self.pad_id:
                is_special = index < self.first_ordinary_id
                parts.append(f" {self.pieces[index]} " if is_special else self.pieces[index].replace("▁", " "))
        return " ".join("".join(parts).split())

    @cached_property
    def first_ordinary_id(self) -> int:
        """Ids below are padding, unknown and control pieces; at it and above are pieces of text."""
        special = {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}
        of_text = (p.type in (p.NORMAL, p.USER_DEFINED) and i not in special for i, p in enumerate(self.model.pieces))
        return next((index for index, is_text in enumerate(of_text) if is_text), self.size)

    @cached_property
    def is_word_start(self) -> NDArray[np.bool_]:
        """bool [V]: whether a token begins a word for whole-word and n-gram masking.

        As in the reference: a piece with the word mark or of the form "<…>", a single ASCII punctuation character, or
        one with any character beyond ASCII letters and punctuation (digits and letters of other scripts are words of
        their own). Special pieces never continue a word.
        """
        starts = [
            index < self.first_ordinary_id
            or piece.startswith(("▁", "<"))
            or (len(piece) == 1 and piece in string.punctuation)
            or not _ASCII_WORD_CHARACTERS.issuperset(piece)
            for index, piece in enumerate(self.pieces)
        ]
        return np.array(starts, dtype=np.bool_)

    @cached_property
    def _tokenizer_json(self) -> str:  # a second of work, and every checkpoint has a copy
        try:
            return build_tokenizer_json(self.model, self.cleaning)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # `tokenizers` raises what it likes, and panics of Rust are no `Exception`
            raise CheckpointError(f"{self._where}: its normaliser or its pieces are damaged ({error})") from None

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write the vocabulary's files; model_max_length: to how many positions other programs cut what they encode."""
        store.write_bytes(directory / MODEL_FILE, self._bytes)
        store.write_text(directory / TOKENIZER_FILE, self._tokenizer_json + "\n")
        store.write_json(directory / CONFIG_FILE, build_tokenizer_config(self.cleaning, model_max_length))
