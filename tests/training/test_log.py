"""What a run says about itself: hints from its curve, accuracies, its share of the peak, why it diverged."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albert_cli import journal, store
from albert_cli.errors import CheckpointError, ConfigError, DivergedError
from albert_cli.training.log import LossHints, StepWindow, progress_suffix
from albert_cli.training.objectives import PretrainingJob, count_correct
from albert_cli.training.pretrain import pretrain

ENTROPY = 6.2


def hints(losses: Iterable[float], every: int = 50, warmup: int = 100, norm: float = 1.0) -> list[tuple[int, str]]:
    """The step and text of each hint that a curve, a line each `every` steps, gives reason for."""
    watch, found = LossHints(ENTROPY, warmup), []
    for number, loss in enumerate(losses, start=1):
        line = {"step": number * every, "loss": loss + 0.69, "mlm_loss": loss, "grad_norm": norm}
        found += [(number * every, hint) for hint in watch.observe(line)]
    return found


def noisy(level: Callable[[int], float], steps: int, every: int, deviation: float) -> list[float]:
    """Means over `every` steps of a curve whose single steps are noisy."""
    rng = np.random.default_rng(0)
    return [level(n) + rng.normal(0, deviation / every**0.5) for n in range(every, steps + 1, every)]


@pytest.mark.parametrize("every", [1, 10, 50, 100, 300])
def test_a_loss_that_stays_at_the_unigram_entropy_is_told_ever_more_seldom(every: int) -> None:
    found = hints(noisy(lambda n: ENTROPY, 5000, every, 0.3), every)
    assert 3 <= len(found) <= 4
    assert 500 <= found[0][0] <= 1300 and "has not left 6." in found[0][1] and "docs/pretraining.md" in found[0][1]
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(found)]
    assert gaps == sorted(gaps)


@pytest.mark.parametrize("every", [1, 10, 100])
def test_a_loss_that_falls_or_is_far_below_is_left_alone(every: int) -> None:
    falls = noisy(lambda n: 8.0 - n / 2000, 5000, every, 0.3)  # 0.25 nats in 500 steps
    assert hints(falls, every) == []
    assert hints(noisy(lambda n: ENTROPY - 1, 5000, every, 0.3), every) == []
    assert hints(noisy(lambda n: ENTROPY, 900, every, 0.3), every, warmup=900) == []


def test_a_jump_is_told_once_until_the_loss_is_back() -> None:
    calm = noisy(lambda n: 4.0, 1500, 50, 0.3)
    found = hints([*calm, 5.0, 5.1, *calm, 5.0])
    assert [step for step, _ in found] == [1550, 3150]
    assert re.search(r"jumped from 4\.[67]\d\d to 5\.690 by step 1,550 \(gradient norm 1, usually 1\)", found[0][1])
    assert all("jumped" in text and "docs/pretraining.md" in text for _, text in found)
    assert hints(noisy(lambda n: 4.0, 5000, 1, 0.3), 1) == []  # single steps are noisy, and that is no jump


def test_a_resumed_watch_says_what_it_would_have_said() -> None:
    watch, again = LossHints(ENTROPY, 0), LossHints(ENTROPY, 0)
    records = [{"step": n, "loss": 7.0, "mlm_loss": 6.3, "grad_norm": 1.0} for n in range(50, 3001, 50)]
    records.insert(20, {"step": 1000, "eval": {"mlm_loss": 3.0}})  # type: ignore[dict-item]
    said = [watch.observe(record) for record in records]
    for record in records[:30]:
        again.observe(record)
    assert [again.observe(record) for record in records[30:]] == said[30:]
    assert any(said[30:])


def test_a_window_tells_means_and_speed() -> None:
    window = StepWindow(started=0.0)
    window.add({"loss": 3.0, "mlm_accuracy": 0.25}, tokens=100, flops=1e9)
    window.add({"loss": 5.0, "mlm_accuracy": 0.75}, tokens=300, flops=3e9)
    assert window.means() == {"loss": 4.0, "mlm_accuracy": 0.5}
    window = StepWindow(steps=window.steps, sums=window.sums, tokens=400, flops=4e9)
    speed = window.speed(peak=None)
    assert set(speed) == {"tokens_per_second"}
    words = progress_suffix(window.means(), {"tokens_per_second": 1234, "mfu": 0.256})
    assert words == "loss 4.000  masked 50.0%  1,234 tokens/s  26% of peak"


def test_what_is_right_is_counted_the_same_in_both_precisions() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 30, generator=rng)
    labels = torch.where(torch.rand(64, generator=rng) < 0.5, logits.argmax(-1), 3)
    labels[:5] = -1
    expected = int((logits.argmax(-1) == labels).sum())
    assert 20 < expected < 60
    assert int(count_correct(logits, labels)) == expected
    rounded = logits.bfloat16()
    assert int(count_correct(rounded, labels)) == int((rounded.argmax(-1) == labels).sum())


# ---------------------------------------------------------------- in a run


def lines(run: Path) -> list[dict[str, Any]]:
    return [r for r in journal.read_journal(run / "metrics.jsonl") if "loss" in r]


def test_the_journal_has_accuracies_speed_and_the_share_of_the_peak(finished: Path) -> None:
    for record in lines(finished):
        assert 0 <= record["mlm_accuracy"] <= 1 and 0 <= record["order_accuracy"] <= 1
        assert record["mfu"] > 0 and record["tokens_per_second"] > 0
    evaluated = [r["eval"] for r in journal.read_journal(finished / "metrics.jsonl") if "eval" in r]
    assert all(0 < e["nsp_accuracy"] < 1 for e in evaluated)


@pytest.mark.parametrize("loss", ["nsp", "sop"])
def test_next_sentences_in_a_single_document_have_no_score(
    loss: str, recipe: Path, tiny_data: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    """Every pair is in order there: a score of 100 % would say nothing."""
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings

    (tmp_path / "text.txt").write_text("Kra bade wi. Luma figo ste. Nepi roro. Suta vewi. Zo gofi.")
    build.build_data(
        [str(tmp_path / "text.txt")], tiny_vocabulary, tmp_path / "one", BuildSettings(holdout=0.0), workers=1
    )
    named = [f'evaluation=["{tmp_path / "one"}"]', f"data.sentence_loss={loss}", "schedule.total_steps=2"]
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", [*named, "schedule.warmup_steps=1"], device="cpu")
    assert ("one/order_accuracy" in result.metrics) == (loss == "sop")
    assert "one/nsp_accuracy" not in result.metrics and "order_accuracy" in result.metrics


def test_further_corpora_are_scored_by_name(
    recipe: Path, tiny_data: Path, finished: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings

    (tmp_path / "text.txt").write_text("Kra bade wi. Luma figo ste. Nepi roro.\n\nSuta vewi. Zo gofi.\n" * 9)
    other = tmp_path / "squad-dev"
    build.build_data([str(tmp_path / "text.txt")], tiny_vocabulary, other, BuildSettings(holdout=0.0), workers=1)
    named = [f'evaluation=["{other}"]']
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", named, device="cpu")
    assert {f"squad-dev/{name}" for name in ("mlm_loss", "mlm_accuracy", "order_accuracy", "nsp_accuracy")} <= set(
        result.metrics
    )
    assert result.metrics["squad-dev/mlm_loss"] != result.metrics["mlm_loss"]
    assert "squad-dev: mlm loss" in result.as_text()
    assert "| squad-dev mlm loss |" in (tmp_path / "run" / "step-00000030" / "README.md").read_text()
    assert store.sha256_file(tmp_path / "run/step-00000030/model.safetensors") == store.sha256_file(
        finished / "step-00000030/model.safetensors"
    )
    with pytest.raises(ConfigError, match="two directories with the same name"):
        pretrain(str(recipe), tiny_data, tmp_path / "no", [f'evaluation=["{other}", "{other}"]'], device="cpu")
    assert not (tmp_path / "no").exists()
    damaged = next(other.rglob("train-*.ids"))
    damaged.write_bytes(damaged.read_bytes()[::-1])
    with pytest.raises(CheckpointError, match=r"squad-dev/.*: damaged"):
        pretrain(str(recipe), tiny_data, tmp_path / "no", named, device="cpu")


def test_the_initial_weights_grow_as_the_width_shrinks(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    auto = ['model.initializer_range="auto"', "schedule.total_steps=1", "optimizer.lr=1e-9"]
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", auto, device="cpu")
    assert store.read_json(result.checkpoint / "config.json")["initializer_range"] == pytest.approx(0.1375)
    assert 'initializer_range = "auto"' in (tmp_path / "run" / "recipe.toml").read_text()


def test_a_gradient_that_is_not_finite_is_named(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PretrainingJob.loss_sums
    calls = iter(range(1000))

    def loss_sums(self: PretrainingJob, data: Any) -> Any:
        sums = plain(self, data)
        if next(calls) >= 6:  # two micro-batches a step: from step 3 on
            bias = self.model.order.bias
            sums["order_loss"] = sums["order_loss"] + (bias.sum() - bias.sum().detach()) * 1e38 * 1e38
        return sums

    monkeypatch.setattr(PretrainingJob, "loss_sums", loss_sums)
    with pytest.raises(DivergedError, match=r"step 3: .*grad_norm (nan|inf); order\.bias\)"):
        pretrain(str(recipe), tiny_data, tmp_path / "run", device="cpu")
    found = store.read_json(tmp_path / "run" / "diverged.json")
    assert (found["step"], found["not_finite"]) == (3, ["order.bias"])
    monkeypatch.undo()
    pretrain(str(recipe), tiny_data, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "diverged.json").exists()


def test_tensorboard_gets_the_curves(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    pretrain(str(recipe), tiny_data, run, device="cpu")
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    assert {"train/loss", "train/mlm_accuracy", "train/mfu", "heldout/mlm_loss"} <= set(events.Tags()["scalars"])
    assert [e.step for e in events.Scalars("train/loss")] == [r["step"] for r in lines(run)]
    shown = [e.value for e in events.Scalars("train/loss")]
    assert shown == pytest.approx([r["loss"] for r in lines(run)], rel=1e-5)
