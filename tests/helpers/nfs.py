"""Emulate NFS, where a mapped file that is deleted stays in its directory under a hidden name."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

MAPS = Path("/proc/self/maps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="this system does not list the mapped files of a process")


def is_mapped(path: Path) -> bool:
    """Return True if this process has mapped the file."""
    end = f" {path.resolve()}"
    return any(line.endswith(end) for line in MAPS.read_text(encoding="utf-8").splitlines())


def emulate_nfs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Rename each mapped file that this process deletes, as NFS does; return the list of these files."""
    unlink = os.unlink
    renamed: list[Path] = []

    def rename_if_mapped(path: str | Path, *, dir_fd: int | None = None) -> None:
        folder = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        if not is_mapped(folder / path):
            unlink(path, dir_fd=dir_fd)
            return
        renamed.append(folder / path)
        hidden = Path(path).with_name(f".nfs{uuid.uuid4().hex}")
        os.rename(path, hidden, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", rename_if_mapped)
    return renamed
