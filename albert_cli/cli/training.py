"""Verbs that train: pretraining, fine-tuning, and the scores of both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, verb
from albert_cli.cli.options import CheckpointName, Device, Out, Overrides, TaskData
from albert_cli.errors import ConfigError

RECIPES = "finetune"  # the paper's


@verb(app)
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file; `albert recipes list` names them.")],
    data: Annotated[Path, typer.Option(help="Data directory.")],
    out: Out,
    overrides: Overrides = None,
    resume: Annotated[
        Literal["auto", "must", "never"], typer.Option(help="Whether to go on with what is in --out.")
    ] = "auto",
    max_time: Annotated[
        str | None, typer.Option(help="Measure the speed, then train as many steps as fit, e.g. 25m.")
    ] = None,
    save_every: Annotated[
        str | None, typer.Option(help="Save after so many steps, or so much time: 500, 10m; default: the recipe's.")
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Keep so many checkpoints; default: the recipe's.")] = None,
    nproc: Annotated[int, typer.Option(help="Start this many processes here through torchrun.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan.")] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the resolved recipe.")] = False,
    device: Device = "auto",
) -> None:
    """Pretrain an encoder; the same command again resumes.

    Example: albert pretrain mini/wiki --data data --out run --max-time 10m
    """
    from albert_cli import ranks
    from albert_cli.launch import launch

    if nproc < 1:
        raise ConfigError(f"--nproc {nproc}: at least one process is needed", "leave it out for one")
    if nproc > 1 and ranks.world_size() == 1:
        raise typer.Exit(launch(nproc, sys.argv[1:]))
    from albert_cli.training import plan
    from albert_cli.training import pretrain as verb_module

    flags = {"train.save_every": save_every, "train.keep": keep}
    settings = [*(overrides or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
    if show_config:
        resolved = verb_module.show_config(recipe, data, settings)
        console.emit(*resolved)
        return
    result = verb_module.pretrain(
        recipe, data, out, settings, resume=resume, max_time=max_time, dry_run=dry_run, device=device
    )
    console.emit(result, plan.speed_text(result) if dry_run else verb_module.summary_text(result))


@verb(app)
def finetune(
    task: Annotated[
        str, typer.Argument(help="A task of GLUE (cola … wnli), squad1, squad2, race, table, or a recipe file.")
    ],
    checkpoint: CheckpointName,
    out: Out,
    data: TaskData = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the classifier, the order and dropout; default: the recipe's.")
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        Literal["auto", "must", "never"], typer.Option(help="Whether to go on with what is in --out.")
    ] = "auto",
    device: Device = "auto",
) -> None:
    """Fine-tune a checkpoint on one task, one seed; the best checkpoint on dev is kept.

    Example: albert finetune mrpc --checkpoint run --data glue --out mrpc
    """
    from albert_cli.evaluation import tables
    from albert_cli.training import finetune as verb_module
    from albert_cli.training import run, start

    prepared = verb_module.prepare(task, checkpoint, data, overrides or [], device)
    run.saved_recipe(out, resume)  # whether it may be written is found out before another task is trained
    named = out if out.name.strip(".") else out.resolve()
    beside = named.with_name(f"{named.name}-{prepared.recipe.start_from}")
    prepared = start.with_start(prepared, beside)
    result = verb_module.finetune(prepared, out, seed, resume)
    console.emit(result, tables.run_text(result, out))


@verb(app, name="eval")
def evaluate(
    task: Annotated[
        str,
        typer.Argument(help="A task as for finetune, glue for all of its tasks, or verify/NAME for published scores."),
    ],
    out: Out,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="MORE", help="Further lists of --search, or DIRs of --ensemble.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A checkpoint directory, a run (its newest step), or a Hub id.")
    ] = None,
    data: TaskData = None,
    runs: Annotated[
        int | None, typer.Option(help="Seeds to fine-tune; the median is reported. 5, or as a verify/NAME has it.")
    ] = None,
    nproc: Annotated[
        int, typer.Option(help="Runs at a time: a process for each GPU, or so many that share the cores.")
    ] = 1,
    again: Annotated[
        bool,
        typer.Option("--again", help="Fine-tune a checkpoint of this very task too, which is else scored as it is."),
    ] = False,
    search: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE,…", help="Try all of lr=1e-5,2e-5 batch=16,32 and so on.")
    ] = None,
    ensemble: Annotated[
        list[str] | None, typer.Option(metavar="DIR...", help="Score these task checkpoints or evaluations together.")
    ] = None,
    controls: Annotated[
        str | None,
        typer.Option(metavar="start,random", help="The same seeds from the weights of step 0, and from random ones."),
    ] = None,
    recipes: Annotated[
        str, typer.Option(metavar="NAME", help="Whose recipes of the tasks: finetune, mini, or a folder of one's own.")
    ] = RECIPES,
    submission: Annotated[
        Path | None, typer.Option(metavar="FILE.zip", help="With glue: write the test predictions for its server.")
    ] = None,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Score a checkpoint: the median of k seeded fine-tunings, or a task checkpoint as it is.

    Example: albert eval glue --checkpoint run --data glue --runs 5 --out scores
    """
    if task.startswith("verify/") or task.endswith(".toml"):
        from albert_cli.evaluation import verify

        if verify.is_recipe(task):
            if more or search or ensemble or submission or again or controls or recipes != RECIPES:
                others = "--search, --ensemble, --submission, --again, --controls or --recipes"
                raise ConfigError(f"{task} takes no {others}", "it says what to compare")
            found = verify.verify(task, checkpoint, data, out, runs, overrides or [], device, nproc)
            console.emit(found, verify.text(found))
            verify.check(found)
            return
    from albert_cli.evaluation import runs as verb_module
    from albert_cli.evaluation import tables
    from albert_cli.evaluation.controls import parse

    if more and bool(search) == bool(ensemble):
        raise ConfigError(
            f"eval: {more[0]!r} is not understood", "one task; lists go after --search, DIRs after --ensemble"
        )
    searched = [*(search or []), *(more or [])] if search else []
    together = [*(ensemble or []), *(more or [])] if ensemble else []
    result = verb_module.evaluate(
        task, checkpoint, data, out, 5 if runs is None else runs, overrides or [], device, nproc=nproc, again=again,
        submission_file=submission, lists=searched, ensemble_of=together, controlled=parse(controls),
        recipes=recipes,
    )  # fmt: skip
    console.emit(result, tables.text(result))
