"""List and open the files behind a URL (`s3://`, `gs://`, `https://`, `hf://`, …) through `fsspec`."""

from __future__ import annotations

import hashlib
import io
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from albert_cli.errors import InputError
from albert_cli.formatting import first_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://")
# The keys by which file systems report a file's version, the most exact one first.
_VERSION_KEYS: Final = ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created", "blob_id")
_BLOCK_BYTES: Final = 8 << 20  # bytes that one request reads
_TIMEOUT_SECONDS: Final = 30
_MISSING_STATUSES: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


def is_url(name: str) -> bool:
    """Return True if a source is a URL, False if it is a path."""
    return _URL.match(name) is not None


@contextmanager
def translate_remote_errors(name: str) -> Iterator[None]:
    """Raise `InputError` for every error in the block; the libraries of file systems have no common class of errors."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        # `fsspec` also raises this error if a web server does not answer or refuses access; the cause has the reason.
        cause = error.__cause__
        is_missing = isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in _MISSING_STATUSES
        if name.startswith("http") and cause is not None and not is_missing:
            raise _unreadable_error(name, cause) from error
        raise InputError(f"{name}: no such file", "check the URL") from error
    except ImportError as error:
        raise InputError(f"{name}: {error}", "install that package next to albert") from error
    except Exception as error:
        raise _unreadable_error(name, error) from error


def _unreadable_error(name: str, cause: BaseException) -> InputError:
    hint = "check the URL, the network and the credentials"
    return InputError(f"{name}: cannot be read ({first_line(cause)[:200]})", hint)


def list_files(name: str) -> list[str]:
    """Return the sorted URLs of the files that a glob matches or a folder contains; for a file, return its URL.

    Hidden files in a folder, and files in hidden subfolders, are left out.
    """
    with translate_remote_errors(name):
        system, path = _open_file_system(name)
        is_web = name.startswith("http")
        wildcards = "*[" if is_web else "*?["  # in a web address, `?` begins the query
        if any(character in path for character in wildcards):
            paths = [match for match in system.glob(path) if not system.isdir(match)]
            if not paths:
                raise InputError(f"{name}: no file matches", "check the pattern")
        elif not is_web and system.isdir(path):  # web servers have no folders
            folder = path.rstrip("/")
            # Hidden files and folders are left out, as in a local folder.
            paths = [file for file in system.find(path) if "/." not in file.removeprefix(folder)]
        else:
            system.info(path)  # raises an error if the file does not exist
            return [name]
        return sorted(str(system.unstrip_protocol(match)) for match in paths)


def read_size_and_version(name: str) -> tuple[int, int]:
    """Return the size of a remote file in bytes (0 if unknown), and a hash of its version.

    The version is the first of `_VERSION_KEYS` that the file system reports, and empty if it reports none.
    """
    with translate_remote_errors(name):
        system, path = _open_file_system(name)
        system.invalidate_cache()  # the file may have changed since it was listed
        info = system.info(path)
        version = next((info[key] for key in _VERSION_KEYS if info.get(key)), "")
        digest = hashlib.sha256(str(version).encode()).digest()
        version_hash = int.from_bytes(digest[:7], "big")  # 56 bits are enough to tell versions apart
        return int(info.get("size") or 0), version_hash


@lru_cache(maxsize=1024)
def supports_ranges(name: str) -> bool:
    """Return True if a part of the file can be read without the rest; some web servers send whole files only."""
    if not name.startswith(("http://", "https://")):
        return True
    with translate_remote_errors(name):
        request = urllib.request.Request(name, headers={"Range": "bytes=0-0"})  # noqa: S310  (http or https, see above)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            return bool(response.status == HTTPStatus.PARTIAL_CONTENT)


def open_remote(name: str) -> io.BufferedReader:
    """Open a remote file for reading; `seek` works only if `supports_ranges` returns True for the file."""
    with translate_remote_errors(name):
        system, path = _open_file_system(name)
        # A block size of 0 streams the whole file in one request.
        block_bytes = _BLOCK_BYTES if supports_ranges(name) else 0
        stream = system.open(path, "rb", block_size=block_bytes)
        return io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)


def _open_file_system(name: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the file's path in it."""
    import fsspec

    system, path = fsspec.core.url_to_fs(name)
    return system, str(path)
