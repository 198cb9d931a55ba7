"""Name the tasks, derive the task that a checkpoint answers, and average scores as in the paper's tables."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from albert_cli.config import suggest
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.tasks.base import AnyTask, as_any_tasks
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.glue import GLUE_SCORE_TASKS as GLUE_SCORE_TASKS
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.race import RACE
from albert_cli.tasks.squad.task import SQUAD
from albert_cli.tasks.token_classification import NER, TokenClassification

TASKS: dict[str, AnyTask] = {**as_any_tasks(GLUE), **as_any_tasks(SQUAD), **as_any_tasks(RACE)}


def find_task(name: str) -> AnyTask:
    """Return the task of this name. A custom table is opened by `table.open_table` instead.

    Raises `ConfigError` with the most similar name if there is none.
    """
    if name in TASKS:
        return TASKS[name]
    names = [*TASKS, "table", NER]
    raise ConfigError(f"no task is called {name!r}", suggest(name, names) or f"choose one of {', '.join(names)}")


def task_from_checkpoint(checkpoint: hub.Checkpoint) -> AnyTask:
    """Derive the task that a checkpoint's head answers; raises `CheckpointError` if it has no such head."""
    multi_label = MultiLabelClassification.from_checkpoint(checkpoint)
    if multi_label is not None:
        return as_any_tasks({"": multi_label})[""]
    tokens = TokenClassification.from_checkpoint(checkpoint)
    if tokens is not None:
        return as_any_tasks({"": tokens})[""]
    for kind in dict.fromkeys(type(task) for task in TASKS.values()):
        task = kind.from_checkpoint(checkpoint)
        if task is not None:
            return task
    order = order_classifier(checkpoint)
    if order is not None:
        return task_from_checkpoint(order)
    hint = "fine-tune it first: albert finetune TASK --checkpoint …"
    raise CheckpointError(f"{checkpoint.directory}: has no classifier", hint)


def order_classifier(checkpoint: hub.Checkpoint) -> hub.Checkpoint | None:
    """Return a pretrained checkpoint as a classifier of pairs by its sentence head; None if it has no such head."""
    labels = checkpoint.order_labels
    if not labels or checkpoint.labels:
        return None
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("encoder.")}
    tensors["classifier.weight"] = checkpoint.tensors["order.weight"]
    tensors["classifier.bias"] = checkpoint.tensors["order.bias"]
    values = {
        **checkpoint.values,
        "architectures": [],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "finetuning_task": "sentence order",
        "albert_task": {"inputs": 2, "max_seq_length": checkpoint.config.max_position_embeddings},
    }
    return dataclasses.replace(checkpoint, values=values, tensors=tensors)


def constant_baseline(task: str) -> str:
    """Return the name of the baseline that reads no context: each word's most frequent tag, else the majority class."""
    return "most frequent tags" if task == NER else "majority"


def paper_metric_names(task: str) -> Sequence[str]:
    """Return the metrics by which the paper's tables report a task."""
    definition = find_task(task)
    return definition.published or definition.metrics[:1]


def paper_metrics(task: str, medians: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that the paper's tables report, from the medians of all metrics."""
    return {name: medians[name] for name in paper_metric_names(task)}


def average_score(tasks: Mapping[str, Mapping[str, float]]) -> float:
    """Return the mean over tasks of the mean over each task's metrics.

    With `paper_metrics` this is Avg of Tables 2 to 13, in which F1 and exact match of SQuAD are averaged first.
    """
    return statistics.fmean(statistics.fmean(scores.values()) for scores in tasks.values())
