"""Bytes to lines of text: one part of a file, watched and hashed while it is read, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, cast

from albert_cli.errors import ConfigError, InputError
from albert_cli.text.sources import TextSource

OnBadBytes = Literal["refuse", "replace"]
OnLongLine = Literal["refuse", "skip"]

_BLOCK_BYTES = 1 << 20
_BLANK_LINE_SEARCH_BYTES = 16 << 20  # bytes within which a text file's next blank line is looked for
_MAGIC_BYTES = {b"\x1f\x8b": "gzip (.gz)", b"\xfd7": "xz (.xz)", b"PK": "zip", b"BZ": "bzip2 (.bz2)"}
_MAGIC_BYTES[b"\x28\xb5\x2f\xfd"] = "zstd (.zst)"


@dataclass(frozen=True)
class ReadSettings:
    """How text is read; max_line: bytes of the longest line (record, cell) that is read."""

    on_bad_bytes: OnBadBytes = "refuse"
    text_field: str = "text"
    max_line: int = 64 << 20
    on_long_line: OnLongLine = "refuse"

    def __post_init__(self) -> None:
        if self.max_line < 1 << 10:
            raise ConfigError(f"--max-line {self.max_line}: must be at least 1KiB")


@dataclass
class ReadCounter:
    """What has been read so far: bytes as they lie on the disk, their SHA-256, and lines left out."""

    size: int = 0
    skipped: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Count and hash some bytes."""
        self.sha256.update(data)
        self.size += len(data)


FileSignature = tuple[int, int, int]


def file_signature(path: Path) -> FileSignature:
    """Size, time of the last change (ns) and inode: a cheap sign that a file is still the same."""
    with translate_read_errors(path):
        status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


@dataclass(frozen=True)
class SourcePart:
    """The bytes `start` to `end` (None: the rest) of a source. Only a source that `can_be_split` has others."""

    source: TextSource
    start: int = 0
    end: int | None = None
    stamp: FileSignature | None = None

    def at(self, line: int) -> str:
        """`file:line` of a line counted from this part's start; the lines before it are counted only here."""
        before = 0
        if self.start:
            with Path(self.source.name).open("rb") as stream:
                left, _ = record_range(self)
                while left > 0 and (block := stream.read(min(_BLOCK_BYTES, left))):
                    before += block.count(b"\n")
                    left -= len(block)
        return f"{self.source.name}:{before + line}"


# ---------------------------------------------------------------- bytes


class _CountingStream(io.RawIOBase):
    """A binary stream up to a number of bytes, tallied."""

    def __init__(self, stream: IO[bytes], left: int | None, tally: ReadCounter) -> None:
        self._read, self._left, self._tally = getattr(stream, "read1", stream.read), left, tally  # what has come

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._left]
        data = self._read(len(view))
        view[: len(data)] = data
        self._tally.add(data)
        if self._left is not None:
            self._left -= len(data)
        return len(data)


@contextmanager
def translate_read_errors(path: Path | str) -> Iterator[None]:
    """Turn what the operating system and the decompressors raise into one line that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file or folder", "check its name") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a folder", "name a file") from error
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # those of the decompressors have no number
            raise InputError(f"{path}: cannot be read ({error.strerror or error})", "check its permissions") from error
        raise InputError(f"{path}: damaged or cut compressed file ({error})", "copy it again") from error


@contextmanager
def ensure_unmodified(part: SourcePart) -> Iterator[None]:
    """Raise `InputError` when the part's file is not the same after the block as before it."""
    path = part.source.path
    if path is None or not path.is_file():  # a pipe has a name too
        yield
        return
    now = file_signature(path)
    before = part.stamp or now
    if now == before:
        yield
        now = file_signature(path) if path.exists() else (-1, -1, -1)
    if now != before:
        what = "vanished" if now[0] < 0 else "changed"
        hint = "run the same command again when nothing else writes to it"
        raise InputError(f"{path}: {what} while it was read", hint)


@contextmanager
def open_part(part: SourcePart, tally: ReadCounter) -> Iterator[io.BufferedReader]:
    """The part's bytes, decompressed; what is left of them at the end is read for the file's hash."""
    source = part.source
    with (
        ensure_unmodified(part),
        translate_read_errors(source.name),
        Path(source.name).open("rb", buffering=0) if source.path else nullcontext(sys.stdin.buffer) as stream,
    ):
        start, end = record_range(part)
        if start:
            stream.seek(start)
        raw: Any = io.BufferedReader(_CountingStream(stream, None if end is None else end - start, tally), _BLOCK_BYTES)
        yield _decompress(raw, source.compression)
        while raw.read(_BLOCK_BYTES):
            pass


