"""Numbers and lists of words as the tables and pages of this package print them."""

from __future__ import annotations

from collections.abc import Sequence


def format_percent(score: float | None) -> str:
    """Return a score of 0 to 1 times 100 with one decimal; an empty string for None."""
    return "" if score is None else f"{100 * score:.1f}"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence lists them: "a, b and c"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
