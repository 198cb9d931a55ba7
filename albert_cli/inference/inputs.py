"""Read the inputs of `predict` and `encode`: tables with named columns, JSON lines, or one text per line.

`InputReader` yields chunks of rows: the examples of a task, each with the columns that the output repeats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from albert_cli.errors import InputError
from albert_cli.inference.columns import (
    USUAL_NAMES,
    RecordMapper,
    ValuesByColumn,
    choose_trained_dialect,
    has_task_keys,
    has_trained_columns,
    map_columns,
)
from albert_cli.inference.outputs import TABLE_SUFFIXES
from albert_cli.tasks.base import AnyTask, Example
from albert_cli.tasks.data_files import flatten_question, reject_file_of_other_format, starts_json_array
from albert_cli.tasks.delimited import format_suffix, is_quoted, open_delimited
from albert_cli.tasks.input_lines import InputLine, row_id
from albert_cli.tasks.table_layout import TableLayout
from albert_cli.tasks.token_data import TokenExample
from albert_cli.text.lines import NumberedLines, collect_text, text_lines
from albert_cli.text.read_settings import OnBadBytes, ReadSettings
from albert_cli.text.records import (
    JsonObject,
    iter_json_array,
    iter_json_objects,
    iter_parquet_rows,
    replace_json_surrogates,
)
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import TextSource

CHUNK_ROWS = 1024  # rows in memory at a time; enough to group rows of similar length into batches

_MAX_BLANK_LINES = 100_000  # at the beginning of an input, before its format is decided
_DELIMITERS = "\t,;|"  # possible delimiters of a header that is mistaken for a text
_JSON_HINT = "write one JSON object per line"


@dataclass(frozen=True)
class InputRow:
    """One input: its example, and its columns, which the output repeats (empty for a line of plain text)."""

    example: Example
    columns: ValuesByColumn


NumberedInputRow = tuple[int, InputRow]  # the number of the row's line in the file, and the row


@dataclass(frozen=True)
class InputReader:
    """A reader of a task's input rows.

    `layout` is the layout of the table that the model was trained on. With `txt_is_table`, a .txt file is a table like
    a .tsv file, as in the data of the task `table`.
    """

    task: AnyTask
    layout: TableLayout = field(default_factory=TableLayout)
    on_bad_bytes: OnBadBytes = "refuse"
    txt_is_table: bool = False

    def read_chunks(self, name: str) -> Iterator[list[InputRow]]:
        """Yield the rows of a file or of standard input (`-`) in chunks of at most `CHUNK_ROWS`.

        A chunk from a pipe ends earlier if no further line has arrived. A blank line of plain text is an input too.
        Raises `InputError` with file and line.
        """
        # Standard input is never a table, so a table's chunks need not end early.
        is_table = self._format_suffix(name) in TABLE_SUFFIXES
        arrived = _ArrivedLines()
        chunk: list[InputRow] = []
        for number, row in self._numbered_rows(name, arrived):
            chunk.append(row)
            # If no further row has arrived, the next read would wait for the pipe. This row is then the last line that
            # has arrived or, in JSON lines, the last one that is not blank.
            would_wait = not is_table and number in (arrived.last_text_line, arrived.lines)
            if len(chunk) == CHUNK_ROWS or would_wait:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def _numbered_rows(self, name: str, arrived: _ArrivedLines) -> Iterator[NumberedInputRow]:
        """Return the numbered rows of an input, whose format follows from its file ending and its first non-blank line.

        arrived: is updated with every line that arrives.
        """
        suffix = self._format_suffix(name)
        if suffix == ".parquet":
            rows = iter_parquet_rows(SourcePart(TextSource(name, "parquet")))
            return self._table_rows(name, rows)
        source = _text_source(name)
        if not source.source.compression:
            reject_file_of_other_format(Path(name))
        settings = ReadSettings(self.on_bad_bytes)
        lines = text_lines(source, settings, arrived)
        if suffix in (".csv", ".tsv"):
            return self._table_rows(name, self._delimited_rows(name, suffix, lines))
        if suffix == ".jsonl":
            return self._json_line_rows(name, lines)
        first_lines = _read_to_first_text(lines)
        lines = chain(first_lines, lines)
        first_number, first_text = first_lines[-1] if first_lines else (1, "")
        origin = f"{name}:{first_number}"
        if suffix == ".json" and starts_json_array([first_text]):
            return self._json_rows(name, iter_json_array(collect_text(lines, source, settings), name))
        if _is_json_object(first_text, origin):  # a .json file may contain JSON lines
            return self._json_line_rows(name, lines)
        if suffix == ".json":
            raise InputError(f"{name}: is one JSON document", f"{_JSON_HINT} into a .jsonl file")
        _reject_header(first_text, origin)
        return self._text_rows(name, lines)

    def _format_suffix(self, name: str) -> str:
        """Return the result of `format_suffix` for an input, but .tsv for a .txt file that is a table."""
        suffix = format_suffix(name)
        return ".tsv" if self.txt_is_table and suffix == ".txt" else suffix

    def _text_rows(self, name: str, lines: NumberedLines) -> Iterator[NumberedInputRow]:
        for number, text in lines:
            yield number, InputRow(self.task.parse_example(InputLine(text, name, number)), {})

    def _json_line_rows(self, name: str, lines: NumberedLines) -> Iterator[NumberedInputRow]:
        return self._json_rows(name, iter_json_objects(lines, lambda number: f"{name}:{number}"))

    def _json_rows(self, name: str, objects: Iterable[tuple[int, JsonObject]]) -> Iterator[NumberedInputRow]:
        """Yield the rows of numbered JSON objects.

        If an object's key `id` is missing, null or empty, the output's `id` is the value of a column with a usual name,
        such as `idx`, if `_map_keys` maps the object's keys. Without such a value, it is the object's line number, or
        its position in a JSON array.
        """
        mappers: dict[tuple[str, ...], RecordMapper] = {}  # by the keys of an object
        for number, parsed in objects:
            values = replace_json_surrogates(parsed)
            flat = flatten_question(values)
            keys = tuple(flat)
            if keys not in mappers:
                mappers[keys] = self._map_keys(flat, f"{name}:{number}")
            record = mappers[keys](flat)
            example = self.task.parse_example(InputLine("", name, number, record))
            columns: dict[str, object] = {"id": None, **values}
            if columns["id"] in (None, ""):
                columns["id"] = row_id(record, number)
            # An object with tokens instead of a text gets the text to which the offsets of its entities refer.
            if isinstance(example, TokenExample):
                columns["text"] = example.text
            yield number, InputRow(example, columns)

    def _map_keys(self, values: ValuesByColumn, origin: str) -> RecordMapper:
        """Return a function that turns an object with the keys of `values` into the record that the task reads.

        The function is `dict`, which renames nothing, if the object already has the task's keys. The columns of
        training have precedence over these keys. The function is `dict` also if the keys are not recognized: the task
        then raises a more detailed error than `map_columns`.
        """
        if has_task_keys(self.task, values) and not has_trained_columns(values, self.layout):
            return dict
        try:
            return map_columns(self.task, list(values), origin, self.layout)
        except InputError:
            return dict

    def _delimited_rows(self, name: str, suffix: str, lines: NumberedLines) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield (line number, cells by column) for the rows of a .csv or .tsv file."""
        dialect = choose_trained_dialect(suffix, self.layout)
        may_be_quoted = self.layout.quoting == "auto" and not dialect.quoting
        # `is_quoted` reads the whole file before the rows are read, so it cannot be used on a named pipe.
        if may_be_quoted and Path(name).is_file():
            all_lines = text_lines(_text_source(name), ReadSettings("replace"), ReadCounter())
            dialect = replace(dialect, quoting=is_quoted(all_lines, dialect))
        delimited = open_delimited(name, lines, dialect)
        for number, cells in delimited.rows:
            yield number, dict(zip(delimited.columns, cells, strict=True))

    def _table_rows(self, name: str, rows: Iterator[tuple[int, dict[str, object]]]) -> Iterator[NumberedInputRow]:
        mapper: RecordMapper | None = None
        for number, values in rows:
            flat = flatten_question(values)
            if mapper is None:  # the first row, whose keys are the columns of all rows
                mapper = map_columns(self.task, list(flat), name, self.layout)
            example = self.task.parse_example(InputLine("", name, number, mapper(flat)))
            yield number, InputRow(example, values)


