"""Run work on a Dask cluster (`--cluster`, extra `cluster`): an existing one, or Slurm jobs that this module starts."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from albert_cli import console, ranks
from albert_cli.errors import AlbertError, ConfigError, LockedError
from albert_cli.executor.local import ProcessWatch
from albert_cli.formatting import count_of

T = TypeVar("T")
_SECONDS_BETWEEN_POLLS = 1.0
_SECONDS_FOR_LOCKS = 10.0  # within which the child of a lost worker ends and releases its locks
_DEFAULT_SLURM_JOBS = 4
_SLURM_RESOURCES = {"cores": 1, "processes": 1, "memory": "8GB"}  # of a job, unless Dask's settings define them
# A worker needs this environment variable. Otherwise it is a daemon, from which `run_in_child` cannot start a process.
_WORKERS_MAY_START_PROCESSES = "DASK_DISTRIBUTED__WORKER__DAEMON=False"
_ADDRESS_FORMS = "use tcp://HOST:PORT, HOST:PORT, or slurm:N for N Slurm jobs, with N at least 1"
_INSTALL_HINT = "pip install 'albert-cli[cluster]'"
_clients: list[Any] = []  # Dask's client of each open `use_cluster` block, innermost last


def has_cluster() -> bool:
    """Return True inside a `use_cluster` block with an address."""
    return bool(_clients)


@contextmanager
def use_cluster(address: str | None) -> Iterator[None]:
    """Send all parallel work of the block to a Dask cluster, or leave it on this machine if `address` is None.

    address: the scheduler's address, such as tcp://host:8786, or `slurm:N` to start N Slurm jobs (`slurm`: 4). Dask's
    `jobqueue.slurm` settings define the resources of a job. Raises `ConfigError` if the cluster cannot be used.
    """
    if address is None:
        yield
        return
    try:
        import dask
        from distributed import Client
    except ImportError:
        raise ConfigError("--cluster needs Dask, which is not installed", _INSTALL_HINT) from None
    logging.getLogger("distributed").setLevel(logging.ERROR)
    # The work of a lost worker is repeated once.
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), _start_workers(address) as target:
        try:
            client = Client(target, timeout="30s")
        except (OSError, ValueError) as error:
            message = f"--cluster {address}: no scheduler answers ({error})"
            raise ConfigError(message, f"check the address; {_ADDRESS_FORMS}") from None
        with client:
            workers = count_of(len(client.nthreads()), "worker")
            console.info(f"using the Dask cluster at {client.scheduler.address}, which has {workers} now")
            _clients.append(client)
            try:
                yield
            finally:
                _clients.pop()


@contextmanager
def _start_workers(address: str) -> Iterator[object]:
    """Yield `address` itself, or for `slurm[:N]` a Dask cluster of Slurm jobs that end with the block."""
    match = re.fullmatch(r"slurm(?::([1-9][0-9]*))?", address)
    if match is None:
        is_scheduler = re.fullmatch(r"([\w-]+://)?[^\s/]+:[0-9]+/?", address) is not None
        if not is_scheduler or address.startswith("slurm:"):
            raise ConfigError(f"--cluster {address}: not the address of a scheduler", _ADDRESS_FORMS)
        yield address
        return
    if shutil.which("sbatch") is None:  # Dask would repeat the attempt forever
        message = f"--cluster {address}: this machine has no sbatch"
        raise ConfigError(message, "run the command on a node of the cluster")
    import dask

    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        message = f"--cluster {address} needs dask-jobqueue, which is not installed"
        raise ConfigError(message, _INSTALL_HINT) from None
    configured = dask.config.get("jobqueue.slurm")
    resources = {key: value for key, value in _SLURM_RESOURCES.items() if configured.get(key) is None}
    jobs = int(match[1] or _DEFAULT_SLURM_JOBS)
    with SLURMCluster(
        **resources,
        # With several threads a worker would run several items at a time, which would share its GPU.
        worker_extra_args=[*configured["worker-extra-args"], "--nthreads", "1"],
        job_script_prologue=[*configured["job-script-prologue"], f"export {_WORKERS_MAY_START_PROCESSES}"],
    ) as cluster:
        cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)  # replaces jobs that are lost
        yield cluster


class ClusterExecutor(Executor):
    """Run calls on the workers of a Dask client.

    Unlike Dask's own executor (of distributed 2026.8), it returns a result also if the worker that computed it is lost
    while the result is read.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._dask_futures = WeakSet[Any]()  # weak references, so that Dask can free each result once it is read

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Send a call to the cluster and return a future of its result."""
        # With `pure=True`, Dask would compute equal calls only once and reuse the result.
        dask_future = self._client.submit(call, *args, pure=False, **kwargs)
        self._dask_futures.add(dask_future)
        future = Future[T]()
        self._client.loop.add_callback(self._copy_outcome, dask_future, future)
        return future

    async def _copy_outcome(self, dask_future: Any, future: Future[Any]) -> None:
        """Wait for a call and set its result or exception on `future`; if Dask cancels the call, cancel the future."""
        try:
            future.set_result(await self._client.gather(dask_future, asynchronous=True))
        except CancelledError:
            future.cancel()
            future.set_running_or_notify_cancel()  # wakes whoever waits for the future
        except BaseException as error:
            future.set_exception(error)

    def cancel_unstarted(self) -> None:
        """Cancel the calls that no worker has begun; one that begins at this moment may be canceled, too."""
        unfinished = {future.key: future for future in self._dask_futures if not future.done()}
        with suppress(OSError):  # the scheduler is lost, and Dask cancels everything
            assigned = itertools.chain.from_iterable(self._client.processing().values())
            finished = [key for key, workers in self._client.who_has(list(unfinished.values())).items() if workers]
            for key in (*assigned, *finished):
                unfinished.pop(key, None)
            self._client.cancel(list(unfinished.values()))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel all calls without a result.

        `wait` and `cancel_futures` have no effect, because Dask does not stop a running call.
        """
        self._client.cancel(list(self._dask_futures))


