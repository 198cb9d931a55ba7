"""Tests of predictions with the runs of an evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from albert_cli import store
from albert_cli.evaluation.scoring import checkpoint_for_test_set, predict_examples, predict_with_run
from albert_cli.training.task_setup import TaskRequest
from tests.helpers.results import evaluation_result
from tests.helpers.task_runs import QUICK, prepare


def test_test_set_is_predicted_with_the_best_runs_precision(
    tuned: Any, encoder: Path, glue: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tuned("cola"), tmp_path / "run-1"))
    store.write_json(run / "results.json", store.read_json(run / "results.json") | {"precision": "bf16"})
    prepared = prepare("cola", str(encoder), str(glue), QUICK, "cpu")
    examples = prepared.task.read("dev", str(glue))
    scored = prepare("cola", str(run), str(glue), QUICK, "cpu")
    expected = {name: np.asarray(predict_examples(scored, examples, precision=name)) for name in ("fp32", "bf16")}
    assert not np.array_equal(expected["fp32"], expected["bf16"])
    assert np.array_equal(np.asarray(predict_with_run(prepared, run)(examples)), expected["bf16"])
    result = evaluation_result([0.5, 0.7])
    assert checkpoint_for_test_set(result, tmp_path, TaskRequest("", None, 2, (), "cpu")) == (str(run), "bf16")
