"""Texts that a model is used on: lines of a file or of stdin, read a chunk at a time."""

from __future__ import annotations

import json
import select
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

from albert_cli.errors import InputError
from albert_cli.tasks.task import ChoiceExample, Example

T = TypeVar("T")
_CHUNK = 1024  # lines held at a time; enough to group by length
_BLOCK = 65_536  # bytes read at a time, as many as a pipe holds
_PATIENCE = 0.05  # seconds that a line waits for others to come
_WANTED = ("a single text", "two texts, with a tab or as text and text_pair")
_REMEDIES = ("a tab begins a second text; in .jsonl it may stand inside one", "give every line both, an empty one too")
_PASSAGE = ("text", "passage", "article", "context")
_OPTIONS = ("choices", "options")


@dataclass(frozen=True)
class Line:
    """A line of a file or of stdin (`-`), counted from 1."""

    text: str
    file: str
    number: int

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}:{self.number}"

    def values(self) -> Mapping[str, Any]:
        """The line as a JSON object; raises `InputError` for anything else."""
        try:
            value = json.loads(self.text)
        except (json.JSONDecodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise InputError(f"{self.where}: not a JSON object", 'each line of .jsonl is one: {"text": "…"}')
        return value


def read_chunks(name: str, on_bad_bytes: str, make: Callable[[Line], T]) -> Iterator[list[T]]:
    """What `make` says of the lines of a file or of stdin (`-`), some at a time, which are then grouped by length.

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


def text_example(line: Line, inputs: int | None = None) -> Example:
    """A line as a text, or two with a tab between; of a `.jsonl` file as an object.

    It has `text` (or `text_a`) and perhaps `text_pair` (or `text_b`) and `id`. `inputs` is the number of texts that the
    model was fine-tuned on; None takes either. Raises `InputError` naming file and line.
    """
    if line.file.endswith(".jsonl"):
        value = line.values()
        text, pair = value.get("text", value.get("text_a")), value.get("text_pair", value.get("text_b"))
        if not isinstance(text, str) or not isinstance(pair, str | None):
            raise InputError(f'{line.where}: needs a string "text"', 'each line: {"text": "…", "text_pair": "…"}')
        example = Example(text, pair, None, str(value.get("id", line.number)))
    else:
        text, tab, rest = line.text.partition("\t")
        example = Example(text, rest if tab else None, None, str(line.number))
    if inputs is not None and inputs != (1 if example.text_b is None else 2):
        got = "one text" if inputs == 2 else "two texts"
        raise InputError(
            f"{line.where}: {got}, but the model was fine-tuned on {_WANTED[inputs - 1]}", _REMEDIES[inputs - 1]
        )
    return example


def choice_example(line: Line) -> ChoiceExample:
    """A JSON line with `choices` (or `options`), a `question`, a passage as `text` (`passage`, `article`), an `id`."""
    value = line.values()
    options = next((value[name] for name in _OPTIONS if name in value), None)
    passage = next((value[name] for name in _PASSAGE if name in value), "")
    question = value.get("question", "")
    shape = 'each line: {"text": "…", "question": "…", "choices": ["…", "…"]}'
    if not isinstance(options, list) or len(options) < 2 or not all(isinstance(option, str) for option in options):
        raise InputError(f'{line.where}: needs "choices", a list of two texts or more', shape)
    if not isinstance(passage, str) or not isinstance(question, str) or not (passage or question):
        raise InputError(f'{line.where}: needs a "text" or a "question"', shape)
    return ChoiceExample(str(value.get("id", line.number)), passage, question, tuple(options), None)


def chunks(examples: Sequence[T]) -> Iterator[Sequence[T]]:
    """Examples that are all there, as many at a time."""
    return (examples[start : start + _CHUNK] for start in range(0, len(examples), _CHUNK))
