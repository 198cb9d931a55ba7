"""Tests of `albert_cli.executor.mapping` on local pools."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from albert_cli.errors import AlbertError, ConfigError
from albert_cli.executor import map_unordered
from tests.helpers.executor_calls import answer, crash, crash_on_sigterm, fail, kill_self, kill_self_once
from tests.helpers.processes import PATIENCE


def test_map_unordered_yields_every_result() -> None:
    results = [result for _, result in map_unordered(answer, ((n,) for n in range(9)), 2, "remedy")]
    assert sorted(results) == list(range(9))


def test_map_unordered_raises_the_error_of_the_call() -> None:
    with pytest.raises(ConfigError, match="no such thing"):
        list(map_unordered(fail, [()] * 9, 2, "remedy"))


def test_map_unordered_repeats_work_of_a_killed_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [(tmp_path, number) for number in range(12)]
    results = [result for _, result in map_unordered(kill_self_once, items, 2, "remedy")]
    assert sorted(results) == list(range(12))
    assert "its work is repeated" in capsys.readouterr().err


@pytest.mark.parametrize(("call", "message"), [(kill_self, "was killed"), (crash, r"crashed \(SIGSEGV\)")])
def test_map_unordered_names_the_cause_of_a_second_loss(call: Callable[[], int], message: str) -> None:
    with pytest.raises(AlbertError, match=f"a worker process {message}"):
        list(map_unordered(call, [(), ()], 2, "remedy"))


def test_cause_is_known_if_a_worker_ends_late(capsys: pytest.CaptureFixture[str]) -> None:
    """The pool is broken before the worker has ended, so its exit code must be read after the pool has shut down."""
    with pytest.raises(AlbertError, match=r"a worker process crashed \(SIGSEGV\)"):
        list(map_unordered(crash_on_sigterm, [()], 2, "remedy"))
    assert "a worker process crashed (SIGSEGV); its work is repeated" in capsys.readouterr().err


def test_cause_is_memory_if_the_kernel_counts_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(9))
    monkeypatch.setattr("albert_cli.machine.count_oom_kills", lambda: next(counts))
    with pytest.raises(AlbertError, match="because memory ran out"):
        list(map_unordered(kill_self, [()], 2, "remedy"))


def test_cause_is_known_if_another_worker_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 closes the queue when a worker dies, even while another worker that needs it is being started."""
    start = SpawnProcess.start
    started = list[SpawnProcess]()

    def start_late(self: SpawnProcess) -> None:
        for process in started:
            process.join(PATIENCE)
        queue_reader = self._args[0]._reader  # type: ignore[attr-defined]
        for _ in range(100):  # up to a second, until the pool has closed the queue of its dead worker
            if not started or queue_reader.closed:
                break
            time.sleep(0.01)
        start(self)
        started.append(self)

    monkeypatch.setattr(SpawnProcess, "start", start_late)
    with pytest.raises(AlbertError, match=r"a worker process crashed \(SIGSEGV\)"):
        list(map_unordered(crash, [(), ()], 2, "remedy"))
