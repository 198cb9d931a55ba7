"""Names of temporary files and directories, and the removal of what a killed process left.

A name contains the machine and the process that wrote it. Locks of some file systems do not reach other machines, so a
process deletes only the leftovers of processes on the same machine.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import socket
import uuid
from pathlib import Path

_NAME = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.tmp$")


def _machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def temporary_sibling(path: Path) -> Path:
    """Return the name of a hidden sibling, different in every call."""
    unique = f"{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return path.with_name(f".{path.name}.{unique}.tmp")


def remove_leftovers(directory: Path, name: str | None = None) -> None:
    """Delete what a killed process of this machine left half-written: temporary siblings of `name`, or all of them."""
    pattern = "*" if name is None else glob.escape(name)
    if not directory.is_dir():
        return
    for path in directory.glob(f".{pattern}.*.tmp"):
        match = _NAME.search(path.name)
        if match is None or not _is_left_behind(match):
            continue
        if name is not None and path.name[: match.start()] != f".{name}":
            continue  # of a name that begins with this one
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_left_behind(match: re.Match[str]) -> bool:
    """Return True if a process of this machine wrote the name and does not write there any more."""
    if match["machine"] != _machine():
        return False
    pid = int(match["pid"])
    if pid == os.getpid():  # this process, or an earlier one with the same number, as in a restarted container
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it belongs to another user
        return False
    return False
