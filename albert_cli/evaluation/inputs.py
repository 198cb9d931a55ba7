"""Texts that a model is used on: lines of a file or of stdin, read a chunk at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from albert_cli.errors import InputError
from albert_cli.tasks.task import Example

_CHUNK = 1024  # lines held at a time; enough to group by length
_WANTED = ("a single text", "two texts, with a tab or as text and text_pair")


def read_examples(name: str, on_bad_bytes: str, inputs: int | None = None) -> Iterator[Example]:
    """The examples of a file or of stdin (`-`), a line each; empty lines are texts too, so that lines keep their count.

    A line is a text, or two texts with a tab between; of a `.jsonl` file each line is an object with `text` (or
    `text_a`) and perhaps `text_pair` (or `text_b`) and `id`. `inputs` is the number of texts that the model was
    fine-tuned on; None takes either. Raises `InputError` naming file and line.
    """
    errors = "replace" if on_bad_bytes == "replace" else "strict"
    with ExitStack() as stack:
        stream: IO[bytes]
        if name == "-":
            stream = sys.stdin.buffer
        else:
            try:
                stream = stack.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise InputError(f"{name}: {error.strerror or error}") from None
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8", errors).rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{name}:{number}: not valid UTF-8 at byte {error.start} of the line", "--on-bad-bytes replace"
                ) from None
            example = _example(line, name, number)
            if inputs is not None and inputs != (1 if example.text_b is None else 2):
                got = "one text" if inputs == 2 else "two texts"
                raise InputError(f"{name}:{number}: {got}, but the model was fine-tuned on {_WANTED[inputs - 1]}")
            yield example


def _example(line: str, name: str, number: int) -> Example:
    if not name.endswith(".jsonl"):
        text, tab, pair = line.partition("\t")
        return Example(text, pair if tab else None, None, str(number))
    try:
        value = json.loads(line)
        text, pair = value.get("text", value.get("text_a")), value.get("text_pair", value.get("text_b"))
    except (json.JSONDecodeError, AttributeError):
        raise InputError(f"{name}:{number}: not a JSON object") from None
    if not isinstance(text, str) or not isinstance(pair, str | None):
        raise InputError(f'{name}:{number}: needs a string "text"', 'each line: {"text": "…", "text_pair": "…"}')
    return Example(text, pair, None, str(value.get("id", number)))


def chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """The examples, a list of some at a time."""
    chunk: list[Example] = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
