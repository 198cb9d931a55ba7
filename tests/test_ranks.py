"""The process group: nothing for one process; several through the program's own launcher."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from albert_cli import ranks
from albert_cli.launch import launch
from albert_cli.ranks import RankGroup, process_group
from tests.helpers.processes import PATIENCE, Run, albert, end, free_port, start, start_ranks

RECIPE = """
extends = "mini/docs"
[model]
embedding_size = 16
hidden_size = 16
num_attention_heads = 2
intermediate_size = 16
[init]
neighbors = [-1]
[train]
log_every = 1
save_every = 0
"""


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert ranks.is_main() and ranks.world_size() == 1
    with process_group("cpu") as group:
        assert group == RankGroup(0, 1)
        tensor = torch.tensor([1.0, 2.0])
        assert group.all_reduce(tensor) is tensor and tensor.tolist() == [1.0, 2.0]
        assert group.broadcast(3.5) == 3.5 and group.all_gather([1.0, 2.5]) == [[1.0, 2.5]]
        group.broadcast_tensors([tensor])
        group.barrier()
    assert not torch.distributed.is_initialized()


def test_ranks_share_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    for name in ("OMP_NUM_THREADS", ranks.REPORTED_ERRORS_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    threads: list[str] = []
    started = "torch.distributed.launcher.api.elastic_launch"
    monkeypatch.setattr(started, lambda *_: lambda *_: threads.append(os.environ["OMP_NUM_THREADS"]))
    assert launch(3, ["doctor"]) == 0 and threads == ["2"]


def share() -> None:
    with process_group("cpu") as group:
        weight = torch.nn.Parameter(torch.full((2, 3), 5.0 + group.rank))
        group.broadcast_tensors([weight])
        assert weight.tolist() == [[5.0] * 3] * 2 and weight.requires_grad
        print("shared", group.rank)
    raise SystemExit


def test_every_rank_gets_the_tensors_of_rank_0(tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path / "log", 2, before=share)
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    assert [r.printed_text() for r in ranks] == ["shared 0\n", "shared 1\n"]


def start_attempt(folder: Path, port: int, attempts: Sequence[int], *, is_agent_store: bool) -> list[Run]:
    """Start two ranks that join and leave a group, as agents of torchrun do in their given attempts."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = str(is_agent_store)
    runs = []
    for rank, attempt in enumerate(attempts):
        own_variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        log = folder / f"log-{attempt}-{rank}"
        runs.append(start(log, environment=shared | own_variables, before=share))
    return runs


def test_restarted_ranks_read_no_addresses_of_killed_ones(tmp_path: Path) -> None:
    """The store of torchrun's agent outlives the ranks, and contains the addresses of the previous attempt."""
    agent = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    for attempt in range(2):
        group = start_attempt(tmp_path, agent.port, [attempt, attempt], is_agent_store=True)
        assert end(group) == [0, 0], "\n".join(run.printed_text() for run in group)
        assert [run.printed_text() for run in group] == ["shared 0\n", "shared 1\n"]


def test_ranks_whose_agents_count_differently_join(tmp_path: Path) -> None:
    """Without a store that outlives them, the agents of several nodes count their attempts separately."""
    group = start_attempt(tmp_path, int(free_port()), [0, 3], is_agent_store=False)
    assert end(group) == [0, 0], "\n".join(run.printed_text() for run in group)


def wait_for_silent_peer() -> None:
    os.environ[ranks.PEER_TIMEOUT_VARIABLE] = "3"
    with process_group("cpu") as group:
        group.barrier()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        group.barrier()


def test_rank_whose_peer_is_silent_exits(tmp_path: Path) -> None:
    """A machine without power closes no connection."""
    waiting, silent = start_ranks(tmp_path / "log", 2, before=wait_for_silent_peer)
    begin = time.monotonic()
    assert waiting.wait() == 1 and "no sign of life from rank 1 for 3 s" in waiting.printed_text()
    assert time.monotonic() - begin < 120
    silent.kill()


def train_longer_than_the_timeout() -> None:
    os.environ[ranks.PEER_TIMEOUT_VARIABLE] = "2"
    with process_group("cpu") as group:
        time.sleep(5 * group.rank)
        group.barrier()
    raise SystemExit


