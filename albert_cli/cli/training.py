"""`albert pretrain` and `albert finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from albert_cli import config, console, formatting
from albert_cli.cli.app import app, command
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
from albert_cli.errors import ConfigError


@command(app, stage="Pretrain")
def pretrain(
    recipe: Annotated[str, typer.Argument(help="Name or file of a recipe; see `albert recipes list`.")],
    data: Annotated[Path, typer.Option(help="Data directory.")],
    out: Out,
    overrides: Overrides = None,
    resume: Resume = "auto",
    max_time: Annotated[
        str | None, typer.Option(help="Measure the speed, then train as many steps as fit into this time, e.g. 25m.")
    ] = None,
    save_every: Annotated[
        str | None, typer.Option(help="Steps or time between two saves, such as 500 or 10m; default: the recipe's.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Number of checkpoints to keep; default: the recipe's.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Checkpoint to distill: train on its predictions of masked words too.")
    ] = None,
    nproc: ProcessCount = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan.")] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the recipe with all values.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Hash all data again, even if it is unchanged.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Pretrain an encoder; run the same command again to resume.

    Example: albert pretrain mini/wiki --data data --out run --max-time 10m
    """
    if show_config and max_time:
        raise ConfigError("--show-config does not measure the speed, which --max-time needs", "use --dry-run instead")
    start_ranks(nproc)
    changes = list(overrides or [])  # the options below are short forms of `-s` settings
    if save_every is not None:
        changes.append(save_every_override(save_every))
    if keep is not None:
        changes.append(f"train.keep={keep}")
    if teacher:
        changes.append(f"distill.teacher={formatting.format_toml_value(teacher)}")
    # This imports torch, which a wrong --save-every does not need.
    from albert_cli.training import pretrain as pretraining

    if show_config:
        loaded = pretraining.load_recipe_for_data(recipe, data, out, changes)
        console.print_result(config.to_toml_values(loaded), config.dump_toml(loaded).rstrip())
    elif dry_run:
        from albert_cli.training.plan import check_disk

        estimated = pretraining.dry_run_pretraining(  # prints the plan; the next line adds the estimated duration
            recipe, data, out, changes, resume=resume, max_time=max_time, device=device, verify=verify
        )
        console.print_result(estimated.to_json(), estimated.duration.to_text())
        check_disk(estimated.recipe, out)  # after the plan, which is printed even if the disk is too small
    else:
        result = pretraining.pretrain(
            recipe, data, out, changes, resume=resume, max_time=max_time, device=device, verify=verify
        )
        console.print_result(result.to_json(), result.to_text())


def save_every_override(text: str) -> str:
    """Return the setting for a value of `--save-every`; raise `ConfigError`, which names the option, if it is wrong."""
    from albert_cli.training.settings import parse_duration

    if not text.isdecimal():
        parse_duration(text, "--save-every")
    return f"train.save_every={text}"


@command(app, stage="Fine-tune and score")
def finetune(
    task: Annotated[
        str,
        typer.Argument(
            help="A task of GLUE (cola … wnli), squad1, squad2 or race; table or ner for your own data; or a recipe."
        ),
    ],
    checkpoint: CheckpointName,
    out: Out,
    data: TaskData = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**62 - 1,
            help="Seed of the new head, the order of the examples and dropout; default: the recipe's.",
        ),
    ] = None,
    overrides: Overrides = None,
    resume: Resume = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fine-tune a checkpoint on a task with one seed, and save the checkpoint that is best on dev.

    Example: albert finetune mrpc --checkpoint run --data glue --out mrpc
    """
    from albert_cli import store
    from albert_cli.evaluation import tables
    from albert_cli.evaluation.scoring import predict_with_run
    from albert_cli.inference.table_predictions import check_test_file, predict_test_file
    from albert_cli.training import run
    from albert_cli.training.finetune import finetune as finetune_task
    from albert_cli.training.intermediate import add_intermediate, check_intermediate_of_runs
    from albert_cli.training.task_model import resolve_schedule
    from albert_cli.training.task_recipe import FinetuneRecipe
    from albert_cli.training.task_setup import OpenCheckpoints, TaskRequest, prepare_task, resolve_checkpoint

    request = TaskRequest(checkpoint=checkpoint, data=data, overrides=tuple(overrides or ()), device=device)
    opened: OpenCheckpoints = {}
    prepared = prepare_task(task, resolve_checkpoint(request), opened)
    # The next lines raise errors in the options and the data now, before an intermediate task trains for hours.
    run.load_saved_recipe(out, resume, FinetuneRecipe)  # raises an error if `out` cannot be used
    check_test_file(prepared.task)
    inputs = prepared.load_inputs(seed)
    resolve_schedule(prepared, inputs).check()
    check_intermediate_of_runs(prepared, [out], opened=opened)
    prepared.warn_about_text(inputs)
    # If the recipe has an intermediate task, it trains in `OUT-TASK`, next to `out`.
    named_out = store.resolve_dots(out)
    intermediate_out = named_out.with_name(f"{named_out.name}-{prepared.recipe.intermediate_task}")
    prepared = add_intermediate(prepared, intermediate_out, [out], opened=opened)
    result = finetune_task(prepared, inputs, out, seed, resume)
    predict_test_file(prepared.task, predict_with_run(prepared, out), out)
    console.print_result(result.to_json(), tables.format_run(result, out))
