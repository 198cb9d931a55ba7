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


def test_hub_unreachable_is_one_line(tmp_path: Path) -> None:
    """Read a task and a checkpoint in one process: `huggingface_hub` reads the endpoint when it is imported."""
    code = """
import sys
from albert_cli.errors import AlbertError
from albert_cli.model import hub
from albert_cli.tasks.registry import find_task
assert not sys.modules.keys() & {"datasets", "sklearn", "scipy", "rich"}, "imported before they are needed"
for read in (lambda: find_task("mrpc").read("dev"), lambda: hub.find_checkpoint("albert/albert-base-v2")):
    try:
        read()
    except AlbertError as error:
        print(error.message)
        print(error.hint)
"""
    # Port 9 discards: nothing listens there.
    done = run_python(code, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path))
    task_message, task_hint, checkpoint_message, checkpoint_hint = done.stdout.splitlines()
    assert task_message.startswith("hf:nyu-mll/glue:mrpc:validation: cannot be loaded: ")
    assert "--data DIR" in task_hint
    missing = "albert/albert-base-v2: no such directory, and it could not be downloaded from the Hub"
    assert checkpoint_message.startswith(missing)
    assert "check the path" in checkpoint_hint
    # By themselves, the libraries would print a line for each retry.
    assert done.stderr == "albert/albert-base-v2: no such directory, so it is read from the Hugging Face Hub\n"
