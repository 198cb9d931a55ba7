"""The ranks of a run: one process, or those that `torchrun` started.

A batch is a function of seed and step alone, so a run may change its number of ranks between two starts.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from albert_cli.errors import AlbertError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_SECONDS_FOR_FAILING_RANK = 5.0
_SECONDS_FOR_SIGN_OF_LIFE = 2.0
# The others wait while rank 0 verifies data, measures, evaluates or saves.
_TIMEOUT = timedelta(hours=1)
# The folder that the ranks of a launch share, with a mark for each error that one of them has printed.
REPORTED_ERRORS = "ALBERT_PRINTED_ERRORS"


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
class RankGroup:
    """The ranks of a run and the few collectives that training needs; all are no-ops for one process."""

    rank: int = 0
    world_size: int = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the ranks, in place."""
        if self.world_size > 1:
            _collectives().all_reduce(tensor)
        return tensor

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            _collectives().all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        values = [value]
        if self.world_size > 1:
            _collectives().broadcast_object_list(values, src=0)
        return values[0]

    def broadcast_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        """Rank 0's values in these tensors, on every rank, in place."""
        for tensor in tensors if self.world_size > 1 else ():
            _collectives().broadcast(tensor.detach(), src=0)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            _collectives().barrier()


def _collectives() -> Any:
    import torch.distributed as dist  # late: a verb without ranks needs no torch

    return dist


def local_rank() -> int:
    """Which of this machine's GPUs is this process's."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Hand these signals to `handler` while the block runs, in the main thread; in others they stay as they are."""
    before = {}
    with suppress(ValueError):  # not in the main thread, whose caller handles them
        before = {number: signal.signal(number, handler) for number in dict.fromkeys(numbers)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def process_group(device_type: str) -> Iterator[RankGroup]:
    """Join the ranks that the environment names (NCCL on GPUs, gloo elsewhere), and leave them at the end."""
    if world_size() == 1:
        yield RankGroup()
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    device = torch.device("cuda", local_rank()) if device_type == "cuda" else None
    if device is not None:
        torch.cuda.set_device(device)
    if _is_launched():
        _exit_after(_wait_for_launcher_exit)
    try:
        # With its device known NCCL connects at once, and what is wrong is said here and not at the first sum.
        backend = "nccl" if device is not None else "gloo"
        store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
        # `torchrun` keeps one store when it starts the ranks again: without a name of this attempt a rank would read
        # where its peer of the attempt before listened, and both could wait for the other to connect.
        store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        dist.init_process_group(
            backend, store=store, rank=rank(), world_size=world_size(), timeout=_TIMEOUT, device_id=device
        )
        yield RankGroup(rank(), world_size())
    except RuntimeError as error:
        # gloo's errors (closed, reset, timed out) are known by the file that they name alone.
        if "/gloo/" not in str(error) and not isinstance(error, dist.DistError):
            raise
        gone = _find_missing_ranks()
        _wait_for_failing_rank()
        raise AlbertError(
            f"rank {rank()}: lost the connection to another rank; no sign of life from {gone}",
            "its own message says why, or it was killed; the same command goes on from the last checkpoint",
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _find_missing_ranks() -> str:
    """Which ranks have left: those that left no note in the group's store, which rank 0 or the launcher holds."""
    import torch.distributed as dist

    try:
        notes = dist.distributed_c10d._get_default_store()
        notes.set(f"albert/here/{rank()}", "")
        time.sleep(_SECONDS_FOR_SIGN_OF_LIFE)
        gone = [str(r) for r in range(world_size()) if not notes.check([f"albert/here/{r}"])]
    except (RuntimeError, ValueError):  # the store went with rank 0
        gone = ["0"]
    return f"rank {', '.join(gone)}" if gone else "one that has come back"


def _wait_for_failing_rank() -> None:
    """Under `torchrun`, sleep, so that it sees the failing rank exit first and returns that rank's code.

    A rank closes its connections before it ends, and the others would overtake it on their way out.
    """
    if _is_launched():
        time.sleep(_SECONDS_FOR_FAILING_RANK)


def is_already_reported(text: str, *, is_fatal: bool) -> bool:
    """Whether another rank of `launch` has this message in hand, so that one line is printed for all.

    `is_fatal`: it is an error, so the launcher ends this rank once the other has exited. A rank that is still alive
    after waiting for that answers no: the other was ended too, perhaps before it could print.
    """
    folder = os.environ.get(REPORTED_ERRORS)
    if folder is None:
        return False
    try:
        (Path(folder) / hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()).mkdir()
    except FileExistsError:
        if is_fatal:
            _wait_for_failing_rank()
        return not is_fatal
    except OSError:
        return False
    return False


def _is_launched() -> bool:
    """Whether `torchrun`, or `albert` with `--nproc`, has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _wait_for_launcher_exit() -> None:
    """Return once the launcher has ended: a killed one cannot end its ranks, and they would block a new start."""
    launcher = os.getppid()
    while os.getppid() == launcher:
        time.sleep(1)


def exit_with_parent() -> None:
    """End this worker of `multiprocessing` when its parent ends: one whose parent was killed would wait forever."""
    import multiprocessing

    if parent := multiprocessing.parent_process():
        _exit_after(parent.join)


def _exit_after(wait: Callable[[], object]) -> None:
    def follow() -> None:
        wait()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
