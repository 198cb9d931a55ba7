"""List the checkpoints of a training run, which are directories `step-N` with a manifest."""

from __future__ import annotations

import os
import re
from pathlib import Path

from albert_cli.store.manifests import MANIFEST


def step_directories(run: Path) -> list[Path]:
    """Return the directories `step-N` of a run, finished or not, oldest first.

    A directory with another name, such as a user's copy `step-N-good`, is none of the run's.
    """
    try:
        # `glob` and `is_dir` would take a failing disk for a missing directory in some releases of Python.
        paths = list(run.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    # The numbers are padded with zeros, so names sort as their numbers do.
    return sorted(path for path in paths if re.fullmatch(r"step-\d+", path.name))


def saved_steps(run: Path) -> list[Path]:
    """Return the directories of a run's finished checkpoints, oldest first."""
    # A manifest that is a broken link counts: verifying the checkpoint then reports it. The same is true of a directory
    # that is a broken link.
    return [p for p in step_directories(run) if os.path.lexists(p / MANIFEST) or is_broken_link(p)]


def step_number(directory: Path) -> int:
    """Return the number in the name of a directory `step-N`."""
    return int(directory.name.removeprefix("step-"))


def is_broken_link(path: Path) -> bool:
    """Return True for a link to a missing file or folder, and for a link to itself."""
    return path.is_symlink() and not path.exists()
