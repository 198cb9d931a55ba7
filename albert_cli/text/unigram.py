"""SentencePiece unigram models (`spiece.model`): read one, train one with the published options, prune one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from typing import Any
from unicodedata import combining

from albert_cli import console
from albert_cli.errors import ConfigError, InputError
from albert_cli.machine import memory_info
from albert_cli.text.charsmap import keep_character
from albert_cli.text.clean import Cleaning, clean

SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_DIGIT_COMMA_PENALTY = 100.0
# The options of the published vocabularies (README of the reference code), as lists: in one string, SentencePiece reads
# the quotation mark as CSV quoting and joins the rest into one wrong symbol.
CONTROL_SYMBOLS = ["[CLS]", "[SEP]", "[MASK]"]
USER_DEFINED_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]
_DIGIT_COMMA = re.compile(r"(?<=\d),")
_BOUNDARY = "\ufdd0"  # a code point that is no character: pieces must not cross it
ZWNJ = "\u200c"  # the zero-width non-joiner, which is part of words in Persian and in scripts of India
_ZWNJ_PLACEHOLDER = "\ufdd3"  # a code point that is no character
_RESERVED = "\u2585"  # SentencePiece leaves sentences with this character out of the training
_MAX_SENTENCE_BYTES = 4192  # SentencePiece leaves longer sentences out of the training
_MAX_SENTENCES = 10_000_000
_MAX_PARTS = 32  # parts of a sentence, which has at most 16,384 characters
# Measured on 2 to 230 MB of English, and of the same text in Greek and Chinese letters: 19 to 24 bytes of memory and
# 0.4 to 1.4 microseconds of a 2.5 GHz core for each byte of UTF-8, mostly for the suffix array.
_MEMORY_PER_BYTE = 23
_SECONDS_PER_BYTE = 1.2e-6
_SCORE_STEPS_PER_NAT = 1024
_MAX_32BIT_BYTES = 2_000_000_000  # more text needs 64-bit suffix arrays, which take twice the memory


def read_model(model: bytes) -> Any:
    """Parse a SentencePiece model (a `ModelProto`); raise `google.protobuf.message.DecodeError` if it is damaged."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    if not all(isinstance(p.piece, str) for p in proto.pieces):  # protobuf returns invalid UTF-8 as bytes
        raise DecodeError("a piece is not UTF-8")
    return proto


def penalize_digit_comma(proto: Any) -> None:
    """Lower the score of pieces such as "▁2011," so far that they are never chosen.

    ALBERT's tokenizer never emits them: the reference encodes the text before the comma again. Lower scores give the
    same pieces in one pass, in SentencePiece and in Hugging Face alike.
    """
    for p in proto.pieces:
        is_digit_comma = p.type == p.NORMAL and p.piece.endswith(",") and p.piece[-2:-1].isdigit()
        if is_digit_comma and p.score > -_DIGIT_COMMA_PENALTY:  # once only
            p.score -= _DIGIT_COMMA_PENALTY


def describe_unsupported_model(proto: Any) -> str:
    """Return why `tokenizer.json` could not give a model's ids; "" if it can."""
    trainer = proto.trainer_spec
    normalizer = proto.normalizer_spec
    if trainer.model_type != trainer.UNIGRAM:
        return f"a {trainer.ModelType.Name(trainer.model_type)} model; only UNIGRAM models are supported"
    if trainer.treat_whitespace_as_suffix:
        return "a model with the word mark after words, which is not supported"
    if not normalizer.add_dummy_prefix:
        return "a model without the word mark before the first word (add_dummy_prefix), which is not supported"
    if not normalizer.remove_extra_whitespaces:
        return "a model that keeps repeated spaces (remove_extra_whitespaces), which is not supported"
    if not normalizer.escape_whitespaces:
        return "a model without a word mark (escape_whitespaces), which is not supported"
    return ""


