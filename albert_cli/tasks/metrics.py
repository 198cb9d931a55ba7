"""Metrics of classification and regression by name; scikit-learn and scipy compute F1 and correlations of values.

`accuracy`, `f1` and `macro_f1` are from 0 to 1, the correlations `mcc`, `pearson` and `spearman` from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

METRICS: Final = ("accuracy", "f1", "macro_f1", "mcc", "pearson", "spearman")  # all metrics that `scores` can compute
Array = NDArray[Any]


def scores(metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the values of metrics by name; predictions and labels [N] are class indices, or in regression values.

    Raises `ValueError` if the arrays are empty or differ in length.
    """
    predicted = np.asarray(predictions)
    gold = np.asarray(labels)
    if predicted.shape != gold.shape or predicted.ndim != 1 or not len(gold):
        raise ValueError(f"predictions {predicted.shape} and labels {gold.shape}: both must be [N], N > 0")
    return {name: _compute(name, predicted, gold) for name in metrics}


def _compute(metric: str, predictions: Array, labels: Array) -> float:
    """Return the value of one metric."""
    if metric == "accuracy":
        return float(np.mean(predictions == labels))
    # Imported late: both libraries are slow to load.
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import f1_score

    if metric == "f1":  # of class 1, a paraphrase or duplicate; 0 if the class is neither predicted nor a label
        return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))
    if metric == "macro_f1":
        return float(f1_score(labels, predictions, average="macro", zero_division=0.0))
    gold = labels.astype(np.float64)
    predicted = predictions.astype(np.float64)
    # Predictions also count as constant if they differ only by rounding errors of the labels' range.
    if _is_constant(gold) or _is_constant(predicted, float(np.ptp(gold))):
        return 0.0  # a correlation with a constant is undefined; 0 is the value of predictions without information
    if metric == "mcc":
        return _matthews(predictions.astype(np.int64), labels.astype(np.int64))
    correlation = {"pearson": pearsonr, "spearman": spearmanr}[metric]
    return float(correlation(predicted, gold).statistic)


def _matthews(predictions: Array, labels: Array) -> float:
    """Return Matthews' correlation of class indices, with several classes by Gorodkin (2004).

    The bootstrap of an evaluation computes it thousands of times, and scikit-learn takes a millisecond for each.
    """
    num_classes = 1 + max(int(predictions.max()), int(labels.max()))
    pairs = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    confusion = pairs.reshape(num_classes, num_classes).astype(np.float64)
    label_counts = confusion.sum(1)
    prediction_counts = confusion.sum(0)
    total = confusion.sum()
    covariance = np.trace(confusion) * total - label_counts @ prediction_counts
    label_variance = total**2 - label_counts @ label_counts
    prediction_variance = total**2 - prediction_counts @ prediction_counts
    return float(covariance / np.sqrt(prediction_variance * label_variance))


def _is_constant(values: Array, unit: float = 0.0) -> bool:
    """Return True if all values are the same but for rounding errors, relative to the largest value or to `unit`."""
    # Float64 rounds to about 1e-16 of a value. The limit 1e-12 leaves room for errors that add up.
    return bool(np.ptp(values) <= 1e-12 * max(unit, float(np.abs(values).max())))
