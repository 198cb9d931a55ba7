"""Run `albert` commands in processes that a test can kill, forked from a server that has imported the libraries."""

from __future__ import annotations

import io
import multiprocessing.forkserver
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PATIENCE = 1800  # seconds until a process counts as hanging; long, because the machine may be busy
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [f"albert_cli.{name}" for name in ("cli.app", "training.pretrain", "training.finetune", "evaluation.suite")]
    + ["sklearn.feature_extraction.text", "sklearn.linear_model", "sklearn.metrics", "sklearn.model_selection"]
    + ["torch.utils.tensorboard", "albert_cli.launch", "filelock", "tests.helpers.fork_server"]
)
# A process has one fork server, so the pool of `albert`, which also sets this list, must not replace the modules.
multiprocessing.forkserver.set_forkserver_preload = lambda modules: None  # type: ignore[assignment]


@dataclass
class Run:
    """A started command, whose stdout and stderr both go to the file `log`."""

    process: ForkServerProcess
    log: Path

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of the command; return its exit code, or minus the number of the signal that killed it."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running:\n{self.printed_text()}"
        return self.process.exitcode

    def kill(self) -> int:
        """Send SIGKILL; return the exit code."""
        self.process.kill()
        return self.wait()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.terminate()

    def printed_text(self) -> str:
        """Return everything that the command has printed so far."""
        return self.log.read_text(encoding="utf-8")

    def reaches(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> bool:
        """Wait until the condition holds and return True, or False if the command ends first."""
        deadline = time.monotonic() + timeout
        while not condition():
            if not self.process.is_alive():
                return False
            assert time.monotonic() < deadline, f"the condition did not become true:\n{self.printed_text()}"
            time.sleep(0.002)
        return True

    def wait_until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait until the condition holds; assert that the command has not ended before."""
        assert self.reaches(condition, timeout), f"ended with {self.process.exitcode}:\n{self.printed_text()}"


def start(
    log: Path,
    *arguments: object,
    environment: dict[str, str] | None = None,
    run_first: Callable[[], None] | None = None,
) -> Run:
    """Start `albert ARGUMENTS`.

    environment: variables that are added in the new process; run_first: called in the new process before the command.
    """
    process = _CONTEXT.Process(target=_main, args=([str(a) for a in arguments], str(log), environment or {}, run_first))
    log.touch()
    process.start()
    return Run(process, log)


def albert(log: Path, *arguments: object, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `albert ARGUMENTS` to its end; return the exit code and everything that it printed."""
    run = start(log, *arguments, environment=environment)
    return run.wait(), run.printed_text()


def terminate_at_step(number: int) -> None:
    """Let this process send SIGTERM to itself as training begins a step; for `run_first` of `start`."""
    from albert_cli.training.loop import Loop

    original = Loop._step

    def step(self: Loop[Any], micro_batches: Any) -> Any:
        if self.state.step + 1 == number:
            signal.raise_signal(signal.SIGTERM)
        return original(self, micro_batches)

    Loop._step = step  # type: ignore[method-assign]


_ASSIGNED: set[int] = set()  # the ports that `free_port` has returned in this process


def free_port() -> str:
    """Return the number of a port that no process uses; each call returns another one.

    Ten processes of pytest-xdist have different ranges of ports, below those that the system assigns to connections.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    first = 20_000 + 1000 * process
    for port in random.SystemRandom().sample(range(first, first + 1000), 1000):
        if port in _ASSIGNED:
            continue
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            _ASSIGNED.add(port)
            return str(port)
    raise AssertionError("no port is free")


def start_ranks(
    log: Path,
    count: int,
    *arguments: object,
    run_first: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Run]:
    """Start the ranks of one run, as torchrun does; `environment`: variables for all ranks."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(count), **(environment or {})}
    return [
        start(
            log.with_name(f"{log.name}-{rank}"),
            *arguments,
            environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            run_first=run_first,
        )
        for rank in range(count)
    ]


def end(ranks: list[Run]) -> list[int]:
    """Wait for all ranks; return their exit codes."""
    return [rank.wait() for rank in ranks]


def _main(arguments: list[str], log: str, environment: dict[str, str], run_first: Callable[[], None] | None) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", buffering=0), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", buffering=0), encoding="utf-8", write_through=True)
    os.environ.update(environment)
    from albert_cli.cli import main

    if run_first is not None:
        run_first()
    sys.argv = ["albert", *arguments]
    main()
