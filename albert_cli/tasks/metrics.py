"""Metrics of classification and regression, computed with scikit-learn and scipy.

Accuracy and F1 are from 0 to 1, correlations (`mcc`, `pearson`, `spearman`) from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def scores(metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the values of these metrics by name; predictions [N] and labels [N] are class indices or real numbers.

    Raises `ValueError` if the arrays are empty or differ in length.
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

    if metric == "f1":  # of class 1, the paraphrase or duplicate; 0 if it is neither predicted nor a label
        return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))
    if metric == "macro_f1":
        return float(f1_score(labels, predictions, average="macro", zero_division=0.0))
    if _is_constant(predictions) or _is_constant(labels):
        return 0.0  # a correlation with a constant is undefined; 0 says that the model predicts nothing
    if metric == "mcc":
        return float(matthews_corrcoef(labels, predictions))
    correlation = {"pearson": pearsonr, "spearman": spearmanr}[metric]
    return float(correlation(predictions.astype(np.float64), labels.astype(np.float64)).statistic)


def _is_constant(values: Array) -> bool:
    # Differences below 1e-12 of the largest value are rounding errors: float64 rounds to 1e-16 of a value.
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))
