"""Noticing a run that learnt nothing: the same answer for all inputs, or a loss at chance when training ended."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.tasks.task import Task
from albert_cli.training.kinds import kind_of

_LAST = 0.1  # the share of the steps whose loss counts as that at the end
_AT_CHANCE = 0.99  # of the loss of a model that knows only how often each label occurs


def reason(task: Task, outputs: Any, train: Sequence[Any], journal: Path) -> str | None:
    """Why a run counts as collapsed, in a few words; None for one that learnt something.

    `outputs` are those of the kept model on dev, `journal` is the run's `metrics.jsonl`.
    """
    if kind_of(task).is_one_answer(task, outputs):
        return "one value for all inputs" if task.kind == "regression" else "one class for all inputs"
    chance, loss = kind_of(task).chance_loss(task, train), _last_loss(journal)
    if chance and loss is not None and loss >= _AT_CHANCE * chance:
        return f"loss at chance at the end ({loss:.3f}; the label frequencies alone give {chance:.3f})"
    return None


def _last_loss(journal: Path) -> float | None:
    """The mean training loss of the last steps."""
    rows = [row for row in store.read_journal(journal) if isinstance(row.get("loss"), float | int)]
    return statistics.fmean(r["loss"] for r in rows if r["step"] >= (1 - _LAST) * rows[-1]["step"]) if rows else None
