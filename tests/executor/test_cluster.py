"""Tests of `albert_cli.executor.cluster` on a local Dask cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from albert_cli import store
from albert_cli.data import build
from albert_cli.data.build_report import BuildReport
from albert_cli.data.records import BuildSettings
from albert_cli.errors import AlbertError, ConfigError, Interrupted, NetworkError
from albert_cli.executor import WorkerLimits, WorkItem, map_unordered, run_items, use_cluster
from albert_cli.executor.cluster import ClusterExecutor
from albert_cli.work_plan import current_command
from tests.helpers.executor_calls import (
    answer,
    answer_and_lose,
    kill_self,
    kill_self_once,
    lose_worker_in_lock,
    raise_from_error_with_lock,
    take_lock,
    wait_for_file,
    wait_for_sigterm,
)

distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import dask

    with (
        dask.config.set({"distributed.worker.daemon": False, "distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local,
    ):
        yield local


@pytest.mark.slow
def test_map_on_a_cluster_uses_the_commands_directory(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with use_cluster(cluster.scheduler_address):
        results = map_unordered(Path.absolute, [(Path("out"),)], 1, "remedy")
        assert [result for _, result in results] == [tmp_path / "out"]


@pytest.mark.slow
def test_map_on_a_cluster_fills_all_threads() -> None:
    import dask

    taken: list[int] = []

    def items() -> Iterator[tuple[int]]:
        for number in range(200):
            taken.append(number)
            yield (number,)

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=40, processes=False, protocol="tcp") as local,
        use_cluster(local.scheduler_address),
    ):
        results = map_unordered(answer, items(), 1, "remedy")
        next(results)
        assert len(taken) == 80, "two items for each thread"
        results.close()


@pytest.mark.slow
def test_map_on_a_cluster_raises_the_error_of_an_item(cluster: Any) -> None:
    with use_cluster(cluster.scheduler_address), pytest.raises(NetworkError, match="item 7 cannot be read"):
        list(map_unordered(raise_from_error_with_lock, [(7,)], 1, "remedy"))


@pytest.mark.slow
def test_items_on_a_cluster_know_the_command(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["albert", "eval", "sst2"])
    recorded = []
    with use_cluster(cluster.scheduler_address):
        items = [WorkItem("run", current_command, ())]
        run_items(items, WorkerLimits(), lambda item, outcome: recorded.append(outcome))
    assert recorded == ["albert eval sst2"]


@pytest.mark.slow
def test_build_on_a_cluster_tokenizes_nothing_here(
    cluster: Any, documents_file: Path, tiny_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "tokenize_unit", lambda *_: pytest.fail("tokenized in the command's process"))
    with use_cluster(cluster.scheduler_address):
        report = build.build_data([str(documents_file)], tiny_vocabulary, tmp_path / "out", BuildSettings(), workers=1)
    assert isinstance(report, BuildReport) and report.facts.totals["train"].documents > 0


@pytest.mark.slow
def test_map_on_a_cluster_repeats_work_of_a_lost_worker(cluster: Any, tmp_path: Path) -> None:
    with use_cluster(cluster.scheduler_address):
        results = map_unordered(kill_self_once, [(tmp_path, n) for n in range(8)], 1, "remedy")
        assert sorted(result for _, result in results) == list(range(8))


@pytest.mark.slow
def test_map_on_a_cluster_reads_the_result_of_a_lost_worker(cluster: Any) -> None:
    with use_cluster(cluster.scheduler_address):
        results: list[object] = [result for _, result in map_unordered(answer_and_lose, [()], 1, "remedy")]
    assert results == [5]


@pytest.mark.slow
def test_map_on_a_cluster_names_work_that_is_lost_twice(cluster: Any) -> None:
    with use_cluster(cluster.scheduler_address), pytest.raises(AlbertError, match="lost twice"):
        list(map_unordered(kill_self, [()], 1, "remedy"))


@pytest.mark.slow
def test_items_on_a_cluster_save_on_sigterm(cluster: Any, tmp_path: Path) -> None:
    def send_sigterm() -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    recorded = []
    threading.Thread(target=send_sigterm, daemon=True).start()
    items = [WorkItem("run", wait_for_sigterm, (tmp_path,)), WorkItem("later", answer, (1,), frozenset({"run"}))]
    with use_cluster(cluster.scheduler_address), pytest.raises(Interrupted):
        run_items(items, WorkerLimits(), lambda item, outcome: recorded.append(item.name))
    assert (tmp_path / "saved").exists() and recorded == []


@pytest.mark.slow
def test_stop_request_needs_no_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a worker no item begins, so that nothing could notice the request."""
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty,
        use_cluster(empty.scheduler_address),
        pytest.raises(Interrupted),
    ):
        run_items([WorkItem("run", answer, (1,))], WorkerLimits(), lambda item, outcome: None, max_seconds=0.5)
    assert "which has 0 workers now" in capsys.readouterr().err


