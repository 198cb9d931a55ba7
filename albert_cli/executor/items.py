"""Run work items that depend on each other, each with its own GPUs and cores; all save at a stop request."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from albert_cli import console, ranks
from albert_cli.errors import AlbertError, Interrupted
from albert_cli.executor import cluster
from albert_cli.executor.local import ProcessWatch, process_context
from albert_cli.executor.stopping import is_stop_requested, request_stop, stopping_on_signals

T = TypeVar("T")
Record = Callable[["WorkItem[T]", T | BaseException], None]


@dataclass(frozen=True)
class WorkItem(Generic[T]):
    """A call with picklable arguments, and the names of the items that must end before it."""

    name: str
    call: Callable[..., T]
    arguments: tuple[Any, ...]
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of parallel work on this machine: the number of items at a time, and the resources of each."""

    count: int = 1
    threads: int = 1  # of each of an item's ranks
    gpus: int = 0  # of this machine, divided among the items: one for each of an item's ranks
    ranks: int = 1
    fresh: bool = False  # start a new process for every item
    in_process: bool = False  # run the items in this process, one after the other
    quiet: bool = False


class _Workers(Protocol[T]):
    """Processes that run items."""

    def start(self, item: WorkItem[T]) -> Future[T] | None:
        """Start an item, or return None if no worker is free."""

    def finish(self, future: Future[T]) -> str | None:
        """Release the item's worker; return how it died, None if it did not."""

    def stop(self) -> None:
        """Tell all running items to stop."""

    def close(self) -> None:
        """Wait for all workers to end."""


def run_items(
    items: Sequence[WorkItem[T]], limits: WorkerLimits, record: Record[T], max_seconds: float | None = None
) -> None:
    """Run every item after the items that it needs, and pass its result, or its error, to `record`.

    What `record` raises stops all items; `in_process`, an item's error does, too. An item whose worker is lost is
    repeated once. Raises `Interrupted` if a signal, an item or the end of `max_seconds` stopped them.
    """
    if limits.in_process and not cluster.has_cluster():
        with stopping_on_signals(lambda: None, max_seconds):
            for item in items:
                if not is_stop_requested():
                    record(item, item.call(*item.arguments))
    else:
        modules = {item.call.__module__ for item in items}
        workers: _Workers[T] = _ClusterWorkers() if cluster.has_cluster() else _LocalWorkers(limits, modules)
        with stopping_on_signals(workers.stop, max_seconds):
            _run_on(workers, items, record)
    if is_stop_requested():
        raise Interrupted("stopped before every run was done")


def _run_on(workers: _Workers[T], items: Sequence[WorkItem[T]], record: Record[T]) -> None:
    waiting = list(items)
    running = dict[Future[T], WorkItem[T]]()
    repeated = set[str]()
    try:
        while running or (waiting and not is_stop_requested()):
            _start_ready(workers, waiting, running)
            for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                item = running.pop(future)
                death = workers.finish(future)
                if death is not None and item.name not in repeated and not is_stop_requested():
                    console.warn(f"{item.name}: its process {death}; it is repeated")
                    repeated.add(item.name)
                    waiting.insert(0, item)
                    continue
                error = future.exception()
                if death is not None:
                    error = AlbertError(f"{item.name}: its process {death}", "the same command continues")
                if error is None:
                    record(item, future.result())
                elif not is_stop_requested():
                    record(item, error)
    except BaseException:
        request_stop()
        workers.stop()
        raise
    finally:
        workers.close()


def _start_ready(workers: _Workers[T], waiting: list[WorkItem[T]], running: dict[Future[T], WorkItem[T]]) -> None:
    """Start the items that need no unfinished item, as long as workers are free."""
    unfinished = {item.name for item in (*waiting, *running.values())}
    for item in [item for item in waiting if not item.needs & unfinished]:
        if is_stop_requested():
            return
        future = workers.start(item)
        if future is None:
            return
        running[future] = item
        waiting.remove(item)


class _LocalWorkers(Generic[T]):
    """Slots of this machine, each with a pool of one process, so that it keeps its GPUs and cores."""

    def __init__(self, limits: WorkerLimits, modules: set[str]) -> None:
        self._limits = limits
        self._context = process_context(modules)
        self._settings = (console.settings.quiet or limits.quiet, console.settings.debug, dict(os.environ))
        self._free = list(range(limits.count))
        self._pools = dict[int, ProcessPoolExecutor]()
        self._slots = dict[Future[T], int]()
        self._watch = ProcessWatch()

    def start(self, item: WorkItem[T]) -> Future[T] | None:
        while self._free:
            slot = self._free[0]
            if slot not in self._pools:
                arguments = (slot, self._limits, *self._settings)
                self._pools[slot] = ProcessPoolExecutor(1, self._context, _start_worker, arguments)
            try:
                future = self._pools[slot].submit(call_interruptibly, item.call, item.arguments)
            except BrokenExecutor:  # killed between two items
                self._pools.pop(slot).shutdown()
                continue
            self._free.remove(slot)
            self._slots[future] = slot
            self._watch.look()
            return future
        return None

    def finish(self, future: Future[T]) -> str | None:
        slot = self._slots.pop(future)
        self._free.append(slot)
        is_broken = isinstance(future.exception(), BrokenExecutor)
        if is_broken or self._limits.fresh:
            self._pools.pop(slot).shutdown()
        return self._watch.describe_death() if is_broken else None

    def stop(self) -> None:
        for process in multiprocessing.active_children():
            process.terminate()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)


class _ClusterWorkers(Generic[T]):
    """Workers of a Dask cluster; it repeats the work of a lost worker once by itself."""

    def __init__(self) -> None:
        self._executor: Executor = cluster.make_executor()
        self._stop_flag = cluster.StopFlag()

    def start(self, item: WorkItem[T]) -> Future[T] | None:
        call = partial(cluster.run_in_child, self._stop_flag.name, item.call, item.arguments)
        return self._executor.submit(cluster.call_in_context, cluster.CommandContext.current(), call)

    def finish(self, future: Future[T]) -> str | None:
        error = future.exception()
        if isinstance(error, cluster.lost_worker_errors()):
            raise AlbertError(f"a worker of the cluster was lost twice ({error})", "the same command continues")
        return None

    def stop(self) -> None:
        self._stop_flag.set()

    def close(self) -> None:
        cluster.shut_down(self._executor)


# ---------------------------------------------------------------- in a worker's process


def _start_worker(slot: int, limits: WorkerLimits, quiet: bool, debug: bool, environment: Mapping[str, str]) -> None:
    """Take the slot's GPUs and its share of the cores, and exit with the parent."""
    os.environ.update(environment)
    if limits.gpus:
        all_gpus = ",".join(map(str, range(limits.gpus)))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", all_gpus).split(",")
        indices = range(slot * limits.ranks, (slot + 1) * limits.ranks)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(visible[i % len(visible)] for i in indices))
    os.environ.setdefault("OMP_NUM_THREADS", str(limits.threads))  # of ranks that the item starts
    import torch

    torch.set_num_threads(limits.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent turns the terminal's Ctrl-C into SIGTERM
    console.configure(quiet=quiet, debug=debug)
    ranks.exit_with_parent()


def call_interruptibly(call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Call a function that SIGTERM interrupts; while it trains, the training loop handles the signal and saves."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted("stopped before training")

    with ranks.handle_signals((signal.SIGTERM,), interrupt):
        return call(*arguments)
