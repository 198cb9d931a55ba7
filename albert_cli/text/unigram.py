"""SentencePiece unigram models (`spiece.model`): read one, train one with the published options, prune one.

A model is a protobuf message (`ModelProto`) with pieces, their scores (log probabilities in nats), the normalizer's
rules and the training options. Here `proto` is a parsed message, and `model` the bytes of one.
"""

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
from albert_cli.text.lines import utf8_size

SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
# The options of the published vocabularies (README of ALBERT's released code). They are lists, because SentencePiece
# reads a string as CSV, in which the quotation mark would join the symbols after it into a single one.
CONTROL_SYMBOLS = ["[CLS]", "[SEP]", "[MASK]"]
USER_DEFINED_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # one byte of a character that has no token (byte fallback)
ZWNJ = "\u200c"  # the zero-width non-joiner, which is part of words in Persian and in scripts of India

# Unicode reserves U+FDD0 to U+FDEF for the internal use of programs, so no text contains the following two.
_BOUNDARY = "\ufdd0"  # between two parts of a training line that no piece may join
_ZWNJ_PLACEHOLDER = "\ufdd3"  # in place of U+200C during training, because the trainer turns U+200C into a space
_COMMA_AFTER_DIGIT = re.compile(r"(?<=\d),")
_DIGIT_COMMA_PENALTY = 100.0  # nats: more than the scores of the pieces that replace a digit-comma piece

# Limits of SentencePiece's trainer
_RESERVED = "\u2585"  # the trainer leaves out sentences with this character
_MAX_SENTENCE_BYTES = 4192  # the trainer leaves out longer sentences
_MAX_32BIT_BYTES = 2_000_000_000  # more text needs 64-bit suffix arrays, which take twice the memory

# Our values for the trainer's `input_sentence_size`
_MAX_SENTENCES = 10_000_000  # as in the training of the published vocabularies
# A sentence has at most 16,384 characters (`sentences.py`), so about 65,536 bytes at most. Two neighboring lines of it
# together have about 4,192 bytes or more, so it gives at most 32 lines.
_MAX_LINES_PER_SENTENCE = 32

# Bytes of memory and seconds of a 2.5 GHz core for each byte of UTF-8, mostly for the suffix array. On 2 to 230 MB of
# English, and of the same text in Greek and Chinese letters, 19 to 24 bytes and 0.4 to 1.4 microseconds were measured.
_MEMORY_PER_BYTE = 23
_SECONDS_PER_BYTE = 1.2e-6

_SCORE_STEPS_PER_NAT = 1024


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
    """Lower the scores of pieces such as "▁2011," in place, so that no segmentation contains one.

    ALBERT's released code never emits such a piece: it splits off the comma and encodes the rest again. Lower
    scores give the same result in one pass, both in SentencePiece and in Hugging Face's `tokenizers`.
    """
    for p in proto.pieces:
        is_digit_comma = p.type == p.NORMAL and p.piece.endswith(",") and p.piece[-2:-1].isdigit()
        if is_digit_comma and p.score > -_DIGIT_COMMA_PENALTY:  # a lower score includes the penalty already
            p.score -= _DIGIT_COMMA_PENALTY


def describe_unsupported_model(proto: Any) -> str:
    """Return the reason why no `tokenizer.json` can give the same ids as a model; "" if one can."""
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
    """Print the memory and time that training will take, and warn if more memory is needed than is available.

    sentences: their number; text_bytes: their size in UTF-8; qualifier: printed before the number, such as "about ".
    """
    required_bytes = text_bytes * _MEMORY_PER_BYTE
    if text_bytes > _MAX_32BIT_BYTES:
        required_bytes *= 2
    seconds = max(text_bytes * _SECONDS_PER_BYTE, 1)
    console.info(
        f"training on {qualifier}{sentences:,} sentences, {text_bytes / 1e6:.1f} MB: takes about"
        f" {max(required_bytes / 1e9, 0.1):.1f} GB of memory and {console.format_duration(seconds)} on a 2.5 GHz core"
    )
    available_bytes = memory_info().get("available", required_bytes)  # unknown on some systems
    if required_bytes > available_bytes:
        sample_size = int(0.9 * sentences * available_bytes / required_bytes)  # 0.9: a reserve
        console.warn(
            f"only {available_bytes / 1e9:.1f} GB of memory available, so training may be killed;"
            f" for vocab, --sample-size {sample_size} would fit"
        )


