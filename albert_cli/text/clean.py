"""Text normalisation as ALBERT does it before SentencePiece, with every step behind a switch.

The official order is: collapse white space, NFKD, drop combining characters, lower-case. It suits English
and destroys other languages (Devanagari vowels signs, Japanese dakuten, Turkish dotted i), which is why the
switches are stored with each vocabulary. The quote replacement of XLNet is not part of ALBERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from unicodedata import combining, normalize

from albert_cli.errors import ConfigError

NormalForm = Literal["NFKD", "NFKC", "NFC", "none"]
_Form = Literal["NFKD", "NFKC", "NFC", "NFD"]


@dataclass(frozen=True)
class Cleaning:
    """The switches of `clean`; the defaults are the paper's code.

    Raises `ConfigError` for an unknown normal form.
    """

    lowercase: bool = True
    strip_accents: bool = True
    normal_form: NormalForm = "NFKD"

    def __post_init__(self) -> None:
        if self.normal_form not in get_args(NormalForm):
            known = ", ".join(get_args(NormalForm))
            raise ConfigError(f"unknown normal form {self.normal_form!r}", f"one of: {known}")

    @property
    def steps(self) -> tuple[_Form | None, _Form | None]:
        """The Unicode forms before and after accents are dropped (None: no step).

        Accents can only be dropped from decomposed text, so a composed form is decomposed first and
        composed again afterwards; "none" keeps what is not an accent composed as NFC does.
        """
        form = self.normal_form
        if form == "NFKD":
            return "NFKD", None
        if not self.strip_accents:
            return (None, None) if form == "none" else (form, form)  # small letters may compose where capitals do not
        return ("NFKD", "NFKC") if form == "NFKC" else ("NFD", "NFC")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cleaning:
        """Read the switches from a tokenizer_config.json.

        A directory made elsewhere lacks our key: then Hugging Face's `do_lower_case` (default true) and
        `keep_accents` (default false) say what its vocabulary expects.
        """
        own = value.get("albert_cleaning")
        if own is None:
            return cls(bool(value.get("do_lower_case", True)), not value.get("keep_accents", False))
        return cls(bool(own["lowercase"]), bool(own["strip_accents"]), own["normal_form"])


def clean(text: str, cleaning: Cleaning) -> str:
    """Normalise `text`: single spaces, none at the ends; cleaning the result again changes nothing.

    A lone surrogate, which no UTF-8 can hold but a JSON escape can make, becomes U+FFFD.
    """
    text = " ".join(text.split())
    if text.isascii():  # no normal form and no accent touches ASCII
        return text.lower() if cleaning.lowercase else text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    before, after = cleaning.steps
    if before:
        text = normalize(before, text)
    if cleaning.strip_accents:
        text = "".join([c for c in text if not combining(c)])
    if cleaning.lowercase:
        text = text.lower()
    if after:
        text = normalize(after, text)
    return " ".join(text.split())  # compatibility forms bring spaces of their own, e.g. ´ and ﷺ
