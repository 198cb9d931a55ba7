"""The verbs: parse and dispatch.

Nothing heavy is imported here; each verb imports what it needs when it runs. `albert --help` lists the verbs in the
order in which the modules below register them.
"""

# isort: skip_file

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

from albert_cli.cli import text, training, scoring, inference, info, reproduce, bench, recipes  # noqa: F401 - in the order of --help
from albert_cli.cli.app import EPILOGUE, app

__all__ = ["EPILOGUE", "app", "main"]


def main() -> None:
    """The console script `albert`."""
    # Threads that wait for each other by spinning are ten times slower as soon as anything else runs on the same
    # cores. A short spin costs nothing on a quiet machine. torch's OpenMP reads this when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Processes that this one starts must not import what lies in the folder that the command is called in.
    with suppress(OSError):  # the folder may have been removed
        if Path(__file__).parents[2] != Path.cwd():
            os.environ.setdefault("PYTHONSAFEPATH", "1")
    # Names of files are UTF-8 to the libraries, whatever the locale; Python has to be started with that.
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "albert_cli", *sys.argv[1:]])  # noqa: S606
    # A stream that was closed (`2>&-`) is none, and `print` takes the other one instead.
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is no UTF-8 is shown, and escaped as in JSON
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    app()
