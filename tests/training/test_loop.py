"""Tests of training steps: the update does not depend on micro-batches, and a run stops between two steps."""

from __future__ import annotations

import dataclasses
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from albert_cli import executor
from albert_cli.errors import DivergedError, Interrupted
from albert_cli.executor import stopping
from albert_cli.ranks import RankGroup
from albert_cli.training import loop
from albert_cli.training.job import split_micro_batches
from albert_cli.training.loop import measure_step_seconds
from albert_cli.training.optimizers import make_optimizer, state_tensors
from albert_cli.training.run import resume_state
from albert_cli.training.settings import OptimizerSettings
from tests.helpers.jobs import MakeJob, gradients, make_loop
from tests.helpers.runs import read_curve


@pytest.mark.parametrize("loss", ["sop", "none"])
def test_accumulate_any_micro_batch_size_gives_the_same_gradient(loss: str, make_job: MakeJob) -> None:
    expected_losses, expected = gradients(make_job(train__micro_batch_size=8, data__sentence_loss=loss))
    assert set(expected_losses) == ({"mlm_loss"} if loss == "none" else {"mlm_loss", "order_loss"})
    settings = [{"train__micro_batch_size": size} for size in (1, 3, 100)]
    settings += [{"batch__micro_tokens": tokens} for tokens in (32, 70)]
    for setting in settings:
        job = make_job(**setting, data__sentence_loss=loss)
        sizes = [len(part.data.packed.ids) for part in job.sample_step(3, RankGroup())]
        assert max(sizes) <= setting.get("batch__micro_tokens", max(sizes))
        losses, actual = gradients(job)
        assert losses == pytest.approx(expected_losses, rel=1e-5)
        assert actual.keys() == expected.keys()
        for name, gradient in expected.items():
            assert float((actual[name] - gradient).norm()) <= 1e-5 * float(gradient.norm()) + 1e-8, name


def test_accumulate_losses_are_means_over_batch(make_job: MakeJob) -> None:
    job = make_job()
    losses, _ = gradients(job)
    parts = job.sample_step(3, RankGroup())
    sums = [{name: value.detach() for name, value in job.loss_sums(part.data).items()} for part in parts]
    masked, pairs = (sum(part.counts[name] for part in parts) for name in ("mlm_loss", "order_loss"))
    assert masked == sum(len(p.data.packed.masked_index) for p in parts)
    assert losses["mlm_loss"] == pytest.approx(sum(float(s["mlm_loss"]) for s in sums) / masked, rel=1e-5)
    assert losses["order_loss"] == pytest.approx(sum(float(s["order_loss"]) for s in sums) / pairs, rel=1e-5)
    assert 5 < losses["mlm_loss"] < 6.5  # close to log 300, the loss of a uniform prediction
    assert losses["order_loss"] == pytest.approx(np.log(2), abs=0.05)


def test_split_micro_batches_covers_batch_once() -> None:
    for total, size, world in ((8, 4, 1), (10, 3, 2), (1, 5, 3)):
        parts = [part for rank in range(world) for part in split_micro_batches(total, size, RankGroup(rank, world))]
        covered = [i for _, start, stop in sorted(parts) for i in range(start, stop)]
        assert covered == list(range(total))
        assert sorted(number for number, _, _ in parts) == list(range(len(parts)))


def test_accumulate_bf16_keeps_fp32_weights(make_job: MakeJob) -> None:
    job = make_job(train__precision="bf16")
    losses, actual = gradients(job)
    exact_losses, exact = gradients(make_job())
    assert losses == pytest.approx(exact_losses, rel=0.02)
    assert all(g.dtype == torch.float32 for g in actual.values())
    word = "encoder.embeddings.word.weight"
    assert float((actual[word] - exact[word]).norm()) < 0.1 * float(exact[word].norm())


# ---------------------------------------------------------------- the loop


