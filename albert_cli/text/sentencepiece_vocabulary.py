"""The SentencePiece backend of vocabularies: it encodes with a unigram model, after its cleaning.

`tokenizers` does what SentencePiece cannot: it reports the characters that each token comes from. A vocabulary is
therefore saved only if both give equal ids.
"""

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
from albert_cli.text.words import WORD_MARK

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNSUPPORTED_HINT = "convert it to a tokenizer.json with `transformers`, and remove spiece.model"
_MAX_SCORE_ERROR = 1e-3  # nats: SentencePiece adds scores in single precision, `tokenizers` in double
_BATCH_TEXTS = 256  # texts encoded with offsets at a time; an encoding takes about 100 bytes per token
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece unigram model with its cleaning.

    model: the parsed `ModelProto`, with the scores of digit-comma pieces lowered; first_ordinary_id: the lowest id of a
    piece that is text.
    """

    def __init__(self, model_bytes: bytes, cleaning: Cleaning, directory: Path | None = None) -> None:
        """Parse the bytes of an ALBERT `spiece.model`; raise `CheckpointError` if they are something else.

        directory: of the file, for errors.
        """
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor

        self._path = directory / MODEL_FILE if directory else Path(MODEL_FILE)
        try:
            self.model = read_model(model_bytes)
            penalize_digit_comma(self.model)
            self._processor = SentencePieceProcessor(model_proto=self.model.SerializeToString())
        except (DecodeError, RuntimeError) as error:
            raise CheckpointError(f"{self._path}: not a SentencePiece model") from error
        if problem := describe_unsupported_model(self.model):
            raise CheckpointError(f"{self._path}: {problem}", _UNSUPPORTED_HINT)
        self._bytes = model_bytes
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
        for index, p in enumerate(self.model.pieces):
            if p.type == p.BYTE:  # "<0x41>" is no text, but a part of a character without a token
                self._byte_of_id[index] = int(p.piece[1:-1], 16)
                text_pieces[index] = ""
        super().__init__(pieces, text_pieces, special)

    @property
    def cleaning(self) -> Cleaning:
        """The cleaning that is applied to a text before it is encoded."""
        return self._cleaning

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the pieces, their scores, the normalizer or the cleaning.

        A vocabulary has the same fingerprint if it is read from `spiece.model` and from the `tokenizer.json` of it.
        """
        digest = hashlib.sha256(repr(self.cleaning).encode())
        digest.update(self.model.normalizer_spec.precompiled_charsmap)
        for p, text in zip(self.model.pieces, self.text_pieces, strict=True):
            score = p.score if text else 0  # spiece.model and tokenizer.json record different scores for special pieces
            digest.update(f"{p.piece}\0{score}\n".encode())
        return digest.hexdigest()[:16]

    def normalize(self, text: str) -> str:
        """Return the text that is split into pieces: cleaned, then normalized by SentencePiece."""
        normalized: str = self._processor.normalize(clean(text, self.cleaning))
        return normalized.replace("▁", " ").strip()

    def encode_continuation(self, text: str) -> list[int]:
        """Return the token ids of a text after a special token: no word begins at its first character."""
        ids: list[int] = self._continuation_processor.encode(clean(text, self.cleaning))
        return ids

    @cached_property
    def _continuation_processor(self) -> Any:
        """A `SentencePieceProcessor` that inserts no word mark before the first character."""
        from sentencepiece import SentencePieceProcessor

        proto = type(self.model)()
        proto.CopyFrom(self.model)
        proto.normalizer_spec.add_dummy_prefix = False
        return SentencePieceProcessor(model_proto=proto.SerializeToString())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens; runs on the calling thread."""
        return self.encode_cleaned([clean(text, self.cleaning) for text in texts])

    def encode_sentences(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return what `encode_batch` does, faster, for sentences with only single spaces and none at their ends."""
        return self.encode_cleaned(clean_single_spaced(sentences, self.cleaning))

    def encode_cleaned(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts that are cleaned already; runs on the calling thread."""
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return ids

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[TokenOffsets]:
        """Yield the token ids of each text with the characters that they come from.

        Uses `tokenizers`, which keeps track of the characters through all steps of `clean`, at 3 MB/s per core.
        """
        is_word_mark = np.array([piece == WORD_MARK for piece in self.pieces], dtype=np.bool_)
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = [_LONE_SURROGATE.sub("\ufffd", text) for text in texts[start : start + _BATCH_TEXTS]]
            encodings = self._tokenizer.encode_batch(batch, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                yield trim_offsets(text, ids, offsets, is_word_mark[ids])

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """A tokenizer of the `tokenizers` library with the same ids."""
        return build_tokenizer(self.model, self.cleaning)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name, padding is left out."""
        parts: list[str] = []
        pending_bytes = bytearray()  # the bytes of characters without a token
        for index in ids:
            if index in self._byte_of_id:
                pending_bytes.append(self._byte_of_id[index])
                continue
            parts.append(pending_bytes.decode(errors="replace"))
            pending_bytes.clear()
            if index == self.pad_id:
                continue
            if self.text_pieces[index]:
                parts.append(self.text_pieces[index].replace(WORD_MARK, " "))
            else:
                parts.append(f" {self.pieces[index]} ")
        parts.append(pending_bytes.decode(errors="replace"))
        return " ".join("".join(parts).split())

    def _check_tokenizer(self) -> None:
        """Raise `CheckpointError` if `tokenizers` gives other ids on sample texts, apart from ties of equal score."""
        for text in sample_texts(self.text_pieces):
            ids = self.encode(text)
            tokenizer_ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if ids != tokenizer_ids and not self._is_tie(ids, tokenizer_ids):
                message = f"{self._path}: a tokenizer.json cannot give its ids, for example of {text!r}"
                raise CheckpointError(message, _UNSUPPORTED_HINT)

    def _is_tie(self, ids: Sequence[int], other_ids: Sequence[int]) -> bool:
        """Return True if two segmentations spell the same text with equal scores."""
        if self._spell(ids) != self._spell(other_ids):
            return False
        return abs(self._score(ids) - self._score(other_ids)) < _MAX_SCORE_ERROR

    def _spell(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[index] for index in ids)

    def _score(self, ids: Sequence[int]) -> float:
        return float(sum(self.model.pieces[index].score for index in ids))

    @cached_property
    def _tokenizer_json(self) -> str:
        """The content of `tokenizer.json`; cached: building it takes a second, and every checkpoint has a copy."""
        try:
            self._check_tokenizer()
            return build_tokenizer_json(self.model, self.cleaning)
        except (CheckpointError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in `tokenizers` is not an `Exception`
            raise CheckpointError(f"{self._path}: its normalizer or its pieces are damaged ({error})") from None

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write the vocabulary's files; model_max_length: tokens to which other programs truncate a text.

        Raises `CheckpointError` if a `tokenizer.json` cannot give the same ids.
        """
        store.write_bytes(directory / MODEL_FILE, self._bytes)
        store.write_text(directory / TOKENIZER_FILE, self._tokenizer_json + "\n")
        store.write_json(directory / CONFIG_FILE, build_tokenizer_config(self.cleaning, model_max_length))


def _first_ordinary_id(model: Any, special: SpecialIds) -> int:
    """Return the lowest id of a piece that is text; lower ids are padding, unknown and control pieces."""
    for index, p in enumerate(model.pieces):
        if p.type in (p.NORMAL, p.USER_DEFINED) and index not in special:
            return index
    return len(model.pieces)