def log_training_estimate(sentences: int, text_bytes: int, qualifier: str = "") -> None:
    """Print the memory and time that training takes, and warn if that is more memory than is available.

    qualifier: printed before the number of sentences, such as "about ".
    """
    required = text_bytes * _MEMORY_PER_BYTE
    if text_bytes > _MAX_32BIT_BYTES:
        required *= 2
    seconds = max(text_bytes * _SECONDS_PER_BYTE, 1)
    console.info(
        f"training on {qualifier}{sentences:,} sentences, {text_bytes / 1e6:.1f} MB: takes about"
        f" {max(required / 1e9, 0.1):.1f} GB of memory and {console.format_duration(seconds)} on a 2.5 GHz core"
    )
    available = memory_info().get("available", required)
    if required > available:
        sample_size = int(0.9 * sentences * available / required)
        console.warn(
            f"only {available / 1e9:.1f} GB of memory available, so training may be killed;"
            f" --sample-size {sample_size} would fit"
        )


def utf8_size(sentences: Sequence[str]) -> int:
    """Return the bytes of the sentences in UTF-8."""
    return sum(len(sentence) if sentence.isascii() else len(sentence.encode()) for sentence in sentences)


def train_unigram(
    sentences: list[str],
    size: int,
    character_coverage: float,
    seed: int,
    *,
    keep_zwnj: bool = False,
    symbols: Sequence[str] = (),
    byte_fallback: bool = False,
) -> bytes:
    """Train a unigram model of `size` pieces on cleaned sentences and return the bytes of `spiece.model`.

    keep_zwnj: keep U+200C, which SentencePiece's normalizer turns into a space. symbols: texts that are one token
    wherever they occur (see `normalize_symbols`). byte_fallback: a character without a token becomes the tokens of its
    bytes. The same sentences, options and seed give the same bytes. Raises `InputError` if the text does not allow the
    size.
    """
    import sentencepiece

    sentencepiece.set_random_generator_seed(seed)  # for its shuffle of the sentences
    model = BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_iter_training_lines(sentences, keep_zwnj),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            character_coverage=character_coverage,
            input_sentence_size=max(_MAX_SENTENCES, _MAX_PARTS * len(sentences)),  # all: they are a sample already
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            train_extremely_large_corpus=utf8_size(sentences) > _MAX_32BIT_BYTES,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=CONTROL_SYMBOLS,
            user_defined_symbols=[*USER_DEFINED_SYMBOLS, *symbols],
            byte_fallback=byte_fallback,
            pretokenization_delimiter=_BOUNDARY,
            minloglevel=0 if console.settings.debug else 2,
        )
    except RuntimeError as error:
        raise _translate_training_error(error, size) from None
    proto = read_model(model.getvalue())
    _round_scores(proto)
    if keep_zwnj:
        for piece in proto.pieces:
            piece.piece = piece.piece.replace(_ZWNJ_PLACEHOLDER, ZWNJ)
        proto.normalizer_spec.precompiled_charsmap = keep_character(proto.normalizer_spec.precompiled_charsmap, ZWNJ)
    return bytes(proto.SerializeToString())


def normalize_symbols(symbols: Sequence[str], cleaning: Cleaning) -> tuple[str, ...]:
    """Return symbols as they occur in encoded text, each once; raise `ConfigError` for one that cannot be a token."""
    normalized: dict[str, None] = {}
    for symbol in symbols:
        text = _nmt_nfkc().Normalize(clean(symbol, cleaning)).strip()
        if not text:
            raise ConfigError(f"--symbols: {symbol!r} is empty after cleaning", "remove it, or change the cleaning")
        if " " in text or "▁" in text:
            raise ConfigError(f"--symbols: {symbol!r} contains a space", "a symbol is a part of a word: remove it")
        if text in SPECIAL_TOKENS.values():
            raise ConfigError(f"--symbols: {symbol!r} is a special token already", "remove it")
        if text not in USER_DEFINED_SYMBOLS:
            normalized[text] = None
    return tuple(normalized)


def _round_scores(proto: Any) -> None:
    """Round the scores to multiples of 1/1024, whose sums are exact up to 16,384, about 1,500 pieces.

    SentencePiece adds scores in single precision, `tokenizers` in double. If two segmentations have the same pieces in
    another order ("0 00", "00 0"), rounding would decide between them, differently in each program and after each
    beginning of a line.
    """
    for piece in proto.pieces:
        piece.score = round(piece.score * _SCORE_STEPS_PER_NAT) / _SCORE_STEPS_PER_NAT


