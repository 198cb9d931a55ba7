"""Process groups: of a single process, of two gloo ranks, and of the ranks that `--nproc` launches."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from albert_cli import machine, ranks
from albert_cli.errors import ConfigError
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
    assert ranks.is_main()
    assert ranks.world_size() == 1
    with process_group("cpu") as group:
        assert group == RankGroup(0, 1)
        tensor = torch.tensor([1.0, 2.0])
        assert group.all_reduce(tensor) is tensor
        assert tensor.tolist() == [1.0, 2.0]
        assert group.broadcast(3.5) == 3.5
        assert group.all_gather([1.0, 2.5]) == [[1.0, 2.5]]
        group.broadcast_tensors([tensor])
        group.barrier()
    assert not torch.distributed.is_initialized()


def test_launch_divides_the_available_cores_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(machine, "_control_groups", lambda controller: [])
    for name in ("OMP_NUM_THREADS", ranks.REPORTED_ERRORS_VARIABLE):
        monkeypatch.setenv(name, "")  # so that monkeypatch undoes the change that `launch` makes
        monkeypatch.delenv(name)
    threads: list[str] = []
    launcher = "torch.distributed.launcher.api.elastic_launch"
    monkeypatch.setattr(launcher, lambda *_: lambda *_: threads.append(os.environ["OMP_NUM_THREADS"]))
    assert launch(3, ["doctor"]) == 0
    assert threads == ["2"]


def broadcast_weight() -> None:
    with process_group("cpu") as group:
        weight = torch.nn.Parameter(torch.full((2, 3), 5.0 + group.rank))
        group.broadcast_tensors([weight])
        assert weight.tolist() == [[5.0] * 3] * 2
        assert weight.requires_grad
        print("received by", group.rank)
    raise SystemExit


def test_every_rank_gets_the_tensors_of_rank_0(tmp_path: Path) -> None:
    runs = start_ranks(tmp_path / "log", 2, before=broadcast_weight)
    assert end(runs) == [0, 0], "\n".join(run.printed_text() for run in runs)
    assert [run.printed_text() for run in runs] == ["received by 0\n", "received by 1\n"]


def start_attempt(folder: Path, port: int, attempts: Sequence[int], *, is_agent_store: bool) -> list[Run]:
    """Start two ranks that join a group and leave it, with the variables that torchrun's agents set.

    attempts: for each rank, the number of restarts that its agent has counted; is_agent_store: the ranks use a store of
    the agent, which outlives them.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = str(is_agent_store)
    runs = []
    for rank, attempt in enumerate(attempts):
        per_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        log = folder / f"log-{attempt}-{rank}"
        runs.append(start(log, environment=shared | per_rank, before=broadcast_weight))
    return runs


def test_restarted_ranks_ignore_addresses_of_earlier_ranks(tmp_path: Path) -> None:
    """The store of torchrun's agent outlives the ranks, so it still has the addresses of the previous attempt."""
    agent = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    for attempt in range(2):
        runs = start_attempt(tmp_path, agent.port, [attempt, attempt], is_agent_store=True)
        assert end(runs) == [0, 0], "\n".join(run.printed_text() for run in runs)
        assert [run.printed_text() for run in runs] == ["received by 0\n", "received by 1\n"]


def test_ranks_with_different_restart_counts_join(tmp_path: Path) -> None:
    """Without a store that outlives the ranks, the agents of several nodes count their restarts separately."""
    runs = start_attempt(tmp_path, int(free_port()), [0, 3], is_agent_store=False)
    assert end(runs) == [0, 0], "\n".join(run.printed_text() for run in runs)


def suspend_rank_1() -> None:
    os.environ[ranks.PEER_TIMEOUT_VARIABLE] = "6"
    with process_group("cpu") as group:
        group.barrier()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        group.barrier()


def test_rank_exits_if_its_peer_is_silent(tmp_path: Path) -> None:
    """A machine that loses power closes no connection, so a rank must notice the silence."""
    waiting, silent = start_ranks(tmp_path / "log", 2, before=suspend_rank_1)
    assert waiting.wait() == 1
    assert "no sign of life from rank 1 for 6 s" in waiting.printed_text()
    silent.kill()


def work_longer_than_the_timeout() -> None:
    os.environ[ranks.PEER_TIMEOUT_VARIABLE] = "6"
    with process_group("cpu") as group:
        time.sleep(9 * group.rank)
        group.barrier()
    raise SystemExit


def test_busy_rank_does_not_count_as_silent(tmp_path: Path) -> None:
    runs = start_ranks(tmp_path / "log", 2, before=work_longer_than_the_timeout)
    assert end(runs) == [0, 0], "\n".join(run.printed_text() for run in runs)