def make_executor() -> ClusterExecutor:
    """Create an executor on the cluster of the innermost open `use_cluster` block."""
    return ClusterExecutor(_clients[-1])


def count_threads() -> int:
    """Return the number of threads of the workers that are now in the cluster; each thread runs an item at a time."""
    return sum(_clients[-1].nthreads().values())


def bind_command_context(call: Callable[..., T]) -> Callable[..., T]:
    """Return a function that calls `call` on a worker in this process's working directory and with its `sys.argv`.

    Relative paths then mean the same as in the command, and the worker writes the command that resumes a run to
    `status.json`.
    """
    return partial(_call_in_context, Path.cwd(), sys.argv, call)


def _call_in_context(directory: Path, argv: list[str], call: Callable[..., T], *arguments: Any) -> T:
    """Change the worker's directory and `sys.argv`, and call a function; raise `ConfigError` without the directory."""
    sys.argv = argv
    try:
        os.chdir(directory)
    except OSError as error:
        message = f"{directory}: a worker on {socket.gethostname()} has no such directory ({error.strerror})"
        raise ConfigError(message, "run the command in a directory on a disk that all machines see") from None
    try:
        return call(*arguments)
    except AlbertError as error:
        # Dask would also send the errors that caused it, and not every library's errors can be pickled.
        error.__cause__ = error.__context__ = None
        raise


def lost_worker_errors() -> tuple[type[BaseException], ...]:
    """Return the types of the exception that a cluster raises after two workers were lost with the same work.

    Without a cluster there is none, and Dask may not be installed.
    """
    if not _clients:
        return ()
    from distributed.scheduler import KilledWorker

    return (KilledWorker,)


# ---------------------------------------------------------------- interruptible work


def make_stop_event() -> Any:
    """Return a new event of the cluster; once it is set, each `run_in_child` with its name stops its call.

    The workers notice the event within `_SECONDS_BETWEEN_POLLS`.
    """
    from distributed import Event

    return Event(client=_clients[-1])


def run_in_child(event_name: str, call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Call a function on a worker in a child process, which receives SIGTERM when the event of this name is set.

    Training saves at SIGTERM. Dask calls functions in threads, and only a process can handle a signal. Raises
    `BrokenExecutor` if the child is lost; its text has the host and the cause.
    """
    from distributed import Event

    from albert_cli.executor.items import call_interruptibly

    if multiprocessing.current_process().daemon:
        message = f"the Dask worker on {socket.gethostname()} may not start processes, which training needs"
        raise ConfigError(message, f"start the workers with {_WORKERS_MAY_START_PROCESSES}")
    stop_event = Event(event_name)
    watch = ProcessWatch()
    # If this worker is lost, its child must end too: it holds the locks that another worker needs to repeat the work.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), ranks.exit_with_parent) as pool:
        future = pool.submit(call_interruptibly, partial(_call_when_unlocked, call), arguments)
        watch.record_children()
        is_terminated = False
        while not future.done():
            if not is_terminated and stop_event.wait(timeout=_SECONDS_BETWEEN_POLLS):
                is_terminated = True
                # A pool has no public attribute for its processes.
                for process in list((pool._processes or {}).values()):
                    process.terminate()
    if isinstance(future.exception(), BrokenExecutor):
        raise BrokenExecutor(f"on {socket.gethostname()} {watch.describe_death()}")
    return future.result()


def _call_when_unlocked(call: Callable[..., T], *arguments: object) -> T:
    """Call a function; try again for some seconds if the child of a lost worker still has a lock that it needs."""
    deadline = time.monotonic() + _SECONDS_FOR_LOCKS
    while True:
        try:
            return call(*arguments)
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
