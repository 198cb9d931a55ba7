"""Several processes: the samples and the update of one; and when one of them fails, all end, clearly and soon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from albert_cli.model import hub
from albert_cli.ranks import process_group
from albert_cli.training import objectives, reduction
from albert_cli.training.loop import Loop, StepResult
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.optimizers import state_tensors
from tests.helpers.processes import end, start_ranks
from tests.helpers.runs import LAST, list_steps, poison_loss, read_curve

BATCH = 8


def assert_close(run: Path, finished: Path) -> None:
    """The same weights up to the rounding of sums in another order."""
    one, two = (load_file(r / LAST / hub.WEIGHTS_FILE) for r in (finished, run))
    for name, tensor in one.items():
        assert float((tensor - two[name]).norm()) <= 1e-5 * float(tensor.norm()) + 1e-7, name


def test_two_ranks_equal_one(command: Sequence[object], finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = start_ranks(tmp_path / "log", 2, *command, "--out", run)
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    assert not ranks[1].printed_text()
    assert_close(run, finished)
    for old, new in zip(read_curve(finished), read_curve(run), strict=True):
        assert old["step"] == new["step"] and old.get("loss", 0) == pytest.approx(new.get("loss", 0), abs=1e-5)


# ---------------------------------------------------------------- another number of them at each start


def note(folder: Path, stop_at: int | None) -> None:
    """Write down which examples this rank draws for which step, and each step's loss; ask to stop at a step."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    lines = journal.Journal(folder / f"drawn-{world_size}-{rank}-{os.getpid()}.jsonl")
    draw = PretrainingJob.sample_step
    batch = vars(objectives)["sample_batch"]
    step = Loop._step
    drawing: list[int] = []

    def noted_draw(self: PretrainingJob, number: int, group: Any) -> Any:
        drawing.append(number)
        try:
            return draw(self, number, group)
        finally:
            drawing.pop()

    def noted_batch(corpus: Any, vocabulary: Any, settings: Any, seed: int, index: Any) -> Any:
        if drawing:  # it is not for an evaluation
            lines.append({"step": drawing[0], "examples": index.tolist()})
        return batch(corpus, vocabulary, settings, seed, index)

    def noted_step(self: Loop[Any], parts: Any) -> StepResult:
        if self.state.step + 1 == stop_at and rank == world_size - 1:
            signal.raise_signal(signal.SIGUSR1)
        result = step(self, parts)
        lines.append({"step": self.state.step, "loss": result.values["loss"], "tokens": result.tokens})
        return result

    for owner, name, replacement in (
        (PretrainingJob, "sample_step", noted_draw), (objectives, "sample_batch", noted_batch),
        (Loop, "_step", noted_step),
    ):  # fmt: skip
        setattr(owner, name, replacement)


Seen = dict[int, set[tuple[float, int]]]


def noted(folder: Path, world_size: int, begin: int, stop: int) -> tuple[dict[int, list[int]], Seen]:
    """By step: the examples that all ranks of a start drew together, and the losses and tokens that they saw."""
    drawn: dict[int, list[int]] = {step: [] for step in range(begin, stop)}
    losses: Seen = {step: set() for step in range(begin, stop)}
    for path in sorted(folder.glob(f"drawn-{world_size}-*.jsonl")):
        for record in map(json.loads, path.read_text().splitlines()):
            if begin <= record["step"] < stop:  # later ones were drawn ahead, and dropped
                drawn[record["step"]] += record.get("examples", [])
                losses[record["step"]] |= {(record["loss"], record["tokens"])} if "loss" in record else set()
    return drawn, losses


