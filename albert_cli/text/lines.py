"""Decode the lines of a source: UTF-8 text with line numbers, and with a maximum length unless a format has none.

All line-based formats are read through `text_lines`, so they reject, replace or leave out bad lines by the same rules.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

from albert_cli.errors import InputError
from albert_cli.text.clean import replace_surrogates
from albert_cli.text.encodings import SAMPLE_BYTES, suggest_conversion
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.read_settings import OnBadBytes, ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart, open_part, record_range, skip_line
from albert_cli.text.sources import STDIN

NumberedLines: TypeAlias = Iterator[tuple[int, str]]  # the line's number in the part, from 1, and its text
# The same, but a line that is too long has the number of its double quotes instead of its text. They show where a CSV
# row ends.
NumberedLinesOrQuoteCounts: TypeAlias = Iterator[tuple[int, str | int]]

_UNLIMITED_BYTES = 1 << 62
# A text that is read as a whole from a compressed file has at most this many times `max_line` bytes: 1 GiB by default.
# A few compressed bytes can expand to any size, while the size of an uncompressed file is visible.
_EXPANSION_LIMIT_FACTOR = 16
_UTF8_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# UTF-16 and UTF-32 are detected by the fraction of zero bytes at each of the four offsets modulo 4.
_WIDE_SAMPLE_BYTES = 4096
_MIN_UTF32_ZEROS = 0.9  # at each of the offsets of the two high bytes, which are zero in nearly every character
_MIN_UTF16_ZEROS = 0.1  # sum over the two offsets of the high byte, which is zero in ASCII characters such as spaces
_ISO_2022_JP_ESCAPES = ("\x1b$B", "\x1b$@")
_REPLACE_HINT = "for vocab, data, predict and encode, use --on-bad-bytes replace"
_FEW_BAD_BYTES_HINT = f"if only a few characters are damaged, drop them: iconv -c -f UTF-8 -t UTF-8; {_REPLACE_HINT}"
_COMPRESSION_MAGIC = {
    b"\x1f\x8b": "gzip (.gz)",
    b"\xfd7": "xz (.xz)",
    b"PK": "zip",
    b"BZ": "bzip2 (.bz2)",
    b"\x28\xb5\x2f\xfd": "zstd (.zst)",
}


def text_lines(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> NumberedLines:
    """Yield (line number from 1 in the part, text without the line end); only a line feed ends a line.

    Memory holds no more than `max_line` bytes of a line. Raises `InputError` for a longer line, unless `on_long_line`
    is "skip", and for invalid UTF-8 or NUL, unless `on_bad_bytes` is "replace".
    """
    for number, line in lines_or_quote_counts(part, settings, counter):
        if isinstance(line, str):
            yield number, line
        else:
            reject_or_count_long_line(part.location, number, settings, counter)


def unlimited_lines(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> NumberedLines:
    """Yield lines as `text_lines` does, whatever their length.

    For formats whose records may have several lines: a record without its long line would be damaged. Memory holds the
    longest line, so a line of a compressed file has a maximum (`_EXPANSION_LIMIT_FACTOR`).
    """
    limit = _memory_limit(part, settings)
    settings = replace(settings, max_line=limit, on_long_line="refuse")
    for number, line in lines_or_quote_counts(part, settings, counter):
        if not isinstance(line, str):
            raise _expansion_error(part, limit)
        yield number, line


def collect_text(lines: NumberedLines, part: SourcePart, settings: ReadSettings) -> str:
    """Return the lines as one text, with a blank line for each number that is missing.

    Raises `InputError` if the text of a compressed file is too large (`_EXPANSION_LIMIT_FACTOR`).
    """
    limit = _memory_limit(part, settings)
    text = io.StringIO()  # takes one byte for a blank line; a list takes eight
    n_bytes = 0
    line_number = 1
    for number, line in lines:
        line_feeds = number - line_number
        n_bytes += line_feeds + utf8_size(line)
        if n_bytes > limit:
            raise _expansion_error(part, limit)
        text.write("\n" * line_feeds + line)
        line_number = number
    return text.getvalue()


def _memory_limit(part: SourcePart, settings: ReadSettings) -> int:
    """Return the maximum number of bytes that are read as a whole from a part."""
    if not part.source.compression:
        return _UNLIMITED_BYTES
    return min(_EXPANSION_LIMIT_FACTOR * settings.max_line, _UNLIMITED_BYTES)


def _expansion_error(part: SourcePart, limit: int) -> InputError:
    """Return the error for a compressed file that has more than `limit` bytes to be read as a whole."""
    hint = "decompress it first, or for vocab and data raise --max-line"
    return InputError(f"{part.source.name}: expands to more than {limit / 2**20:g} MiB", hint)


def iter_short_lines(
    lines: NumberedLines, part: SourcePart, settings: ReadSettings, counter: ReadCounter
) -> NumberedLines:
    """Yield the lines of at most `max_line` bytes, and reject or count longer ones.

    lines: the result of `unlimited_lines`.
    """
    for number, line in lines:
        if utf8_size(line) > settings.max_line:
            reject_or_count_long_line(part.location, number, settings, counter)
        else:
            yield number, line


def utf8_size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8; a lone surrogate has three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def lines_or_quote_counts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> NumberedLinesOrQuoteCounts:
    """Yield lines as `text_lines` does; for a line that is too long, yield the number of its double quotes instead."""
    max_bytes = settings.max_line
    read_limit = max_bytes + 2  # 2: the longest line end, \r\n
    with open_part(part, counter) as stream:
        number = 0
        line_start, _ = record_range(part)  # the line's offset in the decompressed file
        while line := stream.readline(read_limit):
            number += 1
            if number == 1 and part.start == 0:
                _reject_binary_start(part, line)
                if line.startswith(_UTF8_BYTE_ORDER_MARK):
                    line = line.removeprefix(_UTF8_BYTE_ORDER_MARK)
                    line_start = len(_UTF8_BYTE_ORDER_MARK)
                    if not line.endswith(b"\n"):
                        line += stream.readline(len(_UTF8_BYTE_ORDER_MARK))  # the mark does not count for `read_limit`
            content = line.rstrip(b"\r\n")
            is_complete = line.endswith(b"\n") or len(line) < read_limit  # the last line may have no line feed
            if is_complete and len(content) <= max_bytes:
                yield number, _decode_line(content, part, number, line_start, settings.on_bad_bytes, counter, stream)
            else:
                quotes = line.count(b'"')
                # With "refuse" the caller raises an error, so the rest of the line is not read.
                if not line.endswith(b"\n") and settings.on_long_line == "skip":
                    skipped_bytes, skipped_quotes = skip_line(stream)
                    line_start += skipped_bytes
                    quotes += skipped_quotes
                yield number, quotes
            line_start += len(line)


def reject_or_count_long_line(
    location: Callable[[int], str], number: int, settings: ReadSettings, counter: ReadCounter
) -> None:
    """Raise `InputError` for a line, record or row that is too long, or count it if the settings leave it out.

    number: the number of the line, record or row; location: a function that returns the location for a number, such as
    `file:line`.
    """
    if settings.on_long_line == "refuse":
        raise InputError(
            f"{location(number)}: longer than {settings.max_line / 2**20:g} MiB",
            "for vocab and data, raise --max-line, or leave long lines out with --on-long-line skip",
        )
    counter.counts += LineCounts(too_long=1)


def reject_utf16(name: str | Path, start: bytes) -> None:
    """Raise `InputError` if a file's first bytes are UTF-16 or UTF-32, with a byte order mark or without."""
    encoding = _detect_wide_encoding(start)
    if encoding:
        family = encoding.removesuffix("LE").removesuffix("BE")
        raise InputError(f"{name}: is {family}, not UTF-8", f"convert it: iconv -f {encoding} -t UTF-8")


