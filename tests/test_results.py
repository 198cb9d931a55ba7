"""Result files are read as the records that were written; errors report the file and the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli.errors import CheckpointError
from albert_cli.results import (
    AnyResult,
    SearchBudget,
    SearchPoint,
    SearchResult,
    SuiteResult,
    TaskVerdict,
    VerifyResult,
    read_result,
)
from albert_cli.score_summary import standard_error
from tests.helpers.results import ensemble_result, evaluation_result, run_result, scored_result

POINT = SearchPoint(values={"lr": "1e-5"}, directory="lr=1e-5", median=0.5)
SEARCH = SearchResult(
    task="rte", title="RTE", metric="accuracy", data="d", examples={}, seconds=1.0, checkpoint="c", caveat="",
    points=[POINT], best=POINT, budget=SearchBudget(combinations=1, runs=1, steps=8),
)  # fmt: skip
VERIFY = VerifyResult(
    recipe="r", checkpoint="c", source="s", reached=True, average={},
    tasks={"rte": TaskVerdict(verdict="skipped", published={"accuracy": 90.0}, tolerance=1.0, reason="no data")},
)  # fmt: skip
ALL_KINDS = [
    run_result(collapsed="one class for all inputs"),
    scored_result(best_threshold=-1.5),
    evaluation_result([0.5, 0.75], majority=0.5, diverged={"2": "step 3"}),
    ensemble_result(),
    SEARCH,
    SuiteResult(tasks={"rte": evaluation_result(), "cola": scored_result()}, tasks_scored=2, mean_of_tasks=0.5),
    VERIFY,
]


@pytest.mark.parametrize("result", ALL_KINDS, ids=lambda result: str(result.kind))
def test_read_result_returns_the_written_record(result: AnyResult, tmp_path: Path) -> None:
    result.write(tmp_path / "results.json")
    assert read_result(tmp_path / "results.json") == result


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": "0.9"}, r"results\.json: run\.score: Input should be a valid number, not '0\.9'"),
        ({"score": True}, r"run\.score: "),
        ({"seed": 1.5}, r"run\.seed: "),
        ({"scores": {"accuracy": None}}, r"run\.scores\.accuracy: "),
        ({"task": None}, r"run\.task: "),
        ({"protocol": {"steps": 8}}, r"run\.protocol\.epochs: Field required"),
        ({"scroe": 0.5}, r"run\.scroe: Extra inputs are not permitted"),
        ({"kind": "runs"}, r"results\.json: .*'kind'"),
        ({"labels": "ab"}, r"run\.labels: "),
    ],
)
def test_read_result_reports_file_and_key_of_wrong_value(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(run_result().to_json() | changes))
    with pytest.raises(CheckpointError, match=message):
        read_result(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores_by_seed": {}}, r"results\.json: eval\.scores_by_seed: "),
        ({"scores_by_seed": {"first": 0.5}}, r"eval\.scores_by_seed\.first"),
        ({"all_scores": {"accuracy": []}}, r"eval\.all_scores\.accuracy: "),
    ],
)
def test_read_result_needs_a_score_of_a_seed(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = evaluation_result().model_dump()
    (tmp_path / "results.json").write_text(json.dumps(values | changes))
    with pytest.raises(CheckpointError, match=message):
        read_result(tmp_path / "results.json")


def test_read_result_rejects_nan(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(run_result().to_json() | {"score": float("nan")}))
    with pytest.raises(CheckpointError, match=r"run\.score: "):
        read_result(path)


def test_evaluation_medians_are_over_the_seeds() -> None:
    scores = {"accuracy": [0.5, 0.9, 0.6], "f1": [0.1, 0.2, 0.3]}
    result = evaluation_result([0.5, 0.9, 0.6], all_scores=scores)
    assert result.medians == {"accuracy": 0.6, "f1": 0.2}


def test_standard_error_of_fewer_than_two_scores_is_none() -> None:
    assert standard_error([0.5, 0.6, 0.7]) == pytest.approx(0.1 / 3**0.5)
    assert standard_error([0.5]) is None
    assert standard_error([]) is None
