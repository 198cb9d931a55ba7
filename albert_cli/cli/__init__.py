"""The command line: each module defines commands, which parse arguments, call the package and print its result.

A command imports the package's modules, and with them torch, only when it runs, so `albert --help` answers immediately.
The help lists the commands in the order in which the modules below register them.
"""

# isort: skip_file

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

from albert_cli import ranks
from albert_cli.cli import text, training, scoring, inference, info, reproduce, bench, recipes  # noqa: F401 - in the order of --help
from albert_cli.cli.app import EPILOGUE, app, command_line

__all__ = ["EPILOGUE", "app", "main"]


def main() -> None:
    """Run the console script `albert`."""
    # OpenMP threads spin while they wait. A long spin makes them ten times slower once anything else runs on the same
    # cores; a short one costs nothing on a quiet machine. torch's OpenMP reads this variable when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Processes that this one starts must not import modules from the current folder, unless this package is in it.
    with suppress(OSError):  # the folder may have been removed
        if Path(__file__).parents[2] != Path.cwd():
            os.environ.setdefault("PYTHONSAFEPATH", "1")
    # The libraries treat file names as UTF-8 in any locale. Python does so only if it is started in its UTF-8 mode.
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "albert_cli", *sys.argv[1:]])  # noqa: S606
    # A closed stream (`2>&-`) is None, and `print(text, file=None)` would print errors on stdout.
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names that are not UTF-8 are escaped, as in JSON
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        command_line()()
    except SystemExit as end:
        if isinstance(end.code, int):
            ranks.record_exit_code(end.code)
        raise