def _detect_wide_encoding(start: bytes) -> str:
    """Return the name of a text's encoding by its first bytes, if it is UTF-16 or UTF-32, else "".

    If a byte order mark shows the encoding, the name is "UTF-16" or "UTF-32". Without a mark, the positions of zero
    bytes show the encoding, and the name also has the byte order, LE or BE.
    """
    if start.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    sample = start[:_WIDE_SAMPLE_BYTES]
    if len(sample) < 8 or sample.count(0) < 2:
        return ""
    zeros = [sample[i::4].count(0) / len(sample[i::4]) for i in range(4)]  # fraction of zeros at offset i modulo 4
    # In UTF-32LE the high bytes are at the offsets 2 and 3, and the lowest byte, which is rarely zero, is at 0.
    if min(zeros[2], zeros[3]) > _MIN_UTF32_ZEROS > zeros[0]:
        return "UTF-32LE"
    if min(zeros[0], zeros[1]) > _MIN_UTF32_ZEROS > zeros[3]:
        return "UTF-32BE"
    zeros_at_even_offsets = zeros[0] + zeros[2]
    zeros_at_odd_offsets = zeros[1] + zeros[3]
    if zeros_at_odd_offsets > _MIN_UTF16_ZEROS and zeros_at_even_offsets == 0:
        return "UTF-16LE"
    if zeros_at_even_offsets > _MIN_UTF16_ZEROS and zeros_at_odd_offsets == 0:
        return "UTF-16BE"
    return ""


