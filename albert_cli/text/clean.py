"""Text normalisation as ALBERT does it before SentencePiece, with every step behind a switch.

The official order (collapse white space, NFKD, drop combining characters, lower-case) suits English and destroys other
languages (Devanagari vowels signs, Japanese dakuten, Turkish dotted i), which is why each vocabulary has its switches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal
from unicodedata import combining, normalize

from typing_extensions import TypedDict

NormalForm = Literal["NFKD", "NFKC", "NFC", "none"]
_Form = Literal["NFKD", "NFKC", "NFC", "NFD"]


@dataclass(frozen=True)
class Cleaning:
    """The switches of `clean`; the defaults are the paper's code."""

    lowercase: bool = True
    strip_accents: bool = True
    normal_form: NormalForm = "NFKD"

    @property
    def steps(self) -> tuple[_Form, _Form | None]:
        """The Unicode forms before and after accents are dropped (None: none).

        Accents can only be dropped from decomposed text, so a composed form is decomposed first and composed again
        afterwards. Where they stay, text is composed, as by NFKC for NFKD and by NFC for "none": SentencePiece
        composes in any case, but only marks that directly follow their letter, and keeps the order of several.
        """
        compatible = self.normal_form.startswith("NFK")
        composed: _Form = "NFKC" if compatible else "NFC"
        if not self.strip_accents:
            # Before and after lower-casing: some small letters compose though their capitals do not.
            return composed, composed
        return "NFKD" if compatible else "NFD", None if self.normal_form == "NFKD" else composed


class _SavedCleaning(TypedDict):
    lowercase: bool
    strip_accents: bool
    normal_form: NormalForm


@dataclass(frozen=True)
class TokenizerConfig:
    """What a `tokenizer_config.json` says of the cleaning: one made elsewhere by Hugging Face's two switches."""

    albert_cleaning: _SavedCleaning | None = None
    do_lower_case: bool | None = True
    keep_accents: bool | None = False

    @property
    def cleaning(self) -> Cleaning:
        """What to do to a text before it is cut into tokens."""
        if self.albert_cleaning is not None:
            return Cleaning(**self.albert_cleaning)
        return Cleaning(bool(self.do_lower_case), not self.keep_accents)


def clean(text: str, cleaning: Cleaning) -> str:
    """Normalise `text`: single spaces, none at the ends; cleaning the result again changes nothing."""
    text = " ".join(text.split())
    if text.isascii():  # no normal form and no accent touches ASCII
        return text.lower() if cleaning.lowercase else text
    text = normalize_characters(text, cleaning)
    # Compatibility forms bring spaces of their own, e.g. ´ and ﷺ.
    return " ".join(text.split()) if "  " in f" {text} " else text


def normalize_characters(text: str, cleaning: Cleaning) -> str:
    """What `clean` does beside collapsing white space: normal form, accents, case."""
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which a JSON escape can make, becomes U+FFFD
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    before, after = cleaning.steps
    text = normalize(before, text)
    if cleaning.strip_accents:
        text = _possible_marks().sub(lambda found: "" if combining(found[0]) else found[0], text)
    if cleaning.lowercase:
        text = text.lower()
    return normalize(after, text) if after else text


@cache
def _possible_marks() -> re.Pattern[str]:
    """The combining characters, and all beyond the Basic Multilingual Plane: up to its end a class is one look-up."""
    marks = "".join(c for c in map(chr, range(0x300, 0x10000)) if combining(c))
    return re.compile(f"[{marks}\U00010000-\U0010ffff]")
