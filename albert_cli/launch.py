"""Run a command as several ranks on this machine (`--nproc`), as `torchrun` does."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from albert_cli import console, machine, ranks
from albert_cli.errors import Interrupted
from albert_cli.ranks import LAUNCH_FOLDER_VARIABLE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


def launch(nproc: int, arguments: Sequence[str]) -> int:
    """Run `albert ARGUMENTS` as `nproc` ranks on this machine, and return one exit code for all ranks.

    SIGTERM, Ctrl-C and SIGUSR1 also stop the ranks, which have four minutes to save. See `_exit_code_after_signal` and
    `_combine_exit_codes` for the exit codes.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Without this variable, torchrun would give each rank one thread and print a warning.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, machine.available_cores() // nproc)))
    # The seconds that the ranks have to save after a signal; torch kills them after 30 by default.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "240")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks print their errors themselves
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        # By default, torch creates a folder for the logs of each launch and never removes it.
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        # The signals at which the ranks save. SIGHUP is not one of them: `nohup` sets the launcher to ignore it, and a
        # handler of torch would undo this.
        signals_to_handle="SIGTERM,SIGINT,SIGUSR1",
    )
    with TemporaryDirectory(prefix="albert-", ignore_cleanup_errors=True) as folder:
        os.environ[LAUNCH_FOLDER_VARIABLE] = folder
        try:
            elastic_launch(config, sys.executable)("-m", "albert_cli", *arguments)
        except ChildFailedError as error:
            return _combine_exit_codes(error.failures)
        except SignalException as signaled:
            return _exit_code_after_signal(ranks.recorded_exit_codes(Path(folder)), signaled.sigval)
    return 0


def _exit_code_after_signal(codes: Mapping[int, int], number: int) -> int:
    """Return the exit code for all ranks after the signal with this number stopped them.

    codes: the recorded exit codes, in the order of the ranks; those of killed ranks are missing. The first code that
    reports an error of a rank goes before rank 0's code. Only rank 0 saves, so if it was killed, nothing was saved.
    """
    errors = [code for code in codes.values() if code > 1 and code != Interrupted.exit_code]
    if errors:
        return errors[0]
    return codes.get(0, 128 + number)


def _combine_exit_codes(failures: Mapping[int, ProcessFailure]) -> int:
    """Combine the exit codes of the failed ranks into one.

    A code that shows the cause of the failure goes before a code that is only its consequence:

    1. a code above 1: the rank failed by itself;
    2. 128 plus the number of the signal that killed the first rank that failed, except SIGTERM; a warning is printed;
    3. 1: the rank lost the connection to another rank;
    4. 128 plus SIGTERM: the launcher stopped the rank after the failure of another.
    """
    in_order = sorted(failures.items())
    errors = [failure.exitcode for _, failure in in_order if failure.exitcode > 1]
    if errors:
        return errors[0]
    # The launcher kills ranks that wait for a failed rank, so a later signal is no cause.
    first = min(failure.timestamp for failure in failures.values())
    for rank, failure in in_order:
        number = -failure.exitcode
        if number > 0 and number != signal.SIGTERM and failure.timestamp == first:
            name = signal.Signals(number).name
            reason = ", probably because memory ran out" if number == signal.SIGKILL else ""
            console.warn(
                f"rank {rank} was killed by {name}{reason}; the same command continues from the last checkpoint"
            )
            return 128 + number
    if any(failure.exitcode == 1 for failure in failures.values()):
        return 1
    return 128 + signal.SIGTERM
