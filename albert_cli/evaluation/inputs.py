"""Texts that a model is used on: lines of a file or of stdin, read a chunk at a time."""

from __future__ import annotations

import select
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import TypeVar, cast

from albert_cli.errors import InputError
from albert_cli.tasks.rows import Line

T = TypeVar("T")
_CHUNK = 1024  # lines held at a time; enough to group by length
_BLOCK = 65_536  # bytes read at a time, as many as a pipe holds
_PATIENCE = 0.05  # seconds that a line waits for others to come


def read_chunks(name: str, on_bad_bytes: str, make: Callable[[Line], T]) -> Iterator[list[T]]:
    """What `make` makes of the lines of a file or of stdin (`-`), some at a time, which are then grouped by length.

    Lines come without their ends; empty ones count too. Of a pipe only those that have come are waited for, so that a
    slow producer is answered line by line. Raises `InputError` naming file and line.
    """
    if name.endswith(".json"):
        raise InputError(f"{name}: is one JSON document, not a text a line", "a .jsonl file has an object a line")
    errors = "replace" if on_bad_bytes == "replace" else "strict"
    with ExitStack() as stack:
        stream: BufferedReader
        if name == "-":
            stream = cast(BufferedReader, sys.stdin.buffer)
        else:
            try:
                stream = stack.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise InputError(f"{name}: {error.strerror or error}", "--input names a file, or - for stdin") from None
        numbers = count(1)
        for group in _groups(stream):
            yield [make(_line(raw, name, number, errors)) for raw, number in zip(group, numbers, strict=False)]


def _line(raw: bytes, name: str, number: int, errors: str) -> Line:
    raw = raw.removeprefix(BOM_UTF8) if number == 1 else raw
    try:
        return Line(raw.decode("utf-8", errors).rstrip("\r\n"), name, number)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}:{number}: not valid UTF-8 at byte {error.start} of the line", "--on-bad-bytes replace"
        ) from None


def _groups(stream: BufferedReader) -> Iterator[list[bytes]]:
    """Lines, `_CHUNK` at a time; those that there are once the first has waited for `_PATIENCE` and no more come."""
    group: list[bytes] = []
    unfinished: list[bytes] = []  # parts of a line whose end has not come
    deadline = 0.0
    while True:
        if group and not _has_more(stream, deadline - time.monotonic()):
            yield group
            group = []
        if not (block := stream.read1(_BLOCK)):  # waits, but for no more than there is
            break
        if not group:
            deadline = time.monotonic() + _PATIENCE
        *ended, last = block.split(b"\n")
        if ended:
            ended[0] = b"".join([*unfinished, ended[0]])
            unfinished.clear()
        unfinished.append(last)
        group += ended
        while len(group) >= _CHUNK:
            yield group[:_CHUNK]
            group = group[_CHUNK:]
    if last_line := b"".join(unfinished):
        group.append(last_line)
    if group:
        yield group


def _has_more(stream: BufferedReader, seconds: float) -> bool:
    """Whether something can be read, or the end seen, within so many seconds; yes where the system cannot tell."""
    try:
        return bool(select.select([stream], [], [], max(0.0, seconds))[0])
    except (OSError, ValueError):  # not a file of the system's, or Windows
        return True


def chunks(examples: Sequence[T]) -> Iterator[Sequence[T]]:
    """Examples that are all there, as many at a time."""
    return (examples[start : start + _CHUNK] for start in range(0, len(examples), _CHUNK))
