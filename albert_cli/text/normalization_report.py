"""Measure how much of a language the cleaning removes, and warn if it is too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import normalize

from albert_cli import console
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.unigram import ZWNJ

_MEASURED_SENTENCES = 50_000
_MEASURED_FOR_DOTLESS_I = 1000
_MIN_CHANGED_FRACTION = 0.01  # of the words: accent stripping changes 0.3 % in English Wikipedia, 7 % in German
_MIN_DOTLESS_FRACTION = 0.001  # of the letters: 4 % in Turkish, none in English


@dataclass(frozen=True)
class AccentReport:
    """The effect of accent stripping on the running words of a text.

    changed: the fraction of words that change; merged: the fraction that becomes equal to a more frequent word;
    examples: the most frequent merged words, as (word, more frequent word, common form).
    """

    changed: float
    merged: float
    examples: list[tuple[str, str, str]]


def measure_accent_stripping(sentences: Sequence[str], cleaning: Cleaning) -> AccentReport | None:
    """Measure the effect on raw sentences; None if the cleaning keeps accents.

    Words are compared after NFKC, which SentencePiece applies in any case.
    """
    if not cleaning.strip_accents:
        return None
    keeping_accents = replace(cleaning, strip_accents=False)
    words = Counter[str]()
    for sentence in _take_evenly(sentences, _MEASURED_SENTENCES):
        words.update(normalize("NFKC", clean(sentence, keeping_accents)).split())
    changed = 0
    merged = Counter[tuple[str, str, str]]()
    most_frequent: dict[str, str] = {}  # stripped form -> the most frequent word with this form
    for word, count in words.most_common():
        stripped = normalize("NFKC", clean(word, cleaning))
        if stripped != word:
            changed += count
        more_frequent = most_frequent.setdefault(stripped, word)
        if more_frequent != word:
            merged[word, more_frequent, stripped] = count
    total = max(words.total(), 1)
    examples = [example for example, _ in merged.most_common(3)]
    return AccentReport(changed / total, merged.total() / total, examples)


def warn_about_normalization(
    accents: AccentReport | None, sentences: Sequence[str], cleaning: Cleaning, keep_zwnj: bool = False
) -> None:
    """Warn once about what normalization removes from raw sentences, with the options that retain it."""
    warnings = []
    if accents and accents.changed >= _MIN_CHANGED_FRACTION:
        warnings.append(_describe_accents(accents))
    if cleaning.lowercase and _has_dotless_i(sentences):
        warnings.append("lower-casing turns I into i, but this text has ı; use --no-lowercase to keep it")
    if not keep_zwnj:
        split_fraction = _measure_zwnj(sentences)
        if split_fraction >= _MIN_CHANGED_FRACTION:
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


def _has_dotless_i(sentences: Sequence[str]) -> bool:
    text = "".join(_take_evenly(sentences, _MEASURED_FOR_DOTLESS_I))
    return text.count("ı") > _MIN_DOTLESS_FRACTION * len(text)


def _measure_zwnj(sentences: Sequence[str]) -> float:
    """Return the fraction of words that contain a zero-width non-joiner."""
    words = [word for sentence in _take_evenly(sentences, _MEASURED_SENTENCES) for word in sentence.split()]
    return sum(ZWNJ in word for word in words) / max(len(words), 1)


def _take_evenly(sentences: Sequence[str], count: int) -> Sequence[str]:
    """Return at least `count` sentences at equal distances, or all if there are fewer."""
    return sentences[:: max(1, len(sentences) // count)]
