"""Measure how many words of a text the normalization changes, and warn if they are too many.

The published options suit English. In other languages they make different words equal, or split words. So before a
vocabulary is trained, a warning lists the options that prevent this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import normalize

from albert_cli import console
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.unigram import ZWNJ

_MEASURED_SENTENCES = 50_000
_SENTENCES_FOR_DOTLESS_I = 1000  # enough, because ı is frequent in the languages that have it
# The least fraction of affected words for a warning. Stripping accents changes 0.3 % of the words in the English
# Wikipedia, and 7 % in the German one.
_MIN_AFFECTED_FRACTION = 0.01
_MIN_DOTLESS_I_FRACTION = 0.001  # of the characters: 4 % of Turkish are ı, and none of English


@dataclass(frozen=True)
class AccentReport:
    """The effect of accent stripping on the running words of a text.

    changed: the fraction of words that change; merged: the fraction of words that become equal to a more frequent one;
    examples: the most frequent merged words, as (word, more frequent word, common form).
    """

    changed: float
    merged: float
    examples: list[tuple[str, str, str]]


def measure_accent_stripping(sentences: Sequence[str], cleaning: Cleaning) -> AccentReport | None:
    """Measure the effect of accent stripping on sentences that are not cleaned yet; None if the cleaning keeps accents.

    Words are compared after NFKC, which SentencePiece applies in any case.
    """
    if not cleaning.strip_accents:
        return None
    cleaning_with_accents = replace(cleaning, strip_accents=False)
    word_counts = Counter[str]()
    for sentence in _take_evenly(sentences, _MEASURED_SENTENCES):
        word_counts.update(normalize("NFKC", clean(sentence, cleaning_with_accents)).split())
    changed_count = 0
    merged_counts = Counter[tuple[str, str, str]]()
    most_frequent: dict[str, str] = {}  # stripped form -> the most frequent word with this form
    for word, count in word_counts.most_common():  # the first word with a form is therefore its most frequent one
        stripped = normalize("NFKC", clean(word, cleaning))
        if stripped != word:
            changed_count += count
        more_frequent = most_frequent.setdefault(stripped, word)
        if more_frequent != word:
            merged_counts[word, more_frequent, stripped] = count
    total = max(word_counts.total(), 1)
    examples = [example for example, _ in merged_counts.most_common(3)]
    return AccentReport(changed_count / total, merged_counts.total() / total, examples)


def warn_about_normalization(
    accents: AccentReport | None, sentences: Sequence[str], cleaning: Cleaning, keep_zwnj: bool = False
) -> None:
    """Print one warning about all losses by normalization, with the options that prevent them.

    accents: measured on `sentences`, which are not cleaned yet.
    """
    warnings = []
    if accents and accents.changed >= _MIN_AFFECTED_FRACTION:
        warnings.append(_describe_accents(accents))
    text = "".join(_take_evenly(sentences, _SENTENCES_FOR_DOTLESS_I))
    if cleaning.lowercase and text.count("ı") > _MIN_DOTLESS_I_FRACTION * len(text):
        warnings.append(
            "this text has ı, whose capital is I, but lower-casing turns I into i; use --no-lowercase to keep capitals"
        )
    if not keep_zwnj:
        split_fraction = _measure_zwnj(sentences)
        if split_fraction >= _MIN_AFFECTED_FRACTION:
            warnings.append(
                f"{split_fraction:.1%} of the words contain a zero-width non-joiner (U+200C), which becomes a space;"
                " use --keep-zwnj to keep it"
            )
    if warnings:
        console.warn("; ".join(warnings))


def _describe_accents(accents: AccentReport) -> str:
    merged = ""
    if accents.examples:
        pairs = ", ".join(f"{word} = {other}" for word, other, _ in accents.examples)
        merged = f" and merges {accents.merged:.1%} with another word ({pairs})"
    return f"stripping accents changes {accents.changed:.1%} of the words{merged}; use --no-strip-accents to keep them"


def _measure_zwnj(sentences: Sequence[str]) -> float:
    """Return the fraction of words that contain a zero-width non-joiner."""
    words = [word for sentence in _take_evenly(sentences, _MEASURED_SENTENCES) for word in sentence.split()]
    return sum(ZWNJ in word for word in words) / max(len(words), 1)


def _take_evenly(sentences: Sequence[str], count: int) -> Sequence[str]:
    """Return at least `count` and fewer than 2 x `count` evenly spaced sentences; all if there are fewer than `count`.

    They are every n-th sentence, with n = len(sentences) // count.
    """
    return sentences[:: max(1, len(sentences) // count)]
