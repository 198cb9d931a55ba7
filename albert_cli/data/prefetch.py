"""Drawing the next batches while the current one is computed on: one thread is enough to hide the latency."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def prefetch(draw: Callable[[int], T], steps: Iterable[int], depth: int = 2) -> Iterator[Iterator[T]]:
    """Give an iterator over `draw(step)`, in the order of `steps`, drawn by a background thread.

    At most `depth` steps are drawn ahead of the one that was asked for; what `draw` raises is raised where its step is
    asked for. Leaving the block drops what is queued and waits for the one draw that has begun.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def in_order() -> Iterator[T]:
        queue: deque[Future[T]] = deque()
        for step in steps:
            queue.append(pool.submit(draw, step))
            if len(queue) > depth:
                yield queue.popleft().result()
        while queue:
            yield queue.popleft().result()

    try:
        yield in_order()
    finally:
        pool.shutdown(cancel_futures=True)
