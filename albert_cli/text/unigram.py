"""`spiece.model`, a SentencePiece unigram model: reading one, and training one with the published ones' options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any
from unicodedata import normalize

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.machine import memory_info

SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_DIGIT_COMMA_PENALTY = 100.0
# The options of the published vocabularies (README of the reference code). As a list: given as one string,
# SentencePiece reads the quotation mark as CSV quoting and fuses the rest into one bogus symbol.
CONTROL_SYMBOLS = ["[CLS]", "[SEP]", "[MASK]"]
USER_DEFINED_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]
_DIGIT_COMMA = re.compile(r"(?<=\d),")
_BOUNDARY = "\ufdd0"  # a code point that is no character: it marks where no piece may reach across
_MAX_SENTENCE_BYTES = 4192  # bytes; SentencePiece leaves longer ones out of its training
# Measured on 2 to 230 MB of English, and of the same text in Greek and Chinese letters: 19 to 24 bytes of memory
# and 0.4 to 1.4 microseconds of a 2.5 GHz core for each byte of UTF-8, most of it for the suffix array.
_MEMORY_PER_BYTE = 23
_SECONDS_PER_BYTE = 1.2e-6
_SCORE_STEPS_PER_NAT = 1024
_MAX_32BIT_BYTES = (
    2_000_000_000  # bytes that 32-bit suffix arrays hold; SentencePiece's 64-bit ones take twice the memory
)


def read_model(model: bytes) -> Any:
    """Parse a SentencePiece model (a `ModelProto`); raises `google.protobuf.message.DecodeError`."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    if not all(isinstance(p.piece, str) for p in proto.pieces):  # protobuf hands over other bytes as they are
        raise DecodeError("a piece is not UTF-8")
    return proto


def penalize_digit_comma(proto: Any) -> None:
    """Lower the score of pieces such as "▁2011," so far that they are never chosen.

    ALBERT's tokenizer never emits them. The reference encodes the text before the comma again instead; lowering the
    scores gives the same pieces in one pass, in SentencePiece and in Hugging Face alike.
    """
    for p in proto.pieces:
        if p.type == p.NORMAL and p.piece.endswith(",") and p.piece[-2:-1].isdigit():
            p.score -= _DIGIT_COMMA_PENALTY


def log_training_estimate(sentences: int, size: int, about: str = "") -> None:
    """Print the memory and time that training on so much takes, and warn when that is more memory than there is."""
    needed = size * _MEMORY_PER_BYTE * (2 if size > _MAX_32BIT_BYTES else 1)
    console.info(
        f"training on {about}{sentences:,} sentences, {size / 1e6:.1f} MB: takes about {max(needed / 1e9, 0.1):.1f} GB"
        f" of memory and {console.format_duration(max(size * _SECONDS_PER_BYTE, 1))} on a core of 2.5 GHz"
    )
    available = memory_info().get("available", needed)
    if needed > available:
        fitting = int(0.9 * sentences * available / needed)
        console.warn(
            f"only {available / 1e9:.1f} GB of memory are free, so that training may be killed:"
            f" --sample-size {fitting} would fit"
        )


def utf8_size(sentences: Sequence[str]) -> int:
    """Bytes of the sentences."""
    return sum(len(sentence) if sentence.isascii() else len(sentence.encode()) for sentence in sentences)


def train_unigram(sentences: list[str], size: int, character_coverage: float, seed: int) -> bytes:
    """A unigram model (the bytes of `spiece.model`) of `size` pieces, trained on cleaned sentences.

    The same sentences, options and seed give the same bytes. Raises `InputError` for a size that the text forbids.
    """
    import sentencepiece

    sentencepiece.set_random_generator_seed(seed)  # its shuffle of the sentences
    model = BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(_insert_boundaries, sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            character_coverage=character_coverage,
            input_sentence_size=max(10_000_000, len(sentences)),  # all of them: they are a sample already
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            train_extremely_large_corpus=utf8_size(sentences) > _MAX_32BIT_BYTES,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=CONTROL_SYMBOLS,
            user_defined_symbols=USER_DEFINED_SYMBOLS,
            pretokenization_delimiter=_BOUNDARY,
            minloglevel=0 if console.settings.debug else 2,
        )
    except RuntimeError as error:
        raise _translate_training_error(error, size) from None
    # SentencePiece adds scores in single precision, `tokenizers` in double. Where two segmentations have the same
    # pieces in another order ("0 00", "00 0") rounding would decide between them, differently in each program and
    # behind each beginning of a line. Multiples of 1/1024 have exact sums: up to 16,384 in all, some 1,500 pieces.
    proto = read_model(model.getvalue())
    for piece in proto.pieces:
        piece.score = round(piece.score * _SCORE_STEPS_PER_NAT) / _SCORE_STEPS_PER_NAT
    return bytes(proto.SerializeToString())


def exceeds_training_length(sentence: str) -> bool:
    """Whether SentencePiece leaves the sentence out of its training."""
    return len(sentence) > _MAX_SENTENCE_BYTES // 4 and len(_insert_boundaries(sentence).encode()) > _MAX_SENTENCE_BYTES


def prune_vocabulary(proto: Any, size: int) -> bytes:
    """A model of `size` pieces of the parsed model: the highest scores, and all that every text may need.

    What remains are special pieces, symbols and single characters, even where these alone are more. The scores stay
    as they are: a model trained to this size cuts text into as many pieces within 0.3 % (English, 16,000 to 4,000).
    """
    kept = [p for p in proto.pieces if p.type != p.NORMAL or len(p.piece) == 1]
    others = [p for p in proto.pieces if p.type == p.NORMAL and len(p.piece) > 1]
    others.sort(key=lambda p: -p.score)
    chosen = {p.piece for p in [*kept, *others[: max(size - len(kept), 0)]]}
    smaller = type(proto)()
    smaller.CopyFrom(proto)
    del smaller.pieces[:]
    smaller.pieces.extend(p for p in proto.pieces if p.piece in chosen)
    return bytes(smaller.SerializeToString())


def _insert_boundaries(sentence: str) -> str:
    """Forbid pieces that reach from a digit to a comma, which ALBERT never emits (see `penalise_digit_comma`)."""
    # Composed first, as SentencePiece is going to do, so that no full-width comma slips through.
    return _DIGIT_COMMA.sub(_BOUNDARY + ",", normalize("NFKC", sentence).replace(_BOUNDARY, ""))


def _translate_training_error(error: RuntimeError, size: int) -> InputError:
    """SentencePiece's refusal in words that name the remedy."""
    message = str(error)
    if found := re.search(r"too high.*?<= (\d+)", message):
        largest = int(found[1])
        hint = f"--size {largest}, or give more text"
        return InputError(f"the text allows at most {largest:,} tokens, not {size:,}", hint)
    if found := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        what = f"{size:,} tokens are too few for the text's characters, which need {found[1]}"
        return InputError(what, "a larger --size, or a lower --character-coverage")
    if "all_chars_count" in message:
        return InputError("the text has no characters, only control codes", "give text")
    if "sentences_.empty()" in message:
        return InputError("no sentence is short enough to train on (4,192 bytes)", "break the text into sentences")
    return InputError(f"SentencePiece cannot train on this text ({message})")
