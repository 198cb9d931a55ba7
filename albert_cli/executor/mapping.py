"""Apply one function to many items in parallel, and yield results as they finish."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from albert_cli import console
from albert_cli.errors import AlbertError
from albert_cli.executor import cluster
from albert_cli.executor.local import ProcessWatch, make_pool

T = TypeVar("T")
Item = tuple[Any, ...]
_MIN_CLUSTER_WINDOW = 64  # items that a cluster has at a time, even before its workers have started


@dataclass(frozen=True)
class _Attempt:
    """An attempt to run `call(*item)`; is_second: True if the worker of the first attempt was lost."""

    item: Item
    is_second: bool = False


def map_unordered(
    call: Callable[..., T], items: Iterable[Item], workers: int, remedy: str
) -> Generator[tuple[Item, T], None, None]:
    """Yield (item, `call(*item)`) for each item, in the order in which the calls finish.

    The next item is read from `items` when a worker becomes free. Without a cluster and with fewer than two workers,
    the calls run in this process. An exception of a call is raised here. If an item's worker is lost twice, raises an
    `AlbertError` with the cause and the hint `remedy`.
    """
    if cluster.has_cluster():
        bound_call = cluster.bind_command_context(call)
        yield from _map(bound_call, items, cluster.make_executor, _cluster_window, remedy)
    elif workers >= 2:
        yield from _map(call, items, partial(make_pool, workers), lambda: workers, remedy)
    else:
        for item in items:
            yield item, call(*item)


def _cluster_window() -> int:
    """Return the maximum number of items that the cluster has at a time: two for each thread of its workers."""
    return max(_MIN_CLUSTER_WINDOW, 2 * cluster.count_threads())


def _map(
    call: Callable[..., T],
    items: Iterable[Item],
    make_executor: Callable[[], Executor],
    window: Callable[[], int],
    remedy: str,
) -> Generator[tuple[Item, T], None, None]:
    """Run the items on an executor; if a worker process ends, run the lost items once more on a new executor.

    window: returns the maximum number of items that run at a time. Yields (item, result).
    """
    new_attempts = (_Attempt(item) for item in items)
    to_repeat = deque[_Attempt]()
    watch = ProcessWatch()
    while True:
        running = dict[Future[T], _Attempt]()
        executor = make_executor()
        try:
            yield from _fill_and_collect(executor, call, new_attempts, to_repeat, running, window, watch)
            return
        except BrokenExecutor:
            executor.shutdown()  # waits until all processes have ended
            cause = watch.describe_death()
            for future, attempt in running.items():
                if future.done() and future.exception() is None:
                    yield attempt.item, future.result()
                elif attempt.is_second:
                    raise AlbertError(f"a worker process {cause}", remedy) from None
                else:
                    to_repeat.append(_Attempt(attempt.item, is_second=True))
            console.warn(f"a worker process {cause}; its work is repeated")
        except cluster.lost_worker_errors() as error:  # Dask has already repeated the work once
            raise AlbertError(f"a worker of the cluster was lost twice ({error})", remedy) from None
        finally:
            executor.shutdown(cancel_futures=True)


def _fill_and_collect(
    executor: Executor,
    call: Callable[..., T],
    new_attempts: Iterator[_Attempt],
    to_repeat: deque[_Attempt],
    running: dict[Future[T], _Attempt],
    window: Callable[[], int],
    watch: ProcessWatch,
) -> Generator[tuple[Item, T], None, None]:
    """Run up to `window()` items at a time until none is left, and yield their results.

    Attempts in `to_repeat` come first. If a worker is lost, raises `BrokenExecutor` and leaves the unfinished attempts
    in `running`.
    """
    while True:
        max_running = window()  # changes while workers join a cluster
        while len(running) < max_running:
            attempt = to_repeat.popleft() if to_repeat else next(new_attempts, None)
            if attempt is None:
                break
            _submit(executor, call, attempt, running)
            watch.record_children()  # `submit` may have started a worker, which may die before the next call
        if not running:
            return
        finished = wait(running, return_when=FIRST_COMPLETED).done
        # Futures of a lost worker come last: `result` raises `BrokenExecutor` once all other results are yielded.
        for future in sorted(finished, key=lambda future: isinstance(future.exception(), BrokenExecutor)):
            result = future.result()
            yield running.pop(future).item, result


def _submit(executor: Executor, call: Callable[..., T], attempt: _Attempt, running: dict[Future[T], _Attempt]) -> None:
    """Submit an attempt and add it to `running`, also if submitting it raises `BrokenExecutor`."""
    try:
        running[executor.submit(call, *attempt.item)] = attempt
    except (BrokenExecutor, OSError) as error:
        # When a worker dies, Python 3.11 closes the pool's queue. If `submit` starts another worker at this moment, it
        # raises an OSError. An OSError has this cause only if the future of a running call has a `BrokenExecutor`.
        errors = [error, *(future.exception() for future in running if future.done())]
        if not any(isinstance(cause, BrokenExecutor) for cause in errors):
            raise
        running[Future()] = attempt  # a future that is never done: the attempt is repeated with the lost ones
        raise BrokenExecutor(str(error)) from error
