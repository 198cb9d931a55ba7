"""Intermediate fine-tuning: a run's encoder comes from a model that was fine-tuned on another task first.

The paper fine-tunes RTE, STS-B and MRPC from an MNLI checkpoint (footnote 4). A recipe names the other task with
`intermediate_task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from albert_cli import config, console
from albert_cli.errors import ConfigError, InputError, MissingDataError
from albert_cli.formatting import format_toml_value
from albert_cli.results import RESULTS, RunResult, read_result
from albert_cli.tasks.registry import find_task
from albert_cli.training import run
from albert_cli.training.finetune import finetune, read_parents
from albert_cli.training.task_inputs import require_train_split
from albert_cli.training.task_provenance import hash_recipe
from albert_cli.training.task_recipe import NO_INTERMEDIATE_TASK, FinetuneRecipe
from albert_cli.training.task_setup import OpenCheckpoints, PreparedTask, open_checkpoint, prepare_task

INTERMEDIATE_KEY = "intermediate_task"  # the key of a fine-tuning recipe
# Recipe keys that determine the initial encoder. The intermediate run has the values of the task that starts from it.
ENCODER_KEYS = ("model.weights", "model.overlap_heads", "model.overlap_context_heads")
# Overrides of these keys are not passed to the intermediate task, which has its own recipe and examples.
_TASK_KEYS = (INTERMEDIATE_KEY, "data.both_orders", "data.train_examples", "data.dev_examples")


def missing_intermediate(prepared: PreparedTask) -> str | None:
    """Return the name of the intermediate task to fine-tune on first; None if there is nothing to do.

    There is nothing to do if the recipe names no intermediate task, if the checkpoint is only scored, or if training
    continues with the checkpoint's head. The same holds if the checkpoint was already fine-tuned on the intermediate
    task (`PreparedTask.starts_from_intermediate_model`).
    """
    name = prepared.recipe.intermediate_task
    if name == NO_INTERMEDIATE_TASK or not prepared.needs_training or prepared.recipe.model.head == "checkpoint":
        return None
    return None if prepared.starts_from_intermediate_model else name


def encoder_overrides(prepared: PreparedTask) -> list[str]:
    """Return the values of `ENCODER_KEYS` in the task's recipe, as `-s` settings."""
    model = prepared.recipe.model
    return [f"{key}={getattr(model, key.removeprefix('model.'))}" for key in ENCODER_KEYS]


def add_intermediate(
    prepared: PreparedTask,
    folder: Path,
    directories: Sequence[Path],
    overrides: Sequence[str] | None = None,
    opened: OpenCheckpoints | None = None,
) -> PreparedTask:
    """Fine-tune on the recipe's intermediate task in a run below `folder`, and take the encoder of that run.

    A finished run is not repeated. If the runs in `directories` are finished, they need no encoder, and nothing is
    trained if `folder` is missing. If the intermediate task's data are missing, a finished run from the same checkpoint
    with the same recipe is used; without one, the task starts from the checkpoint itself (`skip_intermediate`).

    directories: those of the runs that start from the intermediate run. overrides: the `-s` settings of the
    intermediate run (default: those of this task). The values of `ENCODER_KEYS` are always those of this task. opened:
    the checkpoints that this command has already read. Raises `ConfigError` if `folder` is missing and only some of the
    runs in `directories` are finished.
    """
    name = missing_intermediate(prepared)
    if name is None:
        return prepared
    recorded = _find_recorded_fingerprint(prepared, folder, directories)
    if recorded is not None:
        return replace(prepared, fingerprints={**prepared.fingerprints, "intermediate": recorded})
    intermediate = _prepare_intermediate(name, prepared, overrides, opened)
    out = folder / f"run-{intermediate.recipe.train.seed}"
    inputs = None
    try:
        inputs = intermediate.load_inputs()
    except MissingDataError as error:
        if not _has_finished_run(intermediate, out):
            return skip_intermediate(prepared, error.message)
    console.info(
        f"{prepared.task.title} starts from {intermediate.task.title}: {out} "
        f"(-s {INTERMEDIATE_KEY}={NO_INTERMEDIATE_TASK} skips it)"
    )
    if inputs is not None:
        finetune(intermediate, inputs, out, retry_diverged=False)
    return use_intermediate(prepared, out, opened)


def _find_recorded_fingerprint(prepared: PreparedTask, folder: Path, directories: Sequence[Path]) -> str | None:
    """Return the fingerprint of the intermediate run from which finished runs started, if that run is missing.

    Returns None if `folder` has a finished run, or if none of the runs in `directories` started from one. Raises
    `ConfigError` if others of these runs are unfinished: a second model of the intermediate task may differ.
    """
    fingerprints: dict[str, str] = {}  # by directory of the run
    for directory in directories:
        parents = read_parents(directory) or {}
        if "intermediate" in parents:
            fingerprints[str(directory)] = parents["intermediate"]
    # Without such a run, `folder` is not read: on NFS, a file that was missing when it was read may seem missing later.
    if not fingerprints or any(folder.glob(f"run-*/{RESULTS}")):
        return None
    if not all((directory / RESULTS).is_file() for directory in directories):
        title = find_task(prepared.recipe.intermediate_task).title
        raise ConfigError(
            f"{folder}: the model of {title} is missing, from which {next(iter(fingerprints))} was started",
            f"restore {folder}, or delete {', '.join(fingerprints)} to train {title} again",
        )
    return next(iter(fingerprints.values()))


