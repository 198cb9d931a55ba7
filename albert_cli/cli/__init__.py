"""The verbs: parse and dispatch.

Nothing heavy is imported here; each verb imports what it needs when it runs. `albert --help` lists the verbs in the
order in which the modules below register them.
"""

# isort: skip_file

from __future__ import annotations

import io
import os
import sys

from albert_cli.cli import text, training, scoring, using, looking, reproduce, bench, recipes  # noqa: F401 - in the order of --help
from albert_cli.cli.app import EPILOGUE, app

__all__ = ["EPILOGUE", "app", "main"]


def main() -> None:
    """The console script `albert`."""
    # Threads that wait for each other by spinning are ten times slower as soon as anything else runs on the same
    # cores. A short spin costs nothing on a quiet machine. torch's OpenMP reads this when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for stream in (sys.stdout, sys.stderr):  # a locale without a character, a file name that is no UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
