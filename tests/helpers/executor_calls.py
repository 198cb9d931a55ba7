"""Calls that worker processes run: they return, fail, crash, are killed or wait.

A process that starts imports the module of its call, so this module imports little, and no pytest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from albert_cli import store
from albert_cli.errors import ConfigError, Interrupted, NetworkError


def answer(value: int) -> int:
    """Return the value."""
    return value


def fail() -> int:
    """Raise an error of a command."""
    raise ConfigError("no such thing")


def raise_from_error_with_lock(number: int) -> int:
    """Raise an error whose cause cannot be pickled."""
    raise NetworkError(f"item {number} cannot be read") from ValueError(threading.Lock())


def wait_for_file(started: Path, release: Path) -> Path:
    """Create `started`, wait until `release` exists, and return `started`."""
    started.touch()
    while not release.exists():
        time.sleep(0.05)
    return started


def kill_self() -> int:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def kill_self_once(folder: Path, number: int) -> int:
    """Kill the process of item 3, the first time; return the number of the item."""
    marker = folder / str(number)
    if number == 3 and not marker.exists():
        marker.touch()
        kill_self()
    return number


class ResultOfLostWorker:
    """A result whose worker, as Dask's client is told, is lost at the moment at which the client reads it."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return _read_and_lose, ()


def _read_and_lose() -> int:
    """Return 5; if this process has the command's client of Dask, mark the results of the client as lost."""
    import distributed

    with contextlib.suppress(ValueError):  # a worker, or the scheduler, has no client
        for state in distributed.default_client().futures.values():
            state.lose()
    return 5


def answer_and_lose() -> ResultOfLostWorker:
    """Return a result whose worker is lost while the result is read."""
    return ResultOfLostWorker()


def crash() -> int:
    """End this process by a segmentation fault."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def crash_on_sigterm() -> int:
    """Close the pipes that show that the worker is alive, and crash only when the executor sends SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: crash())
    for descriptor in range(3, 1000):
        with contextlib.suppress(OSError):
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.close(descriptor)
    while True:
        signal.pause()


def lose_worker_in_lock(folder: Path) -> int:
    """Kill the worker that has started this process while this process has a lock, the first time."""
    with store.lock(folder / "run"):
        if not (folder / "lost").exists():
            (folder / "lost").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(300)
    return 1


def take_lock(folder: Path) -> int:
    """Add a line to the file `attempts`, then take a lock and release it."""
    with (folder / "attempts").open("a") as file:
        file.write("attempt\n")
    with store.lock(folder / "run"):
        return 1


def stop_self(number: signal.Signals) -> int:
    """Send a signal to this process before any training loop handles it, as at the end of `--max-time`."""
    os.kill(os.getpid(), number)
    return 0


def stop_self_and_catch(number: signal.Signals) -> int:
    """Send a signal to this process, and catch the exception that it raises, as code that tries something does."""
    with contextlib.suppress(Exception):
        os.kill(os.getpid(), number)
    return 0


def wait_for_sigterm(folder: Path) -> int:
    """Wait for SIGTERM, then write a file and raise `Interrupted`."""

    def save(number: int, frame: object) -> None:
        (folder / "saved").touch()
        raise Interrupted("saved")

    signal.signal(signal.SIGTERM, save)
    (folder / "started").touch()
    time.sleep(300)
    return 0
