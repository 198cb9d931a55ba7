"""Coordinate the ranks of a run: its only process, or the processes that `torchrun` or `--nproc` has started.

A batch is a function of seed and step alone, so a run may resume with another number of ranks. If a rank fails or its
machine is lost, the other ranks end, too, with a message; the same command continues from the last checkpoint.
"""

from __future__ import annotations

import hashlib
import math
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

from albert_cli.errors import AlbertError, ConfigError, DivergedError, Interrupted

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_SECONDS_FOR_FAILING_RANK = 5.0  # the time in which a rank that fails can exit before the others
_SECONDS_FOR_SIGN_OF_LIFE = 2.0  # after a lost connection, the time in which every rank that is alive reports itself
# Timeout of a collective, in which the other ranks wait while rank 0 verifies data, measures, evaluates or saves.
_TIMEOUT = timedelta(hours=1)
# The environment variable with the number of seconds after which a rank exits if the next rank sends no heartbeat.
PEER_TIMEOUT_VARIABLE = "ALBERT_PEER_TIMEOUT"
_BEATS_PER_TIMEOUT = 12
_LOSS_KEY = "albert/lost"  # in the store: the message of a rank whose next rank is silent
# The environment variable with a folder that the ranks of a launch share: it has a folder for each printed error, and a
# file with the exit code of each rank that has ended by itself.
LAUNCH_FOLDER_VARIABLE = "ALBERT_LAUNCH_FOLDER"


def rank() -> int:
    """Return this process's rank, from the environment that `torchrun` sets; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes of the run; 1 without `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return True for rank 0, the only process that prints and writes."""
    return rank() == 0