def _reject_binary_start(part: SourcePart, line: bytes) -> None:
    """Raise `InputError` if the first line shows that the source is UTF-16 or compressed."""
    reject_utf16(part.source.name, line)
    for magic, compression in _COMPRESSION_MAGIC.items():
        # A text may begin with two letters such as "PK", but it has no NUL soon after them.
        is_certain = len(magic) > 3 or b"\0" in line[:16]
        if line.startswith(magic) and is_certain:
            hint = "decompress it, or for vocab and data add the ending that names the compression, such as .gz"
            if part.source.name == STDIN:
                hint = "decompress it before the pipe"
            raise InputError(f"{part.source.name}: is a {compression} file by its first bytes", hint)


def reject_iso_2022_jp(text: str, location: Callable[[], str]) -> None:
    """Raise `InputError` if a text has an escape sequence by which ISO-2022-JP changes to Japanese characters.

    The bytes of this encoding are ASCII, so they are valid UTF-8. location: a function that returns the location.
    """
    if any(escape in text for escape in _ISO_2022_JP_ESCAPES):
        raise InputError(f"{location()}: is ISO-2022-JP, not UTF-8", "convert it: iconv -f ISO-2022-JP -t UTF-8")


def _decode_line(
    line: bytes,
    part: SourcePart,
    number: int,
    line_start: int,
    on_bad_bytes: OnBadBytes,
    counter: ReadCounter,
    rest: IO[bytes],
) -> str:
    """Decode a line, with invalid UTF-8 and NUL rejected or replaced.

    line_start: the line's offset in the file in bytes, for errors; rest: the stream after the line, from which more
    bytes are read if the error message has to guess the encoding.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        if on_bad_bytes == "replace":
            counter.counts += LineCounts(replaced=1)
            return line.decode("utf-8", errors="replace").replace("\0", "")
        sample = line
        if Path(part.source.name).is_file():  # reading on from a pipe would wait for its next bytes
            sample += rest.read(SAMPLE_BYTES)
        raise InputError(
            f"{part.location(number)}: invalid UTF-8 at byte {line_start + error.start} ({error.reason})",
            f"{suggest_conversion(sample)}; {_FEW_BAD_BYTES_HINT}",
        ) from None
    if "\x1b" in text and on_bad_bytes == "refuse":
        reject_iso_2022_jp(text, partial(part.location, number))
    if "\0" in text:
        return check_characters(text, part.location, number, on_bad_bytes, counter)
    return text


def check_characters(
    text: str, location: Callable[[int], str], number: int, on_bad_bytes: OnBadBytes, counter: ReadCounter
) -> str:
    """Return the text; raise `InputError` if it has a NUL, or a lone surrogate, which a JSON escape can produce.

    With `on_bad_bytes="replace"`, NUL is dropped and a lone surrogate becomes U+FFFD. number: the number of the line or
    record; location: a function that returns the location for a number, such as `file:line`; counter: counts the text
    if characters are replaced.
    """
    repaired = replace_surrogates(text.replace("\0", ""))
    if repaired == text:
        return text
    if on_bad_bytes == "refuse":
        problem = "a NUL character" if "\0" in text else "a lone surrogate"
        raise InputError(f"{location(number)}: {problem} in the text", f"remove it; {_REPLACE_HINT}")
    counter.counts += LineCounts(replaced=1)
    return repaired