def test_changed_ranks_sample_the_same_examples(command: Sequence[object], finished: Path, tmp_path: Path) -> None:
    run, alone = tmp_path / "run", tmp_path / "alone"
    arguments = (*command, "--out", run, "-s", "train.micro_batch_size=2", "-s", "train.save_every=0")
    begin, drawn, losses = 0, dict[int, list[int]](), Seen()
    for number, (world_size, stop) in enumerate([(1, 7), (2, 14), (4, 22), (1, 30)]):
        folder = tmp_path / f"start-{number}"
        folder.mkdir()
        ranks = start_ranks(folder / "log", world_size, *arguments, before=partial(note, folder, stop % 30))
        assert end(ranks) == [75 if stop < 30 else 0] * world_size, "\n".join(r.printed_text() for r in ranks)
        assert begin == 0 or f"resuming from step {begin}" in ranks[0].printed_text()
        here, seen = noted(folder, world_size, begin, stop)
        drawn, losses, begin = {**drawn, **here}, {**losses, **seen}, stop
    alone.mkdir()
    assert end(start_ranks(alone / "log", 1, *arguments[:-5], alone / "run", *arguments[-4:],
                           before=partial(note, alone, None))) == [0]  # fmt: skip
    expected, expected_losses = noted(alone, 1, 0, 30)
    for step in range(30):
        assert sorted(drawn[step]) == sorted(expected[step]) == list(range(BATCH * step, BATCH * (step + 1)))
        ((loss, tokens),), ((expected_loss, of_one),) = losses[step], expected_losses[step]  # every rank has the same
        assert abs(loss - expected_loss) <= 1e-5 and tokens == of_one, step
    assert_close(run, finished)


# ---------------------------------------------------------------- one of them fails


def poison_rank_1(folder: Path) -> None:
    """A loss that is not a number at step 7 on rank 1; note the weights before the step and at the end."""
    poison_loss(7, rank=1)
    step, rank = Loop._step, os.environ["RANK"]

    def weights(loop: Loop[Any]) -> str:
        return str([p.detach().double().sum().item() for p in loop.job.model.parameters()])

    def watched(self: Loop[Any], parts: Any) -> StepResult:
        before = weights(self)
        try:
            result = step(self, parts)
        except DivergedError:
            moments = all(bool(m.isfinite().all()) for m in state_tensors(self.optimizer).values())
            state = {"step": self.state.step, "same": weights(self) == before, "moments": moments}
            store.write_json(folder / f"after-{rank}.json", state)
            raise
        assert self.state.step == 0 or weights(self) != before  # the first update's rate is 0
        return result

    Loop._step = watched  # type: ignore[method-assign]


def test_nan_on_one_rank_stops_all_before_update(command: Sequence[object], finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = (*command, "--out", run)
    ranks = start_ranks(tmp_path / "log", 2, *arguments, before=partial(poison_rank_1, tmp_path))
    assert end(ranks) == [5, 5], "\n".join(r.printed_text() for r in ranks)
    assert all("step 7: " in rank.printed_text() and "; mlm_loss on rank 1)" in rank.printed_text() for rank in ranks)
    for rank in "01":
        after = json.loads((tmp_path / f"after-{rank}.json").read_text())
        assert after == {"step": 7, "same": True, "moments": True}
    assert list_steps(run) == [5]
    assert store.read_json(run / "status.json")["exit_code"] == 5
    report = store.read_json(run / "diverged.json")
    assert (report["step"], report["not_finite"]) == (7, ["mlm_loss on rank 1"])
    ranks = start_ranks(tmp_path / "log", 2, *arguments)
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    assert "resuming from step 5" in ranks[0].printed_text() and not (run / "diverged.json").exists()
    assert_close(run, finished)


def break_rank(rank: int, kind: str) -> None:
    """At step 7 a rank raises something, or is killed."""
    step = Loop._step

    def broken(self: Loop[Any], parts: Any) -> StepResult:
        if self.state.step == 7 and int(os.environ["RANK"]) == rank:
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, parts)

    Loop._step = broken  # type: ignore[method-assign]


