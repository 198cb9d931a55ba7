"""List and open the files behind a URL (`s3://`, `gs://`, `https://`, `hf://`, …) through `fsspec`.

Messages have the URLs without their secrets.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, Final, cast

from albert_cli import hub_access
from albert_cli.errors import AlbertError, InputError, NetworkError
from albert_cli.formatting import first_line, hide_secrets

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from fsspec import AbstractFileSystem

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://")
_WEB: Final = ("http://", "https://")
# The keys by which file systems report a file's version, the most exact ones first.
_VERSION_KEYS: Final = (
    *("ETag", "etag", "Content-MD5", "Digest", "blob_id", "sha"),
    *("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "modified", "modify", "created"),
)
_BLOCK_BYTES: Final = 8 << 20  # bytes that one request reads
_SECONDS_TO_CONNECT: Final = 30
_SECONDS_BETWEEN_BYTES: Final = 300
_REQUESTS_AT_A_TIME: Final = 16
_MISSING_STATUSES: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
# Failures after which the same request may succeed: statuses (and all from 500), error numbers, and names of classes.
_RETRY_STATUSES: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_RETRY_NUMBERS: Final = (
    *(errno.EIO, errno.ESTALE, errno.EBUSY, errno.ETIMEDOUT),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
)
_RETRY_CLASSES: Final = frozenset(
    (
        *("TimeoutError", "ConnectionError", "gaierror", "IncompleteRead"),  # of Python; `requests` has the second, too
        *("ClientConnectionError", "ClientPayloadError"),  # of `aiohttp`
        *("TransportError", "Timeout", "ChunkedEncodingError"),  # of `httpx` and `requests`
        *("HTTPClientError", "ServiceRequestError", "ServiceResponseError"),  # of S3's and Azure's libraries
    )
)


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL, as its server describes it.

    size: in bytes, 0 if unknown; version: a hash of the first of `_VERSION_KEYS` that the server reports, 0 if it
    reports none.
    """

    url: str
    size: int
    version: int

    @classmethod
    def from_info(cls, url: str, info: Mapping[str, Any]) -> RemoteFile:
        """Return the file with the size and the version that a file system's `info` reports."""
        reported = next((info[key] for key in _VERSION_KEYS if info.get(key)), None)
        version = 0
        if reported is not None:
            # Azure quotes the ETag of a file, but not in a listing.
            digest = hashlib.sha256(str(reported).strip('"').encode()).digest()
            version = int.from_bytes(digest[:7], "big")  # 56 bits are enough to tell versions apart
        return cls(url, int(info.get("size") or 0), version)


def is_url(name: str) -> bool:
    """Return True if a source is a URL, False if it is a path."""
    return _URL.match(name) is not None


def strip_query(name: str) -> str:
    """Return a URL without its query, which is no part of a file's name; return any other name unchanged."""
    return name.partition("?")[0] if is_url(name) else name


# ---------------------------------------------------------------- errors


@contextmanager
def translate_remote_errors(url: str) -> Iterator[None]:
    """Raise `NetworkError` for each failure of the network or server in the block, `InputError` for each other error.

    The libraries of file systems have no common class of errors.
    """
    name = hide_secrets(url)
    try:
        yield
    except AlbertError:
        raise
    except FileNotFoundError as error:
        # `fsspec` also raises this error if a web server does not answer or refuses access; the cause has the reason.
        cause = error.__cause__
        is_missing = isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in _MISSING_STATUSES
        if url.startswith(_WEB) and cause is not None and not is_missing:
            raise _unreadable_error(name, cause) from error
        raise InputError(f"{name}: no such file", "check the URL") from error
    except ImportError as error:
        raise InputError(f"{name}: {error}", "install that package next to albert") from error
    except Exception as error:
        raise _unreadable_error(name, error) from error


def _unreadable_error(name: str, cause: BaseException) -> AlbertError:
    is_offline_by_choice = name.startswith("hf://") and hub_access.IS_OFFLINE_BY_CHOICE
    if is_network_failure(cause) and not is_offline_by_choice:
        hint = "check the host in the URL and the network, and run the same command again"
        return NetworkError(f"{name}: cannot be read now ({describe_cause(cause)})", hint)
    hint = "check the URL, the network and the credentials"
    return InputError(f"{name}: cannot be read ({describe_cause(cause)})", hint)


def describe_cause(error: BaseException) -> str:
    """Return the beginning of an error's message, without secrets, for another message."""
    if isinstance(error, TimeoutError):  # may have no message
        return "did not answer in time"
    return hide_secrets(first_line(error))[:200]


def is_network_failure(error: BaseException) -> bool:
    """Return True if an error, or one of its causes, is a failure after which the same request may succeed."""
    causes = list(_iter_causes(error))
    class_names = {base.__name__ for cause in causes for base in type(cause).__mro__}
    if "SSLCertVerificationError" in class_names:  # a kind of `ConnectionError` in some libraries, but it is permanent
        return False
    if not _RETRY_CLASSES.isdisjoint(class_names):
        return True
    statuses = [status for cause in causes if (status := _http_status(cause)) is not None]
    if statuses:  # before the error numbers: S3's file system reports many refusals as EIO
        return statuses[0] in _RETRY_STATUSES or statuses[0] >= HTTPStatus.INTERNAL_SERVER_ERROR
    return any(isinstance(cause, OSError) and cause.errno in _RETRY_NUMBERS for cause in causes)


