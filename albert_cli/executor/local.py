"""Start processes on this machine, and explain why one of them ended."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from albert_cli import machine, ranks


def make_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of `workers` processes, which end with this process."""
    # Unlike "fork", the start method "spawn" works on every platform and is safe in a process with threads.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), ranks.exit_with_parent)


def process_context(modules: set[str]) -> BaseContext:
    """Return the `multiprocessing` context for processes that import torch and `modules`, a set of module names.

    Where possible the start method is "forkserver": all processes are forked from a server process, which imports the
    modules once for all. It also imports TensorBoard, which takes 0.7 s, and scikit-learn's metrics, which take 1.5 s
    and which fine-tuning imports late. It skips modules that are not installed.
    """
    # On macOS a forked process cannot use the GPU if its parent has loaded the libraries for it, as torch does.
    if sys.platform == "darwin" or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.utils.tensorboard", "sklearn.metrics", *sorted(modules)])
    return context


class ProcessWatch:
    """A record of this process's child processes, to explain why one of them ended.

    Call `record_children` after processes were started, and `describe_death` after an executor has raised
    `BrokenExecutor`.
    """

    def __init__(self) -> None:
        self._processes = set[BaseProcess]()
        self._oom_kills = machine.count_oom_kills()

    def record_children(self) -> None:
        """Record the child processes that exist now."""
        self._processes |= set(multiprocessing.active_children())

    def describe_death(self) -> str:
        """Return the end of a message, such as "crashed (SIGSEGV)", about the process that ended since the last call.

        Call this after the executor has shut down, because the exit codes are certain only then.
        """
        exit_codes = {process: process.exitcode for process in self._processes if process.exitcode is not None}
        self._processes -= exit_codes.keys()
        previous_kills = self._oom_kills
        self._oom_kills = machine.count_oom_kills()
        # Ignore the processes that have ended normally, and those that the executor has ended by SIGTERM, as it does
        # with the other processes of a broken pool.
        codes = set(exit_codes.values()) - {0, -signal.SIGTERM}
        has_only_kills = codes <= {-signal.SIGKILL}
        if self._oom_kills > previous_kills and has_only_kills:
            return "was killed because memory ran out"
        if -signal.SIGKILL in codes:
            return "was killed, probably because memory ran out"
        if not codes:
            return "ended before its work was done"
        code = min(codes)
        if code < 0:
            return f"crashed ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"
