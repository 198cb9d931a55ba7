"""Verbs that score checkpoints on tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import app, verb
from albert_cli.cli.options import AsJson, CheckpointName, Debug, Device, Out, Overrides, Quiet, TaskData
from albert_cli.errors import ConfigError

RECIPES = "finetune"  # the paper's
RUNS = 5  # of which the paper takes the median (§4.2)
Recipes = Annotated[str, typer.Option(metavar="NAME", help="Recipes to use: finetune, mini, or a folder of one's own.")]
Runs = Annotated[int | None, typer.Option(min=1, help=f"Seeds to fine-tune; the median is reported. Default: {RUNS}.")]
Processes = Annotated[
    int, typer.Option(min=1, help="Runs at a time: one per GPU, or this many sharing the CPU's cores.")
]


@verb(app, name="eval")
def evaluate(
    task: Annotated[
        str,
        typer.Argument(help="A task as for finetune, glue for all of its tasks, or verify/NAME for published scores."),
    ],
    out: Out,
    checkpoint: Annotated[
        str | None, typer.Option(help="A checkpoint directory, a run (its newest step), or a Hub id.")
    ] = None,
    data: TaskData = None,
    runs: Runs = None,
    nproc: Processes = 1,
    again: Annotated[
        bool,
        typer.Option("--again", help="Fine-tune a checkpoint of this very task too, instead of scoring it as it is."),
    ] = False,
    controls: Annotated[
        str | None,
        typer.Option(
            metavar="init,random", help="For comparison, the same from the weights at step 0 (init) or random ones."
        ),
    ] = None,
    recipes: Recipes = RECIPES,
    baselines: Annotated[
        bool,
        typer.Option("--baselines/--no-baselines", help="Linear models beside the scores; minutes on large tasks."),
    ] = True,
    submission: Annotated[
        Path | None, typer.Option(metavar="FILE.zip", help="With glue: write the test predictions for its server.")
    ] = None,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a checkpoint: the median of k seeded fine-tunings, or a task checkpoint as it is.

    Example: albert eval glue --checkpoint run --data glue --runs 5 --out scores
    """
    from albert_cli.evaluation import suite, tables, verify
    from albert_cli.training.task_setup import TaskRequest

    if verify.is_verify_recipe(task):
        if submission or again or controls or recipes != RECIPES:
            hint = "it says what to compare"
            raise ConfigError(f"{task} takes no --submission, --again, --controls or --recipes", hint)
        asked = TaskRequest(
            checkpoint or "", data, runs or 0, tuple(overrides or ()), device, nproc
        )  # else the recipe's
        found = verify.verify_checkpoint(task, asked, out)
        console.print_result(found, verify.format_verdicts(found))
        verify.require_reached(found)
        return
    if not checkpoint:
        raise ConfigError("eval needs a --checkpoint", "a pretrained one, or one of the task")
    request = TaskRequest(
        checkpoint, data, runs or RUNS, tuple(overrides or ()), device, nproc, again,
        suite.parse_controls(controls), recipes, baselines,
    )  # fmt: skip
    result = suite.evaluate(request, task, out, submission)
    console.print_result(result.as_json(), tables.format_result(result))


@verb(app)
def search(
    task: Annotated[str, typer.Argument(help="A task as for finetune.")],
    lists: Annotated[list[str], typer.Argument(metavar="KEY=VALUE,…...", help="lr=1e-5,2e-5 batch=16,32 and so on.")],
    checkpoint: CheckpointName,
    out: Out,
    data: TaskData = None,
    runs: Runs = None,
    nproc: Processes = 1,
    recipes: Recipes = RECIPES,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fine-tune with every combination of some lists of hyper-parameters, and name the best by its dev score.

    Example: albert search rte lr=1e-5,2e-5 batch=16,32 --checkpoint run --data glue --out searched
    """
    from albert_cli.evaluation import search as verb_module
    from albert_cli.evaluation import tables
    from albert_cli.training.task_setup import TaskRequest

    request = TaskRequest(checkpoint, data, runs or RUNS, tuple(overrides or ()), device, nproc, recipes=recipes)
    result = verb_module.search_grid(request, task, lists, out)
    console.print_result(result.as_json(), tables.format_result(result))


@verb(app)
def ensemble(
    task: Annotated[str, typer.Argument(help="A task as for finetune.")],
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Task checkpoints, or evaluations, whose runs all count.")
    ],
    out: Out,
    data: TaskData = None,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score task checkpoints with the mean of their probabilities: all together, and the best few.

    Example: albert ensemble rte scores searched/lr=1e-5,batch=16 --data glue --out together
    """
    from albert_cli.evaluation import ensemble as verb_module
    from albert_cli.evaluation import tables
    from albert_cli.training.task_setup import TaskRequest

    request = TaskRequest("", data, 1, tuple(overrides or ()), device)
    result = verb_module.evaluate_ensemble(request, task, directories, out)
    console.print_result(result.as_json(), tables.format_result(result))
