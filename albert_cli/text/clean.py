"""Normalize text as ALBERT does before SentencePiece, with an option for every step.

The official order (collapse white space, NFKD, drop combining characters, lower-case) suits English. It damages other
languages (Devanagari vowel signs, Japanese dakuten, Turkish dotted i), so each vocabulary has its own options.
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
    """The options of `clean`; the defaults are the paper's code."""

    lowercase: bool = True
    strip_accents: bool = True
    normal_form: NormalForm = "NFKD"

    @property
    def steps(self) -> tuple[_UnicodeForm, _UnicodeForm | None]:
        """The Unicode forms before and after accents are dropped (None: no second form).

        Accents can only be dropped from decomposed text, so a composed form is decomposed first and composed again
        afterwards. If accents stay, text is composed, by NFKC for NFKD and by NFC for "none": SentencePiece composes
        in any case, but only marks that directly follow their letter, and it keeps the order of several.
        """
        is_compatibility = self.normal_form.startswith("NFK")
        composed: _UnicodeForm = "NFKC" if is_compatibility else "NFC"
        if not self.strip_accents:
            # Before and after lower-casing: some small letters compose though their capitals do not.
            return composed, composed
        decomposed: _UnicodeForm = "NFKD" if is_compatibility else "NFD"
        return decomposed, None if self.normal_form == "NFKD" else composed


class _SavedCleaning(TypedDict):
    lowercase: bool
    strip_accents: bool
    normal_form: NormalForm


@dataclass(frozen=True)
class TokenizerConfig:
    """The cleaning in a `tokenizer_config.json`: in our key or, from other programs, in Hugging Face's two options."""

    albert_cleaning: _SavedCleaning | None = None
    do_lower_case: bool | None = True
    keep_accents: bool | None = False

    @property
    def cleaning(self) -> Cleaning:
        """The cleaning before a text is encoded."""
        if self.albert_cleaning is not None:
            return Cleaning(**self.albert_cleaning)
        return Cleaning(bool(self.do_lower_case), not self.keep_accents)


def clean(text: str, cleaning: Cleaning) -> str:
    """Normalize `text`, with single spaces and none at the ends; cleaning the result again changes nothing."""
    text = " ".join(text.split())
    if text.isascii():  # normal forms and accents do not concern ASCII
        return text.lower() if cleaning.lowercase else text
    text = normalize_characters(text, cleaning)
    # Compatibility forms may contain spaces, for example the forms of ´ and ﷺ.
    return " ".join(text.split()) if "  " in f" {text} " else text


def clean_normalized(sentences: Sequence[str], cleaning: Cleaning) -> list[str]:
    """Apply `clean` to sentences that have only single spaces; of ASCII it can change nothing but the case."""
    cleaned = []
    for sentence in sentences:
        if not sentence.isascii():
            cleaned.append(clean(sentence, cleaning))
        elif cleaning.lowercase:
            cleaned.append(sentence.lower())
        else:
            cleaned.append(sentence)
    return cleaned


def normalize_characters(text: str, cleaning: Cleaning) -> str:
    """Apply the steps of `clean` other than white space: normal form, accents, case."""
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which a JSON escape can produce, becomes U+FFFD
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    first_form, last_form = cleaning.steps
    text = normalize(first_form, text)
    if cleaning.strip_accents:
        text = _possible_marks().sub(lambda match: "" if combining(match[0]) else match[0], text)
    if cleaning.lowercase:
        text = text.lower()
    return normalize(last_form, text) if last_form else text


@cache
def _possible_marks() -> re.Pattern[str]:
    """Match the combining characters of the Basic Multilingual Plane, and all characters beyond it.

    A class within this plane is matched by one look-up, which is why the other planes are left to `combining`.
    """
    marks = "".join(c for c in map(chr, range(0x300, 0x10000)) if combining(c))
    return re.compile(f"[{marks}\U00010000-\U0010ffff]")