def test_loop_diverged_step_changes_no_weight(make_job: MakeJob, recipe: Path, tmp_path: Path) -> None:
    threads_before = set(threading.enumerate())
    job = make_job()
    loop = make_loop(job, tmp_path / "run", recipe)
    original = job.loss_sums
    weights_before: list[dict[str, Tensor]] = []

    def loss_sums(data: object) -> dict[str, Tensor]:
        sums = original(data)  # type: ignore[arg-type]
        if loop.state.step == 4:
            weights_before.append({n: p.detach().clone() for n, p in job.model.named_parameters()})
            sums["order_loss"] = sums["order_loss"] + float("inf")
        return sums

    job.loss_sums = loss_sums  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match=r"step 5: .*order_loss inf"):
        loop.run()
    moments = state_tensors(loop.optimizer)
    assert all(torch.equal(p, weights_before[0][n]) for n, p in job.model.named_parameters())
    assert all(bool(torch.isfinite(m).all()) for m in moments.values())
    assert loop.state.step == 4
    new_threads = set(threading.enumerate()) - threads_before
    assert "run_ahead" not in {thread.name for thread in new_threads}, "the sampling thread has ended"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_loop_signal_stops_after_step(
    signal_number: signal.Signals, make_job: MakeJob, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    loop = make_loop(job, tmp_path / "run", recipe, "train.save_every=0")
    original = job.loss_sums
    steps: list[int] = []

    def loss_sums(data: object) -> dict[str, Tensor]:
        steps.append(loop.state.step)
        if steps.count(3) == 1:
            steps.append(3)  # the signal is sent only once
            signal.raise_signal(signal_number)
        return original(data)  # type: ignore[arg-type]

    job.loss_sums = loss_sums  # type: ignore[method-assign]
    before = signal.getsignal(signal_number)
    assert len(repr(loop)) < 200, "`signal` computes the repr of a handler, which takes half a second with all weights"
    monkeypatch.setattr(stopping, "_stop_requested", threading.Event())
    with pytest.raises(Interrupted, match="stopped after step 4"):
        loop.run()
    assert executor.is_stop_requested(), "no further work starts"
    assert signal.getsignal(signal_number) == before
    assert [p.name for p in (tmp_path / "run").glob("step-*")] == ["step-00000004"]


def test_loop_stopped_between_records_writes_the_same(
    make_job: MakeJob, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_stop_requested", threading.Event())
    overrides = ("schedule.total_steps=20", "train.log_every=10", "train.save_every=0")
    make_loop(make_job(), tmp_path / "uninterrupted", recipe, *overrides).run()
    job = make_job()
    stopped = make_loop(job, tmp_path / "run", recipe, *overrides)
    original = job.loss_sums

    def loss_sums(data: object) -> dict[str, Tensor]:
        if stopped.state.step == 14:
            signal.raise_signal(signal.SIGTERM)
        return original(data)  # type: ignore[arg-type]

    job.loss_sums = loss_sums  # type: ignore[method-assign]
    with pytest.raises(Interrupted, match="stopped after step 15"):
        stopped.run()
    job = make_job()
    resumed = make_loop(job, tmp_path / "run", recipe, *overrides)
    state = resume_state(tmp_path / "run", job.model, resumed.optimizer, RankGroup(), {})
    assert state is not None
    resumed.state = state
    resumed.run()
    curve = read_curve(tmp_path / "run")
    assert [record["step"] for record in curve if "loss" in record] == [10, 20]
    assert curve == read_curve(tmp_path / "uninterrupted")


def test_loop_infinite_last_score_raises(make_job: MakeJob, recipe: Path, tmp_path: Path) -> None:
    overrides = ("optimizer.lr=1e38", "optimizer.name=adamw", "schedule.total_steps=1", "schedule.warmup_steps=0")
    loop = make_loop(make_job(), tmp_path / "run", recipe, *overrides)
    with pytest.raises(DivergedError, match="step 1: an evaluation score is not finite"):
        loop.run()
    assert not list((tmp_path / "run").glob("step-*"))


def test_measure_step_seconds_is_plausible(make_job: MakeJob) -> None:
    job = make_job()
    assert measure_step_seconds(job, RankGroup(), steps=2, seconds=0.01) > 0


def test_measure_step_seconds_runs_the_real_loop(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the recipe's optimizer, samples batches on another thread, and leaves out the slow first steps."""
    optimizers: list[str] = []
    threads: set[str] = set()
    steps: list[Any] = []
    now = [0.0]
    job = make_job()
    original_step = loop.Loop._step
    original_sample_step = type(job).sample_step

    def recorded_optimizer(model: torch.nn.Module, settings: OptimizerSettings) -> Optimizer:
        optimizers.append(settings.name)
        return make_optimizer(model, settings)

    def recorded_sample_step(self: Any, step: int, group: RankGroup) -> Any:
        threads.add(threading.current_thread().name)
        return original_sample_step(self, step, group)

    def timed_step(self: loop.Loop[Any], parts: Any) -> loop.StepResult:
        result = original_step(self, parts)
        steps.append(parts)
        now[0] += 5.0 if len(steps) <= 4 else 1.0  # the first four steps are slow
        return result

    monkeypatch.setattr(loop, "make_optimizer", recorded_optimizer)
    monkeypatch.setattr(type(job), "sample_step", recorded_sample_step)
    monkeypatch.setattr(loop.Loop, "_step", timed_step)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    job.settings = dataclasses.replace(job.settings, optimizer=OptimizerSettings("adamw", lr=1e-3))
    assert measure_step_seconds(job, RankGroup(), steps=8, seconds=1.0) == 1.0
    assert optimizers == ["adamw"]
    assert len(steps) == 8
    assert len(threads) == 1
    assert threading.current_thread().name not in threads
