"""Without a network: one line at once, and no heavy import before data are read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=ours | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_read_hub_unreachable_is_one_line(tmp_path: Path) -> None:
    code = """
import sys
from albert_cli.errors import InputError
from albert_cli.tasks.registry import find_task
assert not sys.modules.keys() & {"datasets", "sklearn", "scipy", "rich"}, "imported before they are needed"
try:
    find_task("mrpc").read("dev")
except InputError as error:
    print(error.message)
    print(error.hint)
"""
    # Port 9 discards: nothing listens there.
    done = run_python(code, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path))
    message, hint = done.stdout.splitlines()
    assert message.startswith("hf:nyu-mll/glue:mrpc:validation: cannot be loaded: ")
    assert "--data DIR" in hint
    assert "Retry" not in done.stderr
