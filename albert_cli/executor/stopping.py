"""Stop all parallel work on SIGTERM, on Ctrl-C or at the end of `--max-time`; running work saves before it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from albert_cli import ranks

_stop_requested = threading.Event()


def is_stop_requested() -> bool:
    """Return True if a stop was requested since the last `stopping_on_signals` began."""
    return _stop_requested.is_set()


def request_stop() -> None:
    """Request that no further work starts; the caller stops the running work."""
    _stop_requested.set()


@contextmanager
def stopping_on_signals(stop_workers: Callable[[], None], max_seconds: float | None) -> Iterator[None]:
    """Stop the parallel work of the block on SIGTERM, on Ctrl-C, and after `max_seconds` (None: no limit).

    stop_workers: a function that tells the running work to stop.
    """
    _stop_requested.clear()

    def stop(*_: object) -> None:
        request_stop()
        stop_workers()

    with ranks.handle_signals((signal.SIGTERM, signal.SIGINT), stop), _alarm(max_seconds):
        yield


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Send SIGTERM to this process after some seconds, as the scheduler of a cluster does; None: never."""
    if seconds is None:
        yield
        return

    def send_signal() -> None:
        # Work in this process may handle SIGTERM itself and end as usual. Then this request stops the work after it.
        request_stop()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds, send_signal)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
