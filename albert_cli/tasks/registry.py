"""The tasks known by name, the kinds of task, and Avg of the paper's tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from albert_cli.config import suggest
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.results import Result
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.glue import GLUE_SCORE_TASKS as GLUE_SCORE_TASKS
from albert_cli.tasks.race import RACE
from albert_cli.tasks.squad.task import SQUAD

TASKS: dict[str, AnyTask] = {**GLUE, **SQUAD, **RACE}


def find_task(name: str) -> AnyTask:
    """The task of a name of `TASKS`; one's own table is opened by `table.open_table`.

    Raises `ConfigError` for an unknown name, with the nearest known one.
    """
    if name in TASKS:
        return TASKS[name]
    known = [*TASKS, "table"]
    raise ConfigError(f"no task is called {name!r}", suggest(name, known) or f"tasks: {', '.join(known)}")


def task_from_checkpoint(found: hub.Checkpoint) -> AnyTask:
    """The task that a checkpoint's head answers, to predict with it; raises `CheckpointError` where it has no head."""
    for kind in dict.fromkeys(type(task) for task in TASKS.values()):
        if (task := kind.from_checkpoint(found)) is not None:
            return task
    what = "may give a text several labels" if found.is_multi_label else "has no classifier"
    raise CheckpointError(f"{found.directory}: {what}", "fine-tune it first: albert finetune TASK --checkpoint …")


def paper_metric_names(task: str) -> Sequence[str]:
    """The metrics under which a task's scores stand in the paper's tables."""
    found = find_task(task)
    return found.published or found.metrics[:1]


def paper_metrics(task: str, result: Result) -> dict[str, float]:
    """Of a task's result the metrics that the paper's tables have."""
    found = result.medians
    return {name: found[name] for name in paper_metric_names(task)}


def average_score(tasks: Mapping[str, Mapping[str, float]]) -> float:
    """The mean over tasks, each of which counts as the mean of its metrics.

    With `as_published` this is Avg of Tables 2 to 13: F1 and exact match of a SQuAD are averaged first.
    """
    return statistics.fmean(statistics.fmean(scores.values()) for scores in tasks.values())