def require_one_process(work: str, hint: str) -> None:
    """Raise `ConfigError` if this process is one of several ranks, for work whose ranks would all do the same.

    work: the beginning of the message, such as "fine-tuning".
    """
    if world_size() > 1:
        raise ConfigError(f"{work} runs in one process, but WORLD_SIZE={world_size()} is set, as by torchrun", hint)


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a run, and the collectives that training needs; they do nothing if there is one process."""

    rank: int = 0
    world_size: int = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the ranks, in place, and return it."""
        if self.world_size > 1:
            _collectives().all_reduce(tensor)
        return tensor

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks, on every rank."""
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
    import torch.distributed as dist  # imported late, because a command without several ranks needs no torch

    return dist


def local_rank() -> int:
    """Return the index of this process's GPU on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call `handler` for the signals with these numbers while the block runs.

    Only the main thread can handle signals. In another thread, this function does nothing.
    """
    previous_handlers = {}
    with suppress(ValueError):  # raised outside the main thread
        # `set`: the second call for a repeated number would return `handler` as the previous handler.
        previous_handlers = {number: signal.signal(number, handler) for number in set(numbers)}
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)


@contextmanager
def process_group(device_type: str) -> Iterator[RankGroup]:
    """Join the process group that `torchrun`'s environment describes, and leave it after the block.

    The backend is NCCL on GPUs and gloo elsewhere. Raises `AlbertError` if NCCL cannot connect the ranks or the
    connection to another rank is lost, and `ConfigError` if `ALBERT_PEER_TIMEOUT` is not a positive, finite number.
    """
    if world_size() == 1:
        yield RankGroup()
        return
    peer_timeout = _read_peer_timeout()
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    backend = "gloo"
    device = None
    if device_type == "cuda":
        backend = "nccl"
        device = torch.device("cuda", local_rank())
        torch.cuda.set_device(device)
    if _is_launched():
        _exit_after(_wait_for_launcher_exit)
    # gloo's connections can be closed at any time. NCCL destroys a group only when all ranks do so: a rank that fails
    # alone would wait for the others before its error is printed, and the others wait for its next collective.
    may_destroy = backend == "gloo"
    try:
        store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # The store of torchrun's agent outlives the ranks. Without a prefix, a restarted rank would read the
            # address of a rank of the previous attempt. The number of the attempt is the same on all ranks of a node,
            # but not on all nodes. With several nodes the user therefore sets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1:
            # each attempt then has a new store, and this block does not run.
            store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        # With a device, NCCL connects here, so that a failure shows now and not at the first all-reduce.
        dist.init_process_group(
            backend, store=store, rank=rank(), world_size=world_size(), timeout=_TIMEOUT, device_id=device
        )
        with _heartbeat(store.clone(), peer_timeout):
            yield RankGroup(rank(), world_size())
        may_destroy = True
    except (Interrupted, DivergedError):  # all ranks raise these at the same step
        may_destroy = True
        raise
    except RuntimeError as error:
        # Errors of gloo are plain RuntimeErrors. Only the path of gloo's source code in their text identifies them.
        if "/gloo/" not in str(error) and not isinstance(error, dist.DistError):
            raise
        raise _explain_connection_error(str(error), has_joined=dist.is_initialized()) from error
    finally:
        if may_destroy and dist.is_initialized():
            dist.destroy_process_group()


def _explain_connection_error(text: str, *, has_joined: bool) -> AlbertError:
    """Convert torch's message `text` into an error for the user.

    Without NCCL's cause, or if this rank had joined the process group (`has_joined`), a connection was lost. Then look
    for missing ranks first, which takes seconds.
    """
    _, _, nccl_cause = text.partition("Last error:")  # errors of the store, such as a lost rank 0, have no such part
    if nccl_cause and not has_joined:
        return AlbertError(
            f"rank {rank()}: NCCL cannot connect the ranks: {' '.join(nccl_cause.split())}",
            "set NCCL_DEBUG=INFO; check the size of /dev/shm (docker run --shm-size) and NCCL_SOCKET_IFNAME",
        )
    missing_ranks = _find_missing_ranks()
    _wait_for_failing_rank()
    return AlbertError(
        f"rank {rank()}: lost the connection to another rank{missing_ranks}",
        "see the other rank's message; without a message it was killed; "
        "the same command continues from the last checkpoint",
    )


def _read_peer_timeout() -> float:
    """Return the value of `ALBERT_PEER_TIMEOUT` in seconds; raise `ConfigError` if it is not a positive number."""
    text = os.environ.get(PEER_TIMEOUT_VARIABLE, "180")
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds < math.inf:
            return seconds
    message = f"{PEER_TIMEOUT_VARIABLE}={text}: not a positive, finite number"
    raise ConfigError(message, "set it to a number of seconds, such as 180")


@contextmanager
def _heartbeat(store: Any, timeout: float) -> Iterator[None]:
    """Send heartbeats while the block runs, and exit this process if the heartbeats of any rank stop.

    Each rank writes a count to the store at regular intervals and reads the count of the next rank. If the next rank's
    count does not change, or the store does not answer, for `timeout` seconds, the rank reports this to the others
    through the store, and all exit. Without this, the collectives would wait for `_TIMEOUT` if a machine loses power or
    its network, because it closes no connection.
    """
    interval = timeout / _BEATS_PER_TIMEOUT
    peer = (rank() + 1) % world_size()
    peer_key = f"albert/beat/{peer}"
    last_peer_count = ""
    silent_intervals = 0  # not seconds: while this process is paused, time passes, but it counts no intervals
    is_done = threading.Event()

    def exchange_beats() -> None:
        nonlocal last_peer_count, silent_intervals
        count = 0
        with suppress(RuntimeError):  # the store has ended with rank 0, which the collectives report
            while not is_done.wait(interval):
                count += 1
                store.set(f"albert/beat/{rank()}", str(count))
                peer_count = store.get(peer_key).decode() if store.check([peer_key]) else ""
                if peer_count != last_peer_count:
                    last_peer_count = peer_count
                    silent_intervals = 0
                if store.check([_LOSS_KEY]) and not is_done.is_set():
                    _print_loss(f"stopped by {store.get(_LOSS_KEY).decode()}")
                    os._exit(1)

    def report_loss(text: str) -> None:
        with suppress(RuntimeError):  # the store has ended with rank 0
            store.set(_LOSS_KEY, f"rank {rank()}: {text}")

    # This is a separate thread, because a call of the store blocks `exchange_beats` if rank 0's machine is lost.
    def count_silence() -> None:
        nonlocal silent_intervals
        while not is_done.wait(interval):
            silent_intervals += 1
            if silent_intervals > _BEATS_PER_TIMEOUT:
                text = f"no sign of life from rank {peer} for {timeout:.0f} s"
                is_done.set()  # ends `exchange_beats`, which would read this rank's own report
                _print_loss(text)
                report = threading.Thread(target=report_loss, args=(text,), daemon=True)
                report.start()
                report.join(_SECONDS_FOR_FAILING_RANK)  # not longer, because the store may be lost
                if rank() == 0:  # the store may end with this rank: let the others read the report first
                    time.sleep(3 * interval)
                os._exit(1)

    for target in (exchange_beats, count_silence):
        threading.Thread(target=target, daemon=True).start()
    try:
        yield
    finally:
        is_done.set()


def _print_loss(text: str) -> None:
    """Print why this rank exits, in the form of an error of `albert`."""
    hint = "check that rank's machine; the same command continues from the last checkpoint"
    print(f"error: rank {rank()}: {text}\nhint: {hint}", file=sys.stderr, flush=True)


def _find_missing_ranks() -> str:
    """Find the ranks that are no longer alive; return them as the end of the message about a lost connection.

    Every rank that loses the connection writes a key to the store of the process group, waits for a short time, and
    then reads the keys of the other ranks.
    """
    import torch.distributed as dist

    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"albert/alive/{rank()}", "")
        time.sleep(_SECONDS_FOR_SIGN_OF_LIFE)
        missing = [str(r) for r in range(world_size()) if not store.check([f"albert/alive/{r}"])]
    except (RuntimeError, ValueError):  # the store has ended with rank 0
        missing = ["0"]
    if not missing:
        return ", which answers again"
    return f"; no sign of life from rank {', '.join(missing)}"


def _wait_for_failing_rank() -> None:
    """Sleep under `torchrun`, so that the failing rank exits first and `torchrun` returns its exit code.

    A failing rank closes its connections before or when it exits. Without the delay, a rank that has only lost its
    connection could exit first.
    """
    if _is_launched():
        time.sleep(_SECONDS_FOR_FAILING_RANK)


def claim_report(text: str, *, is_fatal: bool) -> bool:
    """Claim the printing of a message for this rank; return False if this rank must not print it.

    The first rank of the launch that claims a message prints it. For a message that is not fatal, the other ranks
    return False. For a fatal error they wait first, because the launcher normally stops them in this time. A rank that
    is still alive then returns True, because the claiming rank may have been killed before it printed the message.
    """
    folder = os.environ.get(LAUNCH_FOLDER_VARIABLE)
    if folder is None:  # not started by the launcher
        return True
    name = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    try:
        (Path(folder) / name).mkdir()  # succeeds for one rank only
    except FileExistsError:
        if not is_fatal:
            return False
        _wait_for_failing_rank()
    except OSError:  # such as a full disk: print the message on every rank
        pass
    return True


def record_exit_code(code: int) -> None:
    """Record this rank's exit code for the launcher, to which torch reports no exit codes after a signal."""
    folder = os.environ.get(LAUNCH_FOLDER_VARIABLE)
    if folder is not None and _is_launched():
        with suppress(OSError):  # such as a full disk: the rank counts as killed
            (Path(folder) / f"{rank()}.exit").write_text(str(code))


def recorded_exit_codes(folder: Path) -> dict[int, int]:
    """Return the exit codes by rank, in the order of the ranks; ranks that were killed have none."""
    files = {int(path.stem): path for path in folder.glob("*.exit")}
    # A file is empty if its rank was killed, or the disk was full, before the code was written.
    texts = {number: files[number].read_text() for number in sorted(files)}
    return {number: int(text) for number, text in texts.items() if text}


def _is_launched() -> bool:
    """Return True if `torchrun`, or `albert` with `--nproc`, has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _wait_for_launcher_exit() -> None:
    """Wait until the launcher has exited; a launcher that is killed does not stop its ranks."""
    launcher = os.getppid()
    while os.getppid() == launcher:
        time.sleep(1)


def exit_with_parent() -> None:
    """Make this worker of `multiprocessing` exit with its parent; it would wait forever if the parent were killed."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        _exit_after(parent.join)


def _exit_after(wait: Callable[[], object]) -> None:
    """Call `wait` in a thread, and exit this process when it returns."""

    def wait_and_exit() -> None:
        wait()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()
