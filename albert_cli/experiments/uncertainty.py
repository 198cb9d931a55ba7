"""Estimate the sampling error of a score, which is due to a limited number of examples: the delete-a-group jackknife.

An estimate is an array of float64 [1 + JACKKNIFE_GROUPS]: the value, and then the value without each group of examples.
Differences, means and ratios of estimates are estimates, too. All models leave out the same groups of the same
examples, so the error of a difference between two models comes only from the examples on which they differ. Leaving out
groups instead of single examples gives the right error for any smooth score, such as a correlation (Shao & Wu, 1989,
Annals of Statistics 17).

Shapes: N examples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from albert_cli.report.collect import read_curves
from albert_cli.results import TaskScore
from albert_cli.tasks.metrics import METRICS, scores
from albert_cli.tasks.predictions import PredictionLine, prediction_kind, read_predictions

JACKKNIFE_GROUPS: Final = 64  # more give a more precise error, and take more time
# The metrics that can be computed from the saved predictions, by kind. Others, such as the accuracy on MNLI's
# mismatched split or on a school level of RACE, need examples or groups that a run's predictions do not have.
_METRICS_OF_PREDICTIONS: Final[Mapping[str, Sequence[str]]] = {"span": ("f1", "em"), "class": METRICS, "value": METRICS}
JackknifeEstimate = NDArray[np.float64]  # [1 + JACKKNIFE_GROUPS]


def exact_value(value: float) -> JackknifeEstimate:
    """Return an estimate whose error is zero."""
    return np.full(1 + JACKKNIFE_GROUPS, float(value))


def value_of_unknown_error(value: float) -> JackknifeEstimate:
    """Return an estimate whose error is unknown: the values without a group are NaN."""
    return np.array([value, *[math.nan] * JACKKNIFE_GROUPS])


def jackknife_error(estimate: JackknifeEstimate) -> float:
    """Return the standard error: sqrt((G - 1) / G * sum of squared deviations) for G groups; infinite if unknown."""
    without_group = estimate[1:]
    deviations = float(np.linalg.norm(without_group - without_group.mean()))
    error = math.sqrt((JACKKNIFE_GROUPS - 1) / JACKKNIFE_GROUPS) * deviations
    return error if math.isfinite(error) else math.inf


def jackknife_mean(sums: NDArray[Any], counts: NDArray[Any]) -> JackknifeEstimate:
    """Return the estimate of a mean from each group's sum and number of examples, both [JACKKNIFE_GROUPS].

    A value is NaN if no example is left.
    """
    remaining_sums = np.append(sums.sum(), sums.sum() - sums)
    remaining_counts = np.append(counts.sum(), counts.sum() - counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate: JackknifeEstimate = remaining_sums / remaining_counts
    return estimate


def jackknife_examples(score: Callable[[NDArray[np.intp]], float], count: int) -> JackknifeEstimate:
    """Return the estimate of a score of `count` examples; each group is a sequence of consecutive examples.

    score: a function of the indices of the examples to score.
    """
    indices = np.arange(count)
    edges = np.linspace(0, count, JACKKNIFE_GROUPS + 1).round().astype(int)
    remaining = [np.delete(indices, slice(start, stop)) for start, stop in itertools.pairwise(edges)]
    return np.array([score(indices), *map(score, remaining)])


def jackknife_time(total_seconds: float, steps: int, run: Path) -> JackknifeEstimate:
    """Estimate the seconds of a run's steps without the first compilation; the error comes from variations in speed.

    The estimate is `steps` times the mean seconds per step, measured from the first line of the journal in `run` on.
    Earlier steps are left out, because they include the compilation, which takes minutes. If a resumed run compiles
    again, that interval counts. For a run with `continues`, `steps` includes the steps of the run that it resumes.

    The jackknife leaves out groups of intervals between journal lines. With fewer than two intervals, the value is
    `total_seconds` and its error is unknown.
    """
    training, _ = read_curves(run)
    logged_steps = {step for step, _ in training.get("loss", [])}
    times = training.get("seconds", [])
    points = [(step, time) for step, time in times if step in logged_steps and step > 0 and time > 0]
    intervals = np.diff(np.array(points).reshape(-1, 2), axis=0)  # steps and seconds
    intervals = intervals[intervals[:, 0] > 0]
    if len(intervals) < 2:
        return value_of_unknown_error(total_seconds)

    def seconds_per_step(indices: NDArray[np.intp]) -> float:
        return float(intervals[indices, 1].sum() / intervals[indices, 0].sum())

    return steps * jackknife_examples(seconds_per_step, len(intervals))


def jackknife_task(metrics: Sequence[str], result: TaskScore, directory: Path) -> dict[str, JackknifeEstimate]:
    """Return the estimate of each metric of a task.

    The value is the median over fine-tuning runs. The error is that of the mean over runs, because a median is not
    smooth. It is computed from the predictions in `directory` or its folders `run-…`. It is unknown without
    predictions, and for metrics that cannot be computed from them.
    """
    runs = [read_predictions(folder) for folder in (directory, *sorted(directory.glob("run-*")))]
    estimates = {}
    for metric in metrics:
        # The predictions at SQuAD 2.0's best threshold are not saved; those at threshold 0 have nearly the same error.
        saved_metric = metric.removeprefix("best_")
        by_run = [_jackknife_run(saved_metric, lines, result.labels) for lines in runs if lines]
        median = result.medians[metric]
        mean = np.mean(by_run, axis=0) if by_run else value_of_unknown_error(median)
        estimates[metric] = median + (mean - mean[0])  # the median, with the deviations of the mean
    return estimates


def _jackknife_run(metric: str, lines: Sequence[PredictionLine], labels: Sequence[str]) -> JackknifeEstimate:
    """Return the estimate of a run's metric; the error is unknown for metrics not in `_METRICS_OF_PREDICTIONS`."""
    kind = prediction_kind(lines[0])
    if metric not in _METRICS_OF_PREDICTIONS.get(kind, ()):
        return value_of_unknown_error(0.0)  # the value does not matter: `jackknife_task` uses only the deviations
    if kind == "span":
        scores_N = np.array([line["f1"] if metric == "f1" else line["em"] for line in lines], np.float64)
        return jackknife_examples(lambda indices: float(scores_N[indices].mean()), len(lines))
    gold = [line["label"] for line in lines]
    predicted = [line["prediction"] for line in lines]
    if kind == "class":
        # The metrics need class indices in the order of the model's outputs, because F1 is computed for class 1.
        classes = list(labels) or sorted({str(label) for label in (*gold, *predicted)})
        gold = [classes.index(str(label)) for label in gold]
        predicted = [classes.index(str(label)) for label in predicted]
    gold_N = np.array(gold)
    predicted_N = np.array(predicted)
    return jackknife_examples(
        lambda indices: scores([metric], predicted_N[indices], gold_N[indices])[metric], len(lines)
    )
