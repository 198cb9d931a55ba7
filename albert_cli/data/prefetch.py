"""Sample the next batches in a background thread while the model computes the current one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def prefetch(sample: Callable[[int], T], steps: Iterable[int], depth: int = 2) -> Iterator[Iterator[T]]:
    """Yield an iterator over the results of `sample(step)`, in the order of `steps`.

    `sample` runs in one background thread, at most `depth` steps ahead of the last result that was read. The iterator
    raises an exception of `sample` when it reaches that step. At the end of the block, calls that have not begun are
    canceled, and the running call is awaited.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def iter_results() -> Iterator[T]:
        queue: deque[Future[T]] = deque()
        for step in steps:
            queue.append(pool.submit(sample, step))
            if len(queue) > depth:
                yield queue.popleft().result()
        while queue:
            yield queue.popleft().result()

    try:
        yield iter_results()
    finally:
        pool.shutdown(cancel_futures=True)
