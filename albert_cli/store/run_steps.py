"""List the checkpoints of a training run, which are directories `step-N` with a manifest."""

from __future__ import annotations

import os
from pathlib import Path

from albert_cli.store.manifests import MANIFEST


def saved_steps(run: Path) -> list[Path]:
    """Return the directories of a run's finished checkpoints, oldest first."""
    # The numbers are padded with zeros, so the names sort as the numbers do. A manifest that is a broken link counts:
    # verifying the checkpoint then reports it.
    return sorted(p for p in run.glob("step-*") if os.path.lexists(p / MANIFEST))
