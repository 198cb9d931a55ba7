"""The SentencePiece backend: a unigram model with its cleaning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.backend_sample import sample_texts
from albert_cli.text.clean import Cleaning, clean, clean_single_spaced
from albert_cli.text.tokenizer_json import build_tokenizer, build_tokenizer_config, build_tokenizer_json
from albert_cli.text.unigram import SPECIAL_TOKENS, describe_unsupported_model, penalize_digit_comma, read_model
from albert_cli.text.vocabulary import (
    CONFIG_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    SpecialIds,
    TokenOffsets,
    Vocabulary,
    trim_offsets,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNSUPPORTED_HINT = "convert it to a tokenizer.json with `transformers`, and remove spiece.model"
_TIE = 1e-3  # nats; SentencePiece adds scores in single precision, `tokenizers` in double
_OFFSET_BATCH = 256  # texts; an encoding takes about 100 bytes per token
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class SentencePieceVocabulary(Vocabulary):
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
        if problem := describe_unsupported_model(self.model):
            raise CheckpointError(f"{self._path}: {problem}", _UNSUPPORTED_HINT)
        self._bytes = model
        self._cleaning = cleaning
        pieces = [p.piece for p in self.model.pieces]
        ids = {piece: index for index, piece in enumerate(pieces)}
        missing = [token for token in SPECIAL_TOKENS.values() if token not in ids]
        if missing:
            message = f"{self._path}: not an ALBERT vocabulary, it has no piece {', '.join(missing)}"
            raise CheckpointError(message, "build one with `albert vocab`; SentencePiece's default ids do not fit")
        special = SpecialIds(**{role: ids[token] for role, token in SPECIAL_TOKENS.items()})
        self.first_ordinary_id = _first_ordinary_id(self.model, special)
        text_pieces = ["" if index < self.first_ordinary_id else piece for index, piece in enumerate(pieces)]
        self._byte_of_id: dict[int, int] = {}
        for index, piece in enumerate(self.model.pieces):
            if piece.type == piece.BYTE:  # like an unknown token, it is part of a character without a token
                self._byte_of_id[index] = int(piece.piece[1:-1], 16)
                text_pieces[index] = ""
        super().__init__(pieces, text_pieces, special)

    @property
    def cleaning(self) -> Cleaning:
        """The cleaning before a text is encoded."""
        return self._cleaning

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the pieces, their scores, the normalizer or the cleaning.

        The same vocabulary read from `spiece.model` and from `tokenizer.json` has the same fingerprint.
        """
        digest = hashlib.sha256(repr(self.cleaning).encode())
        digest.update(self.model.normalizer_spec.precompiled_charsmap)
        for piece, text in zip(self.model.pieces, self.text_pieces, strict=True):
            digest.update(f"{piece.piece}\0{piece.score if text else 0}\n".encode())
        return digest.hexdigest()[:16]

    def normalize(self, text: str) -> str:
        """Return `text` as it is encoded: cleaned, then normalized by SentencePiece."""
        normalized: str = self._processor.normalize(clean(text, self.cleaning))
        return normalized.replace("▁", " ").strip()

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

    def encode_sentences(self, sentences: Sequence[str]) -> list[list[int]]:
        """Encode sentences that have only single spaces, and none at their ends."""
        return self.encode_cleaned(clean_single_spaced(sentences, self.cleaning))

    def encode_cleaned(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts that are clean already, on the calling thread."""
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return ids

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[TokenOffsets]:
        """Yield the token ids of each text with the characters that each token comes from.

        Uses `tokenizers`, which keeps track of characters through all of `clean`, at 3 MB/s per core.
        """
        is_word_mark = np.array([piece == "▁" for piece in self.pieces], dtype=np.bool_)
        for start in range(0, len(texts), _OFFSET_BATCH):
            batch = [_LONE_SURROGATE.sub("\ufffd", text) for text in texts[start : start + _OFFSET_BATCH]]
            encodings = self._tokenizer.encode_batch(batch, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                yield trim_offsets(text, ids, offsets, is_word_mark[ids])

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return build_tokenizer(self.model, self.cleaning)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name, padding is left out."""
        parts: list[str] = []
        pending = bytearray()  # the bytes of characters without a token
        for index in ids:
            if index in self._byte_of_id:
                pending.append(self._byte_of_id[index])
                continue
            parts.append(pending.decode(errors="replace"))
            pending.clear()
            if index == self.pad_id:
                continue
            piece = self.pieces[index]
            parts.append(f" {piece} " if not self.text_pieces[index] else piece.replace("▁", " "))
        parts.append(pending.decode(errors="replace"))
        return " ".join("".join(parts).split())

    def _check_tokenizer(self) -> None:
        """Raise `CheckpointError` if `tokenizers` gives other ids on a sample, apart from ties of equal score."""
        for text in sample_texts(self.text_pieces):
            ids = self.encode(text)
            other_ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if ids != other_ids and not self._is_tie(ids, other_ids):
                message = f"{self._path}: a tokenizer.json cannot give its ids, for example of {text!r}"
                raise CheckpointError(message, _UNSUPPORTED_HINT)

    def _is_tie(self, ids: Sequence[int], other_ids: Sequence[int]) -> bool:
        """Return True if two segmentations spell the same text with equal scores."""
        spellings = ["".join(self.pieces[index] for index in some) for some in (ids, other_ids)]
        scores = [sum(self.model.pieces[index].score for index in some) for some in (ids, other_ids)]
        return spellings[0] == spellings[1] and abs(scores[0] - scores[1]) < _TIE

    @cached_property
    def _tokenizer_json(self) -> str:
        """The content of `tokenizer.json`; it takes a second to build, and every checkpoint has a copy."""
        try:
            self._check_tokenizer()
            return build_tokenizer_json(self.model, self.cleaning)
        except CheckpointError:
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in `tokenizers` is not an `Exception`
            raise CheckpointError(f"{self._path}: its normalizer or its pieces are damaged ({error})") from None

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write the vocabulary's files; model_max_length: where other programs truncate what they encode."""
        store.write_bytes(directory / MODEL_FILE, self._bytes)
        store.write_text(directory / TOKENIZER_FILE, self._tokenizer_json + "\n")
        store.write_json(directory / CONFIG_FILE, build_tokenizer_config(self.cleaning, model_max_length))


def _first_ordinary_id(model: Any, special: SpecialIds) -> int:
    """Return the first piece of text; lower ids are padding, unknown and control pieces."""
    for index, piece in enumerate(model.pieces):
        if piece.type in (piece.NORMAL, piece.USER_DEFINED) and index not in special:
            return index
    return len(model.pieces)
