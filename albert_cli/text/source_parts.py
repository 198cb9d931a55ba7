"""Read the bytes of a source, or of a part of it: decompressed, hashed, and checked for changes during reading.

A part is a range of bytes. Its records are those that begin in the range, so it is read from its first record start to
the first record start at or after its end. Neighboring parts therefore contain each record exactly once.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from albert_cli.errors import InputError
from albert_cli.os_errors import translate_read_errors
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.remote_files import open_remote, read_remote_file
from albert_cli.text.sources import TextSource

if TYPE_CHECKING:
    from _hashlib import HASH

    from _typeshed import WriteableBuffer

BLOCK_BYTES = 1 << 20
_BLANK_LINE_SEARCH_BYTES = 16 << 20  # distance within which the next blank line of a text file is searched for


class FileSignature(NamedTuple):
    """A file's version: as long as the signature stays equal, the file is unchanged.

    size: in bytes; version: a local file's modification time in nanoseconds, or a hash of a remote file's version (0 if
    unknown); inode: 0 for a remote file.
    """

    size: int
    version: int
    inode: int

    @property
    def has_version(self) -> bool:
        """True if a change of the file changes the signature; False if a server reports no version of the file."""
        return self.version != 0 or self.inode != 0


@dataclass
class ReadCounter:
    """Totals of what has been read.

    size and sha256: the number and the hash of the bytes on disk; counts: numbers of lines that are changed or left
    out.
    """

    size: int = 0
    counts: LineCounts = field(default_factory=LineCounts)
    sha256: HASH = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Count and hash bytes."""
        self.sha256.update(data)
        self.size += len(data)


@dataclass(frozen=True)
class SourcePart:
    """A source, or the range from byte `start` to byte `end` (None: the end of the file) of a source that can be split.

    For a data set on the Hub, `start` and `end` are numbers of its files. signature: the file's signature when the work
    was planned, to notice a later change; None if there is no file.
    """

    source: TextSource
    start: int = 0
    end: int | None = None
    signature: FileSignature | None = None

    @property
    def size(self) -> int:
        """Bytes on disk; 0 if unknown."""
        if self.signature is None:
            return 0
        end = self.signature.size if self.end is None else self.end
        return end - self.start

    def location(self, line: int) -> str:
        """Return `file:line` in the whole file, for errors; line: a line or row number from 1 in this part.

        Reads the file up to the part, to count the lines before it, which may take a while.
        """
        if self.source.kind == "hub":
            file = f" file {self.start}" if self.end is not None else ""
            return f"{self.source.name}:{file} row {line}"
        lines_before = 0
        if self.start:
            bytes_left, _ = record_range(self)
            with open_source(self.source) as stream:
                while bytes_left > 0 and (block := stream.read(min(BLOCK_BYTES, bytes_left))):
                    lines_before += block.count(b"\n")
                    bytes_left -= len(block)
        return f"{self.source.name}:{lines_before + line}"

    def record_location(self, record: int) -> str:
        """Return `file: record N`, for errors of formats whose records have no line number.

        For a data set on the Hub, return the row as in `location`. record: the record's number from 1 in this part.
        """
        return self.location(record) if self.source.kind == "hub" else f"{self.source.name}: record {record}"


# ---------------------------------------------------------------- changes and errors of files


def source_signature(source: TextSource, *, refresh: bool = False) -> FileSignature | None:
    """Return the signature of a source's local or remote file; None if the source is no file.

    refresh: request a remote file's signature from its server. By default, it is the one of the resolved source.
    """
    if source.remote:
        remote = read_remote_file(source.remote.url) if refresh else source.remote
        return FileSignature(remote.size, remote.version, inode=0)
    return None if source.path is None else file_signature(source.path)


def file_signature(path: Path) -> FileSignature:
    """Return the signature of a local file."""
    with translate_read_errors(path):
        status = path.stat()
    return FileSignature(status.st_size, status.st_mtime_ns, status.st_ino)


@contextmanager
def ensure_unmodified(part: SourcePart) -> Iterator[None]:
    """Raise `InputError` if the part's file has changed since the work was planned, or changes during the block."""
    source = part.source
    is_local_file = source.path is not None and source.path.is_file()  # a named pipe has a path, but is no file
    if not source.remote and not is_local_file:
        yield  # stdin, a pipe and a data set on the Hub have no file that could change
        return
    current = source_signature(source, refresh=True)
    planned = part.signature or current
    if current != planned:
        raise _modified_error(source.name, "changed")
    yield
    if source.path is not None and not source.path.exists():
        raise _modified_error(source.name, "vanished")
    if source_signature(source, refresh=True) != planned:
        raise _modified_error(source.name, "changed")


def _modified_error(name: str, change: str) -> InputError:
    return InputError(f"{name}: {change} while it was read", "run the command again when no other program writes to it")


# ---------------------------------------------------------------- bytes