def total_utf8_size(sentences: Sequence[str]) -> int:
    """Return the number of bytes of all sentences in UTF-8."""
    return sum(map(utf8_size, sentences))


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

    character_coverage: fraction of the text's characters that get a piece; keep_zwnj: keep U+200C, which the normalizer
    of SentencePiece turns into a space; symbols: texts that are one token unless pieces that overlap them have better
    scores, as `normalize_symbols` returns them; byte_fallback: encode a character without a token as the tokens of its
    bytes. Equal sentences, options and seeds give equal bytes. Raises `InputError` if the text has too few different
    pieces, or too many characters, for the size.
    """
    import sentencepiece

    trainer_symbols = [symbol.replace(ZWNJ, _ZWNJ_PLACEHOLDER) for symbol in symbols]
    sentencepiece.set_random_generator_seed(seed)  # for its shuffle of the sentences
    model = BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_iter_training_lines(sentences, keep_zwnj),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            character_coverage=character_coverage,
            # At least the number of training lines, so that SentencePiece uses all of them and samples none.
            input_sentence_size=max(_MAX_SENTENCES, _MAX_LINES_PER_SENTENCE * len(sentences)),
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            train_extremely_large_corpus=total_utf8_size(sentences) > _MAX_32BIT_BYTES,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=CONTROL_SYMBOLS,
            user_defined_symbols=[*USER_DEFINED_SYMBOLS, *trainer_symbols],
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


def normalize_symbols(
    symbols: Sequence[str], cleaning: Cleaning, *, keep_zwnj: bool = False, byte_fallback: bool = False
) -> tuple[str, ...]:
    """Return the symbols as they occur in normalized text, each once and without `USER_DEFINED_SYMBOLS`.

    keep_zwnj and byte_fallback: the options of the training (see `train_unigram`). Raises `ConfigError` for a symbol
    that cannot be a token.
    """
    normalized: dict[str, None] = {}  # a set that preserves the order
    for symbol in symbols:
        text = clean(symbol, cleaning)
        if keep_zwnj:
            text = text.replace(ZWNJ, _ZWNJ_PLACEHOLDER)
        text = _nmt_nfkc().Normalize(text).strip()
        if keep_zwnj:
            text = text.replace(_ZWNJ_PLACEHOLDER, ZWNJ)
        if not text:
            raise ConfigError(f"--symbols: {symbol!r} is empty after cleaning", "remove it, or change the cleaning")
        if " " in text or "▁" in text:
            raise ConfigError(f"--symbols: {symbol!r} contains a space", "a symbol is a part of a word: remove it")
        if text in SPECIAL_TOKENS.values() or (byte_fallback and BYTE_TOKEN.fullmatch(text)):
            raise ConfigError(f"--symbols: {symbol!r} is a special token or a byte token already", "remove it")
        if text not in USER_DEFINED_SYMBOLS:
            normalized[text] = None
    return tuple(normalized)


def _round_scores(proto: Any) -> None:
    """Round the scores in place to multiples of 1/1024, so that sums of scores have no rounding error.

    Two segmentations may have the same pieces in another order ("0 00", "00 0") and therefore equal sums. SentencePiece
    adds scores in single precision, `tokenizers` in double. A rounding error would decide between the segmentations,
    and would depend on the program and on the text before them. In single precision, sums of multiples of 1/1024 are
    exact up to 16,384 (2^24 / 1024), which about 1,500 pieces reach.
    """
    for piece in proto.pieces:
        piece.score = round(piece.score * _SCORE_STEPS_PER_NAT) / _SCORE_STEPS_PER_NAT


def _iter_training_lines(sentences: list[str], keep_zwnj: bool) -> Iterator[str]:
    """Yield the sentences with boundaries (see `_insert_boundaries`), in lines of the trainer's maximum length."""
    for sentence in sentences:
        if keep_zwnj:
            sentence = sentence.replace(ZWNJ, _ZWNJ_PLACEHOLDER)
        prepared = _insert_boundaries(sentence)
        if len(prepared) <= _MAX_SENTENCE_BYTES // 4:  # a character has at most four bytes
            yield prepared
        else:
            yield from _split_by_bytes(prepared, _MAX_SENTENCE_BYTES)


