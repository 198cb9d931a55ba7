"""Verbs that count, show and check; and the whole road in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import app
from albert_cli.cli.options import Device, file_to_write
from albert_cli.command import verb


@verb(app)
def params(
    names: Annotated[list[str] | None, typer.Argument(metavar="[PRESET|RECIPE|CHECKPOINT]...")] = None,
) -> None:
    """Count parameters by part, exactly, beside the paper's figures.

    Example: albert params albert-base albert-xxlarge
    """
    from albert_cli.model.params import describe

    console.emit(*describe(names or []))


@verb(app)
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs and results, at any depth.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")],
) -> None:
    """Write one self-contained HTML page from any result directories.

    Example: albert report run scores --out report.html
    """
    from albert_cli.evaluation.report import build

    file_to_write(out)
    result = build(directories, out)
    console.emit(result, f"{out}: tasks {len(result['tasks'])}, pretraining runs {len(result['pretraining'])}")


@verb(app)
def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write.")] = Path("quickstart"),
    smoke: Annotated[bool, typer.Option("--smoke", help="All of it, smaller, in under a minute.")] = False,
    device: Device = "auto",
) -> None:
    """The whole road in minutes, on the documentation installed on this machine.

    Example: albert quickstart --out quickstart
    """
    from albert_cli import quickstart as verb_module

    result = verb_module.run(out, smoke=smoke, device=device)
    console.emit(result, verb_module.text(result))


@verb(app)
def doctor() -> None:
    """Show versions, devices, memory, and what each missing extra would bring.

    Example: albert doctor
    """
    from albert_cli.doctor import describe

    console.emit(*describe())