def _has_finished_run(intermediate: PreparedTask, out: Path) -> bool:
    """Return True if `out` has a finished run from this checkpoint with this recipe; the data are not compared."""
    if not (out / RESULTS).is_file():
        return False
    result = read_result(out / RESULTS)
    if not isinstance(result, RunResult):
        return False
    recipe = intermediate.recipe.with_auto_values(result.examples.get(require_train_split(intermediate.task), 0))
    return result.checkpoint == intermediate.fingerprints["checkpoint"] and result.recipe == hash_recipe(recipe)


def check_intermediate_of_runs(
    prepared: PreparedTask,
    directories: Sequence[Path],
    overrides: Sequence[str] | None = None,
    opened: OpenCheckpoints | None = None,
) -> None:
    """Raise `ConfigError` if a run in `directories` was started without the intermediate task that it would have now.

    Call it before the intermediate task trains: the runs of a result must not differ in it. An earlier call may have
    skipped the intermediate task because its data were missing (`skip_intermediate`); nothing is raised if they still
    are. overrides, opened: as in `add_intermediate`.
    """
    name = missing_intermediate(prepared)
    if name is None:
        return
    started = []
    for directory in directories:
        recipe = run.load_saved_recipe(directory, "auto", FinetuneRecipe)
        if recipe is not None and recipe.intermediate_task == NO_INTERMEDIATE_TASK:
            started.append(str(directory))
    if not started:
        return
    try:
        _prepare_intermediate(name, prepared, overrides, opened).check_inputs()
    except MissingDataError:
        return
    raise ConfigError(
        f"{started[0]}: was started without a model of {find_task(name).title}, from which {prepared.task.title} "
        "starts now",
        f"delete {', '.join(started)}, or add -s {INTERMEDIATE_KEY}={NO_INTERMEDIATE_TASK}",
    )


def _prepare_intermediate(
    name: str, prepared: PreparedTask, overrides: Sequence[str] | None, opened: OpenCheckpoints | None
) -> PreparedTask:
    """Prepare the intermediate task `name` of a task; the parameters are those of `add_intermediate`."""
    if overrides is None:
        overrides = prepared.request.overrides
    passed = [text for override in overrides for text in _without_task_keys(override)]
    request = replace(prepared.request, overrides=(*passed, *encoder_overrides(prepared)))
    return prepare_task(name, request, opened)


def _without_task_keys(override: str) -> list[str]:
    """Return the override; if it sets keys in `_TASK_KEYS`, return an override for each of its other keys instead."""
    values = config.flatten_override(override)
    if not values.keys() & set(_TASK_KEYS):
        return [override]
    return [f"{key}={format_toml_value(values[key])}" for key in values if key not in _TASK_KEYS]


def use_intermediate(prepared: PreparedTask, directory: Path, opened: OpenCheckpoints | None = None) -> PreparedTask:
    """Return the task with the encoder of a finished run of the intermediate task in `directory`.

    The encoder gets the attention and the number of positions of this task's recipe. opened: the checkpoints that this
    command has already read.
    """
    settings = replace(prepared.recipe.model, labels=())  # `labels` names the classes of the checkpoint's head
    source = open_checkpoint(directory, opened)
    return replace(
        prepared,
        intermediate=settings.apply_to_checkpoint(source.checkpoint),
        fingerprints={**prepared.fingerprints, "intermediate": source.fingerprint},
    )


def skip_intermediate(prepared: PreparedTask, reason: str) -> PreparedTask:
    """Return the task without its intermediate task, and print a warning with the reason.

    This lets the recipes of RTE, STS-B and MRPC work without MNLI's files. Raises `InputError` if the user requested
    the intermediate task with `-s`.
    """
    title = find_task(prepared.recipe.intermediate_task).title
    if any(INTERMEDIATE_KEY in config.flatten_override(override) for override in prepared.request.overrides):
        raise InputError(
            f"{prepared.task.title} cannot start from {title}: {reason}",
            f"add {title} to --data, or skip it with -s {INTERMEDIATE_KEY}={NO_INTERMEDIATE_TASK}",
        )
    note = f"the recipe starts from {title}, whose model is missing: {reason}"
    console.warn(f"{prepared.task.title} starts from the checkpoint itself: {note}")
    recipe = replace(prepared.recipe, intermediate_task=NO_INTERMEDIATE_TASK)
    return replace(prepared, recipe=recipe, intermediate_note=note)
