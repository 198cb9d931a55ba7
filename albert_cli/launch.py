"""`--nproc`: start several ranks on this machine, as `torchrun` does."""

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
from albert_cli.ranks import REPORTED_ERRORS


def launch(nproc: int, arguments: Sequence[str]) -> int:
    """Run `albert ARGUMENTS` as `nproc` ranks on this machine; return the exit code.

    It is the code of the lowest rank that failed by itself, or 128 plus the signal's number if one was killed. On
    SIGTERM and Ctrl-C the ranks are stopped too, and have half a minute to save.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # torchrun would set one thread per rank and warn about it; share the cores instead.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, machine.available_cores() // nproc)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks print their errors
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
        os.environ[REPORTED_ERRORS] = folder
        try:
            elastic_launch(config, sys.executable)("-m", "albert_cli", *arguments)
        except ChildFailedError as error:
            return _combine_exit_codes({rank: failure.exitcode for rank, failure in sorted(error.failures.items())})
        except SignalException:
            return Interrupted.exit_code
    return 0


def _combine_exit_codes(codes: Mapping[int, int]) -> int:
    """Combine the exit codes by rank into one; print a message for a rank killed by a signal.

    A rank may end with 1 only because another is missing, and SIGTERM comes from the launcher itself.
    """
    errors = [code for code in codes.values() if code > 1]
    if errors:
        return errors[0]
    killed = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM}
    if not killed:
        return 1 if 1 in codes.values() else 128 + signal.SIGTERM
    rank, number = next(iter(killed.items()))
    reason = ", probably because memory ran out" if number == signal.SIGKILL else ""
    console.warn(
        f"rank {rank} was killed by {number.name}{reason}; the same command continues from the last checkpoint"
    )
    return 128 + number
