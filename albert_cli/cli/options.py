"""Arguments and options that several commands share, and their checks.

A command gets such an option from a parameter with the option's type, for example `device: Device = "auto"`. All
commands have the options `AsJson`, `Quiet` and `Debug`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console, store
from albert_cli.errors import ConfigError, LockedError


def _set_json(is_set: bool) -> None:
    console.settings.json = is_set


def _set_quiet(is_set: bool) -> None:
    console.settings.quiet = is_set


def _set_debug(is_set: bool) -> None:
    console.settings.debug = is_set


# Every command has these three options. Its function has a parameter for each, because typer takes the options from the
# parameters. But the function does not get the value (`expose_value=False`): the callback writes it to
# `console.settings`.
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_set_json,
        expose_value=False,
        help="Print one JSON object on stdout.",
        rich_help_panel="Output",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        callback=_set_quiet,
        expose_value=False,
        help="Print no progress and no notes.",
        rich_help_panel="Output",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        callback=_set_debug,
        expose_value=False,
        help="Show the traceback of an error.",
        rich_help_panel="Output",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Directory to write.")]
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, folders, globs or URLs of .txt, .json, .jsonl (or .ndjson, .jl), .csv, .tsv (also .gz, .bz2, .xz, "
        ".zst), .parquet, .arrow and the output of WikiExtractor; - for stdin; hf:NAME[:CONFIG[:SPLIT]]; squad:FILE "
        "and race:FOLDER for their passages, squad-answers:FILE for each question with the sentence of its answer; "
        "docs: for the documentation installed on this machine. SOURCE@WEIGHT: how often a pass uses the source's "
        "text.",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("-s", "--set", metavar="SECTION.KEY=VALUE", help="Change a recipe's value.")
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where the model runs.")]
BadBytes = Annotated[
    Literal["refuse", "replace"],
    typer.Option("--on-bad-bytes", help="Invalid UTF-8: stop and name it, or replace it."),
]
TextField = Annotated[
    str,
    typer.Option("--text-field", "--text-column", help="Field of JSON lines, or column of a table, with the text."),
]
MaxLine = Annotated[str, typer.Option(help="Maximum size of a line, record or row, for example 64MiB.")]
LongLine = Annotated[
    Literal["refuse", "skip"],
    typer.Option(help="For a line, record or row above --max-line: stop and name it, or skip it."),
]
Workers = Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")]
ArrayTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="I/N|auto",
        help="Run part I of N (0-based; auto reads Slurm or Kubernetes variables). Default: run all remaining parts.",
    ),
]
Language = Annotated[
    str, typer.Option(help="ISO 639 code of the language whose rules split sentences; English for an unknown code.")
]
Lowercase = Annotated[bool, typer.Option(help="Lower-case the text.")]
StripAccents = Annotated[bool, typer.Option(help="Drop accents and other combining marks.")]
KeepZwnj = Annotated[
    bool, typer.Option("--keep-zwnj", help="Keep the zero-width non-joiner (U+200C), which otherwise becomes a space.")
]
Resume = Annotated[
    Literal["auto", "must", "never"],
    typer.Option(
        help="auto: resume the run in --out, if any; must: fail if there is none; never: fail if --out is not empty."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS|slurm[:N]", help="Run parallel work on a Dask cluster, or on N Slurm jobs (Dask)."),
]
ProcessCount = Annotated[int, typer.Option(min=1, help="Number of processes on this machine, which torchrun starts.")]
CheckpointName = Annotated[
    str, typer.Option("--checkpoint", help="A checkpoint directory, a run (its newest step), or a Hub id.")
]
VocabularyName = Annotated[
    str,
    typer.Option(
        "--vocab",
        help="A vocabulary or data directory, a checkpoint directory, a run (its newest step), or a Hub id.",
    ),
]
TaskData = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Folder with the task's files (of a table: train, dev, test as .csv, .tsv, .jsonl, .json or .parquet), a "
        "single file, or hf:NAME.",
    ),
]


def start_ranks(nproc: int) -> None:
    """Start this command again as `nproc` ranks, and exit with their code when they end.

    Returns if `nproc` is 1, or if this process is one of the ranks. Commands call this function before they import
    torch, which the parent of the ranks does not need.
    """
    from albert_cli import ranks
    from albert_cli.launch import launch

    if nproc > 1 and ranks.world_size() == 1:
        raise typer.Exit(launch(nproc, sys.argv[1:]))


def find_vocabulary(name: str) -> Path:
    """Return the directory with the vocabulary that `--vocab` names.

    A run has its vocabulary in its steps. A name that is no path may be a Hub id, whose files are downloaded. Raises
    `LockedError` for a run that is being trained: it deletes its old steps, and jobs of the same command that start
    later would get another step.
    """
    path = Path(name)
    if store.saved_steps(path) and store.is_locked(path, timeout=0.2):  # jobs that start together all ask
        raise LockedError(f"--vocab {path}: this run is being trained", "wait until it has finished, or name a step")
    if path.exists() and not store.saved_steps(path):
        return path
    from albert_cli.model import hub

    return hub.find_checkpoint(name)


def check_output_file(path: Path | None, option: str = "--out") -> None:
    """Raise `ConfigError` if the path of a file to write is a directory; option: the option that has set the path."""
    if path is not None and path.is_dir():
        raise ConfigError(f"{option} {path}: is a directory", "name a file in it")
