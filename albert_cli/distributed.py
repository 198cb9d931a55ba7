"""The process group of a run: one process, or the ranks that `torchrun` started.

Nothing here is keyed to a rank except which micro-batches it computes, so a run may change its world
size between two starts (DESIGN promise: a batch is a function of seed and step).
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from albert_cli.errors import AlbertError, Interrupted

if TYPE_CHECKING:
    import torch

_SECONDS_FOR_THE_CAUSE = 5.0
_SAID = "ALBERT_SAID"  # names a folder that the ranks of a launch share, with a mark for each error that one has said


def rank() -> int:
    """This process's rank, from the environment that `torchrun` sets; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes of the run; 1 without `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process prints and writes."""
    return rank() == 0


@dataclass(frozen=True)
class Group:
    """The ranks of a run and the few collectives that training needs; all are no-ops for one process."""

    rank: int = 0
    world_size: int = 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the ranks, in place."""
        if self.world_size > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        """Each number summed over the ranks, in float64."""
        return list(values) if self.world_size == 1 else self.sum(_exchangeable(values)).tolist()

    def gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank; as many on each."""
        slots = [0.0] * len(values) * self.world_size
        slots[self.rank * len(values) : (self.rank + 1) * len(values)] = values
        flat = self.sum_numbers(slots)
        return [flat[r * len(values) : (r + 1) * len(values)] for r in range(self.world_size)]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank."""
        return self.sum_numbers([float(flag)])[0] > 0

    def broadcast(self, value: float) -> float:
        """Rank 0's value, on every rank."""
        return self.broadcast_numbers([value])[0]

    def broadcast_numbers(self, values: Sequence[float]) -> list[float]:
        """Rank 0's values, on every rank; as many on each."""
        if self.world_size == 1:
            return list(values)
        import torch.distributed as dist

        numbers = _exchangeable(values)
        dist.broadcast(numbers, src=0)
        return numbers.tolist()

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Rank 0's values in these tensors, on every rank, in place."""
        if self.world_size == 1:
            return
        import torch.distributed as dist

        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            import torch.distributed as dist

            dist.barrier()


def _exchangeable(values: Sequence[float]) -> torch.Tensor:
    """Numbers as float64 where the process group can reach them: NCCL on the GPU, gloo in memory."""
    import torch
    import torch.distributed as dist

    return torch.tensor(values, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")


def local_rank() -> int:
    """Which of this machine's GPUs is this process's."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def process_group(device_type: str) -> Iterator[Group]:
    """Join the ranks that the environment names (NCCL on GPUs, gloo elsewhere), and leave them at the end."""
    if world_size() == 1:
        yield Group()
        return
    import torch
    import torch.distributed as dist

    if device_type == "cuda":
        torch.cuda.set_device(local_rank())
    if _is_launched():
        _end_after(_launcher_is_gone)
    try:
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
        yield Group(rank(), world_size())
    except RuntimeError as error:
        # gloo's errors (closed, reset, timed out) are known by the file that they name alone.
        if "/gloo/" not in str(error) and not isinstance(error, dist.DistError):
            raise
        _let_the_cause_end_first()
        raise AlbertError(
            f"rank {rank()}: lost the connection to another rank",
            "its own message says why, or it was killed; the same command goes on from the last checkpoint",
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _let_the_cause_end_first() -> None:
    """Under `torchrun`, wait to be ended: it takes the first rank to end for the one that failed, and tells its code.

    A rank closes its connections before it ends, and the others would overtake it on their way out.
    """
    if _is_launched():
        time.sleep(_SECONDS_FOR_THE_CAUSE)


def another_says(text: str, *, and_ends_us: bool) -> bool:
    """Whether another rank of `launch` says the same: one line is enough for all.

    `and_ends_us`: it is an error, so that the launcher ends this rank as soon as the other has ended. Where that does
    not happen the other may not have come to say it, and this one should.
    """
    folder = os.environ.get(_SAID)
    if folder is None:
        return False
    try:
        (Path(folder) / hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()).mkdir()
    except FileExistsError:
        if and_ends_us:
            _let_the_cause_end_first()
        return not and_ends_us
    except OSError:
        return False
    return False


def _is_launched() -> bool:
    """Whether `torchrun`, or `launch` below, has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _launcher_is_gone() -> None:
    """Return when the launcher is: killed, it cannot end its ranks, and they would hold the run against a new start."""
    launcher = os.getppid()
    while os.getppid() == launcher:
        time.sleep(1)


def launch(nproc: int, arguments: Sequence[str]) -> int:
    """Run `albert ARGUMENTS` as `nproc` ranks on this machine, as `torchrun` does; return the exit code.

    It is that of the lowest rank that failed of its own accord, or 128 and the signal's number where one was killed.
    Asked to stop (SIGTERM, Ctrl-C), the ranks are too, and have half a minute to save.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # torchrun would set one thread a rank and warn about it; share the cores instead.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks say what is wrong
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
        os.environ[_SAID] = folder
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
    from albert_cli import console  # which asks this module who may speak

    rank, number = next(iter(killed.items()))
    reason = ", as the system does where memory is short" if number == signal.SIGKILL else ""
    console.warn(f"rank {rank} was killed by {number.name}{reason}; the same command goes on from the last checkpoint")
    return 128 + number


def end_with_parent() -> None:
    """End this worker of `multiprocessing` when its parent ends: one whose parent was killed would wait for ever."""
    import multiprocessing

    if parent := multiprocessing.parent_process():
        _end_after(parent.join)


def end_with_stdin() -> None:
    """End this process when the pipe that is its stdin closes, as it does when the parent that holds it is killed."""
    _end_after(lambda: os.read(0, 1))


def _end_after(wait: Callable[[], object]) -> None:
    def follow() -> None:
        wait()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
