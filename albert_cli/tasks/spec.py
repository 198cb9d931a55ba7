"""The tasks known by name, and the kinds of task."""

from __future__ import annotations

from albert_cli.config import suggestion
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.glue import GLUE, SCORED
from albert_cli.tasks.race import RACE
from albert_cli.tasks.recall import RECALL
from albert_cli.tasks.squad.task import SQUAD

__all__ = ["KINDS", "SCORED", "TASKS", "find_task", "task_of_checkpoint"]

TASKS: dict[str, AnyTask] = {**GLUE, **SQUAD, **RACE, RECALL.name: RECALL}
KINDS = tuple(dict.fromkeys(type(task) for task in TASKS.values()))


def find_task(name: str) -> AnyTask:
    """The task of a name of `TASKS`; one's own table is opened by `table.open_table`.

    Raises `ConfigError` for an unknown name, with the nearest known one.
    """
    if name in TASKS:
        return TASKS[name]
    known = [*TASKS, "table"]
    raise ConfigError(f"no task is called {name!r}", suggestion(name, known) or f"tasks: {', '.join(known)}")


def task_of_checkpoint(found: hub.Checkpoint) -> AnyTask:
    """The task that a checkpoint's head answers, to predict with it; raises `CheckpointError` where it has no head."""
    for kind in KINDS:
        if (task := kind.of_checkpoint(found)) is not None:
            return task
    raise CheckpointError(
        f"{found.directory}: has no classifier", "fine-tune it first: albert finetune TASK --checkpoint …"
    )
