"""Stop requests: SIGTERM, Ctrl-C or the end of the allowed time stop all parallel work after it has saved."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from albert_cli import ranks

_stop_requested = threading.Event()


def is_stop_requested() -> bool:
    """Return True if this process has received a request to stop its parallel work."""
    return _stop_requested.is_set()


def request_stop() -> None:
    """Request that no further work starts."""
    _stop_requested.set()


@contextmanager
def stopping_on_signals(stop_workers: Callable[[], None], max_seconds: float | None) -> Iterator[None]:
    """Handle SIGTERM and Ctrl-C while the block runs, and send this process SIGTERM after `max_seconds`."""
    _stop_requested.clear()

    def stop(*_: object) -> None:
        request_stop()
        stop_workers()

    with ranks.handle_signals((signal.SIGTERM, signal.SIGINT), stop), _alarm(max_seconds):
        yield


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Send this process SIGTERM after some seconds, as a scheduler would; None sends nothing."""
    if seconds is None:
        yield
        return

    def ring() -> None:
        # A training loop in this process may handle SIGTERM itself; the request stops the other work then.
        request_stop()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
