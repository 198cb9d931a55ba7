"""Run commands in forks of this process, which has already imported everything: a fork takes some milliseconds.

A crash, a resource limit or a kill ends only the fork.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from albert_cli.cli.app import command_line

# The limit of CPU time, ten times that of the slowest command. After half of it a child receives SIGTERM.
SECONDS = 60
MEMORY = 3 << 30  # bytes of address space in addition to those of this process


@dataclass(frozen=True)
class Result:
    """The result of a command: its exit code (a signal is negative), its output, its time and its memory."""

    code: int
    out: str
    err: str
    seconds: float  # CPU time
    memory: int  # peak bytes, including those shared with this process

    @property
    def error(self) -> str:
        """The last error line; empty without an error."""
        return next((line for line in reversed(self.err.splitlines()) if line.startswith("error:")), "")


def run(arguments: Sequence[str], folder: Path, logs: Path, run_first: Callable[[], object] | None = None) -> Result:
    """Run `albert ARGUMENTS` in the folder; its streams go to `logs`.out and `logs`.err."""
    return wait(start(arguments, folder, logs, run_first), logs)


def start(arguments: Sequence[str], folder: Path, logs: Path, run_first: Callable[[], object] | None = None) -> int:
    """Start `albert ARGUMENTS` and return its process ID; `run_first` is called in the child before the command."""
    command_line()  # builds it here, once for all children
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _run_child(arguments, folder, logs, run_first)
    return child


def wait(child: int, logs: Path) -> Result:
    """Wait until the child has exited; return its result."""
    deadline = time.monotonic() + 10 * SECONDS
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:  # the child sleeps: one that computes is ended by the limit of its CPU time
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    out, err = (logs.with_suffix(end).read_text(encoding="utf-8", errors="replace") for end in (".out", ".err"))
    return Result(code, out, err, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _request_stop(*_: object) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # because the kernel now sends it every second
    signal.raise_signal(signal.SIGTERM)


def _run_child(arguments: Sequence[str], folder: Path, logs: Path, run_first: Callable[[], object] | None) -> NoReturn:
    # A garbage collection would finalize objects of the parent, which may wait for threads that do not exist here.
    gc.freeze()
    code = 99
    try:
        for number, end in ((1, ".out"), (2, ".err")):
            descriptor = os.open(logs.with_suffix(end), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # as Python does
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        signal.signal(signal.SIGXCPU, _request_stop)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS // 2, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        if run_first is not None:
            run_first()
        command_line()(list(arguments))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 99
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
