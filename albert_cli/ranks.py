"""The ranks of a run: one process, or several that `torchrun` started.

A batch is a function of seed and step alone, so a run may change its number of ranks between two starts.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
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
# Other ranks wait while rank 0 verifies data, measures, evaluates or saves.
_TIMEOUT = timedelta(hours=1)
# Environment variable: seconds without a sign of life after which a rank gives up its neighbor.
PEER_TIMEOUT = "ALBERT_PEER_TIMEOUT"
_DEFAULT_PEER_TIMEOUT = 180.0
_BEATS_BEFORE_SILENCE = 12
# Environment variable: the folder, shared by the ranks of a launch, with a mark for each printed error.
REPORTED_ERRORS = "ALBERT_PRINTED_ERRORS"


def rank() -> int:
    """Return this process's rank, from the environment that `torchrun` sets; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes of the run; 1 without `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return True if this process prints and writes."""
    return rank() == 0


@dataclass(frozen=True)
class RankGroup:
    """A run's ranks and the few collectives of training; all are no-ops for one process."""

    rank: int = 0
    world_size: int = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the ranks, in place."""
        if self.world_size > 1:
            _collectives().all_reduce(tensor)
        return tensor

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            _collectives().all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        values = [value]
        if self.world_size > 1:
            _collectives().broadcast_object_list(values, src=0)
        return values[0]

    def broadcast_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy rank 0's values of these tensors to every rank, in place."""
        if self.world_size > 1:
            for tensor in tensors:
                _collectives().broadcast(tensor.detach(), src=0)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            _collectives().barrier()


def _collectives() -> Any:
    import torch.distributed as dist  # late: a command without ranks needs no torch

    return dist


def local_rank() -> int:
    """Return the index of this process's GPU on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle these signals by `handler` while the block runs; do nothing in a thread other than the main one."""
    previous = {}
    with suppress(ValueError):  # not the main thread: its caller handles signals
        previous = {number: signal.signal(number, handler) for number in dict.fromkeys(numbers)}
    try:
        yield
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)


@contextmanager
def process_group(device_type: str) -> Iterator[RankGroup]:
    """Join the process group of the environment (NCCL on GPUs, gloo elsewhere), and leave it at the end."""
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
        # With a device NCCL connects at once, so that an error is raised here and not by the first all-reduce.
        backend = "nccl" if device is not None else "gloo"
        store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # The agent's store outlives the ranks. Without a prefix a restarted rank would read the address at which
            # its peer of the last attempt listened. Agents of several nodes count attempts separately, so on
            # several nodes the user sets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and each attempt has a new store.
            store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        dist.init_process_group(
            backend, store=store, rank=rank(), world_size=world_size(), timeout=_TIMEOUT, device_id=device
        )
        with _heartbeat(store.clone()):
            yield RankGroup(rank(), world_size())
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors (closed, reset, timed out); only the path of its source in the text tells.
        if "/gloo/" not in str(error) and not isinstance(error, dist.DistError):
            raise
        missing = _find_missing_ranks()
        _wait_for_failing_rank()
        raise AlbertError(
            f"rank {rank()}: lost the connection to another rank{missing}",
            "see its own message, or it was killed; the same command continues from the last checkpoint",
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _heartbeat(store: Any) -> Iterator[None]:
    """Exit this process if the next rank, or the store, is silent for `PEER_TIMEOUT` seconds while the block runs.

    A machine that loses power or its network closes no connection; the collectives would wait for it for an hour.
    """
    limit = float(os.environ.get(PEER_TIMEOUT, _DEFAULT_PEER_TIMEOUT))
    interval = limit / _BEATS_BEFORE_SILENCE
    peer = (rank() + 1) % world_size()
    last_beat = ""
    rounds_of_silence = 0  # rounds, not seconds: this process may itself have been paused
    is_done = threading.Event()

    def beat() -> None:
        nonlocal last_beat, rounds_of_silence
        count = 0
        with suppress(RuntimeError):  # the store ended with rank 0, which the collectives report
            while not is_done.wait(interval):
                count += 1
                store.set(f"albert/beat/{rank()}", str(count))
                key = f"albert/beat/{peer}"
                current = store.get(key).decode() if store.check([key]) else ""
                if current != last_beat:
                    last_beat = current
                    rounds_of_silence = 0

    # In a thread of its own, because a call of the store blocks `beat` if the machine of rank 0 is gone.
    def watch() -> None:
        nonlocal rounds_of_silence
        while not is_done.wait(interval):
            rounds_of_silence += 1
            if rounds_of_silence > _BEATS_BEFORE_SILENCE:
                message = f"error: rank {rank()}: no sign of life from rank {peer} for {limit:.0f} s"
                hint = "hint: check its machine; the same command continues from the last checkpoint"
                print(f"{message}\n{hint}", file=sys.stderr, flush=True)
                os._exit(1)

    for target in (beat, watch):
        threading.Thread(target=target, daemon=True).start()
    try:
        yield
    finally:
        is_done.set()


def _find_missing_ranks() -> str:
    """Return the end of a sentence on the ranks that leave no note in the group's store."""
    import torch.distributed as dist

    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"albert/alive/{rank()}", "")
        time.sleep(_SECONDS_FOR_SIGN_OF_LIFE)
        missing = [str(r) for r in range(world_size()) if not store.check([f"albert/alive/{r}"])]
    except (RuntimeError, ValueError):  # the store ended with rank 0
        missing = ["0"]
    return f"; no sign of life from rank {', '.join(missing)}" if missing else ", which answers again"


def _wait_for_failing_rank() -> None:
    """Sleep under `torchrun`, so that it sees the failing rank exit first and returns that rank's code.

    A rank closes its connections before it exits, and without the delay the others would exit before it.
    """
    if _is_launched():
        time.sleep(_SECONDS_FOR_FAILING_RANK)


def is_already_reported(text: str, *, is_fatal: bool) -> bool:
    """Return True if another rank of `launch` prints this message, so that it is printed once for all.

    is_fatal: the message is an error, so the launcher stops this rank once the other one has exited. A rank that is
    still alive after waiting for that returns False: the other rank may have been stopped before it could print.
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
    """Return True if `torchrun`, or `albert` with `--nproc`, has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _wait_for_launcher_exit() -> None:
    """Return once the launcher has exited: a killed launcher cannot stop its ranks, which would block a restart."""
    launcher = os.getppid()
    while os.getppid() == launcher:
        time.sleep(1)


def exit_with_parent() -> None:
    """Exit this worker of `multiprocessing` when its parent exits: else it would wait forever after a `kill -9`."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        _exit_after(parent.join)


def _exit_after(wait: Callable[[], object]) -> None:
    """Exit this process once `wait`, called in a thread, returns."""

    def wait_and_exit() -> None:
        wait()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()
