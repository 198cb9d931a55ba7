"""Iterate over the rows of JSON lines, CSV and Parquet files, with the file and line in every error."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from albert_cli.errors import InputError
from albert_cli.os_errors import translate_read_errors
from albert_cli.text.lines import NumberedLines
from albert_cli.text.remote_files import open_remote
from albert_cli.text.source_parts import SourcePart, ensure_unmodified

JsonObject: TypeAlias = dict[str, object]  # from a user's file; its fields are checked where they are read

_MAX_CELL_CHARACTERS = 2**31 - 1
_PARQUET_BATCH_ROWS = 64  # rows decoded at a time
CONVERT_ARRAY = "jq -c '.[]'"  # from an array of objects to JSON lines
_DELIMITERS = ";\t|,"
_SHOWN_FIELDS = 8


def parse_json(text: str, location: str | Callable[[], str], hint: str) -> Any:
    """Parse JSON; raise `InputError` with the location, which is computed only then, and the hint."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        file = location if isinstance(location, str) else location()
        if isinstance(error, RecursionError):
            raise InputError(f"{file}: not valid JSON (nested too deeply)", hint) from None
        if isinstance(error, json.JSONDecodeError) and "\n" in text:
            file = f"{file}:{error.lineno}"
        raise InputError(f"{file}: not valid JSON ({error})", hint) from None


def parse_json_object(text: str, location: str | Callable[[], str], hint: str) -> JsonObject:
    """Parse a JSON object; raise `InputError` for any other value."""
    value = parse_json(text, location, hint)
    if isinstance(value, list):
        hint = f"convert the array: {CONVERT_ARRAY}"
    if not isinstance(value, dict):
        raise InputError(f"{location if isinstance(location, str) else location()}: not a JSON object", hint)
    return value


def iter_json_objects(lines: NumberedLines, location: Callable[[int], str]) -> Iterator[tuple[int, JsonObject]]:
    """Yield (line number, object) for lines with one JSON object each, and skip blank lines.

    location: returns `file:line` for a line number.
    """
    for number, line in lines:
        if line and not line.isspace():
            yield number, parse_json_object(line, partial(location, number), "write one JSON object per line")


def iter_csv_rows(
    lines: NumberedLines,
    location: Callable[[int], str],
    delimiter: str = ",",
    max_cell: int = _MAX_CELL_CHARACTERS,
) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line's number, cells) for every row that is not blank, quoted as in RFC 4180.

    A quoted cell may contain line ends. Only a line feed ends a row; a carriage return within a cell must be quoted.
    max_cell: characters of the longest cell.
    """
    row_lines: list[int] = []

    def record_line_numbers() -> Iterator[str]:
        for number, line in lines:
            row_lines.append(number)
            yield line + "\n"

    csv.field_size_limit(max_cell)  # a setting of the process; its default is 128 KiB
    try:
        for cells in csv.reader(record_line_numbers(), delimiter=delimiter, strict=True):
            if cells:
                yield row_lines[0], cells
            row_lines.clear()
    except csv.Error as error:
        row = location(row_lines[0])
        if "new-line character" in str(error):
            hint = "only a line feed ends a row: convert the line ends (tr '\\r' '\\n'), or quote the cell"
            raise InputError(f"{row}: a carriage return outside quotes", hint) from None
        hint = "close or double the quote"
        if max_cell < _MAX_CELL_CHARACTERS:
            hint += ", or raise --max-line"
        raise InputError(f"{row}: {error}", hint) from None


def iter_parquet_rows(part: SourcePart, columns: Sequence[str] | None = None) -> Iterator[tuple[int, JsonObject]]:
    """Yield (row number from 1, row) of a Parquet file, all columns or some, a few rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = part.source.name
    with ensure_unmodified(part), translate_read_errors(name):
        try:
            # A buffered stream holds one page of a column instead of the whole row group.
            location = open_remote(name) if part.source.is_remote else name
            with pq.ParquetFile(location, buffer_size=1 << 20, pre_buffer=False) as file:
                existing = file.schema_arrow.names
                selected = None
                if columns:
                    selected = [_find_column(column, existing, name) for column in columns]
                number = 0
                for batch in file.iter_batches(_PARQUET_BATCH_ROWS, columns=selected, use_threads=False):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
        # ValueError and OverflowError come from the conversion to Python values.
        except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = str(error).partition("\n")[0]
            raise InputError(f"{name}: not a readable Parquet file ({reason})", "copy it again") from None


def iter_arrow_rows(part: SourcePart, field: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield (row number from 1, row) of one column of an Arrow file, in the stream or the file format."""
    import pyarrow as pa

    name = part.source.name
    with ensure_unmodified(part), translate_read_errors(name):
        try:
            with pa.PythonFile(open_remote(name)) if part.source.is_remote else pa.memory_map(name) as source:
                number = 0
                for batch in _iter_arrow_batches(source):
                    column = _find_column(field, batch.schema.names, name)
                    for start in range(0, batch.num_rows, _PARQUET_BATCH_ROWS):
                        for row in batch.select([column]).slice(start, _PARQUET_BATCH_ROWS).to_pylist():
                            number += 1
                            yield number, row
        except (pa.ArrowException, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{name}: not a readable Arrow file ({reason})", "copy it again") from None


def _iter_arrow_batches(source: Any) -> Iterator[Any]:
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        yield from pa.ipc.open_stream(source)
        return
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _find_column(field: str, existing: Sequence[str], name: str) -> str:
    """Return the column of a field; for a nested key such as `content.text` that is `content`."""
    column = field if field in existing else field.partition(".")[0]
    if column not in existing:
        raise missing_field_error(name, field, existing)
    return column


def missing_field_error(location: str, field: str, existing: Sequence[str]) -> InputError:
    """Return the error for a row that has no text in a field."""
    fields = ", ".join(map(str, existing[:_SHOWN_FIELDS]))
    return InputError(f"{location}: no text in field {field!r} (fields: {fields})", "choose another with --text-field")


def has_wrong_delimiter(header: Sequence[str]) -> bool:
    """Return True if a table's single column looks like several columns with another delimiter."""
    return len(header) == 1 and any(delimiter in header[0] for delimiter in _DELIMITERS)
