"""Translation of the operating system's errors into errors with a message for a person; nothing else does this."""

from __future__ import annotations

import errno
import lzma
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from albert_cli.errors import AlbertError, CheckpointError, InputError

# Errors of the machine: a failing disk, too many open files, a full disk. The path itself may be fine.
_DISK_FAILURES = (errno.EIO, errno.EINTR, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT)
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# safetensors and torch put the error number into their text.
_ERRNO_PATTERNS = {
    "SafetensorError": r".*(?:os error |Os \{ code: )(\d+)",  # older releases have the latter
    "RuntimeError": r"unable to (?:mmap|open|stat) .*>.* \((\d+)\)",
}


def errno_of(error: BaseException) -> int | None:
    """Return the system's error number, also of errors that carry it in their text only; None if there is none."""
    pattern = _ERRNO_PATTERNS.get(type(error).__name__)
    if pattern is not None:
        match = re.match(pattern, str(error))
        return int(match[1]) if match else None
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return error.errno
    return None


def from_os_error(error: BaseException, path: object = None) -> AlbertError | None:
    """Translate an error of the operating system; return None for any other error, which is a bug.

    The error's own file name takes precedence over `path`. Running out of memory is not translated here, because it is
    no fault of the file.
    """
    number = errno_of(error)
    path = getattr(error, "filename", None) or path
    is_about_system = number in (*_DISK_FULL, *_TOO_MANY_FILES, *_DISK_FAILURES)
    if number is None or number == errno.ENOMEM or (path is None and not is_about_system):
        return None
    message = f"{path or 'a file'}: {os.strerror(number)}"
    if number in _DISK_FULL:
        return CheckpointError(message, "free some space and run the same command again; finished files are intact")
    if number in _TOO_MANY_FILES:
        return CheckpointError(message, "raise the limit, such as: ulimit -n 4096; then run the same command again")
    if number in _DISK_FAILURES:
        return CheckpointError(message, "check the disk; the same command continues from what was complete")
    return InputError(message, "check the path and its permissions")


@contextmanager
def translate_os_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Translate errors of the operating system while files at `path` are written or read.

    On a full disk the message says how much is free, and how many bytes are `needed` if that is known.
    """
    try:
        yield
    except Exception as error:
        translated = from_os_error(error, path)
        if translated is None:
            raise
        if errno_of(error) in _DISK_FULL:
            needs = "" if needed is None else f"{needed / 1e6:.1f} MB needed, "
            free = f"{free_bytes(path) / 1e6:.1f} MB free"
            translated = CheckpointError(f"{path}: the disk is full ({needs}{free})", translated.hint)
        raise translated from error


@contextmanager
def translate_read_errors(path: Path | str) -> Iterator[None]:
    """Translate what the operating system and the decompressors raise while an input file is read: `InputError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file or folder", "check its name") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a folder", "name a file") from error
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # errors of the decompressors have no number
            raise InputError(f"{path}: cannot be read ({error.strerror or error})", "check its permissions") from error
        raise InputError(f"{path}: damaged or truncated compressed file ({error})", "copy it again") from error


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that holds, or would hold, the path."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free
