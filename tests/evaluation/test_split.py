"""Tests of `albert eval --split test`, which scores a fine-tuned checkpoint on a labeled test set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.command import QUICK, albert


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A model fine-tuned on middle school questions, next to a small copy of RACE."""
    folder = tmp_path_factory.mktemp("race")
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            (folder / "RACE" / split / level).mkdir(parents=True)
            for number in range(3 if split == "test" else 2):
                record = {
                    "article": "bade figo luma",
                    "questions": ["wi _ ?"],
                    "options": [["bade", "kra", "ne", "luma"]],
                    "answers": ["A"],
                    "id": f"{level}{number}.txt",
                }
                (folder / "RACE" / split / level / f"{number}.txt").write_text(json.dumps(record))
    call = ["finetune", "race_middle", "--checkpoint", encoder, "--data", folder / "RACE", "--out", folder / "model"]
    albert(*call, *QUICK)
    return folder / "model"


@pytest.mark.parametrize(("task", "questions"), [("race_middle", 3), ("race_high", 3), ("race", 6)])
def test_eval_split_test_scores_the_test_set(model: Path, tmp_path: Path, task: str, questions: int) -> None:
    call = ["eval", task, "--checkpoint", model, "--data", model.parent / "RACE", "--split", "test", "--device", "cpu"]
    result = json.loads(albert(*call, "--out", tmp_path / "scores", "--json").out)
    assert (result["kind"], result["examples"]) == ("scored", {"test": questions})
    assert "(test)" in result["title"]
    printed = albert(*call, "--out", tmp_path / "again").out
    assert "RACE" in printed
    assert "(test) accuracy" in printed


def test_eval_split_test_does_not_train(model: Path, encoder: Path, tmp_path: Path) -> None:
    data = model.parent / "RACE"
    call = ["eval", "race", "--checkpoint", encoder, "--data", data, "--split", "test", "--out", tmp_path / "scores"]
    assert "would be trained" in albert(*call, expect=2).err
    assert not (tmp_path / "scores").exists()


def test_eval_split_test_needs_labels(tuned: Callable[[str], Path], glue: Path, tmp_path: Path) -> None:
    checkpoint = tuned("cola")
    call = ["eval", "cola", "--checkpoint", checkpoint, "--data", glue, "--split", "test", "--out", tmp_path / "scores"]
    assert "hides the labels" in albert(*call, expect=3).err


def test_eval_model_labels_that_do_not_fit_are_rejected(
    tuned: Callable[[str], Path], glue: Path, tmp_path: Path
) -> None:
    call = ["eval", "cola", "--checkpoint", tuned("cola"), "--data", glue, "--out", tmp_path / "scores"]
    printed = albert(*call, "-s", 'model.labels=["x", "y"]', expect=4)
    assert "its classes (x, y) are not CoLA's (0, 1)" in printed.err
    assert not (tmp_path / "scores").exists()
