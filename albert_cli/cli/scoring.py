"""Commands that score checkpoints on tasks: eval, search, ensemble."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, command
from albert_cli.cli.options import (
    ArrayTask,
    AsJson,
    CheckpointName,
    Cluster,
    Debug,
    Device,
    Out,
    Overrides,
    Quiet,
    TaskData,
)
from albert_cli.errors import ConfigError

if TYPE_CHECKING:
    from albert_cli.results import AnyResult
    from albert_cli.training.task_setup import TaskRequest

# The folder of the recipes with the paper's hyperparameters, as in `training.task_recipe`, which imports torch.
PAPER_RECIPES = "finetune"
_VERIFY_OPTIONS = "--out, --checkpoint, --data, --runs, --nproc, --device and -s"  # of `albert eval verify/NAME`
RUNS = 5  # the paper reports the median of five runs (§4.2)
TaskName = Annotated[str, typer.Argument(help="A task, as for `albert finetune`.")]
Recipes = Annotated[str, typer.Option(metavar="NAME", help="Recipes to use: finetune, mini, or your own folder.")]
Runs = Annotated[
    int | None,
    typer.Option(min=1, help=f"Number of seeds to fine-tune with; the result is the median. Default: {RUNS}."),
]
Submission = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the test predictions for GLUE's server: a .zip for glue and for MNLI, a .tsv for any other task.",
    ),
]
ParallelRuns = Annotated[
    int, typer.Option(min=1, help="Number of runs at a time. Each takes one GPU; on a CPU they share the cores.")
]
EvaluatedTask = Annotated[
    str, typer.Argument(help="A task as for finetune, glue for all its tasks, or verify/NAME for published scores.")
]
AnyCheckpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="A checkpoint directory, a run (its newest step), or a Hub id.")
]
Retrain = Annotated[
    bool, typer.Option("--retrain", help="Fine-tune a checkpoint of this task again, instead of scoring it.")
]
Controls = Annotated[
    str | None,
    typer.Option(
        metavar="init,random",
        help="Also fine-tune from the weights at step 0 (init) or from random ones, for comparison.",
    ),
]
Baselines = Annotated[
    bool, typer.Option("--baselines/--no-baselines", help="Also train linear models; takes minutes on large tasks.")
]
ScoredSplit = Annotated[
    Literal["dev", "test"], typer.Option(help="Labeled data on which a fine-tuned checkpoint is scored.")
]


def _run_and_print(run: Callable[[], AnyResult], request: TaskRequest, cluster: str | None) -> None:
    """Call `run`, on the Dask cluster with the address `cluster` unless that is None, and print its result.

    A job of an array that is not the last one to end has no result; it prints the state of the array.
    """
    from albert_cli.array_jobs import retry_while_locked
    from albert_cli.evaluation import tables
    from albert_cli.evaluation.parallel import ArrayJobDone
    from albert_cli.executor import use_cluster

    with use_cluster(cluster):
        try:
            result = run() if request.array_job is None else retry_while_locked(run)
        except ArrayJobDone as done:
            console.print_result(done.facts, str(done))
            return
    console.print_result(result.to_json(), tables.format_result(result))


def _verify_scores(task: str, request: TaskRequest, out: Path) -> None:
    """Score a `verify/` recipe and print the result; raise `ScoreNotReachedError` if a published score is missed."""
    from albert_cli.evaluation import tables, verify

    verified = verify.verify_checkpoint(task, request, out)
    console.print_result(verified.to_json(), tables.format_result(verified))
    verify.require_reached(verified)


@command(app, name="eval", stage="Fine-tune and score")
def evaluate(
    task: EvaluatedTask,
    out: Out,
    checkpoint: AnyCheckpoint = None,
    data: TaskData = None,
    runs: Runs = None,
    nproc: ParallelRuns = 1,
    retrain: Retrain = False,
    controls: Controls = None,
    recipes: Recipes = PAPER_RECIPES,
    baselines: Baselines = True,
    submission: Submission = None,
    split: ScoredSplit = "dev",
    array_task: ArrayTask = None,
    cluster: Cluster = None,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a checkpoint: the median of k fine-tuning runs, or a task checkpoint without training.

    Example: albert eval glue --checkpoint run --data glue --runs 5 --out scores
    """
    from albert_cli.array_jobs import parse_array_job
    from albert_cli.evaluation import suite, verify
    from albert_cli.evaluation.controls import parse_controls
    from albert_cli.training.task_setup import TaskRequest

    request = TaskRequest(
        checkpoint or "", data, runs=runs or 0, overrides=tuple(overrides or ()), device=device, nproc=nproc
    )
    if verify.is_verify_recipe(task):  # an empty checkpoint and 0 runs mean the values of the recipe
        rejected = (submission, retrain, controls, array_task, cluster, split != "dev", not baselines)
        if any(rejected) or recipes != PAPER_RECIPES:
            raise ConfigError(f"{task} takes only {_VERIFY_OPTIONS}", "remove the other options")
        _verify_scores(task, request, out)
        return
    if not checkpoint:
        raise ConfigError("--checkpoint is missing", "name a pretrained checkpoint, or one fine-tuned for the task")
    request = replace(
        request,
        runs=runs or RUNS,
        retrain=retrain,
        controls=parse_controls(controls),
        recipes=recipes,
        baselines=baselines,
        array_job=parse_array_job(array_task, os.environ, out),
        split=split,
    )

    def run() -> AnyResult:
        if task == suite.GLUE_SUITE:
            return suite.evaluate_suite(request, out, submission)
        return suite.evaluate(task, request, out, submission)

    _run_and_print(run, request, cluster)


