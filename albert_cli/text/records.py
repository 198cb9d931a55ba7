"""Iterate over the rows of JSON lines, CSV, Parquet and Arrow files, with the file and line in every error.

Rows come with their numbers and all their values; which value is the text is decided in `text_readers`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from albert_cli.errors import InputError
from albert_cli.os_errors import translate_read_errors
from albert_cli.text.clean import replace_surrogates
from albert_cli.text.lines import NumberedLines, NumberedLinesOrQuoteCounts, utf8_size
from albert_cli.text.remote_files import open_remote
from albert_cli.text.source_parts import SourcePart, ensure_unmodified

JsonObject: TypeAlias = dict[str, object]  # from a user's file; its fields are checked where they are read
# `file:line` for errors. A function returns it if the lines before must be counted, which takes long in a large file.
Location: TypeAlias = str | Callable[[], str]
JsonT = TypeVar("JsonT")

CONVERT_ARRAY = "jq -c '.[]'"  # from an array of objects to JSON lines
_OTHER_FIELD_HINT = (
    "for vocab and data, choose another with --text-field; "
    "otherwise rename another to text, for example: jq -c '{text: .body}'"
)
_MAX_CELL_CHARACTERS = 2**31 - 1  # the largest limit that `csv` accepts on every system
_BATCH_ROWS = 64  # rows of Parquet and Arrow files that are decoded at a time
_OTHER_DELIMITERS = ";\t|,"  # one of these in a table's only column name shows that the table has another delimiter
_LISTED_FIELDS = 8  # names of existing fields in an error


def describe_location(location: Location) -> str:
    """Return a location as text, as the beginning of an error message."""
    return location if isinstance(location, str) else location()


def parse_json(text: str, location: Location, hint: str) -> Any:
    """Return the value of a JSON text; raise `InputError` with the location and the hint if it is not valid."""
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{describe_location(location)}: not valid JSON (nested too deeply)", hint) from None
    except ValueError as error:
        described = describe_location(location)
        if isinstance(error, json.JSONDecodeError) and "\n" in text:  # the text is a whole file
            described = f"{described}:{error.lineno}"
        raise InputError(f"{described}: not valid JSON ({error})", hint) from None


def parse_json_object(text: str, location: Location, hint: str) -> JsonObject:
    """Return the object of a JSON text; raise `InputError` if the text is not valid JSON or no object.

    For an array of objects, and for a line that contains only [, the hint is the conversion.
    """
    array_hint = f"convert the array: {CONVERT_ARRAY}"
    if text.strip() == "[":
        raise InputError(f"{describe_location(location)}: begins a JSON array", array_hint)
    value = parse_json(text, location, hint)
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        hint = array_hint
    if not isinstance(value, dict):
        raise InputError(f"{describe_location(location)}: not a JSON object", hint)
    return value


def parse_repaired_json(text: str, location: Location, hint: str) -> Any:
    """Return the value of a JSON text like `parse_json`, with U+FFFD in place of every lone surrogate."""
    value = parse_json(text, location, hint)
    may_have_surrogates = "\\ud" in text.lower()  # only an escape such as \ud800 produces one
    return replace_json_surrogates(value) if may_have_surrogates else value


def replace_json_surrogates(value: JsonT) -> JsonT:
    """Return a JSON value with U+FFFD in place of every lone surrogate, because no output file can contain one."""
    text = json.dumps(value, ensure_ascii=False)
    repaired = replace_surrogates(text)
    if repaired == text:
        return value
    result: JsonT = json.loads(repaired)
    return result


def iter_json_objects(lines: NumberedLines, location: Callable[[int], str]) -> Iterator[tuple[int, JsonObject]]:
    """Yield (line number, object) for lines with one JSON object each, and skip blank lines.

    location: returns `file:line` for a line number.
    """
    for number, line in lines:
        if line and not line.isspace():
            yield number, parse_json_object(line, partial(location, number), "write one JSON object per line")


def iter_json_array(text: str, name: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield (number from 1, object) for the objects of a JSON array; name: the file, for messages."""
    hint = "write an array of objects"
    for number, value in enumerate(parse_json(text, name, hint), start=1):
        if not isinstance(value, dict):
            raise InputError(f"{name}: item {number} of the array is not an object", hint)
        yield number, value


def iter_csv_rows(
    lines: NumberedLinesOrQuoteCounts,
    location: Callable[[int], str],
    delimiter: str = ",",
    max_row: float = math.inf,
    on_long_row: Callable[[int], None] = lambda number: None,
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the row's first line, cells) for every row that is not blank, with quotes as in RFC 4180.

    A quoted cell may contain line ends. Only a line feed ends a row; a carriage return within a cell must be quoted.
    location: returns `file:line` for a line number. A row of more than `max_row` bytes is left out, after a call
    of `on_long_row` with the number of its first line. Raises `InputError` for wrong quotes.
    """
    row_line_numbers: list[int] = []  # of the current row: `csv.reader` does not report where a row begins
    row_bytes: float = 0

    def iter_recorded_lines() -> Iterator[str]:
        nonlocal row_bytes
        for number, line in lines:
            row_line_numbers.append(number)
            was_long = row_bytes > max_row
            row_bytes += utf8_size(line) if isinstance(line, str) else max_row + 1
            if row_bytes <= max_row and isinstance(line, str):
                yield line + "\n"
                continue
            if not was_long:
                on_long_row(row_line_numbers[0])
            # A quoted cell that is open before the line is closed after it if the line has an odd number of quotes.
            quotes = line.count('"') if isinstance(line, str) else line
            yield '"' * (quotes % 2) + "\n"

    csv.field_size_limit(_MAX_CELL_CHARACTERS)  # a setting of the process; its default is 128 KiB
    try:
        for cells in csv.reader(iter_recorded_lines(), delimiter=delimiter, strict=True):
            if cells and row_bytes <= max_row:
                yield row_line_numbers[0], cells
            row_line_numbers.clear()
            row_bytes = 0
    except csv.Error as error:
        row_location = location(row_line_numbers[0])
        if "new-line character" in str(error):
            raise carriage_return_error(row_location) from None
        raise InputError(f"{row_location}: {error}", "close or double the quote") from None


def carriage_return_error(where: str) -> InputError:
    """Return the error for a row of a table with a carriage return that does not belong to a quoted cell."""
    hint = "only a line feed ends a row: convert the line ends (tr '\\r' '\\n'), or quote the cell"
    return InputError(f"{where}: a carriage return outside quotes", hint)


def iter_parquet_rows(part: SourcePart, field: str | None = None) -> Iterator[tuple[int, JsonObject]]:
    """Yield (row number from 1, row) of a Parquet file, a few rows at a time.

    In the columns of class numbers of a file that `datasets` wrote, the numbers become names (`name_classes`).

    field: the name of the only column to read, or a path of keys such as `content.text`; None for all columns. Raises
    `InputError` if the column is missing or occurs twice, or the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = part.source.name
    with ensure_unmodified(part), translate_read_errors(name):
        try:
            # A buffered stream holds one page of a column instead of the whole row group.
            stream_or_path = open_remote(part.source.remote.url) if part.source.remote else name
            with pq.ParquetFile(stream_or_path, buffer_size=1 << 20, pre_buffer=False) as file:
                names = file.schema_arrow.names
                columns = None if field is None else [_find_column(field, names, name)]
                for column in columns or names:
                    reject_repeated_column(name, column, names)
                class_names = _read_class_names(file.schema_arrow.metadata or {})
                number = 0
                for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                    class_columns = class_names.keys() & batch.schema.names
                    for row in batch.to_pylist():
                        number += 1
                        for column in class_columns:
                            row[column] = name_classes(row[column], class_names[column])
                        yield number, row
        # ValueError and OverflowError come from the conversion to Python values.
        except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the system, which `translate_read_errors` describes; pyarrow's errors have no errno
            reason = str(error).partition("\n")[0]
            raise InputError(f"{name}: not a readable Parquet file ({reason})", "copy it again") from None


def _read_class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of the classes by column, which `datasets` writes into a Parquet file's metadata."""
    try:
        features = json.loads(metadata.get(b"huggingface", b""))["info"]["features"]
        names = {}
        for column, feature in features.items():
            item = feature.get("feature", feature) if isinstance(feature, dict) else feature
            # A column of objects has no type, but the features of its keys.
            if isinstance(item, dict) and item.get("_type") == "ClassLabel":
                names[column] = item["names"]
        return names
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # another program wrote the file or its metadata


def name_classes(value: object, names: Sequence[str]) -> object:
    """Return the name of a class number, or the names of a list of class numbers; -1, a hidden label, becomes None.

    In a list, -1 does not change, because an empty list means no class. Other values do not change either.
    """
    if isinstance(value, list):
        return [item if item == -1 else name_classes(item, names) for item in value]
    if not isinstance(value, int) or value >= len(names):
        return value
    return None if value < 0 else names[value]


def iter_arrow_rows(part: SourcePart, field: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield (row number from 1, row with one column) of an Arrow file, in the stream or the file format.

    field: the column's name, or a path of keys such as `content.text`. Raises `InputError` if the column is missing or
    the file is damaged.
    """
    import pyarrow as pa

    name = part.source.name
    with ensure_unmodified(part), translate_read_errors(name):
        try:
            remote = part.source.remote
            stream = pa.PythonFile(open_remote(remote.url)) if remote else pa.memory_map(name)
            with stream:
                number = 0
                for batch in _iter_arrow_batches(stream):
                    column = batch.select([_find_column(field, batch.schema.names, name)])
                    for start in range(0, column.num_rows, _BATCH_ROWS):
                        for row in column.slice(start, _BATCH_ROWS).to_pylist():
                            number += 1
                            yield number, row
        except (pa.ArrowException, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{name}: not a readable Arrow file ({reason})", "copy it again") from None


def _iter_arrow_batches(stream: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow file in the file format or, if it cannot be read so, the stream format."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(stream)
    except pa.ArrowInvalid:
        stream.seek(0)
        yield from pa.ipc.open_stream(stream)
        return
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _find_column(field: str, columns: Sequence[str], file_name: str) -> str:
    """Return the column with a field; a path of keys such as `content.text` leads to the column `content`."""
    column = field if field in columns else field.partition(".")[0]
    if column not in columns:
        raise missing_field_error(file_name, field, columns)
    reject_repeated_column(file_name, column, columns)
    return column


def missing_field_error(location: str, field: str, existing_fields: Sequence[str]) -> InputError:
    """Return the error for a row or file that has no text in a field; its message lists the first existing fields."""
    fields = ", ".join(map(str, existing_fields[:_LISTED_FIELDS]))
    return InputError(f"{location}: no text in field {field!r} (fields: {fields})", _OTHER_FIELD_HINT)


def reject_repeated_column(location: str, name: str, columns: Sequence[str]) -> None:
    """Raise `InputError` if a name occurs twice among the columns of a table."""
    if columns.count(name) > 1:
        raise InputError(f"{location}: the column {name!r} occurs twice", "rename one of them")


def wrong_type_error(location: str, field: str, value: object) -> InputError:
    """Return the error for a row whose value in a field is neither a text nor a list of texts."""
    hint = f"convert it to text; {_OTHER_FIELD_HINT}"
    if isinstance(value, dict) and value:
        path = f"{field}.{next(iter(value))}"
        hint = f"for vocab and data, choose a key of the object, for example: --text-field {path}; "
        hint += f"otherwise extract it: jq -c '{{text: .{path}}}'"
    return InputError(f"{location}: field {field!r} is {_describe_type(value)}, not text", hint)


def _describe_type(value: object) -> str:
    """Return a description of a value that is no text, for an error."""
    if isinstance(value, list):
        wrong_items = [item for item in value if not isinstance(item, str | None)]
        return f"a list with {_describe_type(wrong_items[0])}" if wrong_items else "a list of texts"
    if isinstance(value, dict):
        keys = ", ".join(map(str, [*value][:_LISTED_FIELDS]))
        return f"an object with the keys {keys}" if value else "an empty object"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "binary" if isinstance(value, bytes) else f"a {type(value).__name__}"


def has_wrong_delimiter(header: Sequence[str]) -> bool:
    """Return True if a table's only column name looks like several names with another delimiter between them."""
    return len(header) == 1 and any(delimiter in header[0] for delimiter in _OTHER_DELIMITERS)
