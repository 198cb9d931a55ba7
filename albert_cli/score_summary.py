"""Summarize scores: the standard error of a mean over seeds, and the best of several linear models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Final

CROSS_VALIDATED: Final = "cross_validated"  # the key of a baseline's main metric in cross-validation on train


def best_baseline(baselines: Mapping[str, Mapping[str, float]], metric: str) -> tuple[str, float] | None:
    """Return the name and the dev score of the linear model that is best in cross-validation; None without a score.

    baselines: by model, every metric on dev, and the main metric in cross-validation; metric: the task's main metric.
    """
    if not baselines:
        return None
    name = max(baselines, key=lambda name: baselines[name].get(CROSS_VALIDATED, 0.0))
    score = baselines[name].get(metric)
    return None if score is None else (name, score)


def standard_error(scores: Iterable[float]) -> float | None:
    """Return the standard error of the scores' mean; None for fewer than two scores."""
    values = list(scores)
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))
