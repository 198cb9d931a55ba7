"""Intermediate fine-tuning: a run's encoder comes from a model that was fine-tuned on another task first.

The paper fine-tunes RTE, STS-B and MRPC from an MNLI checkpoint (footnote 4). A recipe names the other task with
`intermediate_task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from albert_cli import console
from albert_cli.errors import InputError, MissingDataError
from albert_cli.tasks.registry import find_task
from albert_cli.training.finetune import finetune
from albert_cli.training.task_recipe import NO_INTERMEDIATE_TASK
from albert_cli.training.task_setup import OpenCheckpoints, PreparedTask, open_checkpoint, prepare_task

INTERMEDIATE_KEY = "intermediate_task"  # the key of a fine-tuning recipe


def missing_intermediate(prepared: PreparedTask) -> str | None:
    """Return the name of the intermediate task to fine-tune on first; None if there is nothing to do.

    There is nothing to do if the recipe names no intermediate task, if the checkpoint is only scored, or if the
    checkpoint has the intermediate task's head, so that it was fine-tuned on this task already.
    """
    name = prepared.recipe.intermediate_task
    if name == NO_INTERMEDIATE_TASK or not prepared.needs_training or find_task(name).has_head(prepared.checkpoint):
        return None
    return name


def add_intermediate(
    prepared: PreparedTask,
    folder: Path,
    overrides: Sequence[str] | None = None,
    opened: OpenCheckpoints | None = None,
) -> PreparedTask:
    """Fine-tune on the recipe's intermediate task in a run below `folder`, and take the encoder of that run.

    A finished run is not repeated. If the intermediate task's data are missing, the task starts from the checkpoint
    itself (`skip_intermediate`). overrides: the `-s` settings of the intermediate run (default: those of this task).
    opened: the checkpoints that this command has already read.
    """
    name = missing_intermediate(prepared)
    if name is None:
        return prepared
    if overrides is None:
        overrides = prepared.request.overrides
    # An override of `intermediate_task` is for this task, not for the intermediate one.
    overrides = tuple(override for override in overrides if not _sets_intermediate(override))
    request = replace(prepared.request, overrides=overrides)
    try:
        intermediate = prepare_task(name, request, opened)
        inputs = intermediate.load_inputs()
    except MissingDataError as error:
        return skip_intermediate(prepared, error.message)
    out = folder / f"run-{intermediate.recipe.train.seed}"
    console.info(
        f"{prepared.task.title} starts from {intermediate.task.title}: {out} "
        f"(-s {INTERMEDIATE_KEY}={NO_INTERMEDIATE_TASK} skips it)"
    )
    finetune(intermediate, inputs, out, retry_diverged=False)
    return use_intermediate(prepared, out)


def use_intermediate(prepared: PreparedTask, directory: Path) -> PreparedTask:
    """Return the task with the encoder of a finished run of the intermediate task in `directory`."""
    return replace(prepared, intermediate=open_checkpoint(directory).checkpoint)


def skip_intermediate(prepared: PreparedTask, reason: str) -> PreparedTask:
    """Return the task without its intermediate task, and print a warning with the reason.

    This lets the recipes of RTE, STS-B and MRPC work without MNLI's files. Raises `InputError` if the user requested
    the intermediate task with `-s`.
    """
    title = find_task(prepared.recipe.intermediate_task).title
    if any(map(_sets_intermediate, prepared.request.overrides)):
        raise InputError(
            f"{prepared.task.title} cannot start from {title}: {reason}",
            f"add {title} to --data, or skip it with -s {INTERMEDIATE_KEY}={NO_INTERMEDIATE_TASK}",
        )
    note = f"the recipe starts from {title}, whose data are missing: {reason}"
    console.warn(f"{prepared.task.title} starts from the checkpoint itself: {note}")
    recipe = replace(prepared.recipe, intermediate_task=NO_INTERMEDIATE_TASK)
    return replace(prepared, recipe=recipe, intermediate_note=note)


def _sets_intermediate(override: str) -> bool:
    """Return True if an override `KEY=VALUE` sets `intermediate_task`."""
    return override.partition("=")[0].strip() == INTERMEDIATE_KEY
