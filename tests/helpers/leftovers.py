"""Names of the temporary files of a killed process, of a running process, and of another machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from albert_cli.store.temporaries import temporary_sibling


def leftover(path: Path) -> Path:
    """Return the temporary path for `path` that a process on this machine would have used; the process has exited."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return _replace_pid(path, ended.pid)


def of_living_process(path: Path) -> Path:
    """Return the temporary path for `path` that a running process on this machine would use."""
    return _replace_pid(path, os.getppid())


def of_other_machine(path: Path) -> Path:
    """Return the temporary path for `path` that a process on another machine would use."""
    name = temporary_sibling(path).name
    unique = name.removeprefix(f".{path.name}.")
    return path.with_name(f".{path.name}.{'0' * 8}{unique[8:]}")


def _replace_pid(path: Path, pid: int) -> Path:
    name = temporary_sibling(path).name
    return path.with_name(name.replace(f"-{os.getpid()}-", f"-{pid}-"))
