"""Write single files atomically: readers see the old content or the new content, never a part of it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from albert_cli.os_errors import translate_write_errors
from albert_cli.store.temporaries import remove_leftovers, temporary_sibling


def fsync(path: Path) -> None:
    """Flush a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a directory. On macOS, EOPNOTSUPP and ENOTSUP are different numbers.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _atomic_replacement(path: Path) -> Iterator[Path]:
    """Yield the path of a hidden file to write; if the block succeeds, that file is flushed and replaces `path`.

    Deletes the hidden files that killed processes have left when they wrote the same file. Yields `path` itself if it
    is a device or a pipe, because a file must not replace it.
    """
    temporary = temporary_sibling(path)
    with translate_write_errors(path):
        # `/dev/stdout` is a link, which may lead to a regular file.
        if path.parent == Path("/dev") or (path.exists() and not path.is_file()):
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # leftovers are harmless, and may belong to another user
            remove_leftovers(path.parent, path.name)
        try:
            yield temporary
            fsync(temporary)
            temporary.replace(path)
            fsync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes to a file atomically."""
    with _atomic_replacement(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def open_text_writer(path: Path) -> Iterator[IO[str]]:
    """Yield a UTF-8 text stream; if the block succeeds, the text replaces the file's content, else it is dropped."""
    with _atomic_replacement(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        yield stream


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Write an indented JSON file atomically, its keys in the order of the mapping."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
