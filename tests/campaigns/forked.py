"""Commands in children of this process, which has imported and used everything once: a child costs some milliseconds.

A crash, a limit of the system or a kill ends the child alone.
"""

from __future__ import annotations

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

SECONDS = 60  # of processor time; ten times what the slowest command takes; after half of it a child is asked to stop
MEMORY = 3 << 30  # bytes of address space beyond what this process has


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit code (negative: the signal), its output, its time and memory."""

    code: int
    out: str
    err: str
    seconds: float  # of processor time
    memory: int  # bytes at its peak, what it shares with this process included

    @property
    def error(self) -> str:
        """The line that says what went wrong."""
        return next((line for line in reversed(self.err.splitlines()) if line.startswith("error:")), "")


def run(words: Sequence[str], folder: Path, logs: Path, before: Callable[[], object] | None = None) -> Ended:
    """Run `albert WORDS` in the folder; its streams go to `logs`.out and `logs`.err."""
    return wait(start(words, folder, logs, before), logs)


def start(words: Sequence[str], folder: Path, logs: Path, before: Callable[[], object] | None = None) -> int:
    """Start it; `before` is called first in the child. Returns its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _become(words, folder, logs, before)
    return child


def wait(child: int, logs: Path) -> Ended:
    """Wait for its end."""
    deadline = time.monotonic() + 10 * SECONDS
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:  # it sleeps, for what takes processor time is ended by its limit
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    out, err = (logs.with_suffix(end).read_text(encoding="utf-8", errors="replace") for end in (".out", ".err"))
    return Ended(code, out, err, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def _ask_to_stop(*_: object) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # it comes every second from now on
    signal.raise_signal(signal.SIGTERM)


def _become(words: Sequence[str], folder: Path, logs: Path, before: Callable[[], object] | None) -> NoReturn:
    code = 99
    try:
        for number, end in ((1, ".out"), (2, ".err")):
            descriptor = os.open(logs.with_suffix(end), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # as Python opens it
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        signal.signal(signal.SIGXCPU, _ask_to_stop)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS // 2, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        from albert_cli.cli import app

        if before is not None:
            before()
        app(list(words))
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
