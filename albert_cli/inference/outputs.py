"""Write predictions, a row for each input, as JSON lines, CSV, TSV or Parquet.

The ending of the output file selects the format.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from albert_cli import console, store
from albert_cli.errors import ConfigError, InputError
from albert_cli.os_errors import translate_stdout_errors
from albert_cli.tasks.data_files import cell_text

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, object]  # value by column
WriteRows = Callable[[Sequence[Row]], None]

TABLE_SUFFIXES: Final = (".csv", ".tsv", ".parquet")
PREDICTION_SUFFIXES: Final = (".jsonl", *TABLE_SUFFIXES)
# A spreadsheet runs a cell that begins with one of these (OWASP, "CSV Injection").
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
_SIGNED_NUMBER: Final = re.compile(r"[+-][\d.,]+(?:[eE][+-]?\d+)?")


def check_output_format(out: Path | None) -> None:
    """Raise `ConfigError` if `out` is a file whose ending selects no format; None is standard output."""
    if out is not None and out.suffix.lower() not in PREDICTION_SUFFIXES:
        raise ConfigError(f"--out {out}: unknown format", f"use a name that ends in {', '.join(PREDICTION_SUFFIXES)}")


def merge_columns(columns: Row, prediction: Row, origin: str) -> dict[str, object]:
    """Return an input's columns followed by the columns of its prediction.

    The prediction's id is left out if the input has columns, because one of them contains the id. A text that both have
    is written as the task has read it: null is an empty text. Raises `InputError` if the input already has a column of
    the prediction, with another value. origin: the input's name.
    """
    if not columns:
        return dict(prediction)
    added = {name: value for name, value in prediction.items() if name != "id"}
    for name, value in added.items():
        is_text_of_input = name != "prediction" and value == cell_text(columns.get(name))
        if name in columns and columns[name] != value and not is_text_of_input:
            raise taken_column_error(origin, name)
    return {**columns, **added}


def taken_column_error(origin: str, name: str) -> InputError:
    """Return the error for an input that already has a column of the prediction."""
    return InputError(f"{origin}: already has a column {name!r}", "rename it; the output adds this column")


def probability_column(label: str) -> str:
    """Return the name of the column with the probability of a class."""
    return f"probability_{label}"


@contextmanager
def open_prediction_writer(out: Path | None, origin: str) -> Iterator[WriteRows]:
    """Open a function that writes rows to a file, or without a file to stdout as JSON lines.

    The file appears only when the context ends without an error. origin: the input's name, for messages.
    """
    if out is None:
        yield lambda rows: write_to_stdout(_json_lines(rows))
        return
    suffix = out.suffix.lower()
    if suffix == ".parquet":
        with _parquet_writer(out, origin) as write:
            yield write
        return
    with store.open_text_writer(out) as stream:
        if suffix == ".jsonl":
            yield lambda rows: stream.writelines(_json_lines(rows))
        else:
            delimiter = "," if suffix == ".csv" else "\t"
            yield _DelimitedWriter(stream, delimiter, origin).write


def write_to_stdout(lines: Iterable[str]) -> None:
    """Write lines to stdout with control characters escaped, without a delay for the reader of a pipe."""
    with translate_stdout_errors():
        sys.stdout.writelines(map(console.escape_control_chars, lines))
        sys.stdout.flush()


def _json_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a JSON object and a line feed for each row."""
    for row in rows:
        yield _format_json(row) + "\n"


def _format_json(value: object) -> str:
    """Return a value as JSON: NaN and infinities become null, because JSON has none; dates and bytes become strings."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_without_non_finite(value), ensure_ascii=False, default=str)


def _without_non_finite(value: object) -> object:
    """Return a value with None in place of all NaN and infinities, also in its lists and objects."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _without_non_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):  # the entries of a Parquet map are tuples
        return [_without_non_finite(item) for item in value]
    return value