@command(app, stage="Fine-tune and score")
def search(
    task: TaskName,
    value_lists: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE[,VALUE]...", help="Values to try: lr=1e-5,2e-5 batch=16,32")
    ],
    checkpoint: CheckpointName,
    out: Out,
    data: TaskData = None,
    runs: Runs = None,
    nproc: ParallelRuns = 1,
    recipes: Recipes = PAPER_RECIPES,
    array_task: ArrayTask = None,
    cluster: Cluster = None,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fine-tune with every combination of hyperparameters and report the best on dev.

    Example: albert search rte lr=1e-5,2e-5 batch=16,32 --checkpoint run --data glue --out searched
    """
    from albert_cli.array_jobs import parse_array_job
    from albert_cli.evaluation.search import search_grid
    from albert_cli.training.task_setup import TaskRequest

    request = TaskRequest(
        checkpoint=checkpoint,
        data=data,
        runs=runs or RUNS,
        overrides=tuple(overrides or ()),
        device=device,
        nproc=nproc,
        recipes=recipes,
        array_job=parse_array_job(array_task, os.environ, out),
    )
    _run_and_print(lambda: search_grid(task, request, value_lists, out), request, cluster)


@command(app, stage="Fine-tune and score")
def ensemble(
    task: TaskName,
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...", help="Task checkpoints, or output directories of `albert eval`, for all their runs."
        ),
    ],
    out: Out,
    data: TaskData = None,
    submission: Submission = None,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Average the probabilities of task checkpoints; score all together, and the subset that is best on dev.

    Example: albert ensemble rte scores searched/lr=1e-5,batch=16 --data glue --out together
    """
    from albert_cli.evaluation import tables
    from albert_cli.evaluation.ensemble import evaluate_ensemble
    from albert_cli.training.task_setup import TaskRequest

    # The request has no checkpoint, because `evaluate_ensemble` sets each member's.
    request = TaskRequest(checkpoint="", data=data, overrides=tuple(overrides or ()), device=device)
    result = evaluate_ensemble(task, request, directories, out, submission)
    console.print_result(result.to_json(), tables.format_result(result))
