"""The arithmetic of a step: micro-batches and ranks cut the work, not the update."""

from __future__ import annotations

import dataclasses
import errno
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from albert_cli import config, machine
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import CheckpointError, DivergedError, Interrupted
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.ranks import RankGroup
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import capacity, loop
from albert_cli.training.checkpoint import OPTIMIZER_FILE, TrainState, restore_checkpoint, save_checkpoint
from albert_cli.training.device import seed_micro_batch
from albert_cli.training.loop import Loop, accumulate, measure_step_seconds, split_micro_batches
from albert_cli.training.objectives import PretrainingCorpora, PretrainingJob
from albert_cli.training.optimizers import clip_gradients, make_optimizer, state_tensors, update_weights
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import OptimizerSettings

MakeJob = Callable[..., PretrainingJob]


@pytest.fixture
def make_job(recipe: Path, tiny_data: Path) -> MakeJob:
    def make(**changes: object) -> PretrainingJob:
        overrides = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
        resolved = config.load_recipe(PretrainRecipe, str(recipe), ["model.vocab_size=300", *overrides])
        torch.manual_seed(0)
        train, heldout = TokenCorpus.open(tiny_data, "train"), TokenCorpus.open(tiny_data, "heldout")
        vocabulary = Vocabulary.load(tiny_data)
        model = PretrainingModel(resolved.model)
        return PretrainingJob(model, resolved, PretrainingCorpora(train, heldout, vocabulary, 4.0))

    return make


def gradients(job: PretrainingJob, step: int = 3) -> tuple[dict[str, float], dict[str, Tensor]]:
    job.model.zero_grad()
    means = accumulate(job, job.sample_step(step, RankGroup()), step, RankGroup())
    losses = {name: float(means[name]) for name in job.loss_names}
    return losses, {n: p.grad.clone() for n, p in job.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("loss", ["sop", "nsp", "none"])
def test_the_micro_batch_size_does_not_change_the_gradient(loss: str, make_job: MakeJob) -> None:
    expected_losses, expected = gradients(make_job(train__micro_batch_size=8, data__sentence_loss=loss))
    assert set(expected_losses) == ({"mlm_loss"} if loss == "none" else {"mlm_loss", "order_loss"})
    cuts = [{"train__micro_batch_size": size} for size in (1, 3, 5, 100)]
    for cut in [*cuts, *({"batch__micro_tokens": tokens} for tokens in (32, 70, 1000))]:
        job = make_job(**cut, data__sentence_loss=loss)
        sizes = [len(part.data.host.ids) for part in job.sample_step(3, RankGroup())]
        assert max(sizes) <= cut.get("batch__micro_tokens", max(sizes))
        losses, found = gradients(job)
        assert losses == pytest.approx(expected_losses, rel=1e-5)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert float((found[name] - gradient).norm()) <= 1e-5 * float(gradient.norm()) + 1e-8, name


def test_losses_are_means_over_the_whole_batch(make_job: MakeJob) -> None:
    job = make_job()
    losses, _ = gradients(job)
    parts = job.sample_step(3, RankGroup())
    sums = [{name: value.detach() for name, value in job.loss_sums(part.data).items()} for part in parts]
    masked, ordered = (sum(part.counts[name] for part in parts) for name in ("mlm_loss", "order_loss"))
    assert masked == sum(len(p.data.host.masked_index) for p in parts)
    assert losses["mlm_loss"] == pytest.approx(sum(float(s["mlm_loss"]) for s in sums) / masked, rel=1e-5)
    assert losses["order_loss"] == pytest.approx(sum(float(s["order_loss"]) for s in sums) / ordered, rel=1e-5)
    assert 5 < losses["mlm_loss"] < 6.5  # near log 300 at the start
    assert losses["order_loss"] == pytest.approx(np.log(2), abs=0.05)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(
    "cut",
    [{"train__micro_batch_size": 3}, {"batch__warmup_steps": 9, "batch__warmup_from": 3, "batch__micro_tokens": 70}],
)
def test_the_ranks_draw_the_same_samples_between_them(cut: dict[str, int], world_size: int, make_job: MakeJob) -> None:
    job = make_job(**cut)
    for step in (0, 5, 20):
        alone = {part.number: part.data.host for part in job.sample_step(step, RankGroup())}
        together = {}
        for rank in range(world_size):
            for part in job.sample_step(step, RankGroup(rank, world_size)):
                assert part.number not in together
                together[part.number] = part.data.host
        assert together.keys() == alone.keys() == set(range(len(alone)))
        for number, data in alone.items():
            for field in dataclasses.fields(data):
                assert np.array_equal(getattr(data, field.name), getattr(together[number], field.name))


def test_micro_batches_cover_the_batch_once() -> None:
    for total, size, world in ((8, 4, 1), (10, 3, 2), (1, 5, 3)):
        parts = [cut for rank in range(world) for cut in split_micro_batches(total, size, RankGroup(rank, world))]
        covered = [i for _, start, stop in sorted(parts) for i in range(start, stop)]
        assert covered == list(range(total))
        assert sorted(number for number, _, _ in parts) == list(range(len(parts)))


def test_dropout_follows_seed_step_and_micro_batch() -> None:
    drawn = {}
    for place in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**61, 10**9, 10**4)]:
        seed_micro_batch(*place)
        drawn[place] = tuple(torch.rand(4).tolist())
        seed_micro_batch(*place)
        assert drawn[place] == tuple(torch.rand(4).tolist())
    assert len(set(drawn.values())) == len(drawn)


