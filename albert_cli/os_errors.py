"""Translate errors of the operating system into `AlbertError`, with a message and a remedy for the user."""

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

from albert_cli.errors import AlbertError, BusyError, DiskError, InputError

# Errors that the machine causes; the path may be correct.
_DISK_FAILURES = (errno.EIO, errno.EINTR, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT)
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Files that mark a directory as an output of albert, as a model or as a vocabulary.
_MARKER_FILES = (
    "manifest.json",
    "status.json",
    "results.json",
    "config.json",
    "spiece.model",
    "tokenizer.json",
    "vocab.txt",
)
# Exceptions of safetensors and torch, by class name: the pattern of the error number in the message.
_ERRNO_PATTERNS = {
    "SafetensorError": r".*(?:os error |Os \{ code: )(\d+)",  # "Os { code:" in older releases
    "RuntimeError": r"unable to (?:mmap|open|stat) .*>.* \((\d+)\)",  # of torch
}


def errno_of(error: BaseException) -> int | None:
    """Return the system's error number in an exception of Python, safetensors or torch.

    Returns None for an exception without a number, and for a lost connection.
    """
    pattern = _ERRNO_PATTERNS.get(type(error).__name__)
    if pattern is not None:
        match = re.match(pattern, str(error))
        return int(match[1]) if match else None
    # A closed pipe or a lost connection is no error about a file.
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return error.errno
    return None


def from_os_error(error: BaseException, path: object = None) -> AlbertError | None:
    """Translate an error of the operating system about a file; return None for any other error.

    path: the file, unless the error itself has a file name. Running out of memory is no error about a file. Without a
    file name, only errors of the whole machine, such as a full disk, and of a removed working directory are translated.
    """
    number = errno_of(error)
    filename = getattr(error, "filename", None)
    if isinstance(error, FileNotFoundError) and filename is None and _is_working_directory_missing():
        return InputError("the working directory no longer exists", "change to another folder with cd")
    path = filename or path
    if number is None or number == errno.ENOMEM:
        return None
    is_machine_error = number in (*_DISK_FULL, *_TOO_MANY_FILES, *_DISK_FAILURES)
    if path is None and not is_machine_error:
        return None
    message = f"{path or 'a file'}: {os.strerror(number)}"
    if number in _DISK_FULL:
        return DiskError(message, "free some space and run the same command again; finished files are intact")
    if number in _TOO_MANY_FILES:
        return DiskError(message, "raise the limit, such as: ulimit -n 4096; then run the same command again")
    if number in _DISK_FAILURES:
        return DiskError(message, "check the disk; the same command continues from what was complete")
    return InputError(message, "check the path and its permissions")


def _is_working_directory_missing() -> bool:
    """Return True if the working directory has been removed since the command, or its shell, changed to it."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def translate_os_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Translate errors of the operating system while the block writes or reads files at `path`.

    needed: number of bytes to write, None if unknown. If the disk is full, the message reports this number and the
    number of free bytes.
    """
    try:
        yield
    except Exception as error:
        translated = from_os_error(error, path)
        if translated is None:
            raise
        if errno_of(error) in _DISK_FULL:
            sizes = f"{free_bytes(path) / 1e6:.1f} MB free"
            if needed is not None:
                sizes = f"{needed / 1e6:.1f} MB needed, {sizes}"
            translated = DiskError(f"{path}: the disk is full ({sizes})", translated.hint)
        raise translated from error


@contextmanager
def translate_write_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Translate errors of the operating system while the block writes `path` under its own or a temporary name.

    Raises `BusyError` if this user may not write there. An error about another file, which the block reads, is
    translated by `translate_os_errors`. needed: number of bytes to write, None if unknown.
    """
    with translate_os_errors(path, needed):
        try:
            yield
        except OSError as error:
            not_writable = not_writable_error(error, path)
            if not_writable is None or not _is_about(error, path):
                raise
            raise not_writable from error


def not_writable_error(error: OSError, path: Path) -> BusyError | None:
    """Return the error for a path that this user may not write; None if the system's error is another one."""
    if error.errno not in _NOT_WRITABLE:
        return None
    return BusyError(f"{path}: not writable ({error.strerror})", "choose another --out")


def _is_about(error: OSError, path: Path) -> bool:
    """Return True if the error is about a path, a folder above it, or its temporary sibling `.NAME.….tmp`."""
    if not isinstance(error.filename, str):
        return True
    file = Path(error.filename)
    if file in (path, *path.parents):
        return True
    return any(p.parent == path.parent and p.name.startswith(f".{path.name}.") for p in (file, *file.parents))


@contextmanager
def translate_stdout_errors() -> Iterator[None]:
    """Translate errors of the operating system while the block writes to standard output, such as a full disk."""
    try:
        yield
    except OSError as error:
        translated = from_os_error(error, "standard output")
        if translated is None:  # the reader of a pipe is gone
            raise
        raise translated from error


@contextmanager
def translate_read_errors(path: Path | str) -> Iterator[None]:
    """Raise `InputError` for an error of the operating system, or of a decompressor, while the block reads a file.

    Raises `DiskError` for a failing disk or too many open files: the same command may succeed later.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file or folder", "check its name") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a folder", "name a file") from error
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        translated = from_os_error(error, path)
        if isinstance(translated, DiskError):  # an error of the system, not of the input
            raise translated from error
        if isinstance(error, OSError) and error.errno is not None:  # an OSError of a decompressor has no number
            message = f"{path}: cannot be read ({error.strerror or error})"
            raise InputError(message, "check its name and permissions") from error
        if "requires too much memory" in str(error):  # of zstd, which decompresses at most a window of 128 MiB
            hint = f"pipe it: zstd -dc --long=31 {path} | albert … -; or compress it again without --long"
            if "://" in str(path):
                hint = "compress it again without --long"
            raise InputError(f"{path}: the window of the zstd file is too large", hint) from error
        raise InputError(f"{path}: damaged or truncated compressed file ({error})", "copy it again") from error


def free_bytes(path: Path) -> int:
    """Return the number of free bytes on the disk of a path; the path need not exist."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def no_directory_message(path: Path, hint: str) -> tuple[str, str]:
    """Return the message and the remedy for a path that is not a directory.

    hint: the remedy. If the path is a file in an output of albert, a model or a vocabulary, the remedy is its folder.
    """
    if not path.exists():
        return f"{path}: no such directory", hint
    if any((path.parent / name).is_file() for name in _MARKER_FILES):
        hint = f"use its folder, {path.parent}"
    return f"{path}: is a file, not a directory", hint
