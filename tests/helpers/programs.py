"""Install shell scripts as programs for the commands that a test starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(folder: Path, name: str, script: str) -> None:
    """Write a shell script as the executable `bin/NAME` in a folder."""
    program = folder / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)


def make_environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return environment variables with `albert` and `torchrun` on the path, and without those of a scheduler."""
    install(folder, "albert", f'exec "{sys.executable}" -m albert_cli "$@"')
    install(folder, "torchrun", f'exec "{sys.executable}" -m torch.distributed.run "$@"')
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "JOB_"))}
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    return {**inherited, "PATH": path, "PYTHONPATH": str(ROOT), **variables}