def test_clipping_keeps_the_direction_and_returns_the_norm_before() -> None:
    for limit, factor in ((1.0, 1 / 13), (0.0, 1.0), (13.0, 1.0), (100.0, 1.0)):
        model = nn.ParameterList(torch.zeros(2) for _ in range(3))  # of which the last has no gradient
        first, second, _ = model
        first.grad, second.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0, 0.0])
        assert float(clip_gradients(model, limit)) == 13.0
        assert torch.allclose(first.grad, torch.tensor([3.0, 4.0]) * factor)
        assert torch.allclose(second.grad, torch.tensor([12.0, 0.0]) * factor)


def test_bf16_trains_fp32_weights(make_job: MakeJob) -> None:
    job = make_job(train__precision="bf16")
    losses, found = gradients(job)
    exact_losses, exact = gradients(make_job())
    assert losses == pytest.approx(exact_losses, rel=0.02)
    assert all(g.dtype == torch.float32 for g in found.values())
    word = "encoder.embeddings.word.weight"
    assert float((found[word] - exact[word]).norm()) < 0.1 * float(exact[word].norm())


# ---------------------------------------------------------------- the loop


def make_loop(job: PretrainingJob, out: Path, recipe: Path, *overrides: str) -> Loop[Any]:
    resolved = config.load_recipe(PretrainRecipe, str(recipe), ["model.vocab_size=300", *overrides])
    job.settings = resolved
    out.mkdir(exist_ok=True)
    return Loop(job, make_optimizer(job.model, resolved.optimizer), resolved.schedule, out, RankGroup())


