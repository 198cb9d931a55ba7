"""Running a plan: a stage at a time or several side by side, each once, whatever ended the attempt before.

A stage is done when its result file is there; it is written last, in one rename. So a killed run repeats nothing that
was finished, and a stage that was under way goes on from its own newest checkpoint, as its verb does by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import FrameType
from typing import Any

from albert_cli import console, store
from albert_cli.errors import AlbertError, BusyError, DivergedError, Interrupted
from albert_cli.experiments.plan import Plan, Stage

Invoke = Callable[[Sequence[str]], tuple[int, str]]  # an `albert` command here: its exit code and what it printed
_PATIENCE = 600.0  # seconds to wait for what a killed run left behind and is still writing
# What a stage's own process runs: it ends when the pipe to it closes, so that a kill -9 here leaves none behind.
_STAGE = "from albert_cli import cli, ranks; ranks.end_with_stdin(); cli.main()"


class StageError(AlbertError):
    """A stage's command ended with an error; the exit code is the command's."""

    def __init__(self, stage: Stage, code: int) -> None:
        super().__init__(f"{stage.title}: ended with {code}: {stage.command}", "its own message stands above")
        self.exit_code = code


@dataclass
class Runner:
    """Runs a plan's stages, in this process or side by side as processes of their own.

    `jobs` > 1 gives each process a share of the cores, or as many of the `gpus` as a pretraining has ranks. What has
    ranks is started as a process even where it is alone.
    """

    plan: Plan
    invoke: Invoke
    jobs: int = 1
    gpus: int = 0
    max_time: float | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _children: set[subprocess.Popen[str]] = field(default_factory=set)

    def run(self) -> int:
        """Do all that is left; the number of stages that were done now.

        Raises `Interrupted` when it was asked to stop or its time is up, and `StageError` for a stage that failed.
        """
        left = [stage for stage in self.plan.stages.values() if not self._is_done(stage)]
        done = len(self.plan.stages) - len(left)
        if done:
            console.note(f"{done} of {len(self.plan.stages)} stages were finished before")
        with _asked_to_stop(self._end), _alarm(self.max_time, self._time_is_up):
            if self.jobs == 1 and self.plan.request.nproc == 1:
                for number, stage in enumerate(left, start=done + 1):
                    self._check_stop()
                    console.note(f"[{number}/{len(self.plan.stages)}] {stage.title}")
                    self._keep(stage, *self._here(stage))
            else:
                self._side_by_side(left)
            self._check_stop(len(left) > 0 and not all(map(self._is_done, left)))
        return len(left)

    def _is_done(self, stage: Stage) -> bool:
        return self.plan.result(stage.id).is_file()

    def _end(self) -> None:
        self._stop.set()
        for child in list(self._children):
            child.terminate()

    def _time_is_up(self) -> None:
        """Ask this very process to stop, as a scheduler would."""
        self._stop.set()  # a stage that takes the signal for its own may end well with it
        os.kill(os.getpid(), signal.SIGTERM)

    def _check_stop(self, unfinished: bool = True) -> None:
        if self._stop.is_set() and unfinished:
            raise Interrupted(f"{self.plan.request.out}: stopped", "the same command goes on from there")

    # ------------------------------------------------------------ one stage

    def _here(self, stage: Stage) -> tuple[int, str, float]:
        started = time.monotonic()
        if self._lacks_input(stage):
            return DivergedError.exit_code, "", 0.0
        self._wait_until_free(stage)
        code, said = self.invoke(stage.argv)
        return code, said, time.monotonic() - started

    def _lacks_input(self, stage: Stage) -> bool:
        """Whether a run that this one reads has diverged."""
        return any("diverged" in store.read_json(self.plan.result(need)) for need in stage.needs)

    def _wait_until_free(self, stage: Stage) -> None:
        """Wait while a process that a killed run left behind still writes into the stage's directory."""
        directory, started = self.plan.directory(stage.id), time.monotonic()
        while (directory / ".lock").is_file():
            try:
                with store.lock(directory):
                    return
            except BusyError:
                if time.monotonic() - started > _PATIENCE or self._stop.is_set():
                    raise
                console.note(f"{directory}: another process is still writing here; waiting for it")
                self._stop.wait(5)

    def _keep(self, stage: Stage, code: int, said: str, seconds: float) -> None:
        """Note that a stage is done, with what it printed; raise for one that failed."""
        outcome: dict[str, Any]
        if code == DivergedError.exit_code:
            console.warn(f"{stage.title}: diverged, or starts from a run that did; the other stages go on")
            outcome = {"diverged": True}
        elif code == 0:
            outcome = {"result": json.loads(said)}
        elif code == Interrupted.exit_code or self._stop.is_set():
            self._stop.set()
            return self._check_stop()
        else:
            raise StageError(stage, code)
        record = {"stage": stage.id, "title": stage.title, "command": stage.command, "seconds": round(seconds, 1)}
        with store.text_writer(self.plan.result(stage.id)) as stream:  # makes the folder too
            stream.write(json.dumps(record | outcome, indent=2, ensure_ascii=False) + "\n")
        return None

    # ------------------------------------------------------------ several at once

    def _side_by_side(self, left: Sequence[Stage]) -> None:
        """Start every stage as soon as what it needs is there and one of the places is free."""
        waiting, running = list(left), dict[Future[tuple[int, str, float]], Stage]()
        places: SimpleQueue[int] = SimpleQueue()
        for place in range(self.jobs):
            places.put(place)
        finished = len(self.plan.stages) - len(left)
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                while waiting or running:
                    self._check_stop()
                    ready = [s for s in waiting if all(self.plan.result(n).is_file() for n in s.needs)]
                    for stage in ready[: self.jobs - len(running)]:
                        waiting.remove(stage)
                        running[pool.submit(self._apart, stage, places)] = stage
                    done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                    for future in done:
                        finished += 1
                        stage = running.pop(future)
                        self._keep(stage, *future.result())
                        console.note(f"[{finished}/{len(self.plan.stages)}] {stage.title}: {future.result()[2]:.0f} s")
            except BaseException:
                self._end()
                raise

    def _apart(self, stage: Stage, places: SimpleQueue[int]) -> tuple[int, str, float]:
        """A stage as a process of its own; its messages are passed on with its title before them."""
        if self._lacks_input(stage):
            return DivergedError.exit_code, "", 0.0
        self._wait_until_free(stage)
        place, started = places.get(), time.monotonic()
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _STAGE, *stage.argv], env=self._environment(place), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            self._children.add(child)
            if self._stop.is_set():  # asked to stop before the child was known
                child.terminate()
            assert child.stdout is not None and child.stderr is not None
            listener = threading.Thread(target=_pass_on, args=(stage.title, child.stderr), daemon=True)
            listener.start()
            said = child.stdout.read()
            code = child.wait()
            listener.join()
            self._children.discard(child)
        finally:
            places.put(place)
        return code, said, time.monotonic() - started

    def _environment(self, place: int) -> Mapping[str, str]:
        """GPUs of its own for each place, one a rank, or an even share of the cores."""
        ranks = self.plan.request.nproc
        if self.gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(self.gpus)))).split(",")
            own = dict.fromkeys(visible[i % len(visible)] for i in range(place * ranks, (place + 1) * ranks))
            return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(own)}
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        threads = max(1, cores // (self.jobs * ranks))
        return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}


def _pass_on(title: str, stream: Any) -> None:
    for line in stream:
        console.note(f"{title} | {line.rstrip()}")


# ---------------------------------------------------------------- being stopped


@contextmanager
def _asked_to_stop(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` when the process is asked to stop (SIGTERM, SIGINT); only the main thread can be told."""

    def handle(number: int, frame: FrameType | None) -> None:
        end()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _alarm(seconds: float | None, ring: Callable[[], None]) -> Iterator[None]:
    """Call `ring` after some seconds, if it has come to that."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
