"""A disk that fails for some files, as a network file system does while its server restarts."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

import pytest


def fail_calls(patch: pytest.MonkeyPatch, call: str, name: str) -> None:
    """Make a call, "stat" or "read", fail for all files with this name."""
    patched = {"stat": ((os, "stat"), (os, "lstat")), "read": ((pathlib.Path, "read_bytes"),)}[call]
    for owner, function in patched:
        original = getattr(owner, function)

        def fail(path: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            if not isinstance(path, int) and pathlib.Path(path).name == name:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return original(path, *args, **kwargs)

        patch.setattr(owner, function, fail)
