"""Tests of seeds that diverge: they are reported, and do not count."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from albert_cli import store
from albert_cli.errors import ConfigError, DivergedError
from albert_cli.report.build import build_report
from albert_cli.tasks.choice import ChoiceExample
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.registry import TASKS
from albert_cli.tasks.squad.data import Answer, Question
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.finetune import FinetuneJob
from tests.helpers.command import albert
from tests.helpers.reports import Page
from tests.helpers.shapes import TINY
from tests.helpers.task_runs import QUICK, as_text, diverge_runs, evaluate, finetune, prepare

Diverge = Callable[[Sequence[int]], None]


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> Diverge:
    """Return a function that makes the loss of some seeds NaN after three calls."""
    original = FinetuneJob.loss_sums

    def diverge(seeds: Sequence[int]) -> None:
        calls: dict[int, int] = {}

        def loss_sums(self: FinetuneJob, data: Any) -> dict[str, Tensor]:
            seed = self.settings.train.seed
            calls[seed] = calls.get(seed, 0) + 1
            factor = float("nan") if seed in seeds and calls[seed] > 3 else 1.0
            return {name: value * factor for name, value in original(self, data).items()}

        monkeypatch.setattr(FinetuneJob, "loss_sums", loss_sums)

    return diverge


def test_eval_divergence_at_evaluation_is_not_repeated(
    encoder: Path, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the last update makes the weights infinite, only the evaluation can notice it."""

    def not_finite(*_: Any) -> Any:
        raise DivergedError("the model's predictions are not finite")

    with monkeypatch.context() as patch:
        patch.setattr(FinetuneJob, "evaluate", not_finite)
        with pytest.raises(DivergedError, match="predictions are not finite"):
            evaluate("cola", str(encoder), str(glue), tmp_path / "out", 1, QUICK, "cpu")
    assert (tmp_path / "out" / "run-0" / "diverged.json").is_file()
    with pytest.raises(DivergedError, match="predictions are not finite"):
        evaluate("cola", str(encoder), str(glue), tmp_path / "out", 1, QUICK, "cpu")


_CHOICES = ChoiceExample("0", "bade", "figo", ("a", "b", "c", "d"), 1)
_QUESTION = Question("0", "bade", "figo luma", (Answer("luma", 5),))


@pytest.mark.parametrize(
    ("task", "example"),
    [
        ("cola", TextExample("bade", None, 1, "0")),
        ("stsb", TextExample("bade", "figo", 1.0, "0")),
        ("race", _CHOICES),
        ("squad1", _QUESTION),
        ("squad2", _QUESTION),
    ],
)
def test_predict_nan_logits_raise_diverged_error(task: str, example: Any, tiny_vocabulary: Path) -> None:
    """NaN would otherwise be predicted as the first class, the first choice, or no answer."""
    kind, vocabulary, cpu = TASKS[task], Vocabulary.load(tiny_vocabulary), torch.device("cpu")
    shape = replace(TINY, vocab_size=vocabulary.size, max_position_embeddings=90)
    features = kind.encode([example], vocabulary, 90)
    for part, _ in kind.new_model(shape).named_children():
        model = kind.new_model(shape).eval()
        assert kind.compute_metrics(kind.predict(model, features, cpu), features, [example])
        if parameters := list(model.get_submodule(part).parameters()):
            torch.nn.init.constant_(parameters[0], float("nan"))
            with pytest.raises(DivergedError, match="predictions are not finite"):
                kind.predict(model, features, cpu)


