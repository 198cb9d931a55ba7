"""Scores of a task on the scale 0 to 1 (correlations: -1 to 1), by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from albert_cli.errors import DivergedError

Array = NDArray[Any]


def _accuracy(predictions: Array, labels: Array) -> float:
    return float(np.mean(predictions == labels))


def _f1(predictions: Array, labels: Array) -> float:
    """F1 of class 1, the paraphrase or duplicate; 0 where it is neither predicted nor there."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def _macro_f1(predictions: Array, labels: Array) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0.0))


def _mcc(predictions: Array, labels: Array) -> float:
    """Matthews' correlation; 0 when all predictions (or labels) are of one class, as is its convention."""
    from sklearn.metrics import matthews_corrcoef

    if _is_constant(predictions) or _is_constant(labels):
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def _pearson(predictions: Array, labels: Array) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, labels)


def _spearman(predictions: Array, labels: Array) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, labels)


def _correlation(measure: Callable[[Array, Array], Any], predictions: Array, labels: Array) -> float:
    """A correlation, 0 where it is undefined: a model that collapsed to one value has learnt nothing."""
    if _is_constant(predictions) or _is_constant(labels):
        return 0.0
    return float(measure(predictions.astype(np.float64), labels.astype(np.float64)).statistic)


def _is_constant(values: Array) -> bool:
    # Relative to the size of the values: below it only rounding is left to correlate.
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "mcc": _mcc,
    "pearson": _pearson,
    "spearman": _spearman,
}


def scores(metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Every metric in `metrics` of predictions [N] against labels [N]: class indices or values.

    Raises `ValueError` for empty or unequal lengths and `DivergedError` for predictions that are not finite.
    """
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    if predicted.shape != gold.shape or predicted.ndim != 1 or not len(gold):
        raise ValueError(f"predictions {predicted.shape} and labels {gold.shape}: want [N] both, N > 0")
    if not np.isfinite(predicted).all():
        raise DivergedError("the model's predictions are not finite", "lower optimizer.lr")
    return {name: METRICS[name](predicted, gold) for name in metrics}
