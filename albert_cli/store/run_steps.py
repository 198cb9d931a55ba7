"""The saved steps of a training run."""

from __future__ import annotations

import os
from pathlib import Path

from albert_cli.store.manifests import MANIFEST


def saved_steps(run: Path) -> list[Path]:
    """Return the directories of a run's finished steps, oldest first: zero-padded names sort as numbers."""
    return sorted(p for p in run.glob("step-*") if os.path.lexists(p / MANIFEST))
