"""Tests of `albert_cli.work_status`."""

from __future__ import annotations

import json
from pathlib import Path

from albert_cli import store
from tests.helpers.command import albert, pretrained


def write_status(run: Path, **values: object) -> None:
    store.write_json(run / "status.json", {"step": 5, "total_steps": 20, "host": "node7", **values})


def test_status_of_runs_names_state_reason_and_command(tmp_path: Path) -> None:
    write_status(tmp_path / "run-0", state="done", step=20)
    write_status(tmp_path / "run-1", state="diverged", message="loss is not finite", command="albert finetune a")
    write_status(tmp_path / "run-2", state="running", command="albert finetune b")
    write_status(tmp_path / "run-3", state="running", command="albert finetune c")
    with store.lock(tmp_path / "run-2"):
        text = albert("status", tmp_path).out
        data = json.loads(albert("status", tmp_path, "--json").out)
    assert data["counts"] == {"done": 1, "running": 1, "failed": 1, "interrupted": 1}
    assert "run-2  step 5 of 20 on node7" in text
    assert "run-1  step 5 of 20: diverged: loss is not finite" in text
    assert "run-3  step 5 of 20; its process on node7 was killed" in text
    assert text.endswith("to continue:\n  albert finetune a\n  albert finetune c\n")


def test_status_of_a_build_counts_tasks(documents_file: Path, tiny_vocabulary: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.txt" for n in range(3)]
    text = documents_file.read_text(encoding="utf-8")
    for n, file in enumerate(files):
        file.write_text(f"{text}\n\nNumber {n}.", encoding="utf-8")
    out = tmp_path / "out"
    sources = [f"{file}@{n + 1}" for n, file in enumerate(files)]
    albert("data", *sources, "--vocab", tiny_vocabulary, "--out", out, "--workers", 1, "--task", "0/3")
    counts = json.loads(albert("status", out, "--json").out)["counts"]
    assert counts == {"done": 1, "remaining": 2}
    assert "does what is remaining" in albert("status", out).out


def test_status_of_a_finished_run_is_done(tiny_data: Path, tmp_path: Path) -> None:
    run = pretrained(tiny_data, tmp_path / "run")
    assert json.loads(albert("status", run, "--json").out)["counts"] == {"done": 1}
    assert "done" in albert("status", run, "--watch").out


def test_status_of_something_else_is_rejected(tmp_path: Path) -> None:
    assert "no work of albert" in albert("status", tmp_path, expect=3).err
    assert "no such directory" in albert("status", tmp_path / "gone", expect=3).err
