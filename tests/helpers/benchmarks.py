"""Run a benchmark's command line in this process."""

from __future__ import annotations

import contextlib
import io

import typer
from typer.main import get_command

from albert_cli import console
from tests.helpers.command import Ended


def run_benchmark(app: typer.Typer, *arguments: object, expect: int = 0) -> Ended:
    """Run a benchmark; it must end with the code `expect`."""
    out = io.StringIO()
    err = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            get_command(app)([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code or 0
        finally:
            console.configure()
    assert code == expect, f"ended with {code}\n{out.getvalue()}{err.getvalue()}"
    return Ended(expect, out.getvalue(), err.getvalue())
