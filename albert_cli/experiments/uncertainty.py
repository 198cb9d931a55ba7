"""How far a number may be off because few examples were asked: the jackknife over parts of them.

Every number is an array of float64 [1 + PARTS]: itself, and then itself without each part of what it was measured on.
Whatever is computed of such numbers (differences, means, ratios) is one too. Models that are asked the same examples
leave out the same parts, so that the error of their difference is that of the examples which they answer differently;
the differences of two independent samples would be several times as uncertain. With groups of examples and not single
ones the error is right for any smooth score, a correlation too (Shao & Wu, 1989, Annals of Statistics 17).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from albert_cli import journal
from albert_cli.report import predictions
from albert_cli.report.collect import read_curves
from albert_cli.results import Result
from albert_cli.tasks.base import PREDICTIONS
from albert_cli.tasks.metrics import scores
from albert_cli.tasks.registry import TASKS, paper_metric_names

JACKKNIFE_GROUPS: Final = 64
JackknifeEstimate = NDArray[np.float64]  # [1 + PARTS]


def exact_value(value: float) -> JackknifeEstimate:
    """A number that no choice of examples could change."""
    return np.full(1 + JACKKNIFE_GROUPS, float(value))


def value_without_error(value: float) -> JackknifeEstimate:
    """A number of which nobody knows what other examples would have given."""
    return np.array([value, *[math.nan] * JACKKNIFE_GROUPS])


def jackknife_error(number: JackknifeEstimate) -> float:
    """The jackknife's: infinite where it is not known."""
    without = number[1:]
    found = math.sqrt((JACKKNIFE_GROUPS - 1) / JACKKNIFE_GROUPS) * float(np.linalg.norm(without - without.mean()))
    return found if math.isfinite(found) else math.inf


def jackknife_mean(sums: ArrayLike, counts: ArrayLike) -> JackknifeEstimate:
    """The mean over all that PARTS parts hold, from each one's sum and number; NaN of nothing."""
    parts, sizes = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: JackknifeEstimate = np.append(parts.sum(), parts.sum() - parts) / np.append(
            sizes.sum(), sizes.sum() - sizes
        )
    return found


def jackknife_examples(score: Callable[[NDArray[np.intp]], float], count: int) -> JackknifeEstimate:
    """A score that is a function of the places of some of `count` examples; each part is examples in a row."""
    every = np.arange(count)
    cuts = np.linspace(0, count, JACKKNIFE_GROUPS + 1).round().astype(int)
    return np.array([score(every), *(score(np.delete(every, slice(a, b))) for a, b in itertools.pairwise(cuts))])


def jackknife_time(seconds: float, directory: Path) -> JackknifeEstimate:
    """A run's seconds, by how its pace changes between lines of its journal; unknown with fewer than two paces."""
    training, _ = read_curves(directory)
    steps = {step for step, _ in training.get("loss", [])}
    points = [(step, at) for step, at in training.get("seconds", []) if step in steps and step and at]
    between = [(n - m, b - a) for (m, a), (n, b) in itertools.pairwise(points) if n > m and b > a]
    if len(between) < 2:
        return value_without_error(seconds)
    each = np.array(between)
    pace = jackknife_examples(lambda kept: each[kept, 1].sum() / each[kept, 0].sum(), len(each))
    return np.asarray(seconds * pace / pace[0])


def jackknife_task(task: str, result: Result, directory: Path) -> dict[str, JackknifeEstimate]:
    """Of a task's result the metrics that the paper's tables have, from what its runs predicted for each example."""
    folders = [directory, *sorted(directory.glob("run-*"))]
    written = [
        journal.read_journal(path, predictions.PredictionLine) for f in folders if (path := f / PREDICTIONS).is_file()
    ]
    found = {}
    metrics = paper_metric_names(task) if task in TASKS else [result.metric]
    for metric in metrics:
        runs = [_of_lines(metric.removeprefix("best_"), lines, result.labels) for lines in written if lines]
        value = result.medians[metric]
        # Moved by as much as the runs' mean moves (a median jumps); SQuAD 2.0's best score as the one at its threshold.
        of_runs = np.mean(runs, axis=0) if runs else value_without_error(value)
        found[metric] = value + (of_runs - of_runs[0])
    return found


def _of_lines(metric: str, lines: Sequence[Any], labels: Sequence[str]) -> JackknifeEstimate:
    """A metric of one run: of spans the mean, of classes and values computed again, of other lines unknown."""
    kind = predictions.kind(lines[0])
    if kind == "span":
        each = np.array([line[metric] for line in lines], np.float64)
        return jackknife_examples(lambda kept: each[kept].mean(), len(lines))
    if kind == "other":
        return value_without_error(0.0)
    gold, said = ([line[key] for line in lines] for key in ("label", "prediction"))
    if kind == "class":  # F1 is the second's
        classes = list(labels) or sorted({*gold, *said})
        gold, said = ([classes.index(label) for label in column] for column in (gold, said))
    gold_N, said_N = np.array(gold), np.array(said)
    return jackknife_examples(lambda kept: scores([metric], said_N[kept], gold_N[kept])[metric], len(lines))