def _decompress(raw: Any, compression: str) -> io.BufferedReader:
    if not compression:
        return cast(io.BufferedReader, raw)
    if compression == ".zst":
        import pyarrow as pa  # comes with `datasets`; the standard library of Python 3.11 has no zstd

        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"), _BLOCK_BYTES)
    make: Any = {".gz": lambda file: gzip.GzipFile(fileobj=file), ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
    return io.BufferedReader(make[compression](raw), _BLOCK_BYTES)


@lru_cache(maxsize=1)
def record_range(part: SourcePart) -> tuple[int, int | None]:
    """Where the part's first record begins and its last one ends; the same where it has none.

    Then it lies within a line, whose end is not looked for: it may be many parts away.
    """
    if part.start and part.end is not None:
        left = part.end - part.start
        with translate_read_errors(part.source.name), Path(part.source.name).open("rb") as stream:
            stream.seek(part.start - 1)
            while left > 0 and b"\n" not in stream.read(min(_BLOCK_BYTES, left)):
                left -= _BLOCK_BYTES
        if left <= 0:
            return part.start, part.start
    return next_record_start(part, part.start), None if part.end is None else next_record_start(part, part.end)


def next_record_start(part: SourcePart, offset: int) -> int:
    """Where the first record at or after a byte offset begins; a pure function of the file and the offset.

    In a text file that is after the next blank line, or, where none follows for 16 MiB, at the next line.
    """
    if offset == 0:
        return 0
    path = Path(part.source.name)
    with translate_read_errors(path), path.open("rb") as stream:
        stream.seek(offset - 1)
        first = here = offset - 1 + _skip_line(stream)
        if part.source.kind == "jsonl":
            return first
        while here - first < _BLANK_LINE_SEARCH_BYTES:
            line = stream.readline(_BLOCK_BYTES)
            here += len(line)
            if not line.strip():  # blank, or the end
                return here
        return first


def _skip_line(stream: IO[bytes] | io.BufferedReader) -> int:
    """Skip to the next line; returns how many bytes that takes."""
    size = 0
    while line := stream.readline(_BLOCK_BYTES):
        size += len(line)
        if line.endswith(b"\n"):
            break
    return size


# ---------------------------------------------------------------- lines


def text_lines(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[tuple[int, str]]:
    """(line number in the part from 1, text without the line end) of every line; only a line feed ends one.

    A line beyond `max_line` is never held. Raises `InputError` for one, and for bytes that are no UTF-8, unless
    `settings` say otherwise.
    """
    longest = settings.max_line
    with open_part(part, tally) as stream:
        number, (offset, _) = 0, record_range(part)
        while line := stream.readline(longest + 2):
            number += 1
            if number == 1 and not part.start:
                _reject_binary_start(part, line)
                if line.startswith(b"\xef\xbb\xbf"):
                    line, offset = line[3:], 3
            content = line.rstrip(b"\r\n")
            if len(content) <= longest:
                yield number, _decode_line(content, part, number, offset, settings.on_bad_bytes)
            else:
                reject_or_count_long_line(part.at, number, settings, tally)
                offset += 0 if line.endswith(b"\n") else _skip_line(stream)
            offset += len(line)


def reject_or_count_long_line(
    at: Callable[[int], str], number: int, settings: ReadSettings, tally: ReadCounter
) -> None:
    """Raise `InputError` for a line (record, cell) that is too long, or count it where it is to be left out."""
    if settings.on_long_line == "refuse":
        raise InputError(
            f"{at(number)}: longer than {settings.max_line / 2**20:g} MiB",
            "vocab and data take --max-line for longer ones, and --on-long-line skip to leave them out",
        )
    tally.skipped += 1


def reject_utf16(name: str | Path, start: bytes) -> None:
    """Raise `InputError` where a file begins as UTF-16 does, which spreadsheets call Unicode."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name}: is UTF-16, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8")


def _reject_binary_start(part: SourcePart, line: bytes) -> None:
    reject_utf16(part.source.name, line)
    for magic, name in _MAGIC_BYTES.items():
        if line.startswith(magic) and (b"\0" in line[:16] or len(magic) > 3):
            hint = "decompress it; vocab and data read it as it is under a name that says so, such as .gz"
            if part.source.kind == "stdin":
                hint = "decompress it before the pipe"
            raise InputError(f"{part.source.name}: is a {name} file by its first bytes", hint)


def _decode_line(line: bytes, part: SourcePart, number: int, offset: int, on_bad_bytes: OnBadBytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        if on_bad_bytes == "replace":
            return line.decode("utf-8", errors="replace").replace("\0", "")
        raise InputError(
            f"{part.at(number)}: invalid UTF-8 at byte {offset + error.start} ({error.reason})",
            "convert it, for example by iconv; --on-bad-bytes replace (where a verb has it) puts U+FFFD in its place",
        ) from None
    return check_characters(text, part.at, number, on_bad_bytes) if "\0" in text else text


def check_characters(text: str, at: Callable[[int], str], number: int, on_bad_bytes: OnBadBytes) -> str:
    """Refuse or mend what no UTF-8 text has: NUL, and lone surrogates out of JSON escapes."""
    what = "a NUL character" if "\0" in text else ""
    try:
        text.encode()
    except UnicodeEncodeError:
        what = what or "a lone surrogate"
    if not what:
        return text
    if on_bad_bytes == "refuse":
        raise InputError(f"{at(number)}: {what} in the text", "--on-bad-bytes replace continues without it")
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_size(text: str) -> int:
    """`64MiB`, `500kB`, `1G` or a plain number of bytes; raises `ConfigError`."""
    number = text.strip().rstrip("BbIiKkMmGg")
    unit = text.strip()[len(number) :].lower().removesuffix("b")
    factor = {"": 1, "k": 10**3, "ki": 2**10, "m": 10**6, "mi": 2**20, "g": 10**9, "gi": 2**30}.get(unit)
    is_number = len(number) <= 18 and number.strip().replace(".", "", 1).isdecimal()
    if factor is None or not is_number or float(number) * factor >= 2**62:
        raise ConfigError(f"{text!r} is no size", "for example 64MiB")
    return int(float(number) * factor)