@pytest.mark.parametrize(("rank", "kind"), [(0, "killed"), (1, "killed"), (0, "error")])
def test_failed_rank_ends_the_others(
    rank: int, kind: str, command: Sequence[object], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ranks = start_ranks(tmp_path / "log", 2, *command, "--out", run, before=partial(break_rank, rank, kind))
    codes = end(ranks)  # waits for a bounded time
    assert codes[rank] == (-9 if kind == "killed" else 1) and codes[1 - rank] == 1
    output_text = ranks[1 - rank].printed_text()
    assert f"rank {1 - rank}: lost the connection to another rank; no sign of life from rank {rank}" in output_text
    assert "the same command continues" in output_text
    assert "bug in albert" not in "".join(r.printed_text() for r in ranks)
    if kind == "error":
        assert "out of memory: CUDA out of memory" in ranks[rank].printed_text()
    assert list_steps(run) == [5]
    if (rank, kind) == (1, "killed"):
        again = start_ranks(tmp_path / "log", 2, *command, "--out", run)
        assert end(again) == [0, 0] and "resuming from step 5" in again[0].printed_text()
        assert_close(run, finished)


# ---------------------------------------------------------------- what they send each other


def one_of_each() -> None:
    """The sum of gradients over the ranks in both types, against one process; what is sent, and when."""
    reduction.BUCKET_BYTES = 40 * 4  # type: ignore[misc]
    sent: list[int] = []
    plain = dist.all_reduce

    def counted(tensor: torch.Tensor, **options: Any) -> Any:
        sent.append(tensor.nbytes)
        return plain(tensor, **options)

    dist.all_reduce = counted  # type: ignore[assignment]
    with process_group("cpu") as group:
        for dtype in (torch.float32, torch.bfloat16):
            sent.clear()
            torch.manual_seed(0)
            frozen = nn.Linear(5, 5).requires_grad_(False)
            model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)), frozen)
            during = []
            with reduction.reduce_during_backward(model, group, dtype):
                if group.rank < 2:  # the third has nothing to compute
                    model(torch.full((1, 5), 1.0 + group.rank)).square().sum().backward()
                    during.append(len(sent))
            assert during in ([], [4]) and sum(sent) == 4 * 30 * dtype.itemsize, (during, sent)
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            model.zero_grad()
            torch.stack([model(torch.full((1, 5), 1.0 + r)).square().sum() for r in range(2)]).sum().backward()
            expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            off = float((gradient - expected).norm() / expected.norm())
            assert gradient.dtype == torch.float32 and (1e-4 < off < 1e-2 if dtype == torch.bfloat16 else off < 1e-6), (
                off
            )
            print(f"summed {dtype}")
    raise SystemExit


def test_reduction_sends_once_during_backward(tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path / "log", 3, before=one_of_each)
    assert end(ranks) == [0, 0, 0], "\n".join(r.printed_text() for r in ranks)
    assert [r.printed_text() for r in ranks] == ["summed torch.float32\nsummed torch.bfloat16\n"] * 3


# ---------------------------------------------------------------- started again


def launched(tmp_path: Path, script: str, ranks: int, *more: object, launcher: Sequence[str] = ()) -> tuple[int, str]:
    """A script under torchrun: the exit code, and all that was printed."""
    (tmp_path / "script.py").write_text(script)
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *launcher]
    call += [str(tmp_path / "script.py"), *map(str, more)]
    done = subprocess.run(call, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


KILLED_ONCE = """
import os, signal, sys
from albert_cli.cli import main
from albert_cli.training.loop import Loop

step, victim = Loop._step, sys.argv[1]

def once(self, parts):
    if self.state.step == 7 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, parts)

Loop._step = once
sys.argv = ["albert", *sys.argv[2:]]
main()
"""


def test_killed_rank_restarts_to_same_bytes(command: Sequence[object], tmp_path: Path) -> None:
    arguments = (*command, "-s", "schedule.total_steps=12", "--out")
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert end(start_ranks(tmp_path / "log", 2, *arguments, whole)) == [0, 0]
    code, output_text = launched(tmp_path, KILLED_ONCE, 2, 1, *arguments, run, launcher=["--max-restarts=1"])
    assert code == 0 and "resuming from step 5" in output_text, output_text
    names = [path.relative_to(whole) for path in whole.glob("step-00000012/*.safetensors")]
    assert {name.name for name in names} >= {"model.safetensors", "optimizer.safetensors"}
    for name in names:
        assert store.sha256_file(run / name) == store.sha256_file(whole / name), name
