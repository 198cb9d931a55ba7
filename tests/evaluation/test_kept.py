"""The best model of a run beside the states that it is resumed from, whatever ends the run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from albert_cli import journal, store
from albert_cli.errors import CheckpointError
from albert_cli.training import finetune as finetuning
from albert_cli.training.task_setup import Prepared
from tests.glue import QUICK, finetune, prepare


class Killed(BaseException):
    """Stands for a crash: nothing in the program handles it."""


@pytest.fixture(scope="session")
def rising(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Prepared:
    """A run whose evaluations 2, 4, 6 and 8 are each the best so far, and whose steps 3, 6, 9 and 12 are saved."""
    folder = tmp_path_factory.mktemp("counts")
    rows = "".join(f"{' '.join(['wi'] * (i % 6) + ['luma'] * (5 - i % 6))}\t{i % 6 + 0.5}\n" for i in range(24))
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("text\tscore\n" + rows)
    overrides = (*QUICK, "optimizer.lr=3e-3", "schedule.total_steps=12")
    return prepare("table", str(encoder), str(folder), overrides, "cpu")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, rising: Prepared) -> Path:
    """That run, uninterrupted; not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    finetune(rising, out, 0)
    scores = [r["eval"]["pearson"] for r in journal.read(out / "metrics.jsonl") if "eval" in r]
    assert scores[:4] == sorted(set(scores[:4])) and max(scores) == scores[3]
    return out


def weights_and_scores(out: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    names = ("model.safetensors", "config.json", "predictions.dev.jsonl", "tokenizer.json")
    results = store.read_json(out / "results.json")
    return {name: (out / name).read_bytes() for name in names}, {k: v for k, v in results.items() if k != "seconds"}


def test_ended_anywhere_it_finishes_with_the_same_model(
    rising: Prepared, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = weights_and_scores(whole)
    real, calls, fatal = store._sync, 0, -1

    def sync(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == fatal:
            raise Killed
        real(path)

    monkeypatch.setattr(store, "_sync", sync)
    finetune(rising, tmp_path / "counted", 0)
    total = calls
    assert total > 100
    for number, last in enumerate(range(3, total + 1, 23)):
        out = tmp_path / str(number)
        calls, fatal = 0, last
        with pytest.raises(Killed):
            finetune(rising, out, 0)
        fatal = -1
        finetune(rising, out, 0)
        assert weights_and_scores(out) == expected, f"ended at the flush number {last}"
        assert not list(out.glob("step-*")) and not list(out.glob("best-*")) and not list(out.glob(".*.tmp"))
        store.verify(out, "task")
        shutil.rmtree(out)


def interrupted(prepared: Prepared, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train to the end, and crash before the best model is published."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "publish", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            finetune(prepared, out, 0)


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_without_its_best_model_a_state_is_not_gone_on_from(
    rising: Prepared, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    harm: str, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    interrupted(rising, out, monkeypatch)
    newest = store.read_json(max(out.glob("step-*")) / "state.json")
    best = out / f"best-{newest['best_step']:08d}"
    if harm == "missing":
        shutil.rmtree(best)
    else:
        content = bytearray((best / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (best / "model.safetensors").write_bytes(content)
    finetune(rising, out, 0)
    assert "is not used to resume" in capfd.readouterr().err
    assert weights_and_scores(out) == weights_and_scores(whole)


def test_the_model_of_a_lost_attempt_is_replaced(
    rising: Prepared, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    real, kept = finetuning.TaskJob.keep_best, 0

    def keep(self: finetuning.TaskJob, *arguments: Any) -> None:
        nonlocal kept
        real(self, *arguments)
        kept += 1
        if kept == 4:  # the evaluation of step 8 is best, and the last state is of step 6
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.TaskJob, "keep_best", keep)
        with pytest.raises(Killed):
            finetune(rising, out, 0)
    assert sorted(p.name[-2:] for p in out.glob("best-*")) == ["02", "06", "08"]  # step 3 knows 2, step 6 knows 6
    lost = out / "best-00000008"  # on a GPU the second attempt may give other weights
    store.write_text(lost / "model.safetensors", "other weights")
    finetune(rising, out, 0)
    assert weights_and_scores(out) == weights_and_scores(whole)


def test_a_finished_run_that_was_damaged_is_found_out(rising: Prepared, whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    (out / "predictions.dev.jsonl").write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"predictions\.dev\.jsonl"):
        finetune(rising, out, 0)
