"""Compute the next items of an iterator in a second thread while the consumer works on the current item."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """A mark after the last item; `error` is the error of the iterator, None if the iterator ended normally."""

    error: BaseException | None = None


def run_ahead(items: Iterable[T], join_seconds: float = 60.0) -> Generator[T]:
    """Yield the items in order, and compute up to two items ahead: one waits in the queue while the next is computed.

    An error of the iterator is raised after the items before it. Close the generator if you may stop before the end:
    then the thread computes no further item, and the generator waits up to `join_seconds` for the running item. Choose
    0 if an item may wait for input.
    """
    results: queue.Queue[T | _End] = queue.Queue(maxsize=1)
    stop = threading.Event()

    def produce() -> None:
        end = _End()
        try:
            for item in items:
                results.put(item)
                if stop.is_set():
                    return
        except BaseException as error:
            end = _End(error)
        results.put(end)

    # The thread is a daemon, so that it cannot keep the program from ending: it may wait for the next line of stdin.
    thread = threading.Thread(target=produce, name="run_ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(result := results.get(), _End):
            yield result
        if result.error is not None:
            raise result.error
    finally:
        stop.set()
        with suppress(queue.Empty):
            results.get_nowait()  # after `stop`, the thread puts at most one more item, for which there is room now
        thread.join(join_seconds)
