"""Run work items, such as training runs, that may depend on each other.

On this machine each running item has separate GPUs and cores. When a stop is requested, no further item starts, and the
running items save and end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from albert_cli import console, ranks
from albert_cli.errors import AlbertError, Interrupted
from albert_cli.executor import cluster
from albert_cli.executor.local import ProcessWatch, process_context
from albert_cli.executor.stopping import is_stop_requested, request_stop, stopping_on_signals

T = TypeVar("T")
_LOSS_HINT = "the same command continues; if memory ran out, run fewer items at a time, or give their jobs more memory"
# A function that receives each item that has ended, and the item's result or error.
RecordResult = Callable[["WorkItem[T]", T | BaseException], None]


@dataclass(frozen=True)
class WorkItem(Generic[T]):
    """A call with picklable arguments.

    needs: names of the items that must end, with or without an error, before this item starts.
    """

    name: str
    call: Callable[..., T]
    arguments: tuple[Any, ...]
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of parallel work on this machine: the number of items at a time, and their resources."""

    count: int = 1  # number of items at a time
    threads: int = 1  # number of threads of each rank
    gpus: int = 0  # number of GPUs of this machine; each rank uses one, and ranks share GPUs if there are too few
    ranks: int = 1  # number of ranks that an item starts
    in_process: bool = False  # run the items in this process, one after the other; ignored on a cluster
    quiet: bool = False  # hide the messages of the items


class _Workers(Protocol[T]):
    """Processes that run items, on this machine or on a cluster."""

    def start(self, item: WorkItem[T]) -> Future[T] | None:
        """Start an item, or return None if no worker is free."""

    def finish(self, future: Future[T]) -> str | None:
        """Release the worker of an item that ended; return the cause if the item's process was lost, else None."""

    def stop(self) -> None:
        """Request that all running items stop."""

    def cancel_unstarted(self) -> None:
        """Cancel the futures of the items that have not begun to run."""

    def close(self) -> None:
        """Wait until all workers have ended."""


def run_items(
    items: Sequence[WorkItem[T]], limits: WorkerLimits, record: RecordResult[T], max_seconds: float | None = None
) -> None:
    """Run every item after the items that it needs, and pass its result, or its error, to `record`.

    items: sorted, so that each item comes after the items that it needs. An exception of `record` stops all items and
    is raised here. An item whose process is lost is repeated once. Raises `Interrupted` if a signal or the end of
    `max_seconds` stopped the work.

    If the items run in this process (`limits.in_process`), their errors are not recorded but raised here. A signal ends
    the item with `Interrupted`: at once, or in a training loop after saving.
    """
    if limits.in_process and not cluster.has_cluster():
        with stopping_on_signals(lambda: None, max_seconds):
            for item in items:  # they are sorted, so this order respects `item.needs`
                if not is_stop_requested():
                    record(item, call_interruptibly(item.call, item.arguments, (signal.SIGTERM, signal.SIGINT)))
    else:
        workers: _Workers[T]
        if cluster.has_cluster():
            workers = _ClusterWorkers()
        else:
            workers = _LocalWorkers(limits, modules={item.call.__module__ for item in items})
        with stopping_on_signals(workers.stop, max_seconds):
            _run_on(workers, items, record)
    if is_stop_requested():
        raise Interrupted("stopped before every run was done")


def _run_on(workers: _Workers[T], items: Sequence[WorkItem[T]], record: RecordResult[T]) -> None:
    """Start the items as workers become free, and record their results.

    After a stop request, cancels what has not begun, waits for the running items, and records no errors, which the stop
    may cause.
    """
    waiting = list(items)
    running = dict[Future[T], WorkItem[T]]()
    repeated = set[str]()
    try:
        while running or (waiting and not is_stop_requested()):
            _start_ready(workers, waiting, running)
            if is_stop_requested():
                workers.cancel_unstarted()
            for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                item = running.pop(future)
                if future.cancelled():
                    if is_stop_requested():
                        continue
                    raise AlbertError(f"{item.name}: the cluster canceled it", _LOSS_HINT)
                cause_of_loss = workers.finish(future)
                if cause_of_loss is not None and item.name not in repeated and not is_stop_requested():
                    console.warn(f"{item.name}: its process {cause_of_loss}; it is repeated")
                    repeated.add(item.name)
                    waiting.insert(0, item)
                    continue
                error = future.exception()
                if cause_of_loss is not None:
                    error = AlbertError(f"{item.name}: its process {cause_of_loss}", _LOSS_HINT)
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
    """Start the waiting items that need no unfinished item, and move them to `running`, while workers are free."""
    unfinished = {item.name for item in (*waiting, *running.values())}
    ready = [item for item in waiting if not item.needs & unfinished]
    for item in ready:
        if is_stop_requested():
            return
        future = workers.start(item)
        if future is None:
            return
        running[future] = item
        waiting.remove(item)


