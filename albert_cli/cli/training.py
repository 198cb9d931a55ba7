"""Verbs that train: pretraining and fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import app, verb
from albert_cli.cli.options import (
    AsJson,
    CheckpointName,
    Debug,
    Device,
    Out,
    Overrides,
    ProcessCount,
    Quiet,
    Resume,
    TaskData,
    start_ranks,
)


@verb(app)
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file; `albert recipes list` names them.")],
    data: Annotated[Path, typer.Option(help="Data directory.")],
    out: Out,
    overrides: Overrides = None,
    resume: Resume = "auto",
    max_time: Annotated[
        str | None, typer.Option(help="Measure the speed, then train as many steps as fit, e.g. 25m.")
    ] = None,
    save_every: Annotated[
        str | None, typer.Option(help="Save after this many steps, or this much time: 500, 10m; default: the recipe's.")
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Keep this many checkpoints; default: the recipe's.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Learn also from this checkpoint's guesses of the masked words.")
    ] = None,
    nproc: ProcessCount = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan.")] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the resolved recipe.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Re-hash all data, also what has not changed since it was verified.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Pretrain an encoder; the same command again resumes.

    Example: albert pretrain mini/wiki --data data --out run --max-time 10m
    """
    start_ranks(nproc)
    from albert_cli.training import plan
    from albert_cli.training import pretrain as verb_module

    flags = {"train.save_every": save_every, "train.keep": keep, "distill.teacher": teacher and json.dumps(teacher)}
    settings = [*(overrides or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
    if show_config:
        console.print_result(*verb_module.show_config(recipe, data, settings))
        return
    result = verb_module.pretrain(
        recipe, data, out, settings,
        resume=resume, max_time=max_time, dry_run=dry_run, device=device, verify=verify,
    )  # fmt: skip
    console.print_result(
        result, plan.format_duration_estimate(result) if dry_run else verb_module.format_summary(result)
    )


@verb(app)
def finetune(
    task: Annotated[
        str, typer.Argument(help="A task of GLUE (cola … wnli), squad1, squad2, race, table, or a recipe.")
    ],
    checkpoint: CheckpointName,
    out: Out,
    data: TaskData = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**62 - 1, help="Seed of the classifier, the order and dropout; default: the recipe's."
        ),
    ] = None,
    overrides: Overrides = None,
    resume: Resume = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fine-tune a checkpoint on one task, one seed; the best checkpoint on dev is kept.

    Example: albert finetune mrpc --checkpoint run --data glue --out mrpc
    """
    from albert_cli.evaluation import tables
    from albert_cli.training import finetune as verb_module
    from albert_cli.training import intermediate, run
    from albert_cli.training.task_setup import TaskRequest, prepare_task

    prepared = prepare_task(task, TaskRequest(checkpoint, data, 1, tuple(overrides or ()), device))
    run.load_saved_recipe(out, resume)  # whether it may be written is found out before another task is trained
    named = out if out.name.strip(".") else out.resolve()
    beside = named.with_name(f"{named.name}-{prepared.recipe.intermediate_task}")
    prepared = intermediate.with_intermediate(prepared, beside)
    result = verb_module.finetune(prepared, out, seed, resume)
    console.print_result(result.as_json(), tables.format_run(result, out))
