"""Name temporary files and directories, and remove the ones that a killed process has left.

A name contains the machine and the process that writes the file. A process deletes only leftovers of its own machine,
because it cannot know whether a process of another machine is still alive.
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

_SUFFIX = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.tmp$")


def _machine() -> str:
    """Return eight hex digits that identify this machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def temporary_sibling(path: Path) -> Path:
    """Return the path of a hidden sibling of `path` that no other call returns."""
    unique = f"{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return path.with_name(f".{path.name}.{unique}.tmp")


def remove_leftovers(directory: Path, name: str | None = None) -> None:
    """Delete temporary files and directories that killed processes of this machine have left in a directory.

    name: delete only the temporary siblings of this file; None: of all files. Call this function only while this
    process writes none of these files: it deletes the temporary files with this process's id, too.
    """
    if not directory.is_dir():
        return
    pattern = "*" if name is None else glob.escape(name)
    for path in directory.glob(f".{pattern}.*.tmp"):
        match = _SUFFIX.search(path.name)
        if match is None or not _is_left_behind(match):
            continue
        if name is not None and path.name[: match.start()] != f".{name}":
            continue  # the pattern also matches the siblings of a longer name, such as `a.b` for `a`
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_left_behind(match: re.Match[str]) -> bool:
    """Return True if the process that began to write a file was this process, or one of this machine that has ended.

    match: of `_SUFFIX` in the name of the file.
    """
    if match["machine"] != _machine():
        return False
    pid = int(match["pid"])
    # The caller writes none of the files now. In a container, an earlier process may have had the same id.
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)  # signal 0 only checks if the process exists
    except ProcessLookupError:
        return True
    except PermissionError:  # the process exists and belongs to another user
        return False
    return False
