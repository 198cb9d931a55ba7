"""Checkpoints that answer together."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation import ensemble
from albert_cli.evaluation.ensemble import _greedy, _Member, _together
from albert_cli.evaluation.runs import evaluate
from albert_cli.tasks.encode import Features
from albert_cli.tasks.spec import find_task
from albert_cli.training.classify import Classification
from tests.command import albert
from tests.glue import QUICK


def members(logits: list[Any], labels: list[int], task: str = "sst2") -> list[_Member]:
    """Models that gave these logits on examples with these labels."""
    nothing, offsets = np.empty(0, np.int32), np.zeros(len(labels) + 1, np.int64)
    kind = "float32" if task == "stsb" else "int64"
    dev = Features(nothing, nothing, offsets, np.array(labels, kind), 0)
    prepared: Any = SimpleNamespace(kind=Classification(), task=find_task(task), dev=dev, dev_examples=[])
    made = [_Member(Path(str(i)), prepared, np.array(each, np.float32), 0.0) for i, each in enumerate(logits)]
    metric = find_task(task).metrics[0]
    return [_Member(m.directory, prepared, m.outputs, ensemble._scores(prepared, m.outputs)[metric]) for m in made]


def says(classes: str, weight: float = 2.0) -> list[list[float]]:
    return [[weight, 0.0] if c == "0" else [0.0, weight] for c in classes]


def test_each_wrong_elsewhere_all_right_together() -> None:
    found = members([says("100000"), says("001000"), says("000010")], [0] * 6)
    assert [m.score for m in found] == pytest.approx([5 / 6] * 3)
    assert _together(found)["accuracy"] == 1.0
    assert _greedy(found) == [0, 1]  # two are enough: where they differ the classes are equally likely


def test_a_model_that_only_harms_is_not_chosen() -> None:
    found = members([says("0011"), says("1100", 9.0)], [0, 0, 1, 1])
    assert _greedy(found) == [0]
    assert _together(found)["accuracy"] == 0.0


def test_values_are_averaged_as_they_are() -> None:
    found = members([[[1.0], [2.0], [3.0]], [[3.0], [2.0], [7.0]]], [2, 2, 5], "stsb")
    assert ensemble._average(found).tolist() == [[2.0], [2.0], [5.0]]


def probabilities(directory: Path) -> np.ndarray[Any, Any]:
    rows = [json.loads(line) for line in (directory / "predictions.dev.jsonl").read_text().splitlines()]
    return np.array([list(row["probabilities"].values()) for row in rows])


def test_the_runs_of_an_evaluation_answer_with_their_mean_probabilities(
    encoder: Path, glue: Path, tmp_path: Path
) -> None:
    alone = evaluate("cola", str(encoder), str(glue), tmp_path / "runs", 3, QUICK, "cpu")
    out = tmp_path / "out"
    said = albert("eval", "cola", "--ensemble", tmp_path / "runs", "--data", glue, "--out", out, "--device", "cpu")
    result = json.loads((out / "results.json").read_text())
    assert [m["score"] for m in result["members"]] == list(alone["scores_by_seed"].values())
    chosen = [probabilities(Path(name)) for name in result["chosen"]]
    assert probabilities(out) == pytest.approx(np.mean(chosen, axis=0), abs=2e-5)
    everything = np.mean([probabilities(tmp_path / "runs" / f"run-{seed}") for seed in range(3)], axis=0)
    labels = [i + 1 for i in range(12)]
    assert result["of_all"]["accuracy"] == pytest.approx(np.mean(everything.argmax(1) == np.array(labels) % 2))
    assert result["gain"]["chosen_over_best"] >= 0
    assert "all 3" in said.out and "which flatters it" in said.out


def test_what_is_no_ensemble(tuned: Any, glue: Path, tmp_path: Path) -> None:
    both = [str(tuned("cola")), str(tuned("sst2"))]
    with pytest.raises(CheckpointError, match="is no model of CoLA"):
        evaluate("cola", None, str(glue), tmp_path / "out", 1, (), "cpu", ensemble_of=both)
    with pytest.raises(ConfigError, match="one checkpoint is no ensemble"):
        evaluate("cola", None, str(glue), tmp_path / "one", 1, (), "cpu", ensemble_of=both[:1])
