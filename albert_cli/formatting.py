"""Format numbers, words, URLs, TOML values, errors and hints for messages, tables, pages and files of predictions."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import tomli_w

_PASSWORD = re.compile(r"(?<=://)([^/?#\s:@]*):[^/?#\s]*@")
_WEB_USER = re.compile(r"(https?://)[^/?#\s]*@")  # may be a token
_WEB_QUERY = re.compile(r"(https?://[^?\s]*\?)(\S+?)((?:@\d+(?:\.\d+)?)?(?:\s|$))")  # the weight of a source may follow


def format_percent(score: float | None) -> str:
    """Return a score of 0 to 1 times 100 with one decimal; an empty string for None."""
    return "" if score is None else f"{100 * score:.1f}"


def round_prediction(value: float) -> float:
    """Return a model's output with 7 significant digits, about the precision of float32.

    Decimal places would make small values equal, and so change scores that depend on the order of the predictions.
    """
    return float(f"{value:.7g}")


def finite_or_none(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, because JSON has neither."""
    return value if math.isfinite(value) else None


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: "1 row", "2,000 rows"."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def hide_secrets(text: str) -> str:
    """Return a text without the secrets of its URLs: passwords and, on the web, users and the values in queries."""
    text = _WEB_USER.sub(r"\1", _PASSWORD.sub(r"\1@", text))
    return _WEB_QUERY.sub(lambda match: match[1] + re.sub(r"([^&=]*=)?[^&]+", r"\1…", match[2]) + match[3], text)


def format_command(words: Iterable[str]) -> str:
    """Return words as they are typed in a shell, without the secrets of their URLs."""
    return shlex.join(map(hide_secrets, words))


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence lists them: "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def format_toml_value(value: object) -> str:
    """Return a value as TOML on one line, as in `-s key=VALUE`."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_toml_value, value))}]"
    return tomli_w.dumps({"value": value}).strip().removeprefix("value = ")


def suggest(word: str, names: Sequence[str] | Mapping[str, object]) -> str | None:
    """Return a "did you mean" hint with the name that is most similar to `word`; None if no name is similar.

    A name with slashes is compared as a whole and by its last part.
    """
    full_names = {name.rsplit("/", 1)[-1]: name for name in names}  # by last part
    full_names |= {name: name for name in names}
    similar = difflib.get_close_matches(word, list(full_names), n=1, cutoff=0.6)
    return f"did you mean {full_names[similar[0]]!r}?" if similar else None
