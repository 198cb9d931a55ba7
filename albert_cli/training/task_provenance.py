"""Provenance of a task's score: the fingerprints, hashes and settings that a result records next to the score."""

from __future__ import annotations

import dataclasses
import hashlib

from albert_cli import config
from albert_cli.results import Protocol
from albert_cli.training.settings import ScheduleSettings
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_recipe import NO_INTERMEDIATE_TASK, FinetuneRecipe
from albert_cli.training.task_setup import PreparedTask


def hash_recipe(recipe: FinetuneRecipe) -> str:
    """Return a hash of the recipe without its seed and the paths of a table's files: 16 hexadecimal digits.

    The paths do not count, because the files may move; a result has the fingerprint of their examples.
    """
    train = dataclasses.replace(recipe.train, seed=0)
    table = dataclasses.replace(recipe.table, train="", dev="", test="")
    text = config.dump_toml(dataclasses.replace(recipe, train=train, table=table))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parent_fingerprints(prepared: PreparedTask, inputs: Inputs) -> dict[str, str]:
    """Return the fingerprints of a run's checkpoints and data, by name; a run resumes only if they are unchanged."""
    return {**prepared.fingerprints, "data": inputs.fingerprint}


def training_protocol(prepared: PreparedTask, inputs: Inputs, schedule: ScheduleSettings) -> Protocol:
    """Return the training settings that a score must be reported with."""
    recipe = prepared.recipe
    epochs = schedule.total_steps * recipe.train.batch_size / len(inputs.train_features)
    return Protocol(
        steps=schedule.total_steps,
        epochs=float(f"{epochs:.3g}"),  # three significant digits
        batch_size=recipe.train.batch_size,
        lr=recipe.optimizer.peak_lr,
        warmup_steps=schedule.resolved_warmup_steps,
        max_seq_length=recipe.data.max_seq_length,
        dropout=recipe.model.encoder_dropout,
        eval_every=recipe.train.eval_every,
        weights=recipe.model.weights,
        head=recipe.model.head,
        intermediate_task=_intermediate_task(prepared),
        intermediate_note=prepared.intermediate_note,
        train_examples=recipe.data.train_examples,
        dev_examples=recipe.data.dev_examples,
        both_orders=recipe.data.both_orders,
        overlap_heads=recipe.model.overlap_heads,
        overlap_context_heads=recipe.model.overlap_context_heads,
    )


def _intermediate_task(prepared: PreparedTask) -> str | None:
    """Return the task that the encoder was fine-tuned on before this task, by this command or an earlier one."""
    recipe = prepared.recipe
    # A run that continues with the checkpoint's head has no intermediate task (`missing_intermediate`).
    if recipe.intermediate_task != NO_INTERMEDIATE_TASK and recipe.model.head != "checkpoint":
        return recipe.intermediate_task
    finetuned = prepared.checkpoint.finetuned_task
    # The controls, whose weights are "init" or "random", do not have the fine-tuned weights of the checkpoint.
    if finetuned is None or recipe.model.weights != "pretrained":
        return None
    return finetuned.task
