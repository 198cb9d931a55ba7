"""Clean text as ALBERT does before SentencePiece encodes it, with an option for every step.

ALBERT's released code collapses white space, applies NFKD, drops combining characters, and lower-cases. This suits
English, but it damages other languages (Devanagari vowel signs, Japanese dakuten, Turkish dotted i). So each vocabulary
has its own options, which are stored with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal
from unicodedata import combining, normalize

from typing_extensions import TypedDict

NormalForm = Literal["NFKD", "NFKC", "NFC", "none"]
_UnicodeForm = Literal["NFKD", "NFKC", "NFC", "NFD"]


@dataclass(frozen=True)
class Cleaning:
    """The options of `clean`; the defaults are those of the paper's code.

    strip_accents: drop all combining characters; normal_form: Unicode form, "none" for no normalization;
    transformers_rules: write `` and '' as ", and allow pieces with a digit and a comma, which
    `unigram.penalize_digit_comma` otherwise prevents. Hugging Face's ALBERT tokenizers do both, the paper's code
    neither.
    """

    lowercase: bool = True
    strip_accents: bool = True
    normal_form: NormalForm = "NFKD"
    transformers_rules: bool = False

    @property
    def unicode_forms(self) -> tuple[_UnicodeForm, _UnicodeForm | None]:
        """The Unicode forms that `clean` applies before it drops accents and after it lower-cases (None: no form).

        Accents can be dropped from decomposed text only. So text is decomposed first and, if `normal_form` is not NFKD,
        composed at the end. If accents stay, the forms are composed ones before and after lower-casing: NFKC for NFKD
        and NFKC, NFC for NFC and "none". SentencePiece would compose the text anyway, but less completely: only marks
        directly after their letter, and without sorting several marks into the standard order.
        """
        is_compatibility = self.normal_form.startswith("NFK")
        composed: _UnicodeForm = "NFKC" if is_compatibility else "NFC"
        if not self.strip_accents:
            # Composed a second time after lower-casing, because some small letters compose and their capitals do not.
            return composed, composed
        decomposed: _UnicodeForm = "NFKD" if is_compatibility else "NFD"
        if self.normal_form == "NFKD":
            return decomposed, None
        return decomposed, composed


class _SavedCleaning(TypedDict):
    """The fields of `Cleaning` in a `tokenizer_config.json`; none has a default, so a missing key is an error."""

    lowercase: bool
    strip_accents: bool
    normal_form: NormalForm
    transformers_rules: bool


@dataclass(frozen=True)
class TokenizerConfig:
    """The keys of a `tokenizer_config.json` that describe the cleaning.

    albert_cleaning: written by this program; do_lower_case and keep_accents: the options of Hugging Face's ALBERT
    tokenizer, which are used if `albert_cleaning` is missing.
    """

    albert_cleaning: _SavedCleaning | None = None
    do_lower_case: bool | None = True
    keep_accents: bool | None = False

    @property
    def cleaning(self) -> Cleaning:
        """The cleaning that the keys describe."""
        if self.albert_cleaning is not None:
            return Cleaning(**self.albert_cleaning)
        return Cleaning(lowercase=bool(self.do_lower_case), strip_accents=not self.keep_accents)


def replace_surrogates(text: str) -> str:
    """Return the text with U+FFFD in place of every lone surrogate, which a JSON escape can produce.

    A pair of surrogates becomes the character that it encodes in UTF-16.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean(text: str, cleaning: Cleaning) -> str:
    """Return the cleaned text, with single spaces and none at its ends; cleaning the result again changes nothing.

    The exception is ｀｀ with `transformers_rules`: it becomes ``, which a second cleaning replaces by ".
    """
    text = " ".join(text.split())
    if cleaning.transformers_rules:
        text = text.replace("``", '"').replace("''", '"')
    if text.isascii():  # ASCII has no accents and is equal in every normal form
        return text.lower() if cleaning.lowercase else text
    text = _clean_characters(text, cleaning)
    # The compatibility forms of some characters, such as ´ and ﷺ, contain spaces. With a space added at both ends,
    # the test for two spaces finds also those at the ends.
    return " ".join(text.split()) if "  " in f" {text} " else text


def clean_single_spaced(sentences: Sequence[str], cleaning: Cleaning) -> list[str]:
    """Apply `clean`, faster, to sentences that have only single spaces, and none at their ends.

    Without `transformers_rules`, only the case of an ASCII sentence can change.
    """
    cleaned = []
    for sentence in sentences:
        if cleaning.transformers_rules or not sentence.isascii():
            cleaned.append(clean(sentence, cleaning))
        elif cleaning.lowercase:
            cleaned.append(sentence.lower())
        else:
            cleaned.append(sentence)
    return cleaned


def _clean_characters(text: str, cleaning: Cleaning) -> str:
    """Replace lone surrogates, then apply the options of `cleaning`: normal form, accents, case."""
    first_form, last_form = cleaning.unicode_forms
    text = normalize(first_form, replace_surrogates(text))
    if cleaning.strip_accents:
        text = _mark_pattern().sub(lambda match: "" if combining(match[0]) else match[0], text)
    if cleaning.lowercase:
        text = text.lower()
    return normalize(last_form, text) if last_form else text


@cache
def _mark_pattern() -> re.Pattern[str]:
    """Return a pattern that matches every combining character, and also all characters beyond U+FFFF.

    The caller tests every match with `combining`. Python's regular expressions find a character up to U+FFFF in a class
    by one look-up, but compare a character beyond it with each range of the class in turn. So the class has a single
    range for all characters beyond U+FFFF, which the caller's test then filters.
    """
    marks = "".join(c for c in map(chr, range(0x300, 0x10000)) if combining(c))  # U+0300 is the first one
    return re.compile(f"[{marks}\U00010000-\U0010ffff]")
