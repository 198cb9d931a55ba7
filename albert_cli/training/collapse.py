"""Noticing a run that learnt nothing: the same answer for all inputs, or a loss that stayed at chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.tasks.task import Task
from albert_cli.training.kinds import kind_of

_AT_CHANCE = 0.99  # of the loss of a model that knows only how often each label occurs


def reason(
    task: Task, outputs: Any, dev: Any, train: Sequence[Any], journal: Path, results: Mapping[str, Any]
) -> str | None:
    """Why a run counts as collapsed, in a few words; None for one that learnt something.

    `outputs` are those of the kept model on the features `dev`, `journal` is the run's `metrics.jsonl`, `results` its
    scores. Only evaluations are looked at: the training losses of the journal are means since a line or a resumption.
    """
    if same := kind_of(task).one_answer(task, outputs, dev):
        return same
    majority = results["majority"]
    if majority is None or results["score"] > majority:
        return None
    chance, losses = kind_of(task).chance_loss(task, train), _dev_losses(journal)
    if chance and losses and min(losses) >= _AT_CHANCE * chance:
        return f"loss at chance ({min(losses):.3f} at best; the label frequencies alone give {chance:.3f})"
    return None


def _dev_losses(journal: Path) -> list[float]:
    """The loss on dev at each evaluation."""
    evaluations = [row["eval"] for row in store.read_journal(journal) if "eval" in row]
    return [float(e["loss"]) for e in evaluations if "loss" in e]
