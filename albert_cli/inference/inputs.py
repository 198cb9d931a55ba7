"""Read the inputs of `predict` and `encode`: tables with named columns, JSON lines, or one text per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Generic, TypeVar

from albert_cli.errors import InputError
from albert_cli.inference.columns import (
    USUAL_NAMES,
    RecordMapper,
    TableLayout,
    Values,
    has_task_keys,
    has_trained_columns,
    map_columns,
)
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.data_files import reject_file_of_other_format
from albert_cli.tasks.delimited import is_quoted, open_delimited
from albert_cli.tasks.input_lines import InputLine
from albert_cli.text.lines import text_lines
from albert_cli.text.read_settings import OnBadBytes, ReadSettings
from albert_cli.text.records import iter_json_objects, iter_parquet_rows
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import TextSource

ExampleT = TypeVar("ExampleT")
CHUNK_LINES = 1024  # rows in memory at a time; enough to group them by length

_DELIMITERS = "\t,;|"
_JSON_HINT = "write one JSON object per line"


@dataclass(frozen=True)
class InputRow(Generic[ExampleT]):
    """One input: its example, and the columns of the input that the output keeps (empty for plain lines)."""

    example: ExampleT
    columns: Values


@dataclass(frozen=True)
class InputReader(Generic[ExampleT]):
    """A reader of a task's input rows; `layout` is that of the training table."""

    task: AnyTask
    parse: Callable[[InputLine], ExampleT]
    layout: TableLayout = field(default_factory=TableLayout)
    on_bad_bytes: OnBadBytes = "refuse"

    def read_chunks(self, name: str) -> Iterator[list[InputRow[ExampleT]]]:
        """Yield the rows of a file or of standard input (`-`), some at a time, to be grouped by length.

        A pipe's chunk ends when it has all lines that have arrived. An empty line is an input too. Raises `InputError`
        with file and line.
        """
        counter = _ArrivedLines()
        numbered_rows, flushes_early = self._open(name, counter)
        chunk: list[InputRow[ExampleT]] = []
        for number, row in numbered_rows:
            chunk.append(row)
            would_wait = number >= counter.lines  # no further line has arrived
            if len(chunk) == CHUNK_LINES or (flushes_early and would_wait):
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def _open(self, name: str, counter: _ArrivedLines) -> tuple[Iterator[tuple[int, InputRow[ExampleT]]], bool]:
        """Return the numbered rows of an input, and whether they are passed on as soon as they have arrived."""
        suffix = PurePath(name).suffix.lower()
        if suffix == ".parquet":
            rows = iter_parquet_rows(SourcePart(TextSource(name, "parquet")))
            return self._table_rows(name, rows), False
        reject_file_of_other_format(Path(name))
        source = SourcePart(TextSource(name, "stdin" if name == "-" else "text"))
        lines = text_lines(source, ReadSettings(self.on_bad_bytes), counter)
        if suffix in (".csv", ".tsv"):
            return self._table_rows(name, self._delimited_rows(name, suffix, lines)), False
        if suffix == ".jsonl":
            return self._json_rows(name, lines), True
        blank_lines, first = _read_first_text(lines)
        lines = chain(blank_lines, () if first is None else (first,), lines)
        may_be_json = suffix != ".json" or (first is not None and first[1].lstrip().startswith("{"))
        if first is not None and may_be_json and _is_json_object(name, first[1]):
            return self._json_rows(name, lines), True
        if suffix == ".json":
            raise InputError(f"{name}: is one JSON document", f"{_JSON_HINT} into a .jsonl file")
        if first is not None:
            _reject_header(f"{name}:{first[0]}", first[1])
        return ((number, self._line_row(name, number, text)) for number, text in lines), True

    def _line_row(self, name: str, number: int, text: str) -> InputRow[ExampleT]:
        return InputRow(self.parse(InputLine(text, name, number)), {})

    def _json_rows(self, name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, InputRow[ExampleT]]]:
        mappers: dict[tuple[str, ...], RecordMapper] = {}  # by the keys of an object
        for number, values in iter_json_objects(lines, f"{name}:{{}}".format):
            keys = tuple(values)
            if keys not in mappers:
                mappers[keys] = self._map_keys(values, f"{name}:{number}")
            record = mappers[keys](values)
            example = self.parse(InputLine("", name, number, record))
            yield number, InputRow(example, {"id": str(record.get("id", number)), **values})

    def _map_keys(self, values: Values, origin: str) -> RecordMapper:
        """Return the function that renames an object's keys to the task's; `dict` renames none.

        If no mapping is found, nothing is renamed, because the task's own error says more.
        """
        if has_task_keys(self.task, values) and not has_trained_columns(values, self.layout):
            return dict
        try:
            return map_columns(self.task, list(values), origin, self.layout)
        except InputError:
            return dict

    def _delimited_rows(
        self, name: str, suffix: str, lines: Iterator[tuple[int, str]]
    ) -> Iterator[tuple[int, dict[str, object]]]:
        dialect = self.layout.dialect(suffix)
        if self.layout.quoting == "auto" and not dialect.quoting and Path(name).is_file():  # a pipe is read only once
            source = SourcePart(TextSource(name, "text"))
            all_lines = text_lines(source, ReadSettings("replace"), ReadCounter())
            dialect = replace(dialect, quoting=is_quoted(all_lines, dialect))
        delimited = open_delimited(name, lines, dialect)
        columns, rows = delimited.rows_as_wide_as_the_header()
        for number, cells in rows:
            yield number, dict(zip(columns, cells, strict=True))

    def _table_rows(
        self, name: str, rows: Iterator[tuple[int, dict[str, object]]]
    ) -> Iterator[tuple[int, InputRow[ExampleT]]]:
        mapper: RecordMapper | None = None
        for number, values in rows:
            mapper = mapper or map_columns(self.task, list(values), name, self.layout)
            yield number, InputRow(self.parse(InputLine("", name, number, mapper(values))), values)


class _ArrivedLines(ReadCounter):
    """A count of the lines that were read from the disk or the pipe, used or not."""

    lines = 0

    def add(self, data: bytes) -> None:
        """Count the lines of a block."""
        self.lines += data.count(b"\n")


def _read_first_text(lines: Iterator[tuple[int, str]]) -> tuple[list[tuple[int, str]], tuple[int, str] | None]:
    """Return the blank lines at the beginning, and the first line after them."""
    blank_lines: list[tuple[int, str]] = []
    for number, line in lines:
        if line.strip():
            return blank_lines, (number, line)
        blank_lines.append((number, line))
    return blank_lines, None


def _reject_header(where: str, line: str) -> None:
    """Raise `InputError` for a first line that names columns, as in a table under another name or from a pipe."""
    for delimiter in _DELIMITERS:
        names = [cell.strip().strip('"').lower() for cell in line.split(delimiter)]
        if len(USUAL_NAMES & set(names)) > 1:
            hint = "give the file a name that ends in .csv or .tsv (a pipe cannot be a table)"
            raise InputError(f"{where}: is the header of a table ({', '.join(names)}), not a text", hint)


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
