"""List the published tasks, find the task that a checkpoint's head answers, and average scores as the paper does."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.formatting import suggest
from albert_cli.model import hub
from albert_cli.model.hf_config import CLASS_PREFIXES
from albert_cli.tasks.base import AnyTask, as_any_task
from albert_cli.tasks.choice import Choice
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.race import RACE
from albert_cli.tasks.squad.task import SQUAD, SpanAnswering
from albert_cli.tasks.token_classification import NER, TokenClassification

TASKS: dict[str, AnyTask] = {
    **{name: as_any_task(task) for name, task in GLUE.items()},
    **{name: as_any_task(task) for name, task in SQUAD.items()},
    **{name: as_any_task(task) for name, task in RACE.items()},
}
# The kinds accept different heads, so `from_checkpoint` returns a task for at most one of them.
_KINDS = cast(
    "tuple[type[AnyTask], ...]",
    (MultiLabelClassification, TokenClassification, Classification, SpanAnswering, Choice),
)


def find_task(name: str) -> AnyTask:
    """Return the published task of this name; raises `ConfigError` with the most similar name if there is none.

    The tasks `table` and `ner` depend on the user's files and are opened by `open_table` and `open_token_task`.
    """
    if name in TASKS:
        return TASKS[name]
    names = [*TASKS, "table", NER]
    hint = suggest(name, names) or f"choose one of {', '.join(names)}"
    raise ConfigError(f"no task is called {name!r}", hint)


def task_from_checkpoint(checkpoint: hub.Checkpoint) -> AnyTask:
    """Derive the task that a checkpoint's head answers; raises `CheckpointError` if it has no such head.

    A pretrained checkpoint classifies pairs of texts by its sentence head.
    """
    for kind in _KINDS:
        task = kind.from_checkpoint(checkpoint)
        if task is not None:
            return task
    sentence_order = sentence_order_classifier(checkpoint)
    if sentence_order is not None:
        return task_from_checkpoint(sentence_order)
    hint = "fine-tune it first: albert finetune TASK --checkpoint …"
    raise CheckpointError(f"{checkpoint.directory}: has no classifier", hint)


def sentence_order_classifier(checkpoint: hub.Checkpoint) -> hub.Checkpoint | None:
    """Convert a pretrained checkpoint into a classifier of pairs of texts, by renaming its sentence head (SOP, NSP).

    Return None for a checkpoint without a trained sentence head, and for a checkpoint that already has a classifier.
    """
    labels = checkpoint.order_classes
    if not labels or checkpoint.labels:
        return None
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("encoder.")}
    tensors["classifier.weight"] = checkpoint.tensors["order.weight"]
    tensors["classifier.bias"] = checkpoint.tensors["order.bias"]
    values = {
        **checkpoint.values,
        "architectures": [f"{CLASS_PREFIXES[checkpoint.model_type]}ForSequenceClassification"],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "finetuning_task": "sentence order",
        "albert_task": {"inputs": 2, "max_seq_length": checkpoint.config.max_position_embeddings},
    }
    return dataclasses.replace(checkpoint, values=values, tensors=tensors)


def constant_baseline(task: str) -> str:
    """Return the title, in tables of results, of a task's score without a model (`Task.score_majority`)."""
    return "most frequent tags" if task == NER else "majority"


def paper_metric_names(task: str) -> Sequence[str]:
    """Return the names of the metrics by which the paper's tables report a task."""
    definition = find_task(task)
    return definition.published or definition.metrics[:1]


def paper_metrics(task: str, medians: Mapping[str, float]) -> dict[str, float]:
    """Select the metrics that the paper's tables report from `medians`, a task's median metrics by name."""
    return {name: medians[name] for name in paper_metric_names(task)}


def average_score(metrics_by_task: Mapping[str, Mapping[str, float]]) -> float:
    """Return the mean over tasks of the mean of each task's metrics.

    For the metrics of `paper_metrics` this is the column Avg of the paper's Tables 2 to 13, in which F1 and exact match
    of SQuAD are averaged first.
    """
    return statistics.fmean(statistics.fmean(metrics.values()) for metrics in metrics_by_task.values())
