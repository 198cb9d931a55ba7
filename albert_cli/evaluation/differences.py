"""Compare two models, trained with the same seeds, on the same dev examples: the difference in score and its interval.

The difference has two independent errors. The error from the choice of seeds, which sample and order the training
examples, is estimated from the differences of the seeds. The error from the choice of dev examples is estimated by a
bootstrap. The two-sided 95 % interval combines their margins: the quantile of Student's t times the error from seeds,
and the quantile of a normal distribution times the error from dev examples. One seed has no spread, so its interval has
only the error from dev examples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from albert_cli.errors import CheckpointError
from albert_cli.evaluation.output import run_directory
from albert_cli.results import EvaluationResult, ScoreDifference
from albert_cli.score_summary import standard_error
from albert_cli.tasks.base import PREDICTIONS, AnyTask, Array
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.metrics import scores
from albert_cli.tasks.predictions import read_predictions

_RESAMPLES: Final = 200  # a bootstrap standard error from B samples is itself uncertain by 1 / sqrt(2 B): 5 %
_NORMAL_QUANTILE: Final = 1.96  # 97.5 % of a standard normal distribution are below it

PredictionsBySeed = Mapping[int, Array]  # [N] classes or values


def compare_predictions(
    metric: str, gold: Array, first: PredictionsBySeed, second: PredictionsBySeed
) -> ScoreDifference | None:
    """Return the score of `first` minus the score of `second`, averaged over the seeds that both have.

    gold: the classes or values of the dev examples [N]. With one seed, the error and the interval leave out the error
    from seeds. Returns None if the two have no seed in common.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    pairs = [(first[seed], second[seed]) for seed in seeds]
    differences = _score_differences(metric, gold, pairs)
    generator = np.random.default_rng(0)
    bootstrap_means = []
    for _ in range(_RESAMPLES):
        sample = generator.integers(len(gold), size=len(gold))  # indices, with replacement
        resampled = [(a[sample], b[sample]) for a, b in pairs]
        bootstrap_means.append(statistics.fmean(_score_differences(metric, gold[sample], resampled)))
    difference = statistics.fmean(differences)
    example_error = statistics.stdev(bootstrap_means)
    seed_error = standard_error(differences) or 0.0
    margin = math.hypot(_seed_quantile(len(seeds)) * seed_error, _NORMAL_QUANTILE * example_error)
    return ScoreDifference(
        difference=difference,
        standard_error=math.hypot(seed_error, example_error),
        low=difference - margin,
        high=difference + margin,
        seeds=len(seeds),
    )


def _seed_quantile(seeds: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution for a mean over seeds; 0 for one seed."""
    if seeds < 2:
        return 0.0
    from scipy.stats import t

    return float(t.ppf(0.975, seeds - 1))


def _score_differences(metric: str, gold: Array, pairs: Sequence[tuple[Array, Array]]) -> list[float]:
    """Return the difference in score between the two predictions [N] of each pair."""
    return [scores([metric], a, gold)[metric] - scores([metric], b, gold)[metric] for a, b in pairs]


def read_predictions_by_seed(task: AnyTask, out: Path, result: EvaluationResult, n_examples: int) -> dict[int, Array]:
    """Read the dev predictions [N] of every seed that has a score: values, or indices of classes in `task.labels`.

    out: the directory of the evaluation whose result is `result`; n_examples: the number of dev examples, N. The
    dictionary is empty for tasks other than classification and regression. Raises `CheckpointError` if a file is
    damaged.
    """
    if not isinstance(task, Classification):
        return {}
    predictions = {}
    for seed in map(int, result.scores_by_seed):
        directory = run_directory(out, seed)
        array = _parse_predictions(task, [line["prediction"] for line in read_predictions(directory)])
        if array is None or array.shape != (n_examples,):
            message = f"{directory / PREDICTIONS}: damaged: it has no prediction for each of {n_examples} examples"
            raise CheckpointError(message, f"remove {directory} and run the same command again")
        predictions[seed] = array
    return predictions


def _parse_predictions(task: Classification, predictions: Sequence[object]) -> Array | None:
    """Return values, or indices of classes in `task.labels`, [N]; None if a prediction is neither."""
    try:
        if task.is_regression:
            return np.array(predictions, np.float64)
        return np.array([task.labels.index(str(label)) for label in predictions], np.int64)
    except (TypeError, ValueError):
        return None
