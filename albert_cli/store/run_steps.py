"""List the checkpoints of a training run, which are directories `step-N` with a manifest."""

from __future__ import annotations

import os
from pathlib import Path

from albert_cli.store.manifests import MANIFEST


def saved_steps(run: Path) -> list[Path]:
    """Return the directories of a run's finished checkpoints, oldest first."""
    # The numbers are padded with zeros, so the names sort as the numbers do. A manifest that is a broken link counts:
    # verifying the checkpoint then reports it. The same is true of a directory that is a broken link.
    return sorted(p for p in run.glob("step-*") if os.path.lexists(p / MANIFEST) or is_broken_link(p))


def step_number(directory: Path) -> int:
    """Return the number in the name of a directory `step-…`."""
    return int(directory.name.removeprefix("step-"))


def is_broken_link(path: Path) -> bool:
    """Return True for a link to a missing file or folder, and for a link to itself."""
    return path.is_symlink() and not path.exists()
