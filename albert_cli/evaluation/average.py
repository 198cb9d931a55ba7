"""Avg of the paper's tables: one place that says which scores of a task count, and how they become one number."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from albert_cli.results import Result
from albert_cli.tasks.spec import find_task


def published_metrics(task: str) -> Sequence[str]:
    """The metrics under which a task's scores stand in the paper's tables."""
    found = find_task(task)
    return found.published or found.metrics[:1]


def as_published(task: str, result: Result) -> dict[str, float]:
    """Of a task's result the metrics that the paper's tables have."""
    found = result.medians
    return {name: found[name] for name in published_metrics(task)}


def average(tasks: Mapping[str, Mapping[str, float]]) -> float:
    """The mean over tasks, each of which counts as the mean of its metrics.

    With `as_published` this is Avg of Tables 2 to 13: F1 and exact match of a SQuAD are averaged first.
    """
    return statistics.fmean(statistics.fmean(scores.values()) for scores in tasks.values())
