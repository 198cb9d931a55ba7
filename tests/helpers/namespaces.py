"""User namespaces of Linux, in which a test may mount a small disk."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x20000  # flags of unshare(2)
_CLONE_NEWUSER: Final = 0x10000000


def has_namespaces() -> bool:
    """Return True if `unshare` may create a user namespace with separate mounts."""
    return sys.platform == "linux" and not subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode


def enter_namespaces() -> None:
    """Move this process into a user namespace with separate mounts, as root, like `unshare -rm`.

    The process must have a single thread.
    """
    maps = {"uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare fails")
    for name, text in {"setgroups": "deny", **maps}.items():  # a group is mapped only after this "deny"
        Path("/proc/self", name).write_text(text, encoding="ascii")