def _iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it, the last one first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _http_status(error: BaseException) -> int | None:
    """Return the status of HTTP in an error of any library; None if the error has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # of S3's library
        return cast("int | None", response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return None


# ---------------------------------------------------------------- listings


def list_files(name: str) -> dict[str, RemoteFile | None]:
    """Return the sorted URLs of the files that a glob matches or a folder contains; for a file, return its URL.

    Hidden files in a folder, and files in hidden subfolders, are left out. The value of a URL is None if the listing
    has no size or no version, as on web servers (see `request_missing_versions`).
    """
    with translate_remote_errors(name):
        system, path = _open_file_system(name)
        system.invalidate_cache()  # the files may have changed since they were listed
        is_web = name.startswith(_WEB)
        wildcards = "*[" if is_web else "*?["  # in a web address, `?` begins the query
        if any(character in path for character in wildcards):
            matches = system.glob(path, detail=True)
            listed = {match: info for match, info in matches.items() if info.get("type") != "directory"}
            if not listed:
                raise InputError(f"{hide_secrets(name)}: no file matches", "check the pattern")
        elif not is_web and system.isdir(path):  # web servers have no folders
            folder = path.rstrip("/")
            # Hidden files and folders are left out, as in a local folder.
            files = system.find(path, detail=True)
            listed = {file: info for file, info in files.items() if "/." not in file.removeprefix(folder)}
        else:
            return {name: RemoteFile.from_info(name, system.info(path))}
        infos = {str(system.unstrip_protocol(file)): info for file, info in sorted(listed.items())}
    listing = dict[str, RemoteFile | None]()
    for url, info in infos.items():
        file = RemoteFile.from_info(url, info)
        listing[url] = file if file.version and info.get("size") is not None else None
    return listing


def request_missing_versions(files: Mapping[str, RemoteFile | None]) -> dict[str, RemoteFile]:
    """Return files by URL with the sizes and versions that `list_files` has not listed, one request for each file."""
    missing = [url for url, file in files.items() if file is None]
    with ThreadPoolExecutor(_REQUESTS_AT_A_TIME) as pool:
        requested = dict(zip(missing, pool.map(read_remote_file, missing), strict=True))
    return {url: file or requested[url] for url, file in files.items()}


def read_remote_file(url: str) -> RemoteFile:
    """Return the present size and version of a file behind a URL."""
    with translate_remote_errors(url):
        system, path = _open_file_system(url)
        system.invalidate_cache()  # the file may have changed since it was listed
        return RemoteFile.from_info(url, system.info(path))


# ---------------------------------------------------------------- bytes


@cache
def supports_ranges(url: str) -> bool:
    """Return True if a part of the file can be read without the rest; some web servers send whole files only."""
    if not url.startswith(_WEB):
        return True

    with translate_remote_errors(url):
        from fsspec.asyn import sync

        system, path = _open_file_system(url)

        async def request_first_byte() -> bool:
            session = await system.set_session()
            headers = {**system.kwargs.get("headers", {}), "Range": "bytes=0-0"}
            options = {**system.kwargs, "headers": headers}
            async with session.get(system.encode_url(path), **options) as response:
                response.raise_for_status()
                return bool(response.status == HTTPStatus.PARTIAL_CONTENT)

        return bool(sync(system.loop, request_first_byte))


class _RemoteStream(io.RawIOBase):
    """The bytes of a remote file, with translated errors."""

    def __init__(self, url: str, stream: IO[bytes]) -> None:
        self._url = url
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._stream.seek(offset, whence)  # the stream of a web server without ranges returns None
        return self._stream.tell()

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        with translate_remote_errors(self._url):
            data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def open_remote(url: str) -> io.BufferedReader:
    """Open a remote file for reading; `seek` works only if `supports_ranges` returns True for the file."""
    with translate_remote_errors(url):
        system, path = _open_file_system(url)
        # A block size of 0 streams the whole file in one request.
        block_bytes = _BLOCK_BYTES if supports_ranges(url) else 0
        return io.BufferedReader(_RemoteStream(url, system.open(path, "rb", block_size=block_bytes)), 1 << 20)


def _open_file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the file's path in it."""
    import fsspec

    options: dict[str, Any] = {}
    if url.startswith(_WEB):
        import aiohttp

        # By default a request ends after five minutes, even while the server sends a long file.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS_TO_CONNECT, sock_read=_SECONDS_BETWEEN_BYTES)
        configured = fsspec.config.conf.get(url.partition(":")[0], {}).get("client_kwargs", {})
        options["client_kwargs"] = {"timeout": timeout, **configured}
    system, path = fsspec.core.url_to_fs(url, **options)
    return system, str(path)
