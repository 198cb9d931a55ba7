"""Compute the metrics of a task with scikit-learn and scipy: from 0 to 1, correlations from -1 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def scores(metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the value of each metric by name; predictions [N] and labels [N] are class indices or real numbers.

    Raises `ValueError` for empty or unequal lengths.
    """
    predicted = np.asarray(predictions)
    gold = np.asarray(labels)
    if predicted.shape != gold.shape or predicted.ndim != 1 or not len(gold):
        raise ValueError(f"predictions {predicted.shape} and labels {gold.shape}: both must be [N], N > 0")
    return {name: _compute(name, predicted, gold) for name in metrics}


def _compute(metric: str, predictions: Array, labels: Array) -> float:
    if metric == "accuracy":
        return float(np.mean(predictions == labels))
    # Imported late: both libraries are slow to load.
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import f1_score, matthews_corrcoef

    if metric == "f1":  # class 1 is the paraphrase or duplicate; without any prediction or label of it, F1 is 0
        return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))
    if metric == "macro_f1":
        return float(f1_score(labels, predictions, average="macro", zero_division=0.0))
    if _is_constant(predictions) or _is_constant(labels):
        return 0.0  # correlations are undefined
    if metric == "mcc":
        return float(matthews_corrcoef(labels, predictions))
    correlation = {"pearson": pearsonr, "spearman": spearmanr}[metric]
    return float(correlation(predictions.astype(np.float64), labels.astype(np.float64)).statistic)


def _is_constant(values: Array) -> bool:
    # Values that differ only by rounding errors count as equal.
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))
