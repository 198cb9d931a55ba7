"""Define the errors that are reported to the user, each class with the exit code of the command.

A message is one line that states the problem and names the file, the line or the key. A hint states the remedy. An
exception of any other class that reaches the command line is reported as a bug.
"""

from __future__ import annotations


class AlbertError(Exception):
    """An error that any module may raise and that the command line prints as `error: MESSAGE` and `hint: HINT`."""

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

    def __init__(self, message: str, hint: str | None = None) -> None:
        if hint is None and message.startswith("--"):
            hint = "see `--help` for valid values"  # a recipe does not list the options of a command
        super().__init__(message, hint)


class InputError(AlbertError):
    """Bad input data: a missing file, invalid UTF-8, a table without its columns (exit code 3)."""

    exit_code = 3
    default_hint = "fix or remove this entry"


class MissingDataError(InputError):
    """Input data that do not exist; a command that can continue without them catches this error (exit code 3)."""


class NetworkError(AlbertError):
    """A network or a server that failed, so a later attempt may succeed (exit code 1)."""

    default_hint = "check the network, and run the same command again"


class CheckpointError(AlbertError):
    """Files of an artifact that cannot be used or written (exit code 4).

    An artifact is a checkpoint, a vocabulary, a data directory or a result. Its files may be missing, damaged or of the
    wrong kind. The subclass `DiskError` also reports a disk that fails while a text is read.
    """

    exit_code = 4
    default_hint = "restore it from its source, or create it again"


class DiskError(CheckpointError):
    """A disk that is full or fails, or too many open files, so a later attempt may succeed (exit code 4)."""


class DivergedError(AlbertError):
    """A loss, gradient, score or output that is not finite (exit code 5).

    A training step that diverges does not update the weights.
    """

    exit_code = 5


class BusyError(AlbertError):
    """An output directory that is locked by another run, or that contains other files (exit code 6)."""

    exit_code = 6


class LockedError(BusyError):
    """An output directory that is locked by another run, so a later attempt may succeed (exit code 6)."""


class ScoreNotReachedError(AlbertError):
    """A score that is below the published score by more than the tolerance (exit code 7)."""

    exit_code = 7


class Skipped(AlbertError):  # noqa: N818  (nothing failed)
    """Work that cannot be done here, such as verifying a Hub checkpoint offline (exit code 77, as in automake)."""

    exit_code = 77


class Interrupted(AlbertError):  # noqa: N818  (a normal end)
    """A requested stop: the state is saved, and the same command continues from it (exit code 75, EX_TEMPFAIL)."""

    exit_code = 75
    default_hint = "run the same command again to resume"


class ReportedError(AlbertError):
    """The failure of a command that has printed its error itself; only the exit code is passed on."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"a command ended with exit code {exit_code}")
        self.exit_code = exit_code


def is_compile_error(error: BaseException) -> bool:
    """Return True for an error of torch's compiler."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
