"""Jobs side by side: each in a process with a GPU of its own or a share of the cores; all save when asked to stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from albert_cli import console, machine, ranks
from albert_cli.errors import AlbertError, Interrupted

T = TypeVar("T")


@dataclass(frozen=True)
class WorkItem(Generic[T]):
    """A call by what can be pickled, and the names of the jobs that must have ended before."""

    name: str
    call: Callable[..., T]
    arguments: tuple[Any, ...]
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WorkerLimits:
    """How many jobs run at a time, and what each has.

    `gpus` of this machine are dealt out, one for each of a job's `ranks`; `threads` are what one rank has. `fresh`
    gives every job a process of its own, otherwise a place keeps its process. Where `here`, jobs run in this process.
    """

    count: int = 1
    threads: int = 1
    gpus: int = 0
    ranks: int = 1
    fresh: bool = False
    here: bool = False
    quiet: bool = False


_stop_requested: list[bool] = []  # not empty once this process was asked to stop


def is_stop_requested() -> bool:
    """Whether jobs of this process were asked to stop."""
    return bool(_stop_requested)


def run_items(
    jobs: Sequence[WorkItem[T]],
    places: WorkerLimits,
    keep: Callable[[WorkItem[T], T | BaseException], None],
    seconds: float | None = None,
) -> None:
    """Run every job as soon as those that it needs have ended, and hand its result, or its error, to `keep`.

    What `keep` raises stops all jobs, and so does an error where they run `here`. Raises `Interrupted` when a signal, a
    job or the end of the `seconds` stopped them.
    """
    _stop_requested.clear()
    # SIGTERM and Ctrl-C are handed on to the jobs, which save.
    with ranks.handle_signals((signal.SIGTERM, signal.SIGINT), lambda *_: _request_stop()), _stop_after(seconds):
        if places.here:
            for job in jobs:
                if not is_stop_requested():
                    keep(job, job.call(*job.arguments))
        else:
            _run_in_processes(jobs, places, keep)
        if is_stop_requested():
            raise Interrupted("stopped before every run was done")


def _run_in_processes(
    jobs: Sequence[WorkItem[T]], places: WorkerLimits, keep: Callable[[WorkItem[T], T | BaseException], None]
) -> None:
    context = process_context({job.call.__module__ for job in jobs})
    quiet, debug, environment = console.settings.quiet or places.quiet, console.settings.debug, dict(os.environ)
    waiting, running = list(jobs), dict[Future[T], tuple[WorkItem[T], int]]()
    watched = ProcessWatch()
    free, pools = list(range(places.count)), dict[int, ProcessPoolExecutor]()
    try:
        while running or (waiting and not is_stop_requested()):
            unfinished = {job.name for job in waiting} | {job.name for job, _ in running.values()}
            ready = [job for job in waiting if not job.needs & unfinished] if not is_stop_requested() else []
            for job, place in zip(ready, list(free), strict=False):
                if place not in pools:
                    given = (place, places, quiet, debug, environment)
                    pools[place] = ProcessPoolExecutor(1, context, _start_worker, given)
                try:
                    running[pools[place].submit(_call_interruptibly, job.call, job.arguments)] = job, place
                except BrokenProcessPool:  # killed between two jobs; the next round starts another
                    pools.pop(place).shutdown()
                    continue
                waiting.remove(job)
                free.remove(place)
                watched.look()
            for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                job, place = running.pop(future)
                free.append(place)
                error = future.exception()
                if places.fresh or isinstance(error, BrokenProcessPool):
                    pools.pop(place).shutdown()
                if isinstance(error, BrokenProcessPool):
                    error = AlbertError(f"{job.name}: its process {watched.death()}", "the same command goes on")
                if error is None or not is_stop_requested():
                    keep(job, future.result() if error is None else error)
    except BaseException:
        _request_stop()
        raise
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


# ---------------------------------------------------------------- one call for many items


def map_unordered(
    call: Callable[..., T], items: Iterable[tuple[Any, ...]], workers: int, remedy: str
) -> Generator[tuple[tuple[Any, ...], T], None, None]:
    """(item, `call(*item)`) in the order they finish, by `workers` processes; items are drawn little by little.

    With fewer than two workers in this very process. Raises what the call raises, and where a process died an
    `AlbertError` that says of what, with the remedy as its hint.
    """
    if workers < 2:
        for item in items:
            yield item, call(*item)
        return
    # Spawned, which is the same on every platform, and safe with threads.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), ranks.exit_with_parent)
    left, running, watched = iter(items), dict[Future[T], tuple[Any, ...]](), ProcessWatch()
    try:
        while True:
            for item in islice(left, 2 * workers - len(running)):
                try:
                    running[pool.submit(call, *item)] = item
                except OSError:
                    # Python 3.11 may close the workers' queue, as one has died, while the next is started with it.
                    if not any(isinstance(f.exception(), BrokenProcessPool) for f in running if f.done()):
                        raise
                watched.look()
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    except BrokenProcessPool:
        pool.shutdown()  # the executor waits for its processes; only then are their exit codes known for certain
        raise AlbertError(f"a worker process {watched.death()}", remedy) from None
    finally:
        pool.shutdown(cancel_futures=True)  # on an error, what has not begun is dropped


class ProcessWatch:
    """The processes of a pool, to say why one of them died."""

    def __init__(self) -> None:
        self._processes = set[BaseProcess]()
        self._killed_before = machine.count_oom_kills()

    def look(self) -> None:
        """Note the processes that there are now."""
        self._processes |= set(multiprocessing.active_children())

    def death(self) -> str:
        """How one came to its end since the last call; call it once the executor has waited for them."""
        ended = {process: code for process in self._processes if (code := process.exitcode) is not None}
        self._processes -= ended.keys()
        killed_before, self._killed_before = self._killed_before, machine.count_oom_kills()
        codes = set(ended.values()) - {0, -signal.SIGTERM}  # the executor ends the others by SIGTERM
        if self._killed_before > killed_before and codes <= {-signal.SIGKILL}:
            return "was killed because the memory ran out"
        if -signal.SIGKILL in codes:
            return "was killed, probably out of memory"
        code = min(codes, default=None)
        if code is None:
            return "ended before its work was done"
        return f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


# ---------------------------------------------------------------- a place's process


def process_context(modules: set[str]) -> BaseContext:
    """How processes are made: forked, where the system can, from one that has imported torch and has no threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", *sorted(modules)])
    return context


