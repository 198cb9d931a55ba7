"""Compute the next item of an iterator in a thread while the consumer works on the current one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """The end of the items, with the error that ended them if there was one."""

    error: BaseException | None = None


def run_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items in order, up to two items ahead: one finished item waits while the next one is computed.

    An error of the iterator is raised here, after the items before it.
    """
    results: queue.Queue[T | _End] = queue.Queue(maxsize=1)

    def produce() -> None:
        try:
            for item in items:
                results.put(item)
        except BaseException as error:
            results.put(_End(error))
        else:
            results.put(_End())

    # A daemon, because the thread may still be waiting for a pipe when the consumer stops.
    threading.Thread(target=produce, daemon=True).start()
    while True:
        result = results.get()
        if not isinstance(result, _End):
            yield result
        elif result.error is None:
            return
        else:
            raise result.error
