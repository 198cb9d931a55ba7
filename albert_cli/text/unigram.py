"""Training a SentencePiece unigram model with the options of the published ALBERT vocabularies."""

from __future__ import annotations

import re
from io import BytesIO
from unicodedata import normalize

from albert_cli import console
from albert_cli.errors import InputError

# The options of the published vocabularies (README of the reference code). As a list: given as one string,
# SentencePiece reads the quotation mark as CSV quoting and fuses the rest into one bogus symbol.
CONTROL_SYMBOLS = ["[CLS]", "[SEP]", "[MASK]"]
USER_DEFINED_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]
_DIGIT_COMMA = re.compile(r"(?<=\d),")
_BARRIER = "\ufdd0"  # a code point that is no character: it marks where no piece may reach across
_BYTES_A_CHARACTER = 25  # of peak memory in training: 21 to 23 measured on 2 to 35 M characters, and the text


def train(sentences: list[str], size: int, character_coverage: float, seed: int) -> bytes:
    """A unigram model (the bytes of `spiece.model`) of `size` pieces, trained on cleaned sentences.

    The same sentences, options and seed give the same bytes. Raises `InputError` for a size that the
    text does not allow.
    """
    import sentencepiece

    characters = sum(map(len, sentences))
    memory = characters * _BYTES_A_CHARACTER
    console.note(
        f"training {size:,} pieces on {len(sentences):,} sentences, {characters / 1e6:.1f} M characters;"
        f" takes about {max(memory / 1e9, 0.1):.1f} GB of memory (--sample-size lowers it)"
    )
    sentencepiece.set_random_generator_seed(seed)  # its shuffle of the sentences
    model = BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(_with_barriers, sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            character_coverage=character_coverage,
            input_sentence_size=10_000_000,
            shuffle_input_sentence=True,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=CONTROL_SYMBOLS,
            user_defined_symbols=USER_DEFINED_SYMBOLS,
            pretokenization_delimiter=_BARRIER,
            minloglevel=0 if console.settings.debug else 2,
        )
    except RuntimeError as error:
        raise _explained(error, size) from None
    return model.getvalue()


def _with_barriers(sentence: str) -> str:
    """Forbid pieces that reach from a digit to a comma, which ALBERT never emits (see `ends_in_digit_comma`).

    Composed first, as SentencePiece is going to do, so that no full-width comma slips through.
    """
    return _DIGIT_COMMA.sub(_BARRIER + ",", normalize("NFKC", sentence).replace(_BARRIER, ""))


def _explained(error: RuntimeError, size: int) -> InputError:
    """SentencePiece's refusal in words that name the remedy."""
    message = str(error)
    if found := re.search(r"too high.*?<= (\d+)", message):
        largest = int(found[1])
        return InputError(
            f"the text does not allow {size:,} pieces, at most {largest:,}",
            f"--size {largest}, or give more text",
        )
    if found := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        return InputError(
            f"{size:,} pieces do not hold the text's characters, which need {found[1]}",
            "a larger --size, or a lower --character-coverage",
        )
    if "sentences_.empty()" in message:
        return InputError("no sentence is short enough to train on (4,192 bytes)", "break the text into sentences")
    return InputError(f"SentencePiece cannot train on this text ({message})")