@pytest.mark.slow
def test_cancel_unstarted_leaves_the_running_call(tmp_path: Path) -> None:
    """With one worker, the first call runs, and the others wait for the worker."""
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as single:
        executor = ClusterExecutor(single.get_client())
        running = executor.submit(wait_for_file, tmp_path / "started", tmp_path / "release")
        waiting = [executor.submit(wait_for_file, tmp_path / f"{n}", tmp_path / "release") for n in range(9)]
        while not (tmp_path / "started").exists():
            time.sleep(0.05)
        executor.cancel_unstarted()
        (tmp_path / "release").touch()
        assert running.result(timeout=60) == tmp_path / "started"
        wait(waiting, timeout=60)
        canceled = [future.cancelled() for future in waiting]
    assert any(canceled)
    assert [(tmp_path / f"{n}").exists() for n in range(9)] == [not is_canceled for is_canceled in canceled]


@pytest.mark.slow
def test_items_on_a_cluster_repeat_a_killed_process_once(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes: dict[str, object] = {}
    with use_cluster(cluster.scheduler_address):
        items = [WorkItem("once", kill_self_once, (tmp_path, 3)), WorkItem("always", kill_self, ())]
        run_items(items, WorkerLimits(), lambda item, outcome: outcomes.update({item.name: outcome}))
    assert outcomes["once"] == 3
    error = outcomes["always"]
    assert isinstance(error, AlbertError) and "was killed" in error.message and "memory" in str(error.hint)
    assert socket.gethostname() in error.message
    assert "once: its process" in capsys.readouterr().err


@pytest.mark.slow
def test_items_of_a_lost_worker_release_their_locks(cluster: Any, tmp_path: Path) -> None:
    recorded = []
    with use_cluster(cluster.scheduler_address):
        items = [WorkItem("run", lose_worker_in_lock, (tmp_path,))]
        run_items(items, WorkerLimits(), lambda item, outcome: recorded.append(outcome))
    assert recorded == [1]


@pytest.mark.slow
def test_items_wait_for_the_lock_of_an_ending_process(cluster: Any, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.touch()
    is_locked = threading.Event()
    has_ended = threading.Event()

    def hold_lock() -> None:
        """Hold the lock until the second attempt to take it: the first one has failed."""
        with store.lock(tmp_path / "run"):
            is_locked.set()
            while len(attempts.read_text().splitlines()) < 2 and not has_ended.wait(0.01):
                pass

    holder = threading.Thread(target=hold_lock, daemon=True)
    holder.start()
    is_locked.wait()
    recorded: list[object] = []
    with use_cluster(cluster.scheduler_address):
        items = [WorkItem("run", take_lock, (tmp_path,))]
        run_items(items, WorkerLimits(), lambda item, outcome: recorded.append(outcome))
    has_ended.set()
    holder.join()
    assert recorded == [1]


@pytest.mark.slow
def test_items_need_workers_that_start_processes() -> None:
    import dask

    with (
        dask.config.set({"distributed.worker.daemon": True}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as daemons,
        use_cluster(daemons.scheduler_address),
    ):
        recorded: list[object] = []
        run_items([WorkItem("run", answer, (1,))], WorkerLimits(), lambda item, outcome: recorded.append(outcome))
    (error,) = recorded
    assert isinstance(error, ConfigError) and "DASK_DISTRIBUTED__WORKER__DAEMON=False" in str(error.hint)


def test_unreachable_cluster_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="no scheduler answers"), use_cluster("no-such-scheme://host:1"):
        raise AssertionError


@pytest.mark.parametrize("address", ["slurm:x", "slurm:0", "slurm:", "head-node", "tcp://head-node"])
def test_cluster_address_of_another_form_is_rejected(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("connected"))
    with pytest.raises(ConfigError, match="not the address") as raised, use_cluster(address):
        raise AssertionError
    assert "tcp://HOST:PORT" in str(raised.value.hint) and "slurm:N" in str(raised.value.hint)


def test_slurm_cluster_without_jobqueue_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)  # an import of it then fails
    with pytest.raises(ConfigError, match="dask-jobqueue") as raised, use_cluster("slurm:2"):
        raise AssertionError
    assert "albert-cli[cluster]" in str(raised.value.hint)


def test_slurm_cluster_without_slurm_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="has no sbatch"), use_cluster("slurm:2"):
        raise AssertionError


def test_outcome_that_is_no_exception_ends_the_future() -> None:
    class Client:
        async def gather(self, future: object, *, asynchronous: bool) -> object:
            raise SystemExit(3)

    future = Future[object]()
    asyncio.run(ClusterExecutor(Client())._copy_outcome(None, future))
    assert isinstance(future.exception(timeout=0), SystemExit)