class _CountingStream(io.RawIOBase):
    """The next bytes of a binary stream, at most `limit` (None: all), counted and hashed while they are read."""

    def __init__(self, stream: IO[bytes], limit: int | None, counter: ReadCounter) -> None:
        # `read1` returns the bytes that a pipe has delivered; `read` would wait for the whole block.
        self._read = getattr(stream, "read1", stream.read)
        self._bytes_left = limit
        self._counter = counter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        allowed = memoryview(buffer)[: self._bytes_left]  # the whole buffer if there is no limit (None)
        data = self._read(len(allowed))
        if data is None:
            raise InputError("-: standard input is non-blocking and has no data yet", "write the text to a file first")
        allowed[: len(data)] = data
        self._counter.add(data)
        if self._bytes_left is not None:
            self._bytes_left -= len(data)
        return len(data)


@contextmanager
def open_part(part: SourcePart, counter: ReadCounter) -> Iterator[io.BufferedReader]:
    """Open a part's decompressed bytes; when the block ends, read the rest, so that the hash covers all bytes."""
    source = part.source
    with ensure_unmodified(part), translate_read_errors(source.name), open_source(source) as stream:
        start, end = record_range(part)
        if start:
            stream.seek(start)
        limit = None if end is None else end - start
        bytes_on_disk: io.BufferedReader = io.BufferedReader(_CountingStream(stream, limit, counter), BLOCK_BYTES)
        yield _decompress(bytes_on_disk, source.compression)
        while bytes_on_disk.read(BLOCK_BYTES):
            pass


def open_source(source: TextSource) -> IO[bytes] | nullcontext[IO[bytes]]:
    """Open a local file, a file behind a URL, or stdin; stdin stays open after the `with` block."""
    if source.remote:
        return open_remote(source.remote.url)
    if source.path is None:
        if sys.stdin is None:
            raise InputError(f"{source.name}: standard input is closed", "pipe a text into the command, or name a file")
        # Not `buffer`, whose lock a thread of `run_ahead` may hold when the program ends; Python would then abort.
        return nullcontext(getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
    return source.path.open("rb")


def _decompress(raw: io.BufferedReader, compression: str) -> io.BufferedReader:
    """Return the decompressed stream; compression: the ending of the file's name, "" for an uncompressed file."""
    decompressor = _DECOMPRESSORS.get(compression)
    if decompressor is None:
        return raw
    if not raw.peek(1):  # `gzip` and zstd read an empty file as an empty text
        raise EOFError("the file is empty")
    return io.BufferedReader(decompressor(raw), BLOCK_BYTES)


def _open_zstd(raw: io.BufferedReader) -> Any:
    import pyarrow as pa  # comes with `datasets`; the standard library has zstd from Python 3.14 on

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")


_DECOMPRESSORS: dict[str, Callable[[io.BufferedReader], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zstd,
}


# ---------------------------------------------------------------- where records begin


@lru_cache(maxsize=1)  # `text_lines` and `open_part` both need the range of the current part
def record_range(part: SourcePart) -> tuple[int, int | None]:
    """Return the offsets at which the part's first record begins and its last one ends (None: at the file's end).

    If no line begins in the part, the part has no records, and both offsets are its start. The line that covers the
    part may end many parts later, so its end is not searched for.
    """
    if part.start and part.end is not None:
        bytes_left = part.end - part.start
        with translate_read_errors(part.source.name), open_source(part.source) as stream:
            stream.seek(part.start - 1)  # a line begins at `start` if the byte before it is a line feed
            while bytes_left > 0 and b"\n" not in stream.read(min(BLOCK_BYTES, bytes_left)):
                bytes_left -= BLOCK_BYTES
        if bytes_left <= 0:  # there was no line feed
            return part.start, part.start
    start = next_record_start(part, part.start)
    end = None if part.end is None else next_record_start(part, part.end)
    return start, end


def next_record_start(part: SourcePart, offset: int) -> int:
    """Return the offset of the first record that begins at or after a byte offset of the part's file.

    The result depends on nothing but the file and the offset, so a part ends where the next one begins. In JSON lines a
    record begins at every line. In a text file it begins after a blank line, or at the next line if the following 16
    MiB have no blank line.
    """
    if offset == 0:
        return 0
    with translate_read_errors(part.source.name), open_source(part.source) as stream:
        stream.seek(offset - 1)  # a line begins at `offset` if the byte before it is a line feed
        skipped_bytes, _ = skip_line(stream)
        next_line = offset - 1 + skipped_bytes
        if part.source.kind == "jsonl":
            return next_line
        position = next_line
        while position - next_line < _BLANK_LINE_SEARCH_BYTES:
            line = stream.readline(BLOCK_BYTES)
            position += len(line)
            if not line.strip():  # a blank line, or the end of the file
                return position
        return next_line


def skip_line(stream: IO[bytes] | io.BufferedReader) -> tuple[int, int]:
    """Skip to the next line and return the number of bytes skipped, and how many of them are double quotes."""
    size = 0
    quotes = 0
    while line := stream.readline(BLOCK_BYTES):
        size += len(line)
        quotes += line.count(b'"')
        if line.endswith(b"\n"):
            break
    return size, quotes
