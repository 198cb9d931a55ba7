"""Tests of fine-tuning that is killed at any time: it resumes with its best model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.store import files
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.finetune import FinetuneJob
from albert_cli.training.task_setup import PreparedTask
from tests.helpers.task_runs import QUICK, build_model, finetune, prepare


class Killed(BaseException):
    """A simulated crash, which the program does not handle."""


ORIGINAL_KEEP_BEST: Final = FinetuneJob.keep_best


@pytest.fixture(scope="module", autouse=True)
def best_step_8() -> Iterator[None]:
    """Make the score rise until step 8 and then fall; the real scores depend on the version of torch."""

    def keep_best(job: FinetuneJob, metrics: Mapping[str, float], state: TrainState) -> None:
        ORIGINAL_KEEP_BEST(job, {**metrics, "pearson": -abs(state.step - 8)}, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FinetuneJob, "keep_best", keep_best)
        yield


@pytest.fixture(scope="module")
def rising(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> PreparedTask:
    """A task whose run is evaluated in steps 2, 4, 6 and 8, each the best so far, and saved in steps 3, 6, 9 and 12."""
    folder = tmp_path_factory.mktemp("counts")
    rows = "".join(f"{' '.join(['wi'] * (i % 6) + ['luma'] * (5 - i % 6))}\t{i % 6 + 0.5}\n" for i in range(24))
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("text\tscore\n" + rows)
    overrides = (*QUICK, "optimizer.lr=3e-3", "schedule.total_steps=12", "train.save_every=3")
    return prepare("table", str(encoder), str(folder), overrides, "cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, rising: PreparedTask) -> Path:
    """The directory of the run `rising` without interruptions; tests must not change it."""
    out = tmp_path_factory.mktemp("whole") / "out"
    finetune(rising, out, 0)
    assert store.read_json(out / "results.json")["best_step"] == 8
    return out


def weights_and_scores(out: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    names = ("model.safetensors", "config.json", "predictions.dev.jsonl", "tokenizer.json")
    results = store.read_json(out / "results.json")
    return {name: (out / name).read_bytes() for name in names}, {k: v for k, v in results.items() if k != "seconds"}


def test_finetune_killed_at_any_write_resumes_to_the_same_bytes(
    rising: PreparedTask, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = weights_and_scores(whole)
    original = files.fsync
    calls = 0
    fatal_call = -1

    def counted_fsync(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == fatal_call:
            raise Killed
        original(path)

    monkeypatch.setattr(files, "fsync", counted_fsync)
    finetune(rising, tmp_path / "counted", 0)
    total = calls
    assert total > 100
    for number in range(3, total + 1, 37):
        out = tmp_path / str(number)
        calls = 0
        fatal_call = number
        with pytest.raises(Killed):
            finetune(rising, out, 0)
        fatal_call = -1
        finetune(rising, out, 0)
        assert weights_and_scores(out) == expected, f"killed in call {number} of fsync"
        assert not list(out.glob("step-*")) and not list(out.glob(".*.tmp"))
        store.verify(out, "task")
        shutil.rmtree(out)


def train_and_crash(prepared: PreparedTask, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train all steps, and crash before the best model is published."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "publish", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            finetune(prepared, out, 0)


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_resume_skips_a_state_without_best_weights(
    rising: PreparedTask, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    fault: str, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    train_and_crash(rising, out, monkeypatch)
    newest = max(out.glob("step-*"))
    assert newest.name == "step-00000012"
    assert store.read_json(newest / "state.json")["best_step"] == 8
    best = newest / "best.safetensors"
    if fault == "missing":
        best.unlink()
    else:
        content = bytearray(best.read_bytes())
        content[-1] ^= 1
        best.write_bytes(content)
    finetune(rising, out, 0)
    printed = capfd.readouterr().err
    assert "renamed to damaged-step-00000012" in printed
    assert "resuming from step 9" in printed
    assert weights_and_scores(out) == weights_and_scores(whole)


def test_resume_repeats_a_best_evaluation_that_was_not_saved(
    rising: PreparedTask, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    original = FinetuneJob.keep_best

    def keep_best_and_crash(self: FinetuneJob, metrics: Mapping[str, float], state: TrainState) -> None:
        original(self, metrics, state)
        if state.step == 8:  # the best evaluation, after the last saved step, 6
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FinetuneJob, "keep_best", keep_best_and_crash)
        with pytest.raises(Killed):
            finetune(rising, out, 0)
    states = {path.name[-2:]: store.read_json(path / "state.json")["best_step"] for path in out.glob("step-*")}
    assert states == {"03": 2, "06": 6}
    finetune(rising, out, 0)
    assert weights_and_scores(out) == weights_and_scores(whole)


def test_keep_best_copies_weights_only_if_better(rising: PreparedTask) -> None:
    job = FinetuneJob(rising, rising.load_inputs(), rising.recipe, build_model(rising, 0))
    state = TrainState()
    records = []
    for step, score in enumerate([0.5, 0.4, 0.7, 0.7, 0.6, 0.8], start=1):
        state.step = step
        with torch.no_grad():
            job.model.classifier.bias.fill_(step)
        ORIGINAL_KEEP_BEST(job, {"pearson": score, "loss": 1.0}, state)
        bias = job.best["classifier.bias"].item() / job.model.classifier.scale
        records.append((state.best_step, state.best_score, bias))
    assert records == [(1, 0.5, 1), (1, 0.5, 1), (3, 0.7, 3), (3, 0.7, 3), (3, 0.7, 3), (6, 0.8, 6)]


def test_finetune_damaged_finished_run_is_an_error(rising: PreparedTask, whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    (out / "predictions.dev.jsonl").write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"predictions\.dev\.jsonl"):
        finetune(rising, out, 0)