def test_no_weight_changes_in_the_step_that_diverges(make_job: MakeJob, recipe: Path, tmp_path: Path) -> None:
    job = make_job()
    loop = make_loop(job, tmp_path / "run", recipe)
    plain = job.loss_sums
    seen: list[dict[str, Tensor]] = []

    def loss_sums(data: object) -> dict[str, Tensor]:
        sums = plain(data)  # type: ignore[arg-type]
        if loop.state.step == 4:
            seen.append({n: p.detach().clone() for n, p in job.model.named_parameters()})
            sums["order_loss"] = sums["order_loss"] + float("inf")
        return sums

    job.loss_sums = loss_sums  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match=r"step 4: .*order_loss inf"):
        loop.run()
    moments = state_tensors(loop.optimizer)
    assert all(torch.equal(p, seen[0][n]) for n, p in job.model.named_parameters())
    assert all(bool(torch.isfinite(m).all()) for m in moments.values())
    assert loop.state.step == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_ends_the_loop_after_its_step(
    number: signal.Signals, make_job: MakeJob, recipe: Path, tmp_path: Path
) -> None:
    job = make_job()
    loop = make_loop(job, tmp_path / "run", recipe, "train.save_every=0")
    plain = job.loss_sums
    places: list[int] = []

    def loss_sums(data: object) -> dict[str, Tensor]:
        places.append(loop.state.step)
        if places.count(3) == 1:
            places.append(3)
            signal.raise_signal(number)
        return plain(data)  # type: ignore[arg-type]

    job.loss_sums = loss_sums  # type: ignore[method-assign]
    before = signal.getsignal(number)
    assert len(repr(loop)) < 200, "`signal` takes the repr of a handler: with all weights in it half a second"
    with pytest.raises(Interrupted, match="stopped after step 4"):
        loop.run()
    assert signal.getsignal(number) == before
    assert [p.name for p in (tmp_path / "run").glob("step-*")] == ["step-00000004"]


def test_weights_that_the_last_update_spoils_are_not_the_end_of_a_run(
    make_job: MakeJob, recipe: Path, tmp_path: Path
) -> None:
    spoiling = ("optimizer.lr=1e38", "optimizer.name=adamw", "schedule.total_steps=1", "schedule.warmup_steps=0")
    loop = make_loop(make_job(), tmp_path / "run", recipe, *spoiling)
    with pytest.raises(DivergedError, match="step 1: an evaluation score is not finite"):
        loop.run()
    assert not list((tmp_path / "run").glob("step-*"))


def test_an_evaluation_is_the_same_whenever_it_is_made(make_job: MakeJob) -> None:
    job = make_job()
    job.model.eval()
    with torch.inference_mode():
        first = job.evaluate(RankGroup())
        torch.rand(7)
        assert job.evaluate(RankGroup()) == first
    assert 5 < first["mlm_loss"] < 6.5 and 0 <= first["mlm_accuracy"] < 0.2 and 0 <= first["order_accuracy"] <= 1


def test_measuring_gives_the_time_of_a_step(make_job: MakeJob) -> None:
    job = make_job()
    assert measure_step_seconds(job, RankGroup(), steps=2, seconds=0.01) > 0


