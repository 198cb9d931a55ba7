"""Sample the next batches in a background thread while the current one is computed on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def prefetch(sample: Callable[[int], T], steps: Iterable[int], depth: int = 2) -> Iterator[Iterator[T]]:
    """Provide an iterator over `sample(step)` in the order of `steps`, called in a background thread.

    At most `depth` steps are sampled ahead of the one that is being read. An exception in `sample` is raised when its
    step is read. Leaving the block drops the queue and waits for the running call.
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