def _insert_boundaries(sentence: str) -> str:
    """Return the sentence with a boundary inserted between a digit and a comma.

    A boundary also replaces the reserved character.

    The trainer creates no piece across a boundary, and ALBERT emits none with a digit and a comma (see
    `penalize_digit_comma`).
    """
    if not (sentence.isascii() and sentence.isprintable()):
        # Normalized first, because the normalizer turns other characters into commas and digits. It is SentencePiece's,
        # because Python's NFKC gives other results.
        sentence = _nmt_nfkc().Normalize(sentence.replace(_BOUNDARY, "")).replace(_RESERVED, _BOUNDARY)
    return _COMMA_AFTER_DIGIT.sub(_BOUNDARY + ",", sentence)


@cache
def _nmt_nfkc() -> Any:
    """Return the normalizer that SentencePiece trains with by default."""
    from sentencepiece import SentencePieceNormalizer

    return SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
    )


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
    """Return the last position in (start, limit] at which a character begins that is not a combining mark.

    If only combining marks begin there, returns the last position at which a mark begins. data: text in UTF-8.
    """
    last_mark = -1
    for position in range(limit, start, -1):
        is_continuation_byte = data[position] & 0xC0 == 0x80
        if is_continuation_byte:
            continue
        character = data[position : position + 4].decode(errors="ignore")[0]
        if not combining(character):
            return position
        if last_mark < 0:
            last_mark = position
    return last_mark


def _translate_training_error(error: RuntimeError, size: int) -> InputError:
    """Return an error with the remedy, in plain words, for an error of SentencePiece's trainer."""
    message = str(error)
    if match := re.search(r"too high.*?<= (\d+)", message):
        largest = int(match[1])
        problem = f"the text allows at most {largest:,} tokens, not {size:,}"
        return InputError(problem, f"for vocab, use --size {largest}; otherwise use more text")
    if match := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        problem = f"{size:,} tokens are too few for the text's characters, which need {match[1]}"
        hint = "for vocab, use a larger --size, or a lower --character-coverage; otherwise use text in fewer scripts"
        return InputError(problem, hint)
    if "all_chars_count" in message or "sentences_.empty()" in message:
        return InputError("the text has only control codes and reserved characters", "use other text")
    return InputError(f"SentencePiece cannot train on this text ({message})")


def prune_vocabulary(proto: Any, size: int) -> bytes:
    """Return the bytes of a model that has only the `size` pieces with the highest scores.

    The scores stay unchanged. Special pieces, symbols and single characters always stay, even if they are more than
    `size`. The pruned model splits text into as many pieces as a model trained with this size, within 0.3 %
    (measured in English, from 16,000 to 4,000 pieces).
    """
    required = [p for p in proto.pieces if p.type != p.NORMAL or len(p.piece) == 1]
    optional = [p for p in proto.pieces if p.type == p.NORMAL and len(p.piece) > 1]
    optional.sort(key=lambda p: -p.score)
    n_optional = max(size - len(required), 0)
    chosen = {p.piece for p in [*required, *optional[:n_optional]]}
    pruned = type(proto)()
    pruned.CopyFrom(proto)
    del pruned.pieces[:]
    pruned.pieces.extend(p for p in proto.pieces if p.piece in chosen)
    return bytes(pruned.SerializeToString())
