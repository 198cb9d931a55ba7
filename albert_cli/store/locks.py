"""Lock an output directory, so that only one process writes to it."""

from __future__ import annotations

import errno
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from albert_cli.errors import BusyError, LockedError
from albert_cli.os_errors import not_writable_error, translate_write_errors
from albert_cli.store.temporaries import remove_leftovers, temporary_sibling

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LOCK = ".lock"
_TIMEOUT_SECONDS = 0.2  # `is_locked` in another process may hold the lock for an instant
# The errors of file systems that have no locks, and of file systems that cannot rename directories. On macOS,
# EOPNOTSUPP and ENOTSUP are different numbers.
_LOCKS_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
_RENAME_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EXDEV, errno.EPERM, errno.EINVAL)


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Create the output directory and lock it while the block runs.

    If the process is killed, the lock ends too. Half-written files of an earlier, killed process are deleted. If the
    lock or the block fails and the directory is still empty, the directories that this function has created are
    removed. Raises `LockedError` if another process holds the lock, and `BusyError` if the directory cannot be locked
    or used.
    """
    new_directories = [p for p in (directory, *directory.parents) if not p.exists()]
    _make_directory(directory)
    try:
        file_lock = _acquire(directory)
    except LockedError:  # another run has created the directory at the same moment
        raise
    except BaseException:
        _remove_if_empty(directory, new_directories)
        raise
    try:
        with suppress(OSError):  # leftovers are harmless, and may belong to another user
            remove_leftovers(directory)
        _check_renames(directory)
        yield
    except BaseException:
        _remove_if_empty(directory, new_directories)
        raise
    finally:
        file_lock.release()


def is_locked(directory: Path, *, timeout: float = 0) -> bool:
    """Return True if a process holds the directory's lock; False also if another user's lock cannot be opened.

    timeout: seconds for which the lock must be held. With 0, the result is also True if another process calls this
    function at the same moment.
    """
    from filelock import FileLock, Timeout

    if not (directory / _LOCK).is_file():
        return False
    try:
        with FileLock(directory / _LOCK, timeout=timeout):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _make_directory(directory: Path) -> None:
    """Create the directory; raise `BusyError` if a file is in the way, or if its parent is not writable."""
    with translate_write_errors(directory):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BusyError(f"{directory}: is a file, not a directory", "choose another --out") from None


def _acquire(directory: Path) -> BaseFileLock:
    """Acquire the lock; raise `LockedError` if it is held.

    Raises `BusyError` if the directory is not writable, or if its file system has no locks.
    """
    from filelock import FileLock, Timeout

    file_lock = FileLock(directory / _LOCK, timeout=_TIMEOUT_SECONDS)
    try:
        with warnings.catch_warnings():
            # On a file system without flock, new releases of filelock warn, and take the existence of a file as the
            # lock. Such a lock would outlive a killed process, so the warning is an error here.
            warnings.filterwarnings("error", "flock not supported")
            file_lock.acquire()
    except Timeout:
        raise LockedError(f"{directory}: another run is writing here", "wait for it or choose another --out") from None
    except (NotImplementedError, UserWarning, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _LOCKS_UNSUPPORTED:
            not_writable = not_writable_error(error, directory)
            if not_writable is None:
                raise
            raise not_writable from None
        message = f"{directory}: its file system has no locks, so two runs could overwrite each other"
        raise BusyError(message, "choose an --out on another disk") from None
    return file_lock


def _remove_if_empty(directory: Path, new_directories: Sequence[Path]) -> None:
    """Remove the directories that were created for a lock, innermost first, if they contain at most the lock."""
    if directory not in new_directories or any(path.name != _LOCK for path in directory.glob("*")):
        return
    with suppress(OSError):  # the loop ends at the first directory that is not empty
        (directory / _LOCK).unlink(missing_ok=True)
        for path in new_directories:
            path.rmdir()


def _check_renames(directory: Path) -> None:
    """Raise `BusyError` if the file system cannot rename directories, as on disks mounted from an object store."""
    probe = temporary_sibling(directory / "rename")
    renamed = temporary_sibling(directory / "renamed")
    try:
        probe.mkdir()
        (probe / "file").touch()
        probe.rename(renamed)
    except OSError as error:
        if error.errno in _RENAME_UNSUPPORTED:  # any other error will be reported by the first write
            message = f"{directory}: its file system cannot rename directories, so outputs could be seen half-written"
            raise BusyError(message, "choose an --out on another disk") from None
    finally:
        for folder in (probe, renamed):
            shutil.rmtree(folder, ignore_errors=True)
