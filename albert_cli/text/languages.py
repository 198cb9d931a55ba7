"""Warn about a `--language` that `sentencex` does not know by this code, because it applies the rules of English."""

from __future__ import annotations

import difflib
import re
from typing import Final

from albert_cli import console

_ISO_639_1: Final = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en "
    "eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
    "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne "
    "ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st "
    "su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
_CODES: Final = frozenset(_ISO_639_1.split())
# Codes of countries that are mistaken for codes of languages. `kr` is the code of Kanuri, too, which has no rules.
_COUNTRIES: Final = {"cn": "zh", "cz": "cs", "dk": "da", "gr": "el", "jp": "ja", "kr": "ko", "ua": "uk"}
# ISO 639 codes of three letters, as in the names of files of NLLB, FLORES and Tatoeba. If a language also has a code of
# two letters, `sentencex` knows it at most by that one.
_LONG_CODES: Final = {
    "afr": "af", "alb": "sq", "als": "sq", "amh": "am", "ara": "ar", "arb": "ar", "arm": "hy", "baq": "eu",
    "bel": "be", "ben": "bn", "bod": "bo", "bul": "bg", "bur": "my", "cat": "ca", "ces": "cs", "chi": "zh",
    "cmn": "zh", "cym": "cy", "cze": "cs", "dan": "da", "deu": "de", "dut": "nl", "ekk": "et", "ell": "el",
    "eng": "en", "est": "et", "eus": "eu", "fas": "fa", "fin": "fi", "fra": "fr", "fre": "fr", "geo": "ka",
    "ger": "de", "glg": "gl", "gre": "el", "guj": "gu", "heb": "he", "hin": "hi", "hrv": "hr", "hun": "hu",
    "hye": "hy", "ice": "is", "ind": "id", "isl": "is", "ita": "it", "jpn": "ja", "kan": "kn", "kat": "ka",
    "kaz": "kk", "khm": "km", "kor": "ko", "lao": "lo", "lav": "lv", "lit": "lt", "lvs": "lv", "mac": "mk",
    "mal": "ml", "mar": "mr", "may": "ms", "mkd": "mk", "msa": "ms", "mya": "my", "nld": "nl", "nno": "nn",
    "nob": "nb", "nor": "no", "pan": "pa", "per": "fa", "pes": "fa", "pol": "pl", "por": "pt", "ron": "ro",
    "rum": "ro", "rus": "ru", "slk": "sk", "slo": "sk", "slv": "sl", "spa": "es", "sqi": "sq", "srp": "sr",
    "swe": "sv", "tam": "ta", "tel": "te", "tha": "th", "tib": "bo", "tur": "tr", "ukr": "uk", "urd": "ur",
    "vie": "vi", "wel": "cy", "zho": "zh", "zsm": "ms",
}  # fmt: skip
_NAMES: Final = {
    "amharic": "am", "arabic": "ar", "bengali": "bn", "bulgarian": "bg", "burmese": "my", "catalan": "ca",
    "chinese": "zh", "czech": "cs", "danish": "da", "dutch": "nl", "english": "en", "finnish": "fi", "french": "fr",
    "german": "de", "greek": "el", "hebrew": "he", "hindi": "hi", "hungarian": "hu", "italian": "it", "japanese": "ja",
    "korean": "ko", "norwegian": "no", "persian": "fa", "polish": "pl", "portuguese": "pt", "romanian": "ro",
    "russian": "ru", "spanish": "es", "swedish": "sv", "thai": "th", "turkish": "tr", "ukrainian": "uk",
    "vietnamese": "vi", "albanian": "sq", "croatian": "hr", "estonian": "et", "icelandic": "is", "indonesian": "id",
    "latvian": "lv", "lithuanian": "lt", "serbian": "sr", "slovak": "sk", "slovenian": "sl",
}  # fmt: skip


def warn_about_language(language: str) -> None:
    """Print a warning with the nearest codes if `sentencex` does not know a language by this code.

    Most codes of three small letters pass, because there are thousands of them.
    """
    if language in _COUNTRIES:
        problem = "is the code of a country"
    elif language in _LONG_CODES and language != "eng":  # English needs no warning
        problem = "is a code of three letters"
    elif language in _CODES or re.fullmatch("[a-z]{3}", language):
        return
    else:
        problem = "is no ISO 639 code"
    codes = nearest_codes(language)
    remedy = f"use {' or '.join(codes)}" if codes else "use a code such as de"
    console.warn(f"--language {language} {problem}, so the rules of English may split the sentences; {remedy}")


def nearest_codes(language: str) -> list[str]:
    """Return the codes of languages that a wrong `--language` may mean: `ko` for `kr`, `kor`, `Korean` and `ko-KR`."""
    first_part = re.split("[-_]", language.strip().lower())[0]
    if code := (_COUNTRIES | _LONG_CODES).get(first_part):
        return [code]
    if first_part in _CODES:
        return [first_part]
    if names := difflib.get_close_matches(first_part, _NAMES, n=1, cutoff=0.8):  # Serbian resembles Persian by 0.71
        return [_NAMES[name] for name in names]
    return difflib.get_close_matches(first_part, sorted(_CODES), n=3)
