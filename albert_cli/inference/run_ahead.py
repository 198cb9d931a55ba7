"""Run an iterator in a separate thread, up to two items ahead of its consumer: one waits, one is in progress."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def run_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items in order while the next one is computed; an error of the iterator is raised in its place.

    The thread is a daemon, because it may wait for a pipe when the consumer stops.
    """
    results: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(maxsize=1)

    def produce() -> None:
        try:
            for item in items:
                results.put((True, item))
        except BaseException as error:
            results.put((False, error))
        else:
            results.put((False, None))

    threading.Thread(target=produce, daemon=True).start()
    while True:
        is_item, value = results.get()
        if is_item:
            yield value  # type: ignore[misc]
        elif value is None:
            return
        else:
            assert isinstance(value, BaseException)
            raise value
