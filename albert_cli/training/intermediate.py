"""`intermediate_task`: the encoder of a model that was fine-tuned for another task first (footnote 4: MNLI)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from albert_cli import console
from albert_cli.errors import InputError, MissingDataError
from albert_cli.tasks.registry import find_task
from albert_cli.training.finetune import finetune
from albert_cli.training.task_recipe import PRETRAINED
from albert_cli.training.task_setup import PreparedTask, open_checkpoint, prepare_task

_KEY = "intermediate_task"


def intermediate_task(prepared: PreparedTask) -> str | None:
    """The task that a run must be preceded by; None where its checkpoint will do, or nothing is trained."""
    name = prepared.recipe.intermediate_task
    if name == PRETRAINED or prepared.for_scoring:
        return None
    return None if find_task(name).has_head(prepared.checkpoint) else name


def prepare_intermediate(prepared: PreparedTask, overrides: Sequence[str]) -> PreparedTask:
    """The task to start from, made ready with these overrides."""
    kept = tuple(text for text in overrides if not _is_start(text))
    return prepare_task(prepared.recipe.intermediate_task, dataclasses.replace(prepared.request, overrides=kept))


def from_intermediate(prepared: PreparedTask, directory: Path) -> PreparedTask:
    """The same, its encoder taken from a finished run of the task to start from."""
    return dataclasses.replace(prepared, intermediate=open_checkpoint(directory)[0])


def without_intermediate(prepared: PreparedTask, why: str) -> PreparedTask:
    """The same from the checkpoint as it is, with a warning; an error if `-s` asked for the start.

    The recipes of RTE, STS-B and MRPC ask for MNLI as the paper does; users without MNLI must be able to run them all
    the same.
    """
    name = find_task(prepared.recipe.intermediate_task).title
    if any(map(_is_start, prepared.request.overrides)):
        hint = f"put {name} into --data, or leave it out by -s {_KEY}={PRETRAINED}"
        raise InputError(f"{prepared.task.title} cannot start from {name}: {why}", hint)
    note = f"the recipe starts from {name}, whose data are not there: {why}"
    console.warn(f"{prepared.task.title} starts from the checkpoint itself: {note}")
    recipe = dataclasses.replace(prepared.recipe, intermediate_task=PRETRAINED)
    return dataclasses.replace(prepared, recipe=recipe, intermediate_note=note)


def _is_start(override: str) -> bool:
    return override.partition("=")[0].strip() == _KEY


def with_intermediate(prepared: PreparedTask, folder: Path, overrides: Sequence[str] | None = None) -> PreparedTask:
    """Ready to be trained from what the recipe starts from, which is fine-tuned below `folder` if it is not there.

    By the same overrides, or by others. From the checkpoint itself, with a warning, where the other task has no data.
    """
    if intermediate_task(prepared) is None:
        return prepared
    _ = prepared.inputs.examples, prepared.schedule  # what is wrong is found before the other task is trained
    try:
        other = prepare_intermediate(prepared, prepared.request.overrides if overrides is None else overrides)
        _ = other.inputs.examples
    except MissingDataError as error:
        return without_intermediate(prepared, error.message)
    out = folder / f"run-{other.recipe.train.seed}"
    console.info(f"{prepared.task.title} starts from {other.task.title}: {out} (-s {_KEY}={PRETRAINED} leaves it out)")
    finetune(other, out, again=False)
    return from_intermediate(prepared, out)