def test_what_is_measured_is_the_run(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the optimizer that the recipe names, with batches drawn on another thread, and not the steps that warm up."""
    made: list[str] = []
    threads: set[str] = set()
    taken: list[Any] = []
    now = [0.0]
    job, plain, draw = make_job(), loop.Loop._step, type(make_job()).sample_step

    def optimizer(model: torch.nn.Module, settings: OptimizerSettings) -> Optimizer:
        made.append(settings.name)
        return make_optimizer(model, settings)

    def drawn(self: Any, step: int, group: RankGroup) -> Any:
        threads.add(threading.current_thread().name)
        return draw(self, step, group)

    def step(self: loop.Loop[Any], parts: Any) -> loop.StepResult:
        result = plain(self, parts)
        taken.append(parts)
        now[0] += 5.0 if len(taken) <= 4 else 1.0  # warm after four
        return result

    monkeypatch.setattr(loop, "make_optimizer", optimizer)
    monkeypatch.setattr(type(job), "sample_step", drawn)
    monkeypatch.setattr(loop.Loop, "_step", step)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    job.settings = dataclasses.replace(job.settings, optimizer=OptimizerSettings("adamw", lr=1e-3))
    assert measure_step_seconds(job, RankGroup(), steps=8, seconds=1.0) == 1.0
    assert made == ["adamw"] and len(taken) == 8
    assert len(threads) == 1 and threading.current_thread().name not in threads


def test_a_checkpoint_gives_back_state_and_moments(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    settings = OptimizerSettings()
    optimizer, again = make_optimizer(job.model, settings), make_optimizer(job.model, settings)
    gradients(job)
    update_weights(optimizer, 0.01)
    state = TrainState(step=7, seconds=12.5, best_score=-3.25, best_step=5)
    directory = save_checkpoint(tmp_path, state, optimizer, job.write_model, "# recipe\n", {"data": "abc"}, keep=2)
    assert (
        save_checkpoint(tmp_path, state, optimizer, job.write_model, "# recipe\n", {}, keep=2) == directory
    )  # once is enough
    assert restore_checkpoint(directory, again) == state
    kept, loaded = state_tensors(optimizer), state_tensors(again)
    assert kept.keys() == loaded.keys() == load_file(directory / OPTIMIZER_FILE).keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in kept.items())


@pytest.mark.parametrize("what", ["missing", "transposed", "a number", "of another optimizer", "no safetensors"])
def test_moments_of_another_model_or_optimizer_are_refused(what: str, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    optimizer = make_optimizer(job.model, OptimizerSettings())
    directory = save_checkpoint(tmp_path, TrainState(), optimizer, job.write_model, "# recipe\n", {}, keep=2)
    tensors = load_file(directory / OPTIMIZER_FILE)
    name = "first.encoder.embeddings.word.weight"
    others = {
        "missing": {},
        "transposed": {name: tensors[name].T.contiguous()},
        "a number": {name: torch.tensor([1.0])},
        "of another optimizer": {name: tensors[name], f"third.{name[6:]}": tensors[name].clone()},
    }
    del tensors[name]
    save_file(tensors | others.get(what, {}), directory / OPTIMIZER_FILE)
    if what == "no safetensors":
        (directory / OPTIMIZER_FILE).write_bytes(b"something")
    name = f"third.{name[6:]}" if what == "of another optimizer" else name
    said = "cannot be read" if what == "no safetensors" else f"does not fit this run's model and optimizer .*{name}"
    with pytest.raises(CheckpointError, match=rf"{OPTIMIZER_FILE}: {said}"):
        restore_checkpoint(directory, optimizer)


def test_want_of_memory_is_no_fault_of_a_checkpoint(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    optimizer = make_optimizer(job.model, OptimizerSettings())
    directory = save_checkpoint(tmp_path, TrainState(), optimizer, job.write_model, "# recipe\n", {}, keep=2)
    path = directory / OPTIMIZER_FILE
    for error in (
        RuntimeError(f"unable to mmap 99 bytes from file <{path}>: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, "Cannot allocate memory", str(path)),
        MemoryError(),
    ):

        def fail(path: Path, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as short:
            short.setattr(hub, "load_file", fail)
            with pytest.raises(type(error)):
                restore_checkpoint(directory, optimizer)


def needed(total: int) -> capacity.MemoryEstimate:
    return capacity.MemoryEstimate(state=0, activations=0, teacher=0, total=total)


def test_a_warning_of_memory_is_said_once_and_of_none_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter([1100, 900, 800, 700, 700])
    monkeypatch.setattr(capacity, "available_memory", lambda device: next(left))
    cpu = torch.device("cpu")
    capacity._warn_once.cache_clear()
    for _ in range(4):  # the seeds of an evaluation, with a little less free each time
        capacity.warn_training_memory(needed(1000), 8, cpu)
    assert capsys.readouterr().err.count("warning: ") == 1
    capacity.warn_training_memory(needed(1001), 8, cpu)
    assert "8 sequences" in capsys.readouterr().err
    capacity._warn_once.cache_clear()
    monkeypatch.setattr(capacity, "available_memory", lambda device: 0)
    capacity.warn_training_memory(needed(1000), 8, cpu)
    assert "warning: " in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(machine, "memory_info", dict)
    capacity.warn_training_memory(needed(1002), 8, cpu)
    assert capacity.available_memory(cpu) is None and not capsys.readouterr().err
