"""The paper's experiments, and what they ask of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, invoke, verb
from albert_cli.cli.options import AsJson, Debug, Device, Overrides, Quiet
from albert_cli.errors import ConfigError


@verb(app)
def reproduce(
    experiment: Annotated[str | None, typer.Argument(help="An experiment's name; --list names them.")] = None,
    scale: Annotated[
        Literal["smoke", "mini", "h200", "paper"],
        typer.Option(
            help="smoke: seconds; mini: 20 minutes on two cores; h200: 25 minutes on one H200; paper: the paper's own."
        ),
    ] = "mini",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory to write; experiments in one share what they can.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help="Text to pretrain on, as for data; default: docs: (what is installed)."),
    ] = None,
    extra_text: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="What extra-data and curves add to it.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A data directory instead of text, with its vocabulary.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Folder with the tasks' files (GLUE's layout); without: intrinsic scores alone.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Pretraining seeds a variant; default: the scale's.")] = None,
    overrides: Overrides = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Stages at once; default: one per GPU, else one.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Processes of each pretraining run, as for pretrain.")] = 1,
    max_time: Annotated[
        str | None, typer.Option(help="Stop after this time, saved; the same command goes on, e.g. 9m.")
    ] = None,
    tflops: Annotated[
        list[str] | None,
        typer.Option(metavar="[VARIANT=]N", help="Measured TFLOP/s of a device, for the hours of --dry-run."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print runs, tokens, FLOPs, hours and disk.")] = False,
    commands: Annotated[bool, typer.Option("--commands", help="Print every command, in order.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Name the experiments; with --out, their verdicts.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Repeat an experiment of the paper: its variants, its table beside ours, and whether its claim holds.

    Example: albert reproduce sentence-loss --scale mini --out experiments --tasks glue --jobs 2
    """
    if list_:
        if out is not None:
            from albert_cli.experiments import pages

            return console.print_result(*pages.list_verdicts(out))
        from albert_cli.experiments import recipe

        return console.print_result(*recipe.list_experiments())
    if experiment is None:
        raise ConfigError("no experiment is named", "`albert reproduce --list` names them")
    from albert_cli.experiments import runner as verb_module
    from albert_cli.experiments.plan import ExperimentRequest

    request = ExperimentRequest(
        scale, out or Path("experiments"), tuple(text or ()), tuple(extra_text or ()), data, tasks, seeds,
        tuple(overrides or ()), device, nproc, dry_run or commands, verb_module.parse_speeds(tflops or []),
    )  # fmt: skip
    if dry_run or commands:
        plan, text_ = verb_module.preview_experiment(experiment, request)
        return console.print_result(plan, "\n".join(plan["commands"]) if commands else text_)
    if out is None:
        raise ConfigError("--out is required", "name a directory; experiments in one share what they can")
    return console.print_result(
        *verb_module.reproduce_experiment(experiment, request, invoke, jobs=jobs, max_time=max_time)
    )


@verb(app)
def probe(
    checkpoint: Annotated[str, typer.Argument(help="A pretrained checkpoint: a directory, a run, or a Hub id.")],
    data: Annotated[Path, typer.Option(help="Data directory; its held-out text is scored.")],
    sequences: Annotated[int, typer.Option(min=1, help="Sequences to score on.")] = 1024,
    layers: Annotated[
        int, typer.Option(min=0, help="Run the layers to this depth too, over and over: does it converge? Exit early?")
    ] = 0,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a pretrained checkpoint without a task: masked words, sentence order, how far each layer moves its input.

    Examples are drawn as in its own run (-s data.ngram=3 and so on change that).

    Example: albert probe run --data data
    """
    from albert_cli.experiments import probe as verb_module

    result = verb_module.probe(checkpoint, data, sequences, overrides or [], device, layers)
    console.print_result(result, verb_module.format_probe(result))