def test_eval_diverged_seed_does_not_count_or_repeat(
    encoder: Path, glue: Path, tmp_path: Path, diverging: Diverge, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    diverging([1])
    first = evaluate("cola", str(encoder), str(glue), out, 3, QUICK, "cpu")
    printed = capfd.readouterr().err
    assert "warning: CoLA seed 1 diverged and does not count: step 4: the loss" in printed
    assert f"remove {out / 'run-1'} to repeat it" in printed
    diverging([])  # seed 1 would finish now, but is not repeated
    result = evaluate("cola", str(encoder), str(glue), out, 4, QUICK, "cpu", nproc=2)
    assert "CoLA seed 1 diverged and does not count" in capfd.readouterr().err
    assert not (out / "run-1" / "results.json").exists()
    scores = [store.read_json(out / f"run-{seed}" / "results.json")["score"] for seed in (0, 2, 3)]
    assert result["scores_by_seed"] == dict(zip(("0", "2", "3"), scores, strict=True))
    assert result["scores_by_seed"].items() >= first["scores_by_seed"].items()
    assert (first["seeds"], result["seeds"]) == ([0, 1, 2], [0, 1, 2, 3])
    assert result["median"] == statistics.median(scores)
    assert [len(scores_of_metric) for scores_of_metric in result["all_scores"].values()] == [3, 3]
    assert list(result["diverged"]) == list(first["diverged"]) == ["1"]
    assert store.read_json(out / "results.json") == result
    printed = " ".join(as_text(result).split())
    assert "majority diverged" in printed
    assert " 1 of 4 " in printed
    assert "CoLA diverged: seed 1 (step 4: the loss" in printed
    assert "over the 3 of 4 seeds that finished" in printed
    assert "seeds 0 to 3 (median of 3 of 4)" in printed
    build_report([out], tmp_path / "report.html")
    page = " ".join(Page((tmp_path / "report.html").read_text()).text.split())
    assert "1 diverged" in page
    assert "seeds 0 to 3 (median of 3 of 4)" in page


def test_finetune_diverged_run_is_retried(
    encoder: Path, glue: Path, tuned: Callable[[str], Path], tmp_path: Path, diverging: Diverge
) -> None:
    diverging([1, 2])
    with pytest.raises(DivergedError, match="all 2 seeds diverged; seed 1: step 4"):
        evaluate("cola", str(encoder), str(glue), tmp_path / "out", 2, (*QUICK, "train.seed=1"), "cpu")
    diverging([])
    with pytest.raises(ConfigError, match="was started with another checkpoint"):
        evaluate("cola", str(tuned("sst2")), str(glue), tmp_path / "out", 2, (*QUICK, "train.seed=1"), "cpu")
    run = tmp_path / "out" / "run-1"
    assert store.read_json(run / "status.json")["state"] == "diverged"
    finetuned = finetune(prepare("cola", str(encoder), str(glue), QUICK, "cpu"), run, 1)
    assert finetuned["score"] == store.read_json(run / "results.json")["score"]
    assert not (run / "diverged.json").exists()
    result = evaluate("cola", str(encoder), str(glue), tmp_path / "out", 2, (*QUICK, "train.seed=1"), "cpu")
    assert (list(result["scores_by_seed"]), list(result["diverged"])) == (["1"], ["2"])


def test_suite_task_with_all_seeds_diverged_raises_at_the_end(
    encoder: Path, glue: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge_runs(monkeypatch, lambda job: job.prepared.task.name == "cola")
    call = ["eval", "glue", "--checkpoint", encoder, "--data", glue, "--device", "cpu", "--runs", 1]
    call += [word for override in QUICK for word in ("-s", override)]
    printed = albert(*call, "--out", tmp_path / "out", expect=5)
    assert "error: CoLA: its only seed diverged; seed 0: step 1" in printed.err
    assert printed.out == ""
    assert {p.parent.name for p in (tmp_path / "out").glob("*/results.json")} == {"sst2", "mnli"}


def test_search_continues_after_a_diverged_combination(encoder: Path, glue: Path, tmp_path: Path) -> None:
    call = ["--checkpoint", encoder, "--data", glue, "--device", "cpu", "--runs", 2]
    call += [word for override in QUICK for word in ("-s", override)]
    printed = albert("search", "cola", "lr=1e38,1e-3", *call, "--out", tmp_path / "out", "--nproc", 2)
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    high, usual = result["points"]
    assert "median" not in high
    assert (list(high["diverged"]), usual["diverged"]) == (["0", "1"], {})
    assert result["best"]["values"] == {"lr": "1e-3"}
    rows = [line.split() for line in printed.out.splitlines() if line.startswith("1e")]
    assert [row[0] for row in rows] == ["1e-3", "1e38"]
    assert rows[1][1:] == ["2", "of", "2"]
    printed = albert("search", "cola", "lr=1e38,1e37", *call, "--out", tmp_path / "none", expect=5)
    assert "CoLA: all 2 seeds diverged" in printed.err
