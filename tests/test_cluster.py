"""The examples for clusters do what they say: their own command, with the variables that a scheduler sets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from albert_cli.data.build import BuildSettings, build
from albert_cli.text.lines import ReadSettings
from tests.data.test_build import contents

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "recipes" / "cluster"


@pytest.fixture
def corpus(tmp_path: Path, documents: list[str]) -> Path:
    """A folder with four files of text, each too large to be put together with another."""
    folder = tmp_path / "corpus" / "text"
    folder.mkdir(parents=True)
    for number in range(4):
        # A weight of its own keeps a file apart from the others.
        (folder / f"{number}.txt").write_text("\n\n".join(documents[number * 150 : (number + 1) * 150]))
    return folder


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """`albert` is on the path, and nothing of a real scheduler is set."""
    program = tmp_path / "bin" / "albert"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m albert_cli "$@"\n')
    program.chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "JOB_"))}
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    return {**clean, "PATH": path, "PYTHONPATH": str(ROOT), **more}


def run(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def merged(tmp_path: Path, sources: list[str], vocabulary: Path, env: dict[str, str]) -> None:
    """The merge makes what one command makes at once."""
    albert = [str(tmp_path / "bin" / "albert"), "data", *sources, "--vocab", str(vocabulary), "--out"]
    run([*albert, str(tmp_path / "corpus" / "data"), "--task", "merge"], env)
    build(sources, vocabulary, tmp_path / "whole", BuildSettings(read=ReadSettings()), workers=1)
    assert contents(tmp_path / "corpus" / "data") == contents(tmp_path / "whole")


def test_slurm(tmp_path: Path, corpus: Path, tiny_vocabulary: Path) -> None:
    script = (CLUSTER / "data.slurm").read_text()
    assert re.search(r"^#SBATCH --array=0-15$", script, re.MULTILINE)
    sources = [f"{corpus}/{n}.txt@{n + 1}" for n in range(4)]
    shared = {"SOURCES": " ".join(sources), "VOCABULARY": str(tiny_vocabulary)}
    shared |= {"OUT": str(tmp_path / "corpus" / "data"), "SLURM_CPUS_PER_TASK": "1"}
    array = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "1"}
    for job in ("1", "0"):
        env = environment(tmp_path, **shared, **array, SLURM_ARRAY_TASK_ID=job)
        assert f"job {job}/2, 2 tasks" in run(["bash", str(CLUSTER / "data.slurm")], env)
    again = environment(tmp_path, **shared, SHARE="0/2")
    assert "4 of 4 tasks are finished" in run(["bash", str(CLUSTER / "data.slurm")], again)
    merged(tmp_path, sources, tiny_vocabulary, again)


def test_kubernetes(tmp_path: Path, corpus: Path, tiny_vocabulary: Path) -> None:
    job = yaml.safe_load((CLUSTER / "data.kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(env["JOB_COMPLETIONS"]) == job["spec"]["completions"]
    command = [part.replace("/corpus/vocabulary", str(tiny_vocabulary)) for part in container["command"]]
    command = [part.replace("/corpus", str(tmp_path / "corpus")) for part in command + container["args"]]
    workers = command.index("--workers") + 1
    command[workers] = "1"
    for index in ("0", "1"):
        said = run(command, environment(tmp_path, **env | {"JOB_COMPLETIONS": "2", "JOB_COMPLETION_INDEX": index}))
        assert f"job {index}/2" in said
    merged(tmp_path, [str(corpus)], tiny_vocabulary, environment(tmp_path))
