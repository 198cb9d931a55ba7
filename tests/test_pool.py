"""Jobs side by side: in the order of what they need, each error handed over, a killed process replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import SpawnProcess

import pytest

from albert_cli import pool
from albert_cli.errors import AlbertError, ConfigError, Interrupted
from albert_cli.pool import WorkerLimits, WorkItem


def answer(value: int) -> int:
    return value


def fail() -> int:
    raise ConfigError("no such thing")


def killed() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_jobs_wait_for_what_they_need_and_one_that_fails_stops_no_other() -> None:
    ended: dict[str, int | BaseException] = {}

    def keep(job: WorkItem[int], outcome: int | BaseException) -> None:
        ended[job.name] = outcome

    after = frozenset({"killed", "failed", "crash"})
    jobs = [WorkItem("last", answer, (2,), after), WorkItem("killed", killed, ()), WorkItem("failed", fail, ())]
    pool.run_items([*jobs, WorkItem("crash", crash, ())], WorkerLimits(1), keep)
    assert list(ended) == ["killed", "failed", "crash", "last"] and ended["last"] == 2
    assert isinstance(ended["killed"], AlbertError) and "was killed" in str(ended["killed"])
    assert isinstance(ended["crash"], AlbertError) and "crashed (SIGSEGV)" in str(ended["crash"])
    assert isinstance(ended["failed"], ConfigError)


def crash() -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def crash_first(number: int) -> int:
    if number:
        time.sleep(10)  # the executor ends it, unless it is just being started
    return crash()


@pytest.mark.parametrize(("call", "says"), [(killed, "was killed"), (crash, r"crashed \(SIGSEGV\)")])
def test_a_worker_that_was_killed_is_told_apart_from_one_that_crashed(call: Callable[[], int], says: str) -> None:
    with pytest.raises(AlbertError, match=f"a worker process {says}"):
        list(pool.map_unordered(call, [(), ()], 2, "so"))


def test_how_a_worker_ended_is_known_also_where_another_thread_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waitpid = os.waitpid

    def slow(pid: int, options: int) -> tuple[int, int]:
        is_main = threading.current_thread() is threading.main_thread()
        time.sleep(0.1 if is_main and not options else 0)  # as a busy machine does
        found = waitpid(pid, options)
        time.sleep(0 if is_main else 0.5)  # the executor's thread has the exit code, and nobody else can ask for it
        return found

    monkeypatch.setattr(os, "waitpid", slow)
    with pytest.raises(AlbertError, match=r"a worker process crashed \(SIGSEGV\)"):
        list(pool.map_unordered(crash_first, [(0,), (1,)], 2, "so"))


def test_memory_that_ran_out_is_known_by_the_systems_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(9))
    monkeypatch.setattr("albert_cli.machine.count_oom_kills", lambda: next(counts))
    with pytest.raises(AlbertError, match="because the memory ran out"):
        list(pool.map_unordered(killed, [()], 2, "so"))


def test_results_are_spread_over_processes_and_an_error_is_handed_over() -> None:
    assert sorted(found for _, found in pool.map_unordered(answer, ((n,) for n in range(9)), 2, "so")) == list(range(9))
    with pytest.raises(ConfigError, match="no such thing"):
        list(pool.map_unordered(fail, [()] * 9, 2, "so"))


def test_what_is_raised_about_a_job_stops_the_others() -> None:
    ended: list[str] = []

    def keep(job: WorkItem[int], outcome: int | BaseException) -> None:
        ended.append(job.name)
        raise ConfigError("enough")

    with pytest.raises(ConfigError, match="enough"):
        pool.run_items([WorkItem("a", answer, (1,)), WorkItem("b", answer, (2,))], WorkerLimits(here=True), keep)
    assert ended == ["a"]


def test_asked_to_stop_no_other_job_is_begun() -> None:
    ended: list[str] = []

    def keep(job: WorkItem[int], outcome: int | BaseException) -> None:
        ended.append(job.name)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        pool.run_items([WorkItem("a", answer, (1,)), WorkItem("b", answer, (2,))], WorkerLimits(here=True), keep)
    assert ended == ["a"] and signal.getsignal(signal.SIGTERM) is before


def test_a_worker_that_dies_while_another_is_started_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 closes the workers' queue without waiting for the one that is being started with it."""
    start, started = SpawnProcess.start, list[SpawnProcess]()

    def late(self: SpawnProcess) -> None:
        for process in started:
            process.join(20)
        for _ in range(100 if started else 0):
            time.sleep(0.01 * (not self._args[0]._reader.closed))  # type: ignore[attr-defined]
        started.append(self)
        start(self)

    monkeypatch.setattr(SpawnProcess, "start", late)
    with pytest.raises(AlbertError, match=r"a worker process crashed \(SIGSEGV\)"):
        list(pool.map_unordered(crash, [(), ()], 2, "so"))


def test_a_worker_that_was_killed_between_two_jobs_is_replaced() -> None:
    ended: dict[str, int | BaseException] = {}

    def keep(job: WorkItem[int], outcome: int | BaseException) -> None:
        ended[job.name] = outcome
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        time.sleep(1)  # the executor's own thread finds it out

    pool.run_items([WorkItem("first", answer, (1,)), WorkItem("second", answer, (2,))], WorkerLimits(1), keep)
    assert ended == {"first": 1, "second": 2}
