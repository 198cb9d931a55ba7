"""The difference between two models that the same seeds trained, on the same dev examples, and how sure it is.

The standard error has two independent parts: between seeds, which differ in their training examples and in the order of
them, and from the dev examples, by a bootstrap. The interval is two-sided 95 % of a normal distribution.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from albert_cli.evaluation.output import run_directory
from albert_cli.results import ScoreDifference
from albert_cli.tasks.base import PREDICTIONS, AnyTask, Array
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.metrics import scores

_RESAMPLES: Final = 200
_NORMAL_QUANTILE: Final = 1.96

PredictionsBySeed = Mapping[int, Array]  # [N] classes or values


def compare_predictions(
    metric: str, gold: Array, first: PredictionsBySeed, second: PredictionsBySeed
) -> ScoreDifference | None:
    """Return how much higher `first` scores than `second`, as the mean over their common seeds; None without any."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    pairs = [(first[seed], second[seed]) for seed in seeds]
    by_seed = _differences(metric, gold, pairs)
    generator = np.random.default_rng(0)
    means = []
    for _ in range(_RESAMPLES):
        sample = generator.integers(len(gold), size=len(gold))
        resampled = [(a[sample], b[sample]) for a, b in pairs]
        means.append(statistics.fmean(_differences(metric, gold[sample], resampled)))
    between_seeds = statistics.variance(by_seed) / len(seeds) if len(seeds) > 1 else 0.0
    difference = statistics.fmean(by_seed)
    error = math.sqrt(between_seeds + statistics.variance(means))
    return ScoreDifference(
        difference=difference,
        standard_error=error,
        low=difference - _NORMAL_QUANTILE * error,
        high=difference + _NORMAL_QUANTILE * error,
        seeds=len(seeds),
    )


def _differences(metric: str, gold: Array, pairs: Sequence[tuple[Array, Array]]) -> list[float]:
    return [scores([metric], a, gold)[metric] - scores([metric], b, gold)[metric] for a, b in pairs]


def read_predictions(task: AnyTask, out: Path, seeds: Sequence[str]) -> dict[int, Array]:
    """Read the dev predictions of the finished runs below `out`, by seed; empty for a task without classes or values.

    Classes are their indices.
    """
    if not isinstance(task, Classification):
        return {}
    predictions = {}
    for seed in seeds:
        lines = (run_directory(out, int(seed)) / PREDICTIONS).read_text(encoding="utf-8").splitlines()
        values = [json.loads(line)["prediction"] for line in lines]
        if not task.is_regression:
            values = [task.labels.index(value) for value in values]
        predictions[int(seed)] = np.array(values)
    return predictions
