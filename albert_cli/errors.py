"""What can go wrong, each kind with the exit code that scripts and schedulers see.

Every error is one line that names the file, the line or the key, and a hint that names the remedy.
"""


class AlbertError(Exception):
    """An error with a message for a person; raised anywhere, printed once by the command line."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(AlbertError):
    """Wrong usage: an unknown recipe key, an impossible shape, a verb's argument (exit code 2)."""

    exit_code = 2


class InputError(AlbertError):
    """Bad input data: a missing file, invalid UTF-8, a table without its columns (exit code 3)."""

    exit_code = 3


class MissingData(InputError):  # noqa: N818  (many can do without)
    """Data that are not there at all; what can do without them goes on."""


class CheckpointError(AlbertError):
    """A checkpoint or artefact that is incomplete, damaged or does not fit, or a full disk (exit code 4)."""

    exit_code = 4


class DivergedError(AlbertError):
    """Training met a loss or gradient that is not finite; nothing was updated (exit code 5)."""

    exit_code = 5


class BusyError(AlbertError):
    """The output directory is locked by another run or holds something else (exit code 6)."""

    exit_code = 6


class NotReached(AlbertError):  # noqa: N818  (the scores are there)
    """A published score was not reached within its tolerance (exit code 7)."""

    exit_code = 7


class Skipped(AlbertError):  # noqa: N818  (nothing went wrong)
    """Nothing could be done here, such as verifying a checkpoint of the Hub offline (exit code 77, automake's)."""

    exit_code = 77


class Interrupted(AlbertError):  # noqa: N818  (it is a normal end, not an error)
    """Asked to stop; the current step is saved and the same command goes on (exit code 75, EX_TEMPFAIL)."""

    exit_code = 75
