"""Tests of `training.log`: hints from the loss curve, and the means and speed of a window of steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from albert_cli import journal
from albert_cli.journal import JournalRecord
from albert_cli.training.checkpoint import StepWindow
from albert_cli.training.log import LossHints, progress_suffix

ENTROPY = 6.2
SOP_LOSS = 0.69  # of a model that guesses the order of two segments


def hints(losses: Iterable[float], every: int = 50, warmup: int = 100, norm: float = 1.0) -> list[tuple[int, str]]:
    """Return the step and text of each hint for a curve with one value per `every` steps."""
    loss_hints = LossHints(ENTROPY, warmup)
    reported = []
    for number, loss in enumerate(losses, start=1):
        record = {"step": number * every, "loss": loss + SOP_LOSS, "mlm_loss": loss, "grad_norm": norm}
        reported += [(number * every, hint) for hint in loss_hints.observe(record)]
    return reported


def noisy(level: Callable[[int], float], steps: int, every: int, deviation: float) -> list[float]:
    """Return means over `every` steps of a curve with noise in each step."""
    rng = np.random.default_rng(0)
    return [level(n) + rng.normal(0, deviation / every**0.5) for n in range(every, steps + 1, every)]


@pytest.mark.parametrize("every", [1, 10, 50, 100, 300])
def test_hints_plateau_is_reported_at_growing_intervals(every: int) -> None:
    reported = hints(noisy(lambda n: ENTROPY, 5000, every, 0.3), every)
    assert 3 <= len(reported) <= 4
    step, text = reported[0]
    assert 500 <= step <= 1300
    assert "has stayed at 6." in text
    assert "docs/pretraining.md" in text
    intervals = [second - first for (first, _), (second, _) in itertools.pairwise(reported)]
    assert intervals == sorted(intervals)


@pytest.mark.parametrize("every", [1, 10, 100])
def test_hints_no_plateau_has_none(every: int) -> None:
    falling = noisy(lambda n: 8.0 - n / 2000, 5000, every, 0.3)  # 0.25 nats in 500 steps
    assert hints(falling, every) == []
    # The loss stays the same, but far below the entropy.
    assert hints(noisy(lambda n: ENTROPY - 1, 5000, every, 0.3), every) == []
    # The loss stays the same, but only during the warmup.
    assert hints(noisy(lambda n: ENTROPY, 900, every, 0.3), every, warmup=900) == []


def test_hints_spike_is_reported_once() -> None:
    usual = noisy(lambda n: 4.0, 1500, 50, 0.3)
    reported = hints([*usual, 5.0, 5.1, *usual, 5.0])
    assert [step for step, _ in reported] == [1550, 3150]
    # The two losses are 4.0, with noise, and 5.0, plus SOP_LOSS.
    assert re.search(r"jumped from 4\.[67]\d\d to 5\.690 by step 1,550 \(gradient norm 1, usually 1\)", reported[0][1])
    assert all("jumped" in text and "docs/pretraining.md" in text for _, text in reported)
    assert hints(noisy(lambda n: 4.0, 5000, 1, 0.3), 1) == []  # the noise of single steps is no jump


def test_hints_of_a_resumed_run_are_the_same() -> None:
    uninterrupted = LossHints(ENTROPY, 0)
    resumed = LossHints(ENTROPY, 0)
    records = [{"step": n, "loss": 7.0, "mlm_loss": 6.3, "grad_norm": 1.0} for n in range(50, 3001, 50)]
    records.insert(20, {"step": 1000, "eval": {"mlm_loss": 3.0}})  # type: ignore[dict-item]
    expected = [uninterrupted.observe(record) for record in records]
    for record in records[:30]:
        resumed.observe(record)
    assert [resumed.observe(record) for record in records[30:]] == expected[30:]
    assert any(expected[30:])


def test_window_returns_means_and_speed() -> None:
    window = StepWindow()
    window.add({"loss": 3.0, "mlm_accuracy": 0.25}, tokens=100, flops=1e9, seconds=0.5)
    window.add({"loss": 5.0, "mlm_accuracy": 0.75}, tokens=300, flops=3e9, seconds=1.5)
    assert window.means() == {"loss": 4.0, "mlm_accuracy": 0.5}
    assert window.speed(peak=None) == {"tokens_per_second": 200}
    assert window.speed(peak=8e9) == {"tokens_per_second": 200, "mfu": 0.25}
    suffix = progress_suffix(window.means(), {"tokens_per_second": 1234, "mfu": 0.256})
    assert suffix == "loss 4  masked 50.0%  1,234 tokens/s  26% of peak"


def test_step_window_averages_each_value_over_its_own_steps() -> None:
    window = StepWindow()
    window.add({"loss": 3.0, "order_loss": 0.5}, tokens=1, flops=0, seconds=1)
    window.add({"loss": 5.0}, tokens=1, flops=0, seconds=1)
    assert window.means() == {"loss": 4.0, "order_loss": 0.5}


# ---------------------------------------------------------------- the journal of a run


def loss_records(run: Path) -> list[JournalRecord]:
    return [r for r in journal.read_journal(run / "metrics.jsonl") if "loss" in r]


def test_journal_has_accuracies_speed_and_mfu(finished: Path) -> None:
    assert loss_records(finished)
    for record in loss_records(finished):
        assert 0 <= record["mlm_accuracy"] <= 1 and 0 <= record["order_accuracy"] <= 1
        assert record["mfu"] > 0 and record["tokens_per_second"] > 0
    evaluated = [r["eval"] for r in journal.read_journal(finished / "metrics.jsonl") if "eval" in r]
    assert evaluated and all(0 < e["nsp_accuracy"] < 1 for e in evaluated)