def test_rank_that_works_alone_is_not_silent(tmp_path: Path) -> None:
    group = start_ranks(tmp_path / "log", 2, before=train_longer_than_the_timeout)
    assert end(group) == [0, 0], "\n".join(rank.printed_text() for rank in group)


def test_what_one_rank_alone_has_is_always_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(ranks, "_wait_for_failing_rank", lambda: waited.append("once"))
    assert not any(ranks.is_already_reported("a", is_fatal=False) for _ in range(2))  # no launch of ours
    monkeypatch.setenv("ALBERT_PRINTED_ERRORS", str(tmp_path))
    assert not ranks.is_already_reported("a", is_fatal=True) and not ranks.is_already_reported("b", is_fatal=True)
    assert waited == [] and ranks.is_already_reported("a", is_fatal=False)
    assert not ranks.is_already_reported("a", is_fatal=True) and waited == ["once"]  # it was not ended: say it
    assert not ranks.is_already_reported("no such file: \udcff", is_fatal=True)  # a name that is not UTF-8
    monkeypatch.setenv("ALBERT_PRINTED_ERRORS", str(tmp_path / "gone"))
    assert not any(ranks.is_already_reported("a", is_fatal=True) for _ in range(2))


def journal_of(run: Path) -> int:
    """Return the inode of the run's journal, which a resumed run replaces; 0 if there is none yet."""
    path = run / "metrics.jsonl"
    return path.stat().st_ino if path.exists() else 0


def process_of(launcher: int, rank: int) -> int:
    """The process of a rank that a launcher has started."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if b"RANK=%d" % rank in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError("no such rank")


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.1)


def is_running(process: int) -> bool:
    """Return True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to find a process in")
def test_nproc_starts_ranks_stops_them_and_tells_their_exit_code(tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text(RECIPE)
    run = tmp_path / "run"
    command: list[object] = ["pretrain", tmp_path / "it.toml", "--data", tiny_data, "--out", run, "--nproc", 2]
    command += ["-s", "schedule.total_steps=100000", "--device", "cpu"]

    def started(log: str) -> Run:
        before = journal_of(run)
        process = start(tmp_path / log, *command)
        process.wait_until(lambda: journal_of(run) not in (0, before))
        return process

    first = started("first")
    first.terminate()
    assert first.wait() == 75, first.printed_text()
    assert len([line for line in first.printed_text().splitlines() if "stopped after step" in line]) == 1
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("interrupted", 75)
    assert (run / f"step-{status['step']:08d}" / "manifest.json").is_file()
    second = started("second")
    os.kill(process_of(second.process.pid or 0, 1), signal.SIGKILL)
    assert second.wait() == 137, second.printed_text()
    assert "rank 1 was killed by SIGKILL" in second.printed_text() and "bug" not in second.printed_text()
    # A launcher that is killed leaves no rank behind: the same command can go on at once.
    third = started("third")
    ranks = [process_of(third.process.pid or 0, rank) for rank in range(2)]
    third.kill()
    wait_until_gone(ranks)
    # Refused before it could begin, the run keeps its old status, but the code is this start's own: that of rank 0,
    # though the connection that it closes ends rank 1 too, and though it is slow to end here.
    slow = "import atexit, os, time\natexit.register(time.sleep, 2 * (os.environ.get('RANK') == '0'))\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(slow)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path]), "TMPDIR": str(tmp_path)}
    code, printed = albert(tmp_path / "refused", *command, "-s", "train.seed=5", environment=environment)
    assert code == 2 and "bug" not in printed and "train.seed: 0 -> 5" in printed
    # What all ranks refuse alike is said once.
    environment = {"TMPDIR": str(tmp_path)}
    code, printed = albert(tmp_path / "wrong", *command, "-s", "optimizer.rate=1", environment=environment)
    lines = [line for line in printed.splitlines() if line.startswith(("error:", "hint:"))]
    assert code == 2 and [line.partition(":")[0] for line in lines] == ["error", "hint"], printed
    assert "optimizer.rate" in lines[0] and not list(tmp_path.glob("albert-*"))
