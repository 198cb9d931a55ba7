"""Tests of `albert_cli.executor.items`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from albert_cli.errors import AlbertError, ConfigError, Interrupted
from albert_cli.executor import WorkerLimits, WorkItem, run_items
from albert_cli.executor import items as items_module
from tests.helpers.executor_calls import answer, crash, fail, kill_self, kill_self_once, stop_self, stop_self_and_catch

Outcome = int | BaseException


class Recorder:
    """Records the outcome of each item by its name."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}

    def __call__(self, item: WorkItem[int], outcome: Outcome) -> None:
        self.outcomes[item.name] = outcome


def test_run_items_waits_for_needed_items_and_records_errors() -> None:
    record = Recorder()
    items = [
        WorkItem("last", answer, (2,), frozenset({"killed", "failed", "crashed"})),
        WorkItem("killed", kill_self, ()),
        WorkItem("failed", fail, ()),
        WorkItem("crashed", crash, ()),
    ]
    run_items(items, WorkerLimits(1), record)
    assert list(record.outcomes) == ["killed", "failed", "crashed", "last"]
    killed, failed, crashed, last = record.outcomes.values()
    assert isinstance(killed, AlbertError) and "was killed" in str(killed)
    assert isinstance(failed, ConfigError)
    assert isinstance(crashed, AlbertError) and "crashed (SIGSEGV)" in str(crashed)
    assert last == 2


def test_run_items_repeats_a_killed_item_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Recorder()
    run_items([WorkItem("seed 0", kill_self_once, (tmp_path, 3))], WorkerLimits(1), record)
    assert record.outcomes == {"seed 0": 3}
    assert "seed 0: its process was killed" in capsys.readouterr().err


class CancelingWorkers:
    """Workers of a cluster that cancels every item, as Dask does if it loses its scheduler."""

    def start(self, item: WorkItem[int]) -> Future[int]:
        future = Future[int]()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_run_items_canceled_item_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items_module, "_LocalWorkers", lambda limits, modules: CancelingWorkers())
    record = Recorder()
    needing = WorkItem("later", answer, (2,), frozenset({"run"}))
    with pytest.raises(AlbertError, match="run: the cluster canceled it"):
        run_items([WorkItem("run", answer, (1,)), needing], WorkerLimits(2), record)
    assert record.outcomes == {}


def test_run_items_stops_if_recording_raises() -> None:
    recorded: list[str] = []

    def record(item: WorkItem[int], outcome: Outcome) -> None:
        recorded.append(item.name)
        raise ConfigError("enough")

    items = [WorkItem("a", answer, (1,)), WorkItem("b", answer, (2,))]
    with pytest.raises(ConfigError, match="enough"):
        run_items(items, WorkerLimits(in_process=True), record)
    assert recorded == ["a"]


def test_run_items_starts_nothing_after_sigterm() -> None:
    recorded: list[str] = []

    def record(item: WorkItem[int], outcome: Outcome) -> None:
        recorded.append(item.name)
        os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    items = [WorkItem("a", answer, (1,)), WorkItem("b", answer, (2,))]
    with pytest.raises(Interrupted):
        run_items(items, WorkerLimits(in_process=True), record)
    assert recorded == ["a"] and signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_items_interrupts_a_call_that_has_not_begun_to_train(number: signal.Signals) -> None:
    """A signal that only set a flag would be lost: a training loop that begins later would run to its end."""
    record = Recorder()
    with pytest.raises(Interrupted):
        run_items([WorkItem("a", stop_self, (number,))], WorkerLimits(in_process=True), record)
    assert record.outcomes == {}, "the call did not return"


def test_run_items_stops_if_a_call_catches_the_interruption() -> None:
    record = Recorder()
    items = [WorkItem("a", stop_self_and_catch, (signal.SIGTERM,)), WorkItem("b", answer, (2,))]
    with pytest.raises(Interrupted):
        run_items(items, WorkerLimits(in_process=True), record)
    assert record.outcomes == {"a": 0}


def test_run_items_replaces_a_worker_killed_between_items() -> None:
    outcomes: dict[str, Outcome] = {}
    threads = set(threading.enumerate())

    def record(item: WorkItem[int], outcome: Outcome) -> None:
        outcomes[item.name] = outcome
        for process in multiprocessing.active_children():
            process.kill()
        for thread in set(threading.enumerate()) - threads:
            thread.join()  # the executor's threads end when they notice that the process is gone

    run_items([WorkItem("first", answer, (1,)), WorkItem("second", answer, (2,))], WorkerLimits(1), record)
    assert outcomes == {"first": 1, "second": 2}
