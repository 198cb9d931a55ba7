"""`albert reproduce`, which repeats an experiment of the paper, and `albert probe`, which scores an encoder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, command, invoke
from albert_cli.cli.options import ArrayTask, AsJson, Cluster, Debug, Device, Overrides, Quiet
from albert_cli.errors import ConfigError

if TYPE_CHECKING:
    from albert_cli.experiments.plan import ExperimentRequest


Scale = Annotated[
    Literal["smoke", "mini", "h200", "paper"],
    typer.Option(
        help="smoke: a check; mini: up to 45 minutes on two cores; h200: up to 40 minutes on one H200; "
        "paper: as published."
    ),
]
SharedOut = Annotated[
    Path | None, typer.Option("--out", "-o", help="Output directory; experiments in one directory share runs.")
]
Text = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SOURCE",
        help="Text to pretrain on, as for `albert data` [default: docs:; at the scale paper: from the Hub].",
    ),
]
ExtraText = Annotated[
    list[str] | None, typer.Option(metavar="SOURCE", help="Additional text for the experiments extra-data and curves.")
]
Speeds = Annotated[
    list[str] | None,
    typer.Option("--tflops", metavar="[VARIANT=]N", help="Measured TFLOP/s of a device, for the hours of --dry-run."),
]
TasksFolder = Annotated[
    Path | None,
    typer.Option(help="Folder that holds CoLA/, RTE/ …, squad/ and RACE/. Default: no such task is evaluated."),
]
MaxTime = Annotated[
    str | None, typer.Option(help="Save and stop after this time, such as 9m; the same command resumes.")
]
MinimalPairs = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also score minimal pairs: JSON Lines in BLiMP's layout.")
]


@command(app, stage="The paper")
def reproduce(
    experiment: Annotated[str | None, typer.Argument(help="Name or TOML file of an experiment; see --list.")] = None,
    scale: Scale = "mini",
    out: SharedOut = None,
    text: Text = None,
    extra_text: ExtraText = None,
    data: Annotated[Path | None, typer.Option(help="Data directory to use instead of text.")] = None,
    tasks: TasksFolder = None,
    minimal_pairs: MinimalPairs = None,
    seeds: Annotated[int | None, typer.Option(help="Pretraining seeds per variant; default: the scale's.")] = None,
    overrides: Overrides = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Parallel stages; default: one per GPU, else one.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Processes per pretraining run.")] = 1,
    array_task: ArrayTask = None,
    cluster: Cluster = None,
    max_time: MaxTime = None,
    speeds: Speeds = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the cost: runs, tokens, FLOPs, hours and disk space.")
    ] = False,
    commands: Annotated[bool, typer.Option("--commands", help="Only print the command of every stage.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments; with --out, their verdicts.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Repeat an experiment of the paper: train its variants, print the paper's table next to ours, and test its claims.

    Example: albert reproduce sentence-loss --scale mini --out experiments --jobs 2
    """
    if list_:
        _print_list(out)
        return
    if experiment is None:
        raise ConfigError("no experiment is named", "use `albert reproduce --list` to list them")
    from albert_cli.experiments.budget import parse_speeds
    from albert_cli.experiments.plan import ExperimentRequest

    request = ExperimentRequest(
        scale=scale,
        out=out or Path("experiments"),  # the default is only for the commands that a preview prints
        text=tuple(text or ()),
        extra_text=tuple(extra_text or ()),
        data=data,
        tasks=tasks,
        minimal_pairs=minimal_pairs,
        seeds=seeds,
        changes=tuple(overrides or ()),
        device=device,
        nproc=nproc,
        dry_run=dry_run or commands,
        tflops=parse_speeds(speeds or []),
    )
    if dry_run or commands:
        _print_preview(experiment, request, commands=commands)
    elif out is None:
        raise ConfigError("--out is required", "use --out DIR; experiments in one directory share their runs")
    else:
        _run_stages(experiment, request, array_task, jobs, max_time, cluster)


def _print_list(out: Path | None) -> None:
    """Print the shipped experiments, or, with an output directory, the verdicts on the claims in it."""
    from albert_cli.experiments import pages, recipe

    if out is None:
        console.print_result(*recipe.list_experiments())
    else:
        console.print_result(*pages.list_verdicts(out))


def _print_preview(experiment: str, request: ExperimentRequest, *, commands: bool) -> None:
    """Print the costs of an experiment, or its commands if `commands` is True."""
    from albert_cli.experiments.runner import preview_experiment

    description, unreadable = preview_experiment(experiment, request)
    text = description.to_text()
    if commands:
        text = "\n".join(description.commands)
    console.print_result({**description.to_json(), "unreadable": unreadable}, text)


def _run_stages(
    experiment: str,
    request: ExperimentRequest,
    array_task: str | None,
    jobs: int | None,
    max_time: str | None,
    cluster: str | None,
) -> None:
    """Run the remaining stages of an experiment, and print its result.

    array_task: "I/N" or "auto", to run only the stages of one array job; None for all stages. jobs: number of stages at
    a time, None for one per GPU.
    """
    from albert_cli.array_jobs import parse_array_job
    from albert_cli.executor import use_cluster
    from albert_cli.experiments import runner

    array_job = parse_array_job(array_task, os.environ, request.out)
    if array_job is None:
        with use_cluster(cluster):
            result = runner.reproduce_experiment(experiment, request, invoke, jobs=jobs, max_time=max_time)
    else:
        if max_time or cluster or jobs:
            raise ConfigError("--task takes no --jobs, --cluster or --max-time", "remove them")
        result = runner.run_array_job(experiment, request, invoke, array_job)
    console.print_result(*result)


@command(app, stage="Look inside")
def probe(
    checkpoint: Annotated[str, typer.Argument(help="A pretrained checkpoint: a directory, a run, or a Hub id.")],
    data: Annotated[Path, typer.Option(help="Data directory whose held-out text is scored.")],
    sequences: Annotated[int, typer.Option(min=1, help="Sequences to score, at most one pass over the text.")] = 1024,
    layers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also score the encoder after every number of layers up to this one (early exit, or repeated layers).",
        ),
    ] = 0,
    minimal_pairs: MinimalPairs = None,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a pretrained checkpoint without a task: MLM, sentence pairs, and how far each layer moves its input.

    Examples are sampled as in the checkpoint's own run; change that with -s, such as -s data.ngram=3.

    Example: albert probe run --data data
    """
    from albert_cli.experiments.probe import probe as probe_checkpoint
    from albert_cli.experiments.probe_scores import format_probe

    scores = probe_checkpoint(checkpoint, data, sequences, overrides or [], device, layers, minimal_pairs)
    console.print_result(scores.to_json(), format_probe(scores))
