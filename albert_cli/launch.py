"""Run a command as several ranks on this machine (`--nproc`), as `torchrun` does."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory

from albert_cli import console, machine
from albert_cli.errors import Interrupted
from albert_cli.ranks import REPORTED_ERRORS_VARIABLE


def launch(nproc: int, arguments: Sequence[str]) -> int:
    """Run `albert ARGUMENTS` as `nproc` ranks on this machine, and return one exit code for all ranks.

    SIGTERM and Ctrl-C also stop the ranks, which have half a minute to save; the exit code is then that of
    `Interrupted`. See `_combine_exit_codes` for the other exit codes.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Without this variable, torchrun would give each rank one thread and print a warning.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, machine.available_cores() // nproc)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks print their errors themselves
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    with TemporaryDirectory(prefix="albert-", ignore_cleanup_errors=True) as folder:
        os.environ[REPORTED_ERRORS_VARIABLE] = folder
        try:
            elastic_launch(config, sys.executable)("-m", "albert_cli", *arguments)
        except ChildFailedError as error:
            return _combine_exit_codes({rank: failure.exitcode for rank, failure in sorted(error.failures.items())})
        except SignalException:
            return Interrupted.exit_code
    return 0


def _combine_exit_codes(codes: Mapping[int, int]) -> int:
    """Combine the exit codes of the failed ranks, in the order of the ranks, into one.

    A code that shows the cause of the failure goes before a code that is only its consequence:

    1. a code above 1: the rank failed by itself;
    2. 128 plus the number of the signal that killed a rank, except SIGTERM; a warning is printed;
    3. 1: the rank lost the connection to another rank;
    4. 128 plus SIGTERM: the launcher stopped the rank after the failure of another.
    """
    errors = [code for code in codes.values() if code > 1]
    if errors:
        return errors[0]
    killed = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM}
    if killed:
        rank, number = next(iter(killed.items()))
        reason = ", probably because memory ran out" if number == signal.SIGKILL else ""
        console.warn(
            f"rank {rank} was killed by {number.name}{reason}; the same command continues from the last checkpoint"
        )
        return 128 + number
    if 1 in codes.values():
        return 1
    return 128 + signal.SIGTERM
