"""Run code as a user for whom file permissions count; root may read everything."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

_NOBODY = 65534


def print_as_nobody(imports: str, code: str, path: Path) -> str:
    """Run Python code with the argument `path`, a path in `tmp_path`, in a fork of this process; return what it prints.

    imports: the lines that run before root becomes the user `nobody`, who may not be able to read the package. The
    folders of the path are opened to other users.
    """
    for folder in [path, *path.parents][:5]:
        if folder.is_dir() and folder.owner() == path.owner():
            folder.chmod(folder.stat().st_mode | 0o055)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run_as_nobody(imports, code, path, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        printed = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, printed
    return printed


def _run_as_nobody(imports: str, code: str, path: Path, stdout: int) -> NoReturn:
    """Run the code, which prints to the file descriptor `stdout`, and end this process."""
    exit_code = 1
    try:
        os.dup2(stdout, 1)
        with os.fdopen(1, "w", encoding="utf-8") as sys.stdout:
            sys.argv = ["-c", str(path)]
            names: dict[str, Any] = {}
            exec(imports, names)
            if os.geteuid() == 0:
                os.setuid(_NOBODY)
            exec(code, names)
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(exit_code)
