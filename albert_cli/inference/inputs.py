"""Read the inputs of `predict` and `encode`: tables with named columns, JSON lines, or one text per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Generic, Literal, TypeVar

from albert_cli.errors import InputError
from albert_cli.inference.columns import RecordMapper, Values, has_task_keys, map_columns
from albert_cli.model.hub import FinetunedTask
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.input_lines import InputLine
from albert_cli.text.lines import text_lines
from albert_cli.text.read_settings import OnBadBytes, ReadSettings
from albert_cli.text.records import iter_csv_rows, iter_parquet_rows, parse_json_object
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import TextSource

ExampleT = TypeVar("ExampleT")
InputFormat = Literal["lines", "jsonl", "csv", "tsv", "parquet"]
CHUNK_LINES = 1024  # rows in memory at a time; enough to group them by length

_FORMATS: Mapping[str, InputFormat] = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_JSON_HINT = "write one JSON object a line"


@dataclass(frozen=True)
class InputRow(Generic[ExampleT]):
    """One input: its example, and the columns of the input that the output keeps (empty for plain lines)."""

    example: ExampleT
    columns: Values


@dataclass(frozen=True)
class InputReader(Generic[ExampleT]):
    """A reader of a task's input rows; `finetuned` has the column names of training."""

    task: AnyTask
    parse: Callable[[InputLine], ExampleT]
    finetuned: FinetunedTask | None = None
    on_bad_bytes: OnBadBytes = "refuse"

    def read_chunks(self, name: str) -> Iterator[list[InputRow[ExampleT]]]:
        """Yield the rows of a file or of standard input (`-`), some at a time, to be grouped by length.

        A pipe's chunk ends with the lines that have arrived. Empty lines count too. Raises `InputError` with file and
        line.
        """
        counter = _ArrivedLines()
        numbered_rows, flushes_early = self._open(name, counter)
        chunk: list[InputRow[ExampleT]] = []
        for number, row in numbered_rows:
            chunk.append(row)
            if len(chunk) == CHUNK_LINES or (flushes_early and number >= counter.lines):
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def _open(self, name: str, counter: _ArrivedLines) -> tuple[Iterator[tuple[int, InputRow[ExampleT]]], bool]:
        """Return the numbered rows of an input, and whether they are passed on as soon as they have arrived."""
        suffix = PurePath(name).suffix.lower()
        if suffix == ".json":
            raise InputError(f"{name}: is one JSON document", f"{_JSON_HINT} into a .jsonl file")
        if suffix == ".parquet":
            rows = iter_parquet_rows(SourcePart(TextSource(name, "parquet")))
            return self._table_rows(name, rows), False
        source = SourcePart(TextSource(name, "stdin" if name == "-" else "text"))
        lines = text_lines(source, ReadSettings(self.on_bad_bytes), counter)
        file_format = _FORMATS.get(suffix, "lines")
        if file_format == "csv":
            return self._table_rows(name, _csv_rows(name, lines)), False
        if file_format == "tsv":
            return self._table_rows(name, _tsv_rows(name, lines)), False
        if file_format == "lines":
            first = next(lines, None)
            lines = lines if first is None else chain([first], lines)
            if first is not None and _is_json_object(name, first[1]):
                file_format = "jsonl"
        if file_format == "jsonl":
            return self._json_rows(name, lines), True
        return ((number, self._line_row(name, number, text)) for number, text in lines), True

    def _line_row(self, name: str, number: int, text: str) -> InputRow[ExampleT]:
        return InputRow(self.parse(InputLine(text, name, number)), {})

    def _json_rows(self, name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, InputRow[ExampleT]]]:
        mapper: RecordMapper | None = None
        for number, text in lines:
            values = parse_json_object(text, f"{name}:{number}", _JSON_HINT)
            record = values
            if not has_task_keys(self.task, values):
                mapper = mapper or self._map_keys(values, f"{name}:{number}")
                record = mapper(values)
            example = self.parse(InputLine(text, name, number, record))
            yield number, InputRow(example, {"id": str(record.get("id", number)), **values})

    def _map_keys(self, values: Values, origin: str) -> RecordMapper:
        """Return a mapping of keys with other names; without one the task itself reports what is missing."""
        try:
            return map_columns(self.task, list(values), origin, self.finetuned)
        except InputError:
            return dict

    def _table_rows(
        self, name: str, rows: Iterator[tuple[int, dict[str, object]]]
    ) -> Iterator[tuple[int, InputRow[ExampleT]]]:
        mapper: RecordMapper | None = None
        for number, values in rows:
            mapper = mapper or map_columns(self.task, list(values), name, self.finetuned)
            yield number, InputRow(self.parse(InputLine("", name, number, mapper(values))), values)


class _ArrivedLines(ReadCounter):
    """The number of lines that have been read from the disk or the pipe, used or not."""

    lines = 0

    def add(self, data: bytes) -> None:
        """Count the lines of a block."""
        self.lines += data.count(b"\n")


def _is_json_object(name: str, line: str) -> bool:
    """Return whether a first line is a JSON object; raises `InputError` for a JSON array of objects."""
    start = line.lstrip()
    if not start.startswith(("{", "[{")):
        return False
    try:
        value = json.loads(start)
    except ValueError:
        return False
    if isinstance(value, list):
        raise InputError(f"{name}:1: is a JSON array", _JSON_HINT)
    return isinstance(value, dict)


def _csv_rows(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, dict[str, object]]]:
    yield from _with_header(name, iter_csv_rows(lines, f"{name}:{{}}".format))


def _tsv_rows(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, dict[str, object]]]:
    yield from _with_header(name, ((number, text.split("\t")) for number, text in lines))


def _with_header(name: str, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield rows by column; raises `InputError` for a row with another number of cells than the header."""
    _, header = next(rows, (0, []))
    for column in header:
        if header.count(column) > 1:
            raise InputError(f"{name}:1: the column {column!r} occurs twice", "rename one of them")
    for number, cells in rows:
        if len(cells) != len(header):
            raise InputError(
                f"{name}:{number}: {len(cells)} cells, but line 1 names {len(header)} columns",
                "look for a delimiter or a line end inside a text",
            )
        yield number, dict(zip(header, cells, strict=True))