def _text_source(name: str) -> SourcePart:
    """Return an input as a source of lines; `-` is standard input, and a name that ends in .gz is decompressed."""
    compression = ".gz" if name.lower().endswith(".gz") else ""
    return SourcePart(TextSource(name, "stdin" if name == "-" else "text", compression))


class _ArrivedLines(ReadCounter):
    """The lines that have arrived from the disk or the pipe; some of them may not yet be rows.

    `lines` is their number, and `last_text_line` the number of the last one that is not blank.
    """

    lines = 0
    last_text_line = 0
    _unfinished_has_text = False  # True if the part that has arrived of the next line is not blank

    def add(self, data: bytes) -> None:
        """Count the lines of a block of data; the totals of the base class are not needed here."""
        complete, line_feed, unfinished = data.rpartition(b"\n")
        if line_feed:
            text = complete.rstrip()
            if text or self._unfinished_has_text:
                self.last_text_line = self.lines + 1 + text.count(b"\n")
            self.lines += 1 + complete.count(b"\n")
            self._unfinished_has_text = False
        self._unfinished_has_text |= bool(unfinished.strip())


def _read_to_first_text(lines: NumberedLines) -> list[tuple[int, str]]:
    """Return the numbered blank lines at the beginning, followed by the first line with text if there is one.

    The number of lines has a maximum, because a compressed file of a few bytes can expand to any number.
    """
    first_lines: list[tuple[int, str]] = []
    for number, line in lines:
        first_lines.append((number, line))
        if line.strip() or len(first_lines) == _MAX_BLANK_LINES:
            break
    return first_lines


def _reject_header(line: str, origin: str) -> None:
    """Raise `InputError` if the first line of a plain text is the header of a table: it has two usual column names.

    The table comes from a pipe, or from a file with another ending. origin: file and line, for the message.
    """
    for delimiter in _DELIMITERS:
        names = [cell.strip().strip('"').lower() for cell in line.split(delimiter)]
        if len(USUAL_NAMES & set(names)) > 1:
            hint = "give the file a name that ends in .csv or .tsv (a pipe cannot be a table)"
            raise InputError(f"{origin}: is the header of a table ({', '.join(names)}), not a text", hint)


def _is_json_object(line: str, origin: str) -> bool:
    """Return True if a line is a JSON object; raises `InputError` for a JSON array of objects."""
    text = line.lstrip()
    if not text.startswith(("{", "[{")):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, list):
        raise InputError(f"{origin}: is a JSON array", _JSON_HINT)
    return isinstance(value, dict)
