"""Process groups: of a single process and of two gloo ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from albert_cli import ranks
from albert_cli.errors import ConfigError
from albert_cli.ranks import RankGroup, process_group
from tests.helpers.processes import PATIENCE, Run, end, free_port, start, start_ranks


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


def broadcast_weight() -> None:
    with process_group("cpu") as group:
        weight = torch.nn.Parameter(torch.full((2, 3), 5.0 + group.rank))
        group.broadcast_tensors([weight])
        assert weight.tolist() == [[5.0] * 3] * 2
        assert weight.requires_grad
        print("received by", group.rank)
    raise SystemExit


def test_every_rank_gets_the_tensors_of_rank_0(tmp_path: Path) -> None:
    runs = start_ranks(tmp_path / "log", 2, run_first=broadcast_weight)
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
        runs.append(start(log, environment=shared | per_rank, run_first=broadcast_weight))
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
    waiting, silent = start_ranks(tmp_path / "log", 2, run_first=suspend_rank_1)
    assert waiting.wait() == 1
    assert "no sign of life from rank 1 for 6 s" in waiting.printed_text()
    silent.kill()


def suspend_one_of_three(silent: int) -> None:
    os.environ[ranks.PEER_TIMEOUT_VARIABLE] = "12"
    with process_group("cpu") as group:
        group.barrier()
        if group.rank == silent:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(PATIENCE)  # without a collective, which would report the lost connection


@pytest.mark.parametrize("silent", [1, 2])
def test_all_ranks_exit_if_one_is_silent(tmp_path: Path, silent: int) -> None:
    """A rank watches only the next one, so it must report the loss to the others."""
    runs = start_ranks(tmp_path / "log", 3, run_first=partial(suspend_one_of_three, silent))
    waiting = [run for rank, run in enumerate(runs) if rank != silent]
    assert end(waiting) == [1, 1]
    for run in waiting:
        assert f"no sign of life from rank {silent} for 12 s" in run.printed_text()
    runs[silent].kill()


def work_longer_than_the_timeout() -> None:
    os.environ[ranks.PEER_TIMEOUT_VARIABLE] = "6"
    with process_group("cpu") as group:
        time.sleep(9 * group.rank)
        group.barrier()
    raise SystemExit


def test_busy_rank_does_not_count_as_silent(tmp_path: Path) -> None:
    runs = start_ranks(tmp_path / "log", 2, run_first=work_longer_than_the_timeout)
    assert end(runs) == [0, 0], "\n".join(run.printed_text() for run in runs)


def test_claim_report_denies_only_repeated_nonfatal_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr(ranks, "_wait_for_failing_rank", lambda: waits.append("wait"))
    # Without the folder that `launch` creates, ranks do not know each other's messages.
    assert ranks.claim_report("a", is_fatal=False)
    assert ranks.claim_report("a", is_fatal=False)
    monkeypatch.setenv("ALBERT_LAUNCH_FOLDER", str(tmp_path))
    assert ranks.claim_report("a", is_fatal=True)
    assert ranks.claim_report("b", is_fatal=True)
    assert waits == []
    assert not ranks.claim_report("a", is_fatal=False)
    # A rank that is still alive after the wait prints a fatal error, even if another rank has printed it.
    assert ranks.claim_report("a", is_fatal=True)
    assert waits == ["wait"]
    name_without_utf8 = "no such file: \udcff"
    assert ranks.claim_report(name_without_utf8, is_fatal=True)
    monkeypatch.setenv("ALBERT_LAUNCH_FOLDER", str(tmp_path / "gone"))
    assert ranks.claim_report("a", is_fatal=True)
    assert ranks.claim_report("a", is_fatal=True)


@pytest.mark.parametrize("value", ["3m", "", "0", "-1", "nan", "inf"])
def test_process_group_wrong_peer_timeout_raises(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(ranks.PEER_TIMEOUT_VARIABLE, value)
    with pytest.raises(ConfigError, match=ranks.PEER_TIMEOUT_VARIABLE), process_group("cpu"):
        pass