class _LocalWorkers(Generic[T]):
    """The `limits.count` slots of this machine, numbered from 0; each runs one item at a time.

    A slot has a pool of one process, which owns the slot's GPUs and cores. modules: names of the modules of the items'
    functions, which the processes import before their first item (`process_context`).
    """

    def __init__(self, limits: WorkerLimits, modules: set[str]) -> None:
        self._limits = limits
        self._context = process_context(modules)
        self._is_quiet = console.settings.quiet or limits.quiet
        self._environment = dict(os.environ)
        self._free_slots = list(range(limits.count))
        self._pools = dict[int, ProcessPoolExecutor]()
        self._slot_of_future = dict[Future[T], int]()
        self._watch = ProcessWatch()

    def start(self, item: WorkItem[T]) -> Future[T] | None:
        while self._free_slots:
            slot = self._free_slots[0]
            if slot not in self._pools:
                arguments = (slot, self._limits, self._is_quiet, console.settings.debug, self._environment)
                self._pools[slot] = ProcessPoolExecutor(1, self._context, _start_worker, arguments)
            try:
                future = self._pools[slot].submit(call_interruptibly, item.call, item.arguments)
            except BrokenExecutor:  # the process was killed between two items
                self._pools.pop(slot).shutdown()
                continue
            self._free_slots.remove(slot)
            self._slot_of_future[future] = slot
            self._watch.record_children()  # `submit` may have started a process, whose death can then be explained
            return future
        return None

    def finish(self, future: Future[T]) -> str | None:
        slot = self._slot_of_future.pop(future)
        self._free_slots.append(slot)
        is_broken = isinstance(future.exception(), BrokenExecutor)
        if not is_broken:
            return None
        self._pools.pop(slot).shutdown()
        return self._watch.describe_death()

    def stop(self) -> None:
        for process in multiprocessing.active_children():
            process.terminate()

    def cancel_unstarted(self) -> None:
        pass  # a slot runs its item at once

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)


class _ClusterWorkers(Generic[T]):
    """The workers of a Dask cluster, each of which runs an item in a child process.

    If a worker is lost with its child, Dask itself repeats the work once.
    """

    def __init__(self) -> None:
        self._executor = cluster.make_executor()
        self._stop_event = cluster.make_stop_event()

    def start(self, item: WorkItem[T]) -> Future[T] | None:
        call = partial(cluster.run_in_child, self._stop_event.name, item.call, item.arguments)
        # The worker changes to this process's directory, because the arguments may contain relative paths. It also gets
        # this process's `sys.argv`, because a run records the command that resumes it.
        return self._executor.submit(cluster.bind_command_context(call))

    def finish(self, future: Future[T]) -> str | None:
        error = future.exception()
        if isinstance(error, cluster.lost_worker_errors()):
            raise AlbertError(f"a worker of the cluster was lost twice ({error})", _LOSS_HINT)
        return str(error) if isinstance(error, BrokenExecutor) else None

    def stop(self) -> None:
        self._stop_event.set()

    def cancel_unstarted(self) -> None:
        self._executor.cancel_unstarted()

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


# ---------------------------------------------------------------- in a worker's process


def _start_worker(slot: int, limits: WorkerLimits, quiet: bool, debug: bool, environment: Mapping[str, str]) -> None:
    """Set up the environment, GPUs, threads and signals of a slot's process, and let it end with the parent.

    quiet, debug: the settings of the console; environment: the parent's variables, which a process that is forked from
    the fork server does not inherit.
    """
    os.environ.update(environment)
    if limits.gpus > 0:
        all_gpus = ",".join(map(str, range(limits.gpus)))
        visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", all_gpus).split(",")
        first = slot * limits.ranks
        slot_gpus = [visible_gpus[index % len(visible_gpus)] for index in range(first, first + limits.ranks)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(slot_gpus))  # each GPU once
    os.environ.setdefault("OMP_NUM_THREADS", str(limits.threads))  # for the ranks that the item starts
    import torch

    torch.set_num_threads(limits.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent turns the terminal's Ctrl-C into SIGTERM
    console.configure(quiet=quiet, debug=debug)
    ranks.exit_with_parent()


def call_interruptibly(
    call: Callable[..., T], arguments: tuple[Any, ...], numbers: tuple[signal.Signals, ...] = (signal.SIGTERM,)
) -> T:
    """Call a function, and raise `Interrupted` within the call when the process receives one of the signals `numbers`.

    A training loop replaces this handler, and raises `Interrupted` only after saving.
    """

    def interrupt(number: int, frame: object) -> None:
        request_stop()  # the call may catch the exception, or turn it into another one
        raise Interrupted("stopped before the work was done")

    with ranks.handle_signals(numbers, interrupt):
        return call(*arguments)
