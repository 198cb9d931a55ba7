"""`--nproc`: several ranks on this machine, as `torchrun` starts them."""

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
    """Run `albert ARGUMENTS` as `nproc` ranks on this machine, as `torchrun` does; return the exit code.

    It is that of the lowest rank that failed of its own accord, or 128 and the signal's number where one was killed.
    Asked to stop (SIGTERM, Ctrl-C), the ranks are too, and have half a minute to save.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # torchrun would set one thread a rank and warn about it; share the cores instead.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, machine.available_cores() // nproc)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks print what is wrong
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
            return _exit_code({rank: failure.exitcode for rank, failure in sorted(error.failures.items())})
        except SignalException:
            return Interrupted.exit_code
    return 0


def _exit_code(codes: Mapping[int, int]) -> int:
    """What the ranks' failures amount to; one that was killed is named, since it can say nothing itself.

    A rank that ends with 1 may do so only for want of another, and SIGTERM is the launcher's own.
    """
    errors = [code for code in codes.values() if code > 1]
    killed = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM}
    if errors or not killed:
        return next(iter(errors), 1 if 1 in codes.values() else 128 + signal.SIGTERM)
    rank, number = next(iter(killed.items()))
    reason = ", as the system does where memory is short" if number == signal.SIGKILL else ""
    console.warn(f"rank {rank} was killed by {number.name}{reason}; the same command goes on from the last checkpoint")
    return 128 + number