def _iter_training_lines(sentences: list[str], keep_zwnj: bool) -> Iterator[str]:
    """Yield the sentences with boundaries, in parts that are short enough to be used."""
    for sentence in sentences:
        if keep_zwnj:
            sentence = sentence.replace(ZWNJ, _ZWNJ_PLACEHOLDER)
        prepared = _insert_boundaries(sentence)
        if len(prepared) <= _MAX_SENTENCE_BYTES // 4:
            yield prepared
        else:
            yield from _split_by_bytes(prepared, _MAX_SENTENCE_BYTES)


def _split_by_bytes(text: str, max_bytes: int) -> Iterator[str]:
    """Yield the text in parts of at most `max_bytes` of UTF-8, split at spaces or else between characters.

    A character stays together with the combining marks that follow it, unless these alone are too long.
    """
    data = text.encode()
    start = 0
    while len(data) - start > max_bytes:
        end = data.rfind(b" ", start, start + max_bytes + 1)
        if end <= start:
            end = _last_character_start(data, start, start + max_bytes)
        yield data[start:end].decode()
        start = end
    yield data[start:].decode()


def _last_character_start(data: bytes, start: int, limit: int) -> int:
    """Return the last position up to `limit` at which a character begins, preferably one that is no combining mark."""
    position = limit
    while position > start:
        is_continuation = data[position] & 0xC0 == 0x80
        if not is_continuation and not combining(data[position : position + 4].decode(errors="ignore")[0]):
            return position
        position -= 1
    position = limit
    while data[position] & 0xC0 == 0x80:
        position -= 1
    return position


def prune_vocabulary(proto: Any, size: int) -> bytes:
    """Return a model of the `size` best pieces of a parsed model.

    Special pieces, symbols and single characters always stay, even if these alone are more. The scores stay unchanged:
    a model trained to that size cuts text into as many pieces within 0.3 % (English, 16,000 to 4,000).
    """
    required = [p for p in proto.pieces if p.type != p.NORMAL or len(p.piece) == 1]
    optional = [p for p in proto.pieces if p.type == p.NORMAL and len(p.piece) > 1]
    optional.sort(key=lambda p: -p.score)
    chosen = {p.piece for p in [*required, *optional[: max(size - len(required), 0)]]}
    pruned = type(proto)()
    pruned.CopyFrom(proto)
    del pruned.pieces[:]
    pruned.pieces.extend(p for p in proto.pieces if p.piece in chosen)
    return bytes(pruned.SerializeToString())


def _insert_boundaries(sentence: str) -> str:
    """Forbid pieces that reach from a digit to a comma, which ALBERT never emits (see `penalize_digit_comma`)."""
    if not (sentence.isascii() and sentence.isprintable()):
        # As SentencePiece will do when it encodes, so that full-width commas are included. Python's NFKC differs.
        sentence = _nmt_nfkc().Normalize(sentence.replace(_BOUNDARY, "")).replace(_RESERVED, _BOUNDARY)
    return _DIGIT_COMMA.sub(_BOUNDARY + ",", sentence)


@cache
def _nmt_nfkc() -> Any:
    """Return the normalizer that SentencePiece trains with by default."""
    from sentencepiece import SentencePieceNormalizer

    return SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
    )


def _translate_training_error(error: RuntimeError, size: int) -> InputError:
    """Return SentencePiece's error in words that include the remedy."""
    message = str(error)
    if match := re.search(r"too high.*?<= (\d+)", message):
        largest = int(match[1])
        problem = f"the text allows at most {largest:,} tokens, not {size:,}"
        return InputError(problem, f"use --size {largest}, or more text")
    if match := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        problem = f"{size:,} tokens are too few for the text's characters, which need {match[1]}"
        return InputError(problem, "use a larger --size, or a lower --character-coverage")
    if "all_chars_count" in message or "sentences_.empty()" in message:
        return InputError("the text has only control codes and reserved characters", "use other text")
    return InputError(f"SentencePiece cannot train on this text ({message})")
