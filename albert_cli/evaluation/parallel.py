"""`--nproc`: the seeds (and tasks) of an evaluation over processes, one a GPU, or N that share the cores of a CPU.

Each run is one that would have been made without: the same directory, resumed the same way. When all are there, the
evaluation goes over them as if it had made them itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from albert_cli import console, distributed
from albert_cli.errors import AlbertError, Interrupted
from albert_cli.evaluation.single import Request, prepare_task, run_directory, run_seed, seeds
from albert_cli.evaluation.tables import percent
from albert_cli.training.finetune import Prepared
from albert_cli.training.start import start_from_run
from albert_cli.training.task_recipe import PRETRAINED


@dataclass(frozen=True)
class _Unit:
    """A run by what a process needs to make it ready again."""

    request: Request
    task: str
    seed: int
    out: Path
    start: Path | None
    start_note: str | None


@dataclass(frozen=True)
class Job:
    """A task to be fine-tuned with every seed: as the user names it, made ready, and where its runs go."""

    request: Request
    task: str
    prepared: Prepared
    out: Path


def train(jobs: Sequence[Job], nproc: int) -> None:
    """Fine-tune every seed of every job, `nproc` at a time; one at a time is left to the evaluation itself.

    Tasks that are only scored are left alone. A run that fails does not stop the others; the first error is raised
    at the end, of which divergence is none. Asked to stop, every process saves its run, and the same command goes on.
    """
    units = [unit for job in jobs for unit in _units(job)]
    if nproc == 1 or not units:
        return
    errors: dict[_Unit, BaseException] = {}
    with _pool(min(nproc, len(units))) as (pool, stop), _asked_to_stop(stop) as asked:
        futures = {pool.submit(_work, unit): unit for unit in units}
        for future in _as_they_end(futures):
            unit = futures[future]
            if error := future.exception():
                errors[unit] = error
                continue
            score = future.result()
            console.note(f"{unit.out}: {unit.task} seed {unit.seed} {percent(score) or 'diverged'}")
    if asked:
        raise Interrupted("the evaluation was stopped", "the same command goes on from there")
    for unit in units:
        if isinstance(error := errors.get(unit), BrokenProcessPool):
            raise AlbertError("a process was killed, perhaps for want of memory", "the same command goes on") from None
        if error is not None:
            raise error


def _units(job: Job) -> list[_Unit]:
    prepared, request = job.prepared, job.request
    if prepared.for_scoring:
        return []
    start = prepared.start.directory if prepared.start else None
    if prepared.start_note:
        request = replace(request, overrides=(*request.overrides, f"start_from={PRETRAINED}"))
    return [
        _Unit(request, job.task, seed, run_directory(job.out, seed), start, prepared.start_note)
        for seed in seeds(prepared, request.runs)
    ]


def _as_they_end(futures: Mapping[Future[float | None], _Unit]) -> Iterator[Future[float | None]]:
    left = set(futures)
    while left:
        ended, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        yield from ended


# ---------------------------------------------------------------- the processes


@contextmanager
def _pool(size: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    import multiprocessing

    context = multiprocessing.get_context("spawn")  # the same on every platform, and safe with threads and CUDA
    numbers, stop = context.SimpleQueue(), context.Event()
    for number in range(size):
        numbers.put(number)
    threads = max(1, torch.get_num_threads() // size)
    pool = ProcessPoolExecutor(size, mp_context=context, initializer=_begin, initargs=(numbers, threads, stop))
    try:
        yield pool, stop
    finally:
        pool.shutdown(cancel_futures=True)


_stop: Any = None
_is_busy = False


def _begin(numbers: Any, threads: int, stop: Any) -> None:
    """Take a GPU and a share of the cores, and end with the parent."""
    global _stop
    _stop = stop
    number = numbers.get()
    if torch.cuda.is_available():
        number %= torch.cuda.device_count()
        torch.cuda.set_device(number)
        os.environ["LOCAL_RANK"] = str(number)  # which GPU `--device` means
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, _end_the_run)  # while it trains, the loop's own handler saves
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C comes as the parent's SIGTERM
    console.configure(quiet=True)  # the parent says what ends; warnings are still printed
    distributed.end_with_parent()


def _end_the_run(number: int, frame: object) -> None:
    if _is_busy:
        raise Interrupted("stopped before training", "the same command goes on from there")


def _work(unit: _Unit) -> float | None:
    """One run; returns its score, None where it diverged."""
    global _is_busy
    if _stop.is_set():
        raise Interrupted(f"{unit.out}: not begun", "the same command goes on from there")
    _is_busy = True
    try:
        prepared = _prepared(unit.request, unit.task, unit.start, unit.start_note)
        return run_seed(prepared, unit.out, unit.seed).get("score")
    finally:
        _is_busy = False


@lru_cache(maxsize=1)
def _prepared(request: Request, task: str, start: Path | None, start_note: str | None) -> Prepared:
    """The task read and encoded once for all seeds that this process runs after each other."""
    prepared = replace(prepare_task(request, task), start_note=start_note)
    return start_from_run(prepared, start) if start else prepared


@contextmanager
def _asked_to_stop(stop: Any) -> Iterator[list[int]]:
    """Hand SIGTERM and Ctrl-C on to the processes, which save; yields a list that is then no longer empty."""
    import multiprocessing

    asked: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        asked.append(number)
        stop.set()
        for process in multiprocessing.active_children():
            process.terminate()

    before = {}
    with suppress(ValueError):  # not in the main thread: the caller handles signals
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
