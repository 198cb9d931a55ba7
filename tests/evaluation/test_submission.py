"""The class names in a submission of one task, which are those of the model that predicts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import albert
from tests.helpers.task_runs import QUICK, finetune, prepare, write_foreign


@pytest.fixture(scope="module")
def model(encoder: Path, inference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was fine-tuned on WNLI."""
    out = tmp_path_factory.mktemp("wnli") / "model"
    finetune(prepare("wnli", str(encoder), str(inference), QUICK, "cpu"), out, 0)
    return out


def test_submission_has_the_class_names_of_the_trained_run(model: Path, inference: Path, tmp_path: Path) -> None:
    foreign = write_foreign(model, tmp_path / "foreign", ("LABEL_0", "LABEL_1"))
    options = ["--data", inference, "--device", "cpu"]
    call = ["eval", "wnli", "--checkpoint", foreign, *options, "--retrain", "--runs", 1, "--no-baselines"]
    for setting in (*QUICK, "optimizer.lr=1e-9", "model.head=checkpoint", 'model.labels=["1","0"]'):
        call += ["-s", setting]
    albert(*call, "--out", tmp_path / "trained", "--submission", tmp_path / "trained.tsv")
    call = ["eval", "wnli", "--checkpoint", tmp_path / "trained" / "run-0", *options]
    albert(*call, "--out", tmp_path / "scored", "--submission", tmp_path / "scored.tsv")
    assert (tmp_path / "trained.tsv").read_bytes() == (tmp_path / "scored.tsv").read_bytes()


@pytest.mark.parametrize("name", ["wnli", "mini/wnli"])
def test_submission_scored_unnamed_classes_need_model_head(
    name: str, model: Path, inference: Path, tmp_path: Path
) -> None:
    foreign = write_foreign(model, tmp_path / "foreign", ("LABEL_0", "LABEL_1"))
    options = ["--data", inference, "--device", "cpu", "-s", "data.max_seq_length=24"]
    call = ["eval", name, "--checkpoint", foreign, "-s", "model.head=checkpoint", *options]
    albert(*call, "--out", tmp_path / "foreign-out", "--submission", tmp_path / "foreign.tsv")
    call = ["eval", "wnli", "--checkpoint", model, *options]
    albert(*call, "--out", tmp_path / "out", "--submission", tmp_path / "named.tsv")
    assert (tmp_path / "foreign.tsv").read_bytes() == (tmp_path / "named.tsv").read_bytes()
