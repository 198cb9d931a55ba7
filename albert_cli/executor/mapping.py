"""Apply one function to many items in parallel, and yield results as they finish."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
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
_CLUSTER_WINDOW = 64  # items that are sent to a cluster at a time


@dataclass(frozen=True)
class _Attempt:
    """An item, and whether its worker was lost before."""

    item: Item
    is_second: bool = False


def map_unordered(
    call: Callable[..., T], items: Iterable[Item], workers: int, remedy: str
) -> Generator[tuple[Item, T], None, None]:
    """Yield (item, `call(*item)`) in the order they finish; items are requested as workers become free.

    With fewer than two workers, and no cluster, everything runs in this process. Raises what the call raises. If an
    item's worker is lost twice, raises an `AlbertError` with the cause, and with `remedy` as its hint.
    """
    if cluster.has_cluster():
        call_here = partial(cluster.call_in_context, cluster.CommandContext.current(), call)
        yield from _map(call_here, items, cluster.make_executor, _CLUSTER_WINDOW, remedy)
    elif workers >= 2:
        yield from _map(call, items, partial(make_pool, workers), workers, remedy)
    else:
        for item in items:
            yield item, call(*item)


def _map(
    call: Callable[..., T], items: Iterable[Item], make_executor: Callable[[], Executor], window: int, remedy: str
) -> Generator[tuple[Item, T], None, None]:
    waiting = iter(items)
    repeated = deque[_Attempt]()
    watch = ProcessWatch()
    while True:
        running = dict[Future[T], _Attempt]()
        executor = make_executor()
        try:
            yield from _fill_and_collect(executor, call, waiting, repeated, running, window, watch)
            return
        except BrokenExecutor:
            executor.shutdown()  # waits for the processes; only then are their exit codes certain
            cause = watch.describe_death()
            for future, attempt in running.items():
                if future.done() and future.exception() is None:
                    yield attempt.item, future.result()
                elif attempt.is_second:
                    raise AlbertError(f"a worker process {cause}", remedy) from None
                else:
                    repeated.append(_Attempt(attempt.item, is_second=True))
            console.warn(f"a worker process {cause}; its work is repeated")
        except cluster.lost_worker_errors() as error:
            raise AlbertError(f"a worker of the cluster was lost twice ({error})", remedy) from None
        finally:
            cluster.shut_down(executor)


def _fill_and_collect(
    executor: Executor,
    call: Callable[..., T],
    waiting: Iterable[Item],
    repeated: deque[_Attempt],
    running: dict[Future[T], _Attempt],
    window: int,
    watch: ProcessWatch,
) -> Generator[tuple[Item, T], None, None]:
    """Keep `window` items running until none is left; raise `BrokenExecutor` with the lost items in `running`."""
    remaining = iter(waiting)
    while True:
        while len(running) < window:
            attempt = repeated.popleft() if repeated else next((_Attempt(item) for item in remaining), None)
            if attempt is None:
                break
            _submit(executor, call, attempt, running)
            watch.look()  # a worker may die before the next one is started
        if not running:
            return
        finished = wait(running, return_when=FIRST_COMPLETED).done
        # Results that arrived before a worker was lost are not lost.
        for future in sorted(finished, key=lambda future: isinstance(future.exception(), BrokenExecutor)):
            result = future.result()
            yield running.pop(future).item, result


def _submit(executor: Executor, call: Callable[..., T], attempt: _Attempt, running: dict[Future[T], _Attempt]) -> None:
    failed: Future[T] = Future()
    try:
        running[executor.submit(call, *attempt.item)] = attempt
    except BrokenExecutor:
        running[failed] = attempt
        raise
    except OSError as error:
        # Python 3.11 may close the workers' queue, because one has died, while it starts the next with it.
        if not any(future.done() and isinstance(future.exception(), BrokenExecutor) for future in running):
            raise
        running[failed] = attempt
        raise BrokenExecutor(str(error)) from error
