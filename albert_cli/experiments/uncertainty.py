"""Estimate how uncertain a score is because few examples were scored: the delete-a-group jackknife.

An estimate is an array of float64 [1 + JACKKNIFE_GROUPS]: the value, then the value without each group of examples.
Differences, means and ratios of estimates are estimates too. Models that are scored on the same examples leave out the
same groups, so the error of their difference is that of the examples on which they differ. Groups instead of single
examples give the right error for any smooth score, such as a correlation (Shao & Wu, 1989, Annals of Statistics 17).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from albert_cli.report.collect import read_curves
from albert_cli.report.predictions import PredictionLine, prediction_kind, read_predictions
from albert_cli.results import TaskScore
from albert_cli.tasks.metrics import scores
from albert_cli.tasks.registry import TASKS, paper_metric_names

JACKKNIFE_GROUPS: Final = 64
JackknifeEstimate = NDArray[np.float64]  # [1 + JACKKNIFE_GROUPS]


def exact_value(value: float) -> JackknifeEstimate:
    """Return an estimate without sampling error."""
    return np.full(1 + JACKKNIFE_GROUPS, float(value))


def value_without_error(value: float) -> JackknifeEstimate:
    """Return an estimate of unknown error."""
    return np.array([value, *[math.nan] * JACKKNIFE_GROUPS])


def jackknife_error(estimate: JackknifeEstimate) -> float:
    """Return the standard error; infinite if it is unknown."""
    without_group = estimate[1:]
    deviations = float(np.linalg.norm(without_group - without_group.mean()))
    error = math.sqrt((JACKKNIFE_GROUPS - 1) / JACKKNIFE_GROUPS) * deviations
    return error if math.isfinite(error) else math.inf


def jackknife_mean(sums: ArrayLike, counts: ArrayLike) -> JackknifeEstimate:
    """Return the mean from the sum and the count of each group; NaN where nothing is left."""
    group_sums = np.asarray(sums, np.float64)
    group_counts = np.asarray(counts, np.float64)
    left_sums = np.append(group_sums.sum(), group_sums.sum() - group_sums)
    left_counts = np.append(group_counts.sum(), group_counts.sum() - group_counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate: JackknifeEstimate = left_sums / left_counts
    return estimate


def jackknife_examples(score: Callable[[NDArray[np.intp]], float], count: int) -> JackknifeEstimate:
    """Return the estimate of `score`, a function of the indices of examples; groups are contiguous examples."""
    indices = np.arange(count)
    edges = np.linspace(0, count, JACKKNIFE_GROUPS + 1).round().astype(int)
    left = [np.delete(indices, slice(start, stop)) for start, stop in itertools.pairwise(edges)]
    return np.array([score(indices), *map(score, left)])


def jackknife_time(seconds: float, run: Path) -> JackknifeEstimate:
    """Return the estimate of a run's seconds from the pace between journal lines.

    The error is unknown with fewer than two intervals.
    """
    training, _ = read_curves(run)
    steps = {step for step, _ in training.get("loss", [])}
    points = [(step, time) for step, time in training.get("seconds", []) if step in steps and step and time]
    intervals = np.diff(np.array(points).reshape(-1, 2), axis=0)
    intervals = intervals[intervals[:, 0] > 0]
    if len(intervals) < 2:
        return value_without_error(seconds)
    pace = jackknife_examples(lambda left: intervals[left, 1].sum() / intervals[left, 0].sum(), len(intervals))
    return np.asarray(seconds * pace / pace[0])


def task_metric_names(task: str, result: TaskScore) -> Sequence[str]:
    """Return the metrics of a task in the paper's tables, or the main metric of a custom table."""
    return paper_metric_names(task) if task in TASKS else [result.metric]


def jackknife_task(metrics: Sequence[str], result: TaskScore, directory: Path) -> dict[str, JackknifeEstimate]:
    """Return the estimates of metrics from the predictions of a task's runs."""
    runs = [read_predictions(folder) for folder in (directory, *sorted(directory.glob("run-*")))]
    estimates = {}
    for metric in metrics:
        # Predictions at the best threshold are not saved; predictions at the usual one have nearly the same error.
        saved_metric = metric.removeprefix("best_")
        by_run = [_jackknife_run(saved_metric, lines, result.labels) for lines in runs if lines]
        value = result.medians[metric]
        # The runs' mean replaces the median, which is not smooth.
        mean = np.mean(by_run, axis=0) if by_run else value_without_error(value)
        estimates[metric] = value + (mean - mean[0])
    return estimates


def _jackknife_run(metric: str, lines: Sequence[PredictionLine], labels: Sequence[str]) -> JackknifeEstimate:
    """Return the estimate of a run's metric; unknown for predictions other than spans, classes and values."""
    kind = prediction_kind(lines[0])
    if kind not in ("span", "class", "value"):
        return value_without_error(0.0)
    if kind == "span":
        by_example = np.array([line["f1"] if metric == "f1" else line["em"] for line in lines], np.float64)
        return jackknife_examples(lambda left: float(by_example[left].mean()), len(lines))
    gold = [line["label"] for line in lines]
    predicted = [line["prediction"] for line in lines]
    if kind == "class":  # the positive class of F1 is the second one
        classes = list(labels) or sorted({str(label) for label in (*gold, *predicted)})
        gold = [classes.index(str(label)) for label in gold]
        predicted = [classes.index(str(label)) for label in predicted]
    gold_N = np.array(gold)
    predicted_N = np.array(predicted)
    return jackknife_examples(lambda left: scores([metric], predicted_N[left], gold_N[left])[metric], len(lines))
