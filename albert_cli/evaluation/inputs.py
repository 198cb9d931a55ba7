"""Texts that a model is used on: lines of a file or of stdin, read a chunk at a time."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from albert_cli.errors import InputError
from albert_cli.tasks.task import ChoiceExample, Example

T = TypeVar("T")
_CHUNK = 1024  # lines held at a time; enough to group by length
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


def read_lines(name: str, on_bad_bytes: str) -> Iterator[Line]:
    """The lines of a file or of stdin (`-`), without their ends. Raises `InputError` naming file and line."""
    if name.endswith(".json"):
        raise InputError(f"{name}: is one JSON document, not a text a line", "a .jsonl file has an object a line")
    errors = "replace" if on_bad_bytes == "replace" else "strict"
    with ExitStack() as stack:
        stream: IO[bytes]
        if name == "-":
            stream = sys.stdin.buffer
        else:
            try:
                stream = stack.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise InputError(f"{name}: {error.strerror or error}", "--input names a file, or - for stdin") from None
        for number, raw in enumerate(stream, start=1):
            raw = raw.removeprefix(BOM_UTF8) if number == 1 else raw
            try:
                yield Line(raw.decode("utf-8", errors).rstrip("\r\n"), name, number)
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{name}:{number}: not valid UTF-8 at byte {error.start} of the line", "--on-bad-bytes replace"
                ) from None


def read_examples(name: str, on_bad_bytes: str, inputs: int | None = None) -> Iterator[Example]:
    """The examples of a file or of stdin (`-`), a line each; empty lines are texts too, so that lines keep their count.

    A line is a text, or two texts with a tab between; of a `.jsonl` file each line is an object with `text` (or
    `text_a`) and perhaps `text_pair` (or `text_b`) and `id`. `inputs` is the number of texts that the model was
    fine-tuned on; None takes either. Raises `InputError` naming file and line.
    """
    return (text_example(line, inputs) for line in read_lines(name, on_bad_bytes))


def text_example(line: Line, inputs: int | None = None) -> Example:
    """A line as a text or two; see `read_examples`."""
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


def chunks(examples: Iterable[T]) -> Iterator[list[T]]:
    """The examples, a list of some at a time."""
    chunk: list[T] = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
