"""What runs predicted for every example of dev (`predictions.dev.jsonl`), and where they were wrong.

Lines come from anywhere, like all that a report reads: what lacks a key or has another type under it is left out.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_cli import journal
from albert_cli.results import number

PREDICTIONS = "predictions.dev.jsonl"
Record = Mapping[str, Any]
# The words that a question is sorted by; of "how many" and "how much" the first word would say too little.
_QUESTION = re.compile(r"\b(how many|how much|what|who|whom|whose|when|where|which|why|how)\b", re.IGNORECASE)
_SAME = {"how much": "how many", "whom": "who", "whose": "who"}
_LENGTHS = ((0, "none"), (1, "1"), (2, "2"), (3, "3"), (5, "4–5"), (10, "6–10"))


@dataclass(frozen=True)
class Predicted:
    """One example and each run's line about it; `error` from 0 (right) to 1 (wrong and sure of it), or a distance."""

    example: Record
    lines: Sequence[Record]
    error: float

    @property
    def predictions(self) -> Counter[str]:
        """Every distinct prediction with the number of runs that made it."""
        return Counter(_shown(line.get("prediction")) for line in self.lines)


def read(folders: Sequence[Path]) -> list[Predicted]:
    """The examples that the runs in `folders` predicted, in the order of the first, each with all of their lines."""
    by_id: dict[str, list[Record]] = {}
    for folder in folders:
        path = folder / PREDICTIONS
        for line in journal.read(path, dict[str, Any]) if path.is_file() else []:
            if isinstance(line, dict) and "prediction" in line:
                by_id.setdefault(str(line.get("id")), []).append(line)
    predicted = []
    for lines in by_id.values():
        errors = [error for line in lines if (error := _error(line)) is not None]
        if errors:
            predicted.append(Predicted(lines[0], lines, statistics.fmean(errors)))
    return predicted


def worst(predicted: Sequence[Predicted], most: int) -> list[Predicted]:
    """The examples that the runs together were most wrong about, the worst first; none that all had right.

    Of spans that are equally wrong those come first that were thought the likeliest.
    """

    def sureness(j: Predicted) -> float:
        sure = [number(line.get("probability")) or 0.0 for line in j.lines if line.get("prediction")]
        return statistics.fmean(sure) if sure else 0.0

    wrong = [j for j in predicted if any(_is_wrong(line) for line in j.lines)]
    return sorted(wrong, key=lambda j: (-j.error, -sureness(j)))[:most]


def confusion(predicted: Sequence[Predicted]) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Classes, and how often (gold, predicted) occurs over all runs; no classes for values and spans."""
    pairs = [(line.get("label"), line.get("prediction")) for j in predicted for line in j.lines]
    counts = Counter((gold, guess) for gold, guess in pairs if isinstance(gold, str) and isinstance(guess, str))
    order = [str(name) for j in predicted for name in _mapping(j.example.get("probabilities"))]
    return list(dict.fromkeys([*order, *(name for pair in counts for name in pair)])) if counts else [], counts


def values(predicted: Sequence[Predicted]) -> list[tuple[float, float]]:
    """(gold, mean prediction over the runs) of a regression."""
    found = []
    for j in predicted:
        gold = number(j.example.get("label"))
        guesses = [value for line in j.lines if (value := number(line.get("prediction"))) is not None]
        if gold is not None and guesses:
            found.append((gold, statistics.fmean(guesses)))
    return found


@dataclass(frozen=True)
class Group:
    """Questions of a kind: how many, and their mean F1 and exact match over all runs."""

    name: str
    size: int
    f1: float
    exact_match: float


def by_answer_length(predicted: Sequence[Predicted]) -> list[Group]:
    """Span questions by the number of words of their first gold answer."""
    return _groups(predicted, _length_group, [*(name for _, name in _LENGTHS), "over 10"])


def by_question_word(predicted: Sequence[Predicted]) -> list[Group]:
    """Span questions by the first question word in them, the commonest first; empty where no question has one."""
    counts = Counter(_question_group(j) for j in predicted if _is_span(j))
    order = [name for name, _ in counts.most_common() if name != "other"]
    return _groups(predicted, _question_group, [*order, "other"]) if order else []


def _groups(predicted: Sequence[Predicted], kind: Any, order: Sequence[str]) -> list[Group]:
    spans: dict[str, list[Predicted]] = {name: [] for name in order}
    for j in predicted:
        if _is_span(j):
            spans[kind(j)].append(j)

    def mean(members: Sequence[Predicted], key: str) -> float:
        return statistics.fmean(number(line.get(key)) or 0.0 for j in members for line in j.lines)

    return [Group(name, len(js), mean(js, "f1"), mean(js, "em")) for name, js in spans.items() if js]


def _length_group(predicted: Predicted) -> str:
    answers = predicted.example.get("answers")
    first = str(answers[0]) if isinstance(answers, list) and answers else ""
    words = len(first.split())
    return next((name for most, name in _LENGTHS if words <= most), "over 10")


def _question_group(predicted: Predicted) -> str:
    found = _QUESTION.search(str(predicted.example.get("question", "")))
    if found is None:
        return "other"
    word = " ".join(found[1].lower().split())
    return _SAME.get(word, word)


# ---------------------------------------------------------------- a line


def _is_span(predicted: Predicted) -> bool:
    return number(predicted.example.get("f1")) is not None


def _is_wrong(line: Record) -> bool:
    if (f1 := number(line.get("f1"))) is not None:
        return f1 < 1
    return bool(line.get("label") != line.get("prediction"))


def _error(line: Record) -> float | None:
    """How wrong a line is: 1 less the gold label's probability, 1 less F1, or the distance from the value."""
    if (f1 := number(line.get("f1"))) is not None:
        return 1 - f1
    gold, predicted = line.get("label"), line.get("prediction")
    if isinstance(gold, str):
        probability = number(_mapping(line.get("probabilities")).get(gold))
        return float(gold != predicted) if probability is None else 1 - probability
    value, guess = number(gold), number(predicted)
    return None if value is None or guess is None else abs(value - guess)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
