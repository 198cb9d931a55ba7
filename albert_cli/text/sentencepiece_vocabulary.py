"""The SentencePiece backend of vocabularies: it cleans a text and encodes the result with a unigram model.

SentencePiece does not report the characters that each token comes from, but `tokenizers` does. So texts are encoded by
`tokenizers` where offsets are needed. A vocabulary is therefore saved only if both libraries give equal ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning, clean, clean_single_spaced
from albert_cli.text.comparison_texts import sample_texts
from albert_cli.text.tokenizer_json import build_tokenizer, build_tokenizer_config, build_tokenizer_json, score_pieces
from albert_cli.text.unigram import SPECIAL_TOKENS, describe_unsupported_model, penalize_digit_comma, read_model
from albert_cli.text.vocabulary import CONFIG_FILE, MODEL_FILE, TOKENIZER_FILE, SpecialIds, Vocabulary
from albert_cli.text.words import WORD_MARK

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNSUPPORTED_HINT = "convert it to a tokenizer.json with `transformers`, and remove spiece.model"
_MAX_SCORE_ERROR = 1e-3  # nats: SentencePiece adds scores in single precision, `tokenizers` in double
_tokenizer_json_cache: dict[tuple[bytes, Cleaning], str] = {}  # by the bytes of the model and the cleaning


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece unigram model with its cleaning.

    proto: the parsed model (a `ModelProto`), in which special tokens are control pieces, and in which
    `unigram.penalize_digit_comma` has lowered the scores of pieces with a digit and a comma, unless the cleaning has
    `transformers_rules`; first_ordinary_id: the lowest id of a piece that is text.
    """

    cleaning: Cleaning  # never None, unlike in the base class

    def __init__(self, model_bytes: bytes, cleaning: Cleaning, directory: Path | None = None) -> None:
        """Parse the bytes of an ALBERT `spiece.model`; raise `CheckpointError` if they are something else.

        directory: of the file, for errors.
        """
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor

        self._path = directory / MODEL_FILE if directory else Path(MODEL_FILE)
        try:
            self.proto = read_model(model_bytes)
            _hide_special_tokens(self.proto)
            if not cleaning.transformers_rules:
                penalize_digit_comma(self.proto)
            self._processor = SentencePieceProcessor(model_proto=self.proto.SerializeToString())
        except (DecodeError, RuntimeError) as error:
            raise CheckpointError(f"{self._path}: not a SentencePiece model") from error
        if problem := describe_unsupported_model(self.proto):
            raise CheckpointError(f"{self._path}: {problem}", _UNSUPPORTED_HINT)
        self._model_bytes = model_bytes
        pieces = [p.piece for p in self.proto.pieces]
        ids = {piece: index for index, piece in enumerate(pieces)}
        missing = [token for token in SPECIAL_TOKENS.values() if token not in ids]
        if missing:
            message = f"{self._path}: not an ALBERT vocabulary, it has no piece {', '.join(missing)}"
            raise CheckpointError(message, "build one with `albert vocab`; SentencePiece's default ids do not fit")
        special = SpecialIds(**{role: ids[token] for role, token in SPECIAL_TOKENS.items()})
        self.first_ordinary_id = _first_ordinary_id(self.proto, special)
        # A byte token such as "<0x41>" is not text, but a part of a character without a token.
        self._byte_of_id = {i: int(p.piece[1:-1], 16) for i, p in enumerate(self.proto.pieces) if p.type == p.BYTE}
        text_pieces = []
        for index, piece in enumerate(pieces):
            is_text = index >= self.first_ordinary_id and index not in self._byte_of_id and index not in special
            text_pieces.append(piece if is_text else "")
        super().__init__(pieces, text_pieces, special, cleaning)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the pieces, their scores, the normalizer or the cleaning.

        If a vocabulary has no byte fallback, its `spiece.model` and its `tokenizer.json` give the same fingerprint.
        """
        digest = hashlib.sha256(repr(self.cleaning).encode())
        digest.update(self.proto.normalizer_spec.precompiled_charsmap)
        for (piece, exact_score), text in zip(score_pieces(self.proto), self.text_pieces, strict=True):
            # spiece.model and tokenizer.json record different scores for special pieces and bytes. A model that is made
            # from a tokenizer.json has scores in single precision.
            score = float(np.float32(exact_score)) if text else 0
            digest.update(f"{piece}\0{score}\n".encode())
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

        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
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

    def _encode_by_tokenizers(self, texts: list[str]) -> list[Any]:
        encodings: list[Any] = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return encodings

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """A tokenizer of the `tokenizers` library with the same ids."""
        return build_tokenizer(self.proto, self.cleaning)

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
        texts = sample_texts(self.text_pieces)
        encodings = self._encode_by_tokenizers(texts)
        for text, ids, encoding in zip(texts, self.encode_batch(texts), encodings, strict=True):
            if ids != encoding.ids and not self._is_tie(ids, encoding.ids):
                message = f"{self._path}: a tokenizer.json cannot give its ids, for example of {text!r}"
                raise CheckpointError(message, _UNSUPPORTED_HINT)

    def _is_tie(self, ids: Sequence[int], other_ids: Sequence[int]) -> bool:
        """Return True if two segmentations spell the same text with equal scores."""
        if "".join(self.pieces[index] for index in ids) != "".join(self.pieces[index] for index in other_ids):
            return False
        difference = sum(self._scores[index] for index in ids) - sum(self._scores[index] for index in other_ids)
        return abs(difference) < _MAX_SCORE_ERROR

    @cached_property
    def _scores(self) -> list[float]:
        """The scores with which SentencePiece encodes, by id."""
        return [score for _, score in score_pieces(self.proto)]

    @property
    def _tokenizer_json(self) -> str:
        """The content of `tokenizer.json`, cached because building takes a second and each checkpoint has a copy.

        The cache is keyed by content, because a suite loads the same vocabulary again for each of its tasks.
        """
        key = (self._model_bytes, self.cleaning)
        if key not in _tokenizer_json_cache:
            try:
                self._check_tokenizer()
                _tokenizer_json_cache[key] = build_tokenizer_json(self.proto, self.cleaning)
            except (CheckpointError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic in `tokenizers` is not an `Exception`
                message = f"{self._path}: its normalizer or its pieces are damaged ({error})"
                raise CheckpointError(message) from None
        return _tokenizer_json_cache[key]

    def copy_to(self, directory: Path, model_max_length: int = 512) -> None:
        """Write the vocabulary's files; model_max_length: tokens to which other programs truncate a text.

        Raises `CheckpointError` if a `tokenizer.json` cannot give the same ids.
        """
        store.write_bytes(directory / MODEL_FILE, self._model_bytes)
        store.write_text(directory / TOKENIZER_FILE, self._tokenizer_json + "\n")
        store.write_json(directory / CONFIG_FILE, build_tokenizer_config(self.cleaning, model_max_length))


def _hide_special_tokens(proto: Any) -> None:
    """Make user-defined special tokens control pieces, in place, so that no text contains them.

    Other programs may train a model with `user_defined_symbols=[MASK]`: SentencePiece then finds [MASK] in texts.
    """
    for p in proto.pieces:
        if p.type == p.USER_DEFINED and p.piece in SPECIAL_TOKENS.values():
            p.type = p.CONTROL


def _first_ordinary_id(proto: Any, special: SpecialIds) -> int:
    """Return the lowest id of a piece that is text; lower ids are padding, unknown and control pieces."""
    for index, p in enumerate(proto.pieces):
        if p.type in (p.NORMAL, p.USER_DEFINED) and index not in special:
            return index
    return len(proto.pieces)
