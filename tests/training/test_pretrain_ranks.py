"""Tests of runs on several ranks: they compute what one process does, and all stop soon after one fails."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from albert_cli import journal, store
from albert_cli.errors import DivergedError
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.ranks import RankGroup, process_group
from albert_cli.training import objectives, reduction
from albert_cli.training.loop import Loop, StepResult
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.optimizers import state_tensors
from albert_cli.training.pretrain import pretrain
from tests.helpers.command import albert
from tests.helpers.jobs import MakeJob
from tests.helpers.processes import end, start_ranks
from tests.helpers.runs import list_steps, poison_loss, read_curve

BATCH = 8
STEPS = 10
OVERRIDES = [f"schedule.total_steps={STEPS}", "train.log_every=1"]
LAST = "step-00000010"


@pytest.fixture(scope="module")
def command(command: Sequence[object]) -> Sequence[object]:
    """The arguments of `albert` for a run of ten steps that logs every step, without --out."""
    return (*command, *(word for override in OVERRIDES for word in ("-s", override)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path) -> Path:
    """The directory of an uninterrupted run of ten steps in one process; tests must not change it."""
    out = tmp_path_factory.mktemp("run") / "out"
    pretrain(str(recipe), tiny_data, out, OVERRIDES, device="cpu")
    return out


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory, command: Sequence[object]) -> Path:
    """The directory of the same run on two ranks; tests must not change it."""
    folder = tmp_path_factory.mktemp("two-ranks")
    ranks = start_ranks(folder / "log", 2, *command, "--out", folder / "out")
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    assert not ranks[1].printed_text()
    return folder / "out"


def assert_close(run: Path, finished: Path) -> None:
    """Compare the weights of two runs, up to the rounding of sums in another order."""
    expected, actual = (load_file(r / LAST / WEIGHTS_FILE) for r in (finished, run))
    for name, tensor in expected.items():
        assert float((tensor - actual[name]).norm()) <= 1e-5 * float(tensor.norm()) + 1e-7, name


def test_two_ranks_equal_one(on_two_ranks: Path, finished: Path) -> None:
    assert_close(on_two_ranks, finished)
    for expected, actual in zip(read_curve(finished), read_curve(on_two_ranks), strict=True):
        assert actual["step"] == expected["step"]
        assert actual.get("loss", 0) == pytest.approx(expected.get("loss", 0), abs=1e-5)


# ---------------------------------------------------------------- another number of ranks at each start


def record_steps(folder: Path, stop_at: int | None) -> None:
    """Record which examples this rank samples and the loss of each step; send a stop signal at a step."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    records = journal.Journal(folder / f"steps-{world_size}-{rank}-{os.getpid()}.jsonl")
    original_sample_step = PretrainingJob.sample_step
    original_sample_batch = vars(objectives)["sample_batch"]
    original_step = Loop._step
    sampled_steps: list[int] = []  # the step whose batch is being sampled, or none

    def recorded_sample_step(self: PretrainingJob, number: int, group: Any) -> Any:
        sampled_steps.append(number)
        try:
            return original_sample_step(self, number, group)
        finally:
            sampled_steps.pop()

    def recorded_sample_batch(corpus: Any, vocabulary: Any, settings: Any, seed: int, index: Any) -> Any:
        if sampled_steps:  # an evaluation samples outside of a step
            records.append({"step": sampled_steps[0], "examples": index.tolist()})
        return original_sample_batch(corpus, vocabulary, settings, seed, index)

    def recorded_step(self: Loop[Any], micro_batches: Any) -> StepResult:
        if self.state.step + 1 == stop_at and rank == world_size - 1:
            signal.raise_signal(signal.SIGUSR1)
        result = original_step(self, micro_batches)
        records.append({"step": self.state.step, "loss": result.values["loss"], "tokens": result.tokens})
        return result

    for owner, name, replacement in (
        (PretrainingJob, "sample_step", recorded_sample_step), (objectives, "sample_batch", recorded_sample_batch),
        (Loop, "_step", recorded_step),
    ):  # fmt: skip
        setattr(owner, name, replacement)


Losses = dict[int, set[tuple[float, int]]]


def read_steps(folder: Path, world_size: int, begin: int, stop: int) -> tuple[dict[int, list[int]], Losses]:
    """Return by step the examples that all ranks sampled together, and the different (loss, tokens) of the ranks."""
    examples: dict[int, list[int]] = {step: [] for step in range(begin, stop)}
    losses: Losses = {step: set() for step in range(begin, stop)}
    for path in sorted(folder.glob(f"steps-{world_size}-*.jsonl")):
        for record in map(json.loads, path.read_text().splitlines()):
            if begin <= record["step"] < stop:  # batches of later steps were prefetched and dropped
                examples[record["step"]] += record.get("examples", [])
                losses[record["step"]] |= {(record["loss"], record["tokens"])} if "loss" in record else set()
    return examples, losses


