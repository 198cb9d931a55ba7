"""Local process pools, and the reasons why their processes ended."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from albert_cli import machine, ranks


def make_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes, which works the same on every platform and is safe with threads."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), ranks.exit_with_parent)


def process_context(modules: set[str]) -> BaseContext:
    """Return how to start processes: forked, if possible, from one that has imported torch and has no threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", *sorted(modules)])
    return context


class ProcessWatch:
    """The processes of a pool, to tell why one of them died."""

    def __init__(self) -> None:
        self._processes = set[BaseProcess]()
        self._oom_kills = machine.count_oom_kills()

    def look(self) -> None:
        """Note the processes that exist now."""
        self._processes |= set(multiprocessing.active_children())

    def describe_death(self) -> str:
        """Describe how a process ended since the last call; call this after the executor has waited for them."""
        exit_codes = {process: process.exitcode for process in self._processes if process.exitcode is not None}
        self._processes -= exit_codes.keys()
        previous_kills = self._oom_kills
        self._oom_kills = machine.count_oom_kills()
        codes = set(exit_codes.values()) - {0, -signal.SIGTERM}  # the executor ends the other processes by SIGTERM
        if self._oom_kills > previous_kills and codes <= {-signal.SIGKILL}:
            return "was killed because memory ran out"
        if -signal.SIGKILL in codes:
            return "was killed, probably because memory ran out"
        if not codes:
            return "ended before its work was done"
        code = min(codes)
        if code < 0:
            return f"crashed ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"