def _start_worker(place: int, places: WorkerLimits, quiet: bool, debug: bool, environment: Mapping[str, str]) -> None:
    """Take the place's GPUs and its share of the cores, and end with the launcher."""
    os.environ.update(environment)
    if places.gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(places.gpus)))).split(",")
        own = range(place * places.ranks, (place + 1) * places.ranks)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(visible[i % len(visible)] for i in own))
    os.environ.setdefault("OMP_NUM_THREADS", str(places.threads))  # of ranks that the job starts
    import torch

    torch.set_num_threads(places.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C comes as the launcher's SIGTERM
    console.configure(quiet=quiet, debug=debug)
    ranks.exit_with_parent()


def _call_interruptibly(call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    def end(number: int, frame: object) -> None:
        raise Interrupted("stopped before training")

    with ranks.handle_signals((signal.SIGTERM,), end):  # while it trains, the loop's own handler saves
        return call(*arguments)


# ---------------------------------------------------------------- being stopped


def _request_stop() -> None:
    _stop_requested.append(True)
    for process in multiprocessing.active_children():
        process.terminate()


@contextmanager
def _stop_after(seconds: float | None) -> Iterator[None]:
    """Ask this very process to stop after some seconds, as a scheduler would."""

    def ring() -> None:
        _stop_requested.append(True)  # a job that takes the signal for its own may end well with it
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds or 0.0, ring)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
