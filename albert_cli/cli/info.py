"""Commands that show models, results and this machine: params, report, status and doctor; and quickstart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import app, command, invoke_json
from albert_cli.cli.options import (
    AsJson,
    Debug,
    Device,
    KeepZwnj,
    Language,
    Lowercase,
    Overrides,
    Quiet,
    StripAccents,
    check_output_file,
)
from albert_cli.errors import ConfigError
from albert_cli.formatting import count_of

_SECONDS_BETWEEN_STATUS = 10


@command(app, stage="Look inside")
def params(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Presets, recipes, checkpoint directories, runs, Hub ids; NAME:E=64,sharing=none changes values.",
        ),
    ] = None,
    overrides: Overrides = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Show which batches fit in this memory, such as 12GB or 80GiB.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show counts by part for more than four models, too.")
    ] = False,
    paper: Annotated[bool, typer.Option("--paper", help="Compare every shape of the paper with its figure.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.", rich_help_panel="Output")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Count parameters, FLOPs and memory of models, and compare them with the paper.

    Example: albert params albert-base albert-xxlarge --memory 12GB
    """
    from albert_cli.counting import paper as paper_tables
    from albert_cli.counting import tables
    from albert_cli.text.read_settings import parse_size

    if paper:
        if names or overrides:
            raise ConfigError("--paper has its own list of models", "remove the names, or remove --paper")
        if memory is not None or details:
            raise ConfigError("--paper has no counts for --memory or --details", "remove them, or remove --paper")
        console.print_result(*paper_tables.describe_paper(as_markdown=markdown))
        return
    memory_bytes = None
    if memory is not None:
        memory_bytes = parse_size(memory)
        if memory_bytes < 1_000_000:  # most likely a number without a unit
            hint = "for example --memory 12GB"
            if memory.strip().isdecimal() and memory_bytes:
                hint = f"did you mean --memory {memory.strip()}GB?"
            raise ConfigError(f"--memory {memory}: only {count_of(memory_bytes, 'byte')}", hint)
    models, text = tables.describe_models(
        names or [], memory_bytes, overrides or [], details=details, as_markdown=markdown
    )
    console.print_result({"models": [model.to_json() for model in models]}, text)


@command(app, stage="Look inside")
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories with runs, results and data, at any depth.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file to write.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="A file for the same tables as Markdown.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one self-contained HTML page from any result directories.

    Example: albert report run scores --out report.html
    """
    if out is None and markdown is None:
        raise ConfigError("report has no file to write", "use --out report.html, --markdown report.md, or both")
    if out is not None and out.suffix.lower() == ".md":
        raise ConfigError(f"--out {out}: the page is HTML", f"use --markdown {out}")
    if out == markdown:
        raise ConfigError(f"--out and --markdown are both {out}", "name two files")
    check_output_file(out)
    check_output_file(markdown, "--markdown")
    from albert_cli.report.build import build_report

    summary = build_report(directories, out, markdown=markdown)
    counts = f"tasks {len(summary.tasks)}, pretraining runs {len(summary.pretraining)}, data {len(summary.data)}"
    files = " and ".join(str(path) for path in (out, markdown) if path is not None)
    console.print_result(vars(summary), f"{files}: {counts}")


@command(app, stage="Start here")
def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write.")] = Path("quickstart"),
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE", help="Your unlabeled text, sources as for `albert vocab` except -; may be repeated."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="DIR", help="Your labeled table: a folder with train and dev, or one file.")
    ] = None,
    max_time: Annotated[str | None, typer.Option(help="Time for pretraining on --text. Default: 10m.")] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="N,…", help="Numbers of labeled rows to train on. Default: 100,500,2000.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the vocabulary for --text. Default: 8,000.")
    ] = None,
    language: Language = "en",
    lowercase: Lowercase = True,
    strip_accents: StripAccents = True,
    keep_zwnj: KeepZwnj = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("-s", "--set", metavar="SECTION.KEY=VALUE", help="For --table, such as table.text=review."),
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Run a smaller version in under a minute.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run the full pipeline: on the documentation installed on this machine, or on your own text and table.

    Example: albert quickstart --text reviews.txt --table labeled --out mine
    """
    from albert_cli.quickstart import plan as plans
    from albert_cli.quickstart.run import run_quickstart
    from albert_cli.quickstart.summary import format_summary

    text_options = plans.TextOptions(language, lowercase, strip_accents, keep_zwnj)
    if text and table:
        if smoke:
            raise ConfigError("--smoke runs on bundled data only", "use a short --max-time, such as 30s")
        plan = plans.plan_own_data(text, table, max_time, labels, size, overrides or (), text_options)
    elif text or table or max_time or labels or size or overrides or text_options != plans.TextOptions():
        raise ConfigError(
            "a quickstart on your own data needs both --text and --table",
            "add the missing one, or leave out all options for your own data (see `albert quickstart --help`)",
        )
    elif smoke:
        plan = plans.SMOKE
    else:
        plan = plans.FULL
    result = run_quickstart(out, invoke_json, plan, device)
    console.print_result(result, format_summary(result))


@command(app, stage="Start here")
def doctor(as_json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Show versions, devices, memory, and what each missing extra would install.

    Example: albert doctor
    """
    from albert_cli.doctor import describe_environment

    console.print_result(*describe_environment())


@command(app, stage="Look inside")
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An output directory of data, pretrain, eval, …")],
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until everything is done.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show the work in a directory: done, running, failed, remaining, and the command that continues it.

    Example: albert status experiments --watch
    """
    from albert_cli.work_status import read_status

    current = read_status(directory)
    while watch and not current.is_finished:
        console.print_partial_result(f"{current.to_text()}\n")
        time.sleep(_SECONDS_BETWEEN_STATUS)
        current = read_status(directory)
    console.print_result(current.to_json(), current.to_text())
