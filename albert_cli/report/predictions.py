"""What runs predicted for every example of dev (`predictions.dev.jsonl`), and where they were wrong."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Required

from typing_extensions import TypedDict

from albert_cli import journal, store
from albert_cli.results import Number
from albert_cli.tasks.base import PREDICTIONS

# The words that a question is sorted by; of "how many" and "how much" the first word would say too little.
_QUESTION = re.compile(r"\b(how many|how much|what|who|whom|whose|when|where|which|why|how)\b", re.IGNORECASE)
_SAME = {"how much": "how many", "whom": "who", "whose": "who"}
_LENGTHS = {"none": 0, "1": 1, "2": 2, "3": 3, "4–5": 5, "6–10": 10, "over 10": math.inf}


Kind = Literal["span", "class", "value", "other"]


class PredictionLine(TypedDict, total=False):
    """A run's line about an example: a prediction, the gold one where known, and the texts.

    By its keys it is of one `Kind`; of a kind of task whose lines are "other" the wrong examples are listed, no more.
    """

    id: Required[str]
    prediction: Required[str | Number]
    label: str | Number
    probabilities: dict[str, Number]  # of the classes
    probability: Number  # of the span
    answers: list[str]
    f1: Number
    em: Number
    title: str
    text: str
    text_pair: str
    question: str
    choices: list[str]


def kind(line: PredictionLine) -> Kind:
    """What a line is about: a span with its own scores, a class with the probabilities of all, a number."""
    if "answers" in line and "f1" in line:
        return "span"
    if "probabilities" in line:
        return "class"
    return "value" if isinstance(line["prediction"], float) else "other"


@dataclass(frozen=True)
class Predicted:
    """An example by every run's line; `error` from 0 (right) to 1 (wrong and sure of it), of values the distance."""

    lines: Sequence[PredictionLine]
    error: float

    @property
    def example(self) -> PredictionLine:
        """The first run's line, for what all have in common."""
        return self.lines[0]


def read(folders: Sequence[Path]) -> list[Predicted]:
    """The examples that the runs in `folders` predicted, in the order of the first run, those with a gold alone."""
    by_id: dict[str, list[PredictionLine]] = {}
    for path in (folder / PREDICTIONS for folder in folders):
        written: list[Any] = journal.read_journal(path, PredictionLine) if store.is_listed(path) else []
        for line in written:
            by_id.setdefault(line["id"], []).append(line)
    errors = {name: [error for line in lines if (error := _error(line)) is not None] for name, lines in by_id.items()}
    return [Predicted(by_id[name], statistics.fmean(found)) for name, found in errors.items() if found]


def _error(line: PredictionLine) -> float | None:
    """1 less F1, 1 less the gold label's probability, the distance from the value; or whether it is wrong."""
    if kind(line) == "span":
        return 1 - line["f1"]
    gold, predicted = line.get("label"), line["prediction"]
    if isinstance(gold, str):
        return 1 - line.get("probabilities", {}).get(gold, float(gold == predicted))
    return abs(gold - predicted) if isinstance(gold, float) and isinstance(predicted, float) else None


def worst(predicted: Sequence[Predicted], most: int) -> list[Predicted]:
    """The examples that the runs together were most wrong about, the worst first; none that all had right.

    Of spans that are equally wrong those come first that the runs were surest of.
    """

    def is_wrong(line: PredictionLine) -> bool:
        return line["f1"] < 1 if kind(line) == "span" else line.get("label") != line["prediction"]

    def sureness(of: Predicted) -> float:
        sure = [line.get("probability", 0.0) for line in of.lines if line["prediction"]]
        return statistics.fmean(sure) if sure else 0.0

    wrong = [of for of in predicted if any(map(is_wrong, of.lines))]
    return sorted(wrong, key=lambda of: (-of.error, -sureness(of)))[:most]


def confusion(predicted: Sequence[Predicted]) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Classes, and how often (gold, predicted) occurs over all runs; no classes for anything else."""
    lines = [line for of in predicted for line in of.lines if kind(line) == "class"]
    pairs = [(line.get("label"), line["prediction"]) for line in lines]
    counts = Counter((gold, guess) for gold, guess in pairs if isinstance(gold, str) and isinstance(guess, str))
    known = [name for of in predicted for name in of.example.get("probabilities", {})]
    return list(dict.fromkeys([*known, *(name for pair in counts for name in pair)])) if counts else [], counts


def values(predicted: Sequence[Predicted]) -> list[tuple[float, float]]:
    """(gold, mean prediction over the runs) of a regression."""
    pairs = [(of.example.get("label"), numbers(of)) for of in predicted]
    return [(gold, statistics.fmean(guesses)) for gold, guesses in pairs if isinstance(gold, float) and guesses]


def numbers(of: Predicted) -> list[float]:
    """What the runs predicted, where that is a value."""
    return [line["prediction"] for line in of.lines if isinstance(line["prediction"], float)]


@dataclass(frozen=True)
class Group:
    """Questions of a kind: how many, and their mean F1 and exact match over all runs."""

    name: str
    size: int
    f1: float
    exact_match: float


def by_answer_length(predicted: Sequence[Predicted]) -> list[Group]:
    """Questions for a span by the number of words of their first gold answer."""

    def length(line: PredictionLine) -> str:
        words = len("".join(line.get("answers", [])[:1]).split())
        return next(name for name, most in _LENGTHS.items() if words <= most)

    return sorted(_groups(predicted, length), key=lambda group: _LENGTHS[group.name])


def by_question_word(predicted: Sequence[Predicted]) -> list[Group]:
    """Questions for a span by their first question word, the commonest first; empty where no question has one."""

    def first_word(line: PredictionLine) -> str:
        found = _QUESTION.search(line.get("question", ""))
        word = found[1].lower() if found else "other"
        return _SAME.get(word, word)

    groups = sorted(_groups(predicted, first_word), key=lambda group: (group.name == "other", -group.size))
    return groups if any(group.name != "other" for group in groups) else []


def _groups(predicted: Sequence[Predicted], group_of: Callable[[PredictionLine], str]) -> list[Group]:
    questions: dict[str, list[Sequence[PredictionLine]]] = {}
    for of in predicted:
        if kind(of.example) == "span":
            questions.setdefault(group_of(of.example), []).append(of.lines)
    groups = []
    for name, found in questions.items():
        lines = list(itertools.chain.from_iterable(found))
        f1, exact = ([line.get("f1", 0.0) for line in lines], [line.get("em", 0.0) for line in lines])
        groups.append(Group(name, len(found), statistics.fmean(f1), statistics.fmean(exact)))
    return groups
