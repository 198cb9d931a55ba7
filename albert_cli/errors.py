"""What can go wrong, each kind with the exit code that scripts and schedulers see.

Every error is one line that names the file, the line or the key, and a hint that names the remedy.
"""

from __future__ import annotations

import errno
import os
import re


class AlbertError(Exception):
    """An error with a message for a person; raised anywhere, printed once by the command line."""

    exit_code = 1
    remedy: str | None = None  # the hint of one that has none of its own

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.remedy


class ConfigError(AlbertError):
    """Wrong usage: an unknown recipe key, an impossible shape, a verb's argument (exit code 2)."""

    exit_code = 2
    remedy = "`albert recipes show NAME` and `--help` say what may stand there"


class InputError(AlbertError):
    """Bad input data: a missing file, invalid UTF-8, a table without its columns (exit code 3)."""

    exit_code = 3
    remedy = "correct it there, or leave it out"


class MissingDataError(InputError):
    """Data that are not there at all; what can do without them goes on."""


class CheckpointError(AlbertError):
    """A checkpoint or artefact that is incomplete, damaged or does not fit, or a full disk (exit code 4)."""

    exit_code = 4
    remedy = "restore it from where it came, or make it again"


class DivergedError(AlbertError):
    """Training met a loss or gradient that is not finite; nothing was updated (exit code 5)."""

    exit_code = 5


class BusyError(AlbertError):
    """The output directory is locked by another run or holds something else (exit code 6)."""

    exit_code = 6


class ScoreNotReachedError(AlbertError):
    """A published score was not reached within its tolerance (exit code 7)."""

    exit_code = 7


class Skipped(AlbertError):  # noqa: N818  (nothing went wrong)
    """Nothing could be done here, such as verifying a checkpoint of the Hub offline (exit code 77, automake's)."""

    exit_code = 77


class Interrupted(AlbertError):  # noqa: N818  (it is a normal end, not an error)
    """Asked to stop; the current step is saved and the same command goes on (exit code 75, EX_TEMPFAIL)."""

    exit_code = 75
    remedy = "run the same command again to resume"


# The disk, or a limit of this process, rather than the path that was named.
_DISK_FAILURES = (
    errno.EIO,
    errno.EINTR,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
    errno.ENODEV,
    errno.ENXIO,
    errno.ETIMEDOUT,
)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def errno_of(error: BaseException) -> int | None:
    """The system's number of an error; safetensors and torch pass it on as text only."""
    forms = {
        "SafetensorError": r".*(?:os error |Os \{ code: )(\d+)",  # older releases have the latter
        "RuntimeError": r"unable to (?:mmap|open|stat) .*>.* \((\d+)\)",
    }
    if (form := forms.get(type(error).__name__)) is not None:
        found = re.match(form, str(error))
        return int(found[1]) if found else None
    return error.errno if isinstance(error, OSError) and not isinstance(error, ConnectionError) else None


def from_os_error(error: BaseException, path: object = None) -> AlbertError | None:
    """What the system refuses, in our words, where the error names the file or `path` does; None for a bug."""
    number, path = errno_of(error), getattr(error, "filename", None) or path
    # Too little memory is no matter of the file.
    if number is None or number == errno.ENOMEM or (path is None and number not in (*DISK_FULL, *_DISK_FAILURES)):
        return None
    what = f"{path or 'a file'}: {os.strerror(number)}"
    if number in DISK_FULL:
        return CheckpointError(what, "free some space and run the same command again; what was complete is intact")
    if number in (errno.EMFILE, errno.ENFILE):
        return CheckpointError(what, "raise the limit, such as: ulimit -n 4096; then run the same command again")
    if number in _DISK_FAILURES:
        return CheckpointError(what, "check the disk; the same command goes on from what was complete")
    return InputError(what, "check the path and its permissions")