def test_only_repeated_warnings_count_as_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr(ranks, "_wait_for_failing_rank", lambda: waits.append("wait"))
    # Without the folder that `launch` creates, ranks do not know each other's messages.
    assert not ranks.is_already_reported("a", is_fatal=False)
    assert not ranks.is_already_reported("a", is_fatal=False)
    monkeypatch.setenv("ALBERT_PRINTED_ERRORS", str(tmp_path))
    assert not ranks.is_already_reported("a", is_fatal=True)
    assert not ranks.is_already_reported("b", is_fatal=True)
    assert waits == []
    assert ranks.is_already_reported("a", is_fatal=False)
    # A rank that is still alive after the wait prints a fatal error, even if another rank has printed it.
    assert not ranks.is_already_reported("a", is_fatal=True)
    assert waits == ["wait"]
    name_without_utf8 = "no such file: \udcff"
    assert not ranks.is_already_reported(name_without_utf8, is_fatal=True)
    monkeypatch.setenv("ALBERT_PRINTED_ERRORS", str(tmp_path / "gone"))
    assert not ranks.is_already_reported("a", is_fatal=True)
    assert not ranks.is_already_reported("a", is_fatal=True)


def journal_inode(run: Path) -> int:
    """Return the inode of the run's journal, which a resumed run replaces; 0 if the run has no journal yet."""
    path = run / "metrics.jsonl"
    return path.stat().st_ino if path.exists() else 0


def rank_pid(launcher: int, rank: int) -> int:
    """Return the process ID of a rank that a launcher has started."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with suppress(OSError):  # the process has ended
            if b"RANK=%d" % rank in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                return int(child)
    raise AssertionError(f"process {launcher} has no child with rank {rank}")


def wait_for_exit(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Return True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to find the ranks' processes in")
def test_nproc_passes_on_signals_and_exit_codes(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    run = tmp_path / "run"
    command: list[object] = ["pretrain", recipe, "--data", tiny_data, "--out", run, "--nproc", 2]
    command += ["-s", "schedule.total_steps=100000", "--device", "cpu"]

    def start_training(log: str) -> Run:
        """Start the command, and wait until it has created or replaced the journal."""
        old_inode = journal_inode(run)
        launcher = start(tmp_path / log, *command)
        launcher.wait_until(lambda: journal_inode(run) not in (0, old_inode))
        return launcher

    # SIGTERM: the ranks save, and one of them prints that it has stopped.
    launcher = start_training("terminated")
    launcher.terminate()
    assert launcher.wait() == 75, launcher.printed_text()
    assert len([line for line in launcher.printed_text().splitlines() if "stopped after step" in line]) == 1
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("interrupted", 75)
    assert (run / f"step-{status['step']:08d}" / "manifest.json").is_file()

    # A rank is killed: the exit code has the number of the signal.
    launcher = start_training("rank-killed")
    os.kill(rank_pid(launcher.process.pid or 0, 1), signal.SIGKILL)
    assert launcher.wait() == 137, launcher.printed_text()
    assert "rank 1 was killed by SIGKILL" in launcher.printed_text()
    assert "bug" not in launcher.printed_text()

    # The launcher is killed: its ranks exit too, so that the same command can resume at once.
    launcher = start_training("launcher-killed")
    pids = [rank_pid(launcher.process.pid or 0, rank) for rank in range(2)]
    launcher.kill()
    wait_for_exit(pids)

    # Rank 0 rejects a changed recipe. The exit code is its exit code, although rank 1 exits first: rank 0 closes the
    # connection, and then takes two seconds to exit. The exit code does not come from the old status either.
    slow_exit = "import atexit, os, time\natexit.register(time.sleep, 2 * (os.environ.get('RANK') == '0'))\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(slow_exit)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path]), "TMPDIR": str(tmp_path)}
    code, printed = albert(tmp_path / "rejected", *command, "-s", "train.seed=5", environment=environment)
    assert code == 2
    assert "bug" not in printed
    assert "train.seed: 0 -> 5" in printed

    # All ranks reject an unknown key, and only one of them prints the error.
    environment = {"TMPDIR": str(tmp_path)}
    code, printed = albert(tmp_path / "unknown-key", *command, "-s", "optimizer.rate=1", environment=environment)
    lines = [line for line in printed.splitlines() if line.startswith(("error:", "hint:"))]
    assert code == 2
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], printed
    assert "optimizer.rate" in lines[0]
    assert not list(tmp_path.glob("albert-*"))


@pytest.mark.parametrize("value", ["3m", "", "0", "-1", "nan", "inf"])
def test_process_group_wrong_peer_timeout_raises(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(ranks.PEER_TIMEOUT_VARIABLE, value)
    with pytest.raises(ConfigError, match=ranks.PEER_TIMEOUT_VARIABLE), process_group("cpu"):
        pass
