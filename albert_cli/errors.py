"""Errors with a message for a person, each kind with the exit code that scripts and schedulers see.

Every message is one line that names the file, the line or the key; a hint names the remedy.
"""

from __future__ import annotations


class AlbertError(Exception):
    """An error with a message for a person; raised anywhere, printed once by the command line."""

    exit_code = 1
    default_hint: str | None = None

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint


class ConfigError(AlbertError):
    """Wrong usage: an unknown recipe key, an impossible shape, a wrong argument (exit code 2)."""

    exit_code = 2
    default_hint = "see `albert recipes show NAME` or `--help` for valid values"


class InputError(AlbertError):
    """Bad input data: a missing file, invalid UTF-8, a table without its columns (exit code 3)."""

    exit_code = 3
    default_hint = "fix or remove this entry"


class MissingDataError(InputError):
    """Input data that do not exist; callers that can do without them continue."""


class CheckpointError(AlbertError):
    """A checkpoint or artifact that is incomplete, damaged or does not fit, or a full disk (exit code 4)."""

    exit_code = 4
    default_hint = "restore it from its source, or create it again"


class DivergedError(AlbertError):
    """A loss or gradient that is not finite; the weights were not updated (exit code 5)."""

    exit_code = 5


class BusyError(AlbertError):
    """The output directory is locked by another run or holds something else (exit code 6)."""

    exit_code = 6


class LockedError(BusyError):
    """A lock that another process holds; trying again later may succeed (exit code 6)."""


class ScoreNotReachedError(AlbertError):
    """A published score was not reached within its tolerance (exit code 7)."""

    exit_code = 7


class Skipped(AlbertError):  # noqa: N818  (nothing failed)
    """Work that cannot be done here, such as verifying a Hub checkpoint offline (exit code 77, as in automake)."""

    exit_code = 77


class Interrupted(AlbertError):  # noqa: N818  (a normal end)
    """A requested stop: the current step is saved, and the same command continues (exit code 75, EX_TEMPFAIL)."""

    exit_code = 75
    default_hint = "run the same command again to resume"
