"""Compute the next item of an iterator in a second thread while the consumer works on the current item."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """A mark after the last item; `error` is the error of the iterator, None if the iterator ended normally."""

    error: BaseException | None = None


def run_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items in order, and compute up to two items ahead: one waits in the queue while the next is computed.

    An error of the iterator is raised after the items before it.
    """
    results: queue.Queue[T | _End] = queue.Queue(maxsize=1)

    def produce() -> None:
        end = _End()
        try:
            for item in items:
                results.put(item)
        except BaseException as error:
            end = _End(error)
        results.put(end)

    # The thread is a daemon, so that it cannot keep the program from ending: it may still wait for the next line of
    # stdin, or, if the caller has stopped, for a free position in the queue.
    threading.Thread(target=produce, daemon=True).start()
    while not isinstance(result := results.get(), _End):
        yield result
    if result.error is not None:
        raise result.error