def _flatten_row(row: Row, origin: str) -> dict[str, object]:
    """Return a row for a table: each class's probability becomes a column, and lists and objects become JSON.

    Raises `InputError` if the input already has the column of a probability, with another value.
    """
    flat: dict[str, object] = {}
    for name, value in row.items():
        if name == "probabilities" and isinstance(value, Mapping):
            for label, probability in value.items():
                column = probability_column(label)
                if column in row and str(row[column]) != str(probability):  # the cells of .csv and .tsv are text
                    raise taken_column_error(origin, column)
                flat[column] = probability
        elif isinstance(value, list | dict):
            flat[name] = _format_json(value)
        else:
            flat[name] = value
    return flat


def escape_formula(value: object) -> object:
    """Return a cell's value, with a leading apostrophe if a spreadsheet would run it as a formula.

    A number such as -1.5 or -1.234,5 begins like a formula, but is none and stays unchanged.
    """
    is_formula = isinstance(value, str) and value.startswith(_FORMULA_STARTS) and not _SIGNED_NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


class _LineFeedRows:
    """A stream that gets rows with the line terminator CR LF, and writes them with a line feed.

    Before Python 3.11.9 and 3.12.3, `csv.writer` quotes a cell with a carriage return only if the terminator has one.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, row: str) -> None:
        """Write one row."""
        self._stream.write(row.removesuffix("\r\n") + "\n")


class _DelimitedWriter:
    """A writer of delimited text; all keys of the rows in the first call become columns."""

    def __init__(self, stream: IO[str], delimiter: str, origin: str) -> None:
        self._origin = origin
        self._writer = csv.writer(_LineFeedRows(stream), delimiter=delimiter, lineterminator="\r\n")
        self._columns: list[str] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows; the first call also writes the header. Raises `InputError` for a key without a column."""
        flat_rows = [_flatten_row(row, self._origin) for row in rows]
        if not self._columns:
            self._columns = list(dict.fromkeys(name for row in flat_rows for name in row))
            self._writer.writerow(map(escape_formula, self._columns))
        for row in flat_rows:
            if unknown := row.keys() - set(self._columns):
                message = f"{self._origin}: the first rows have no column {min(unknown)!r}, and the header is written"
                raise InputError(message, "write --out FILE.jsonl")
            self._writer.writerow([escape_formula(row.get(name, "")) for name in self._columns])


@contextmanager
def _parquet_writer(out: Path, origin: str) -> Iterator[WriteRows]:
    """Open a function that collects rows in memory; write them to a Parquet file when the context ends.

    A row without a key of another row has a missing value there. The function raises `InputError` for a value whose
    type does not fit the other values of its column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pa.table({})]
    schema = tables[0].schema

    def write(rows: Sequence[Row]) -> None:
        nonlocal schema
        flat_rows = [_flatten_row(row, origin) for row in rows]
        names = dict.fromkeys(name for row in flat_rows for name in row)
        with _translated_type_errors(out):
            tables.append(pa.table({name: [row.get(name) for row in flat_rows] for name in names}))
            schema = pa.unify_schemas([schema, tables[-1].schema], promote_options="permissive")

    yield write
    with _translated_type_errors(out):
        table = pa.concat_tables(tables, promote_options="permissive")
    buffer = io.BytesIO()
    pq.write_table(_without_null_types(table), buffer)
    store.write_bytes(out, buffer.getvalue())


@contextmanager
def _translated_type_errors(out: Path) -> Iterator[None]:
    """Raise `InputError` for an error of Arrow, which means that no type fits all values of a column."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OverflowError) as error:  # OverflowError: no type has all integers of a column
        message = f"{out}: a column has values of several types or integers that are too large ({error})"
        raise InputError(message, "write --out FILE.jsonl") from None


def _without_null_types(table: pa.Table) -> pa.Table:
    """Return a table in which columns without any value have the type string, because few programs read `null`."""
    import pyarrow as pa

    fields = [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))
