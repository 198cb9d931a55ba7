"""Tests of `--nproc`: parallel runs equal sequential runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.results import without_times
from tests.helpers.task_runs import QUICK, evaluate


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