def test_changed_ranks_sample_the_same_examples(
    command: Sequence[object], finished: Path, make_job: MakeJob, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = ("-s", "train.micro_batch_size=2", "-s", "train.save_every=0")
    begin = 0
    examples = dict[int, list[int]]()
    losses = Losses()
    for number, (world_size, stop) in enumerate([(2, 3), (3, 6), (1, STEPS)]):
        folder = tmp_path / f"start-{number}"
        folder.mkdir()
        run_first = partial(record_steps, folder, stop % STEPS)
        ranks = start_ranks(folder / "log", world_size, *command, "--out", run, *settings, run_first=run_first)
        assert end(ranks) == [75 if stop < STEPS else 0] * world_size, "\n".join(r.printed_text() for r in ranks)
        assert begin == 0 or f"resuming from step {begin}" in ranks[0].printed_text()
        new_examples, new_losses = read_steps(folder, world_size, begin, stop)
        examples |= new_examples
        losses |= new_losses
        begin = stop
    expected_losses = [record["loss"] for record in read_curve(finished) if "loss" in record]
    job = make_job()
    for step in range(STEPS):
        assert sorted(examples[step]) == list(range(BATCH * step, BATCH * (step + 1)))
        ((loss, tokens),) = losses[step]  # the same on every rank
        assert loss == pytest.approx(expected_losses[step], abs=1e-5), step
        assert tokens == sum(micro_batch.tokens for micro_batch in job.sample_step(step, RankGroup())), step
    assert_close(run, finished)


def test_ranks_leave_weights_that_no_loss_trains(command: Sequence[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("-s", "data.sentence_loss=none", "-s", "optimizer.name=lamb")
    one_micro_batch = ("-s", "train.micro_batch_size=8")  # the second rank has none
    ranks = start_ranks(tmp_path / "log", 2, *command, "--out", run, *settings, *one_micro_batch)
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    first, last = (load_file(run / step / WEIGHTS_FILE) for step in ("step-00000005", LAST))
    unchanged = {name for name, tensor in first.items() if torch.equal(tensor, last[name])}
    unused = {name for name in first if name.startswith(("albert.pooler.", "sop_classifier."))}
    assert len(unused) == 4 and unchanged == unused


# ---------------------------------------------------------------- a rank fails


def poison_rank_1(folder: Path) -> None:
    """Make the loss NaN at step 7 on rank 1, and record on each rank whether the step changed the weights."""
    poison_loss(7, rank=1)
    original = Loop._step
    rank = os.environ["RANK"]

    def weight_sums(loop: Loop[Any]) -> str:
        return str([p.detach().double().sum().item() for p in loop.job.model.parameters()])

    def recorded_step(self: Loop[Any], micro_batches: Any) -> StepResult:
        before = weight_sums(self)
        try:
            result = original(self, micro_batches)
        except DivergedError:
            finite_moments = all(bool(m.isfinite().all()) for m in state_tensors(self.optimizer).values())
            state = {"step": self.state.step, "same": weight_sums(self) == before, "moments": finite_moments}
            store.write_json(folder / f"after-{rank}.json", state)
            raise
        assert self.state.step == 0 or weight_sums(self) != before  # the first update's rate is 0
        return result

    Loop._step = recorded_step  # type: ignore[method-assign]


def test_nan_on_one_rank_stops_all_before_the_update(command: Sequence[object], finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = start_ranks(tmp_path / "log", 2, *command, "--out", run, run_first=partial(poison_rank_1, tmp_path))
    assert end(ranks) == [5, 5], "\n".join(r.printed_text() for r in ranks)
    assert all("step 8: " in rank.printed_text() and "; mlm_loss on rank 1)" in rank.printed_text() for rank in ranks)
    for rank in "01":
        after = json.loads((tmp_path / f"after-{rank}.json").read_text())
        assert after == {"step": 7, "same": True, "moments": True}
    assert list_steps(run) == [5]
    assert store.read_json(run / "status.json")["exit_code"] == 5
    report = store.read_json(run / "diverged.json")
    assert (report["step"], report["not_finite"]) == (8, ["mlm_loss on rank 1"])
    assert "resuming from step 5" in albert(*command, "--out", run).err and not (run / "diverged.json").exists()
    assert_close(run, finished)


def break_rank(rank: int, kind: str) -> None:
    """Make a rank raise an error at step 7, or kill it."""
    original = Loop._step

    def broken_step(self: Loop[Any], micro_batches: Any) -> StepResult:
        if self.state.step == 7 and int(os.environ["RANK"]) == rank:
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, micro_batches)

    Loop._step = broken_step  # type: ignore[method-assign]


@pytest.mark.parametrize(("rank", "kind"), [(0, "killed"), (1, "killed"), (0, "error")])
def test_failed_rank_ends_the_others(rank: int, kind: str, command: Sequence[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = start_ranks(tmp_path / "log", 2, *command, "--out", run, run_first=partial(break_rank, rank, kind))
    codes = end(ranks)  # fails if a rank does not end in time
    assert codes[rank] == (-9 if kind == "killed" else 1) and codes[1 - rank] == 1
    printed = ranks[1 - rank].printed_text()
    assert f"rank {1 - rank}: lost the connection to another rank; no sign of life from rank {rank}" in printed
    assert "the same command continues" in printed
    assert "bug in albert" not in "".join(r.printed_text() for r in ranks)
    if kind == "error":
        assert "out of memory: CUDA out of memory" in ranks[rank].printed_text()
    assert list_steps(run) == [5]


# ---------------------------------------------------------------- communication


def check_reduction() -> None:
    """Compare the sum of gradients over the ranks with one process; check how many bytes are sent, and when."""
    reduction.BUCKET_BYTES = 40 * 4  # type: ignore[misc]
    sent: list[int] = []
    original = dist.all_reduce

    def counted(tensor: torch.Tensor, **options: Any) -> Any:
        sent.append(tensor.nbytes)
        return original(tensor, **options)

    dist.all_reduce = counted  # type: ignore[assignment]
    with process_group("cpu") as group:
        for dtype in (torch.float32, torch.bfloat16):
            sent.clear()
            torch.manual_seed(0)
            frozen = nn.Linear(5, 5).requires_grad_(False)
            model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)), frozen)
            unused = nn.Parameter(torch.ones(3))
            model.register_parameter("unused", unused)  # the first parameter, so it is in the last bucket
            sent_in_backward = []
            with reduction.reduce_during_backward(model, group, dtype):
                if group.rank < 2:  # the third rank has no examples
                    model(torch.full((1, 5), 1.0 + group.rank)).square().sum().backward()
                    sent_in_backward.append(len(sent))
            # Four layers of 30 entries, `unused`, and a flag for each parameter; the last bucket waits for `unused`.
            sent_bytes = (4 * 30 + 3 + 9) * dtype.itemsize
            assert sent_in_backward in ([], [3]) and sum(sent) == sent_bytes, (sent_in_backward, sent)
            assert unused.grad is None
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            model.zero_grad()
            torch.stack([model(torch.full((1, 5), 1.0 + r)).square().sum() for r in range(2)]).sum().backward()
            expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            difference = float((gradient - expected).norm() / expected.norm())
            low, high = (1e-4, 1e-2) if dtype == torch.bfloat16 else (-1.0, 1e-6)
            assert gradient.dtype == torch.float32
            assert low < difference < high, difference
            print(f"summed {dtype}")
    raise SystemExit


def test_reduction_sends_gradients_once_during_backward(tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path / "log", 3, run_first=check_reduction)
    assert end(ranks) == [0, 0, 0], "\n".join(r.printed_text() for r in ranks)
    assert [r.printed_text() for r in ranks] == ["summed torch.float32\nsummed torch.bfloat16\n"] * 3


# ---------------------------------------------------------------- restarts


def test_killed_rank_restarts_to_same_bytes(command: Sequence[object], on_two_ranks: Path, tmp_path: Path) -> None:
    """The agent of torchrun, whose store outlives the ranks, restarts both of them; here the test is the agent."""
    run = tmp_path / "run"
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    shared = {"MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    breakers = (partial(break_rank, 1, "killed"), None)  # of the first attempt and of the restart
    for attempt, run_first in enumerate(breakers):
        environment = shared | {"TORCHELASTIC_RESTART_COUNT": str(attempt)}
        log = tmp_path / f"attempt-{attempt}"
        ranks = start_ranks(log, 2, *command, "--out", run, run_first=run_first, environment=environment)
        assert end(ranks) == ([0, 0] if run_first is None else [1, -9]), "\n".join(r.printed_text() for r in ranks)
    assert "resuming from step 5" in ranks[0].printed_text()
    names = [path.relative_to(on_two_ranks) for path in on_two_ranks.glob(f"{LAST}/*.safetensors")]
    assert {name.name for name in names} >= {"model.safetensors", "optimizer.safetensors"}
    for name in names:
        assert store.sha256_file(run / name) == store.sha256_file(on_two_ranks / name), name
