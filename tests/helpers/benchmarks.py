"""Run a benchmark's command line in this process."""

from __future__ import annotations

import typer
from typer.main import get_command

from tests.helpers.command import Ended, run_command


def run_benchmark(app: typer.Typer, *arguments: object, expect: int = 0) -> Ended:
    """Run a benchmark; assert that it exits with the code `expect`."""
    return run_command(get_command(app), arguments, expect)
