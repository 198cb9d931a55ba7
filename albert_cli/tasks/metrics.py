"""Scores of a task on the scale 0 to 1 (correlations: -1 to 1), by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def scores(metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Every metric in `metrics` of predictions [N] against labels [N]: class indices or values.

    Raises `ValueError` for empty or unequal lengths.
    """
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    if predicted.shape != gold.shape or predicted.ndim != 1 or not len(gold):
        raise ValueError(f"predictions {predicted.shape} and labels {gold.shape}: want [N] both, N > 0")
    return {name: float(_score(name, predicted, gold)) for name in metrics}


def _score(name: str, predictions: Array, labels: Array) -> Any:
    if name == "accuracy":
        return np.mean(predictions == labels)
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import f1_score, matthews_corrcoef

    if name == "f1":  # of class 1, the paraphrase or duplicate; 0 where it is neither predicted nor there
        return f1_score(labels == 1, predictions == 1, zero_division=0.0)
    if name == "macro_f1":
        return f1_score(labels, predictions, average="macro", zero_division=0.0)
    if _is_constant(predictions) or _is_constant(labels):
        return 0.0  # undefined: a model that collapsed to one value has learnt nothing
    if name == "mcc":
        return matthews_corrcoef(labels, predictions)
    correlation = {"pearson": pearsonr, "spearman": spearmanr}[name]
    return correlation(predictions.astype(np.float64), labels.astype(np.float64)).statistic


def _is_constant(values: Array) -> bool:
    # Relative to the size of the values: below it only rounding is left to correlate.
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))
