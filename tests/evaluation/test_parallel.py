"""Tests of `--nproc`: parallel runs equal sequential runs, and start from the same step of a run that still trains."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.evaluation import parallel, search, suite
from albert_cli.results import EvaluationResult, read_result
from albert_cli.training.task_setup import TaskRequest
from tests.helpers.checkpoints import replace_steps, untrained
from tests.helpers.results import without_times
from tests.helpers.task_runs import QUICK, SHAPE, evaluate

OTHER_SHAPE = replace(SHAPE, initializer_range=0.2)


def test_eval_nproc_gives_the_same_runs(
    encoder: Path, inference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = []
    for nproc in (1, 2):
        out = tmp_path / str(nproc)
        results.append(evaluate("rte", str(encoder), str(inference), out, 2, QUICK, "cpu", nproc=nproc))
    assert f"{tmp_path / '2' / 'run-1'}: rte seed 1" in capfd.readouterr().err
    assert without_times(results[0]) == without_times(results[1])
    assert results[1]["protocol"]["intermediate_task"] == "mnli"
    for seed in (0, 1):
        for name in ("model.safetensors", "predictions.dev.jsonl"):
            sequential, parallel = ((tmp_path / number / f"run-{seed}" / name).read_bytes() for number in ("1", "2"))
            assert sequential == parallel
    again = evaluate("rte", str(encoder), str(inference), tmp_path / "2", 2, QUICK, "cpu", nproc=2)
    assert again == results[1]
    assert "rte seed" not in capfd.readouterr().err, "a finished run starts no process"


@pytest.fixture
def run(encoder: Path, tmp_path: Path) -> Path:
    """A pretraining run with one step."""
    shutil.copytree(encoder, tmp_path / "run" / "step-00000010")
    return tmp_path / "run"


def call_before_training(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> None:
    """Let an evaluation or a search call a function after it has prepared its tasks, before it trains their runs."""

    def train(*arguments: Any) -> None:
        function()
        parallel.train_ahead(*arguments)

    monkeypatch.setattr(suite, "train_ahead", train)
    monkeypatch.setattr(search, "train_ahead", train)


def test_eval_nproc_workers_start_from_the_same_step(
    run: Path, glue: Path, tiny_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.fingerprint(run / "step-00000010")
    call_before_training(monkeypatch, lambda: untrained(run / "step-00000020", OTHER_SHAPE, tiny_vocabulary))
    result = evaluate("cola", str(run), str(glue), tmp_path / "out", 2, QUICK, "cpu", nproc=2)
    assert result["checkpoint"] == first
    request = TaskRequest(str(run), str(glue), 1, QUICK, "cpu", nproc=2)
    (run / "step-00000020").rename(tmp_path / "second")
    search.search_grid("cola", request, ["batch=2,4"], tmp_path / "searched")
    points = [read_result(path) for path in (tmp_path / "searched").glob("batch=*/results.json")]
    assert [isinstance(point, EvaluationResult) and point.checkpoint for point in points] == [first, first]


def test_eval_nproc_of_a_deleted_step_stops_early(
    run: Path, glue: Path, tiny_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_before_training(monkeypatch, lambda: replace_steps(run, SHAPE, tiny_vocabulary))
    with pytest.raises(CheckpointError, match="step-00000010: no such directory") as raised:
        evaluate("cola", str(run), str(glue), tmp_path / "out", 2, QUICK, "cpu", nproc=2)
    assert raised.value.hint is not None and f"name {run} for the newest one" in raised.value.hint
    assert not list((tmp_path / "out").glob("run-*"))
