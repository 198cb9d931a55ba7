"""Run a script as a user for whom file permissions count; root may read everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# The first imports still run as the test's user, who can read the package. Root then becomes the user `nobody`.
_BECOME_NOBODY = "import os\nos.geteuid() or os.setuid(65534)\n"


def print_as_nobody(imports: str, code: str, path: Path) -> str:
    """Run Python code with the argument `path`, a path in `tmp_path`; return what it prints.

    imports: the lines that run before the change of the user. The folders of the path are opened to other users.
    """
    for folder in [path, *path.parents][:5]:
        if folder.is_dir() and folder.owner() == path.owner():
            folder.chmod(folder.stat().st_mode | 0o055)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", f"{imports}\n{_BECOME_NOBODY}\n{code}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
