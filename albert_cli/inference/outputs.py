"""Write predictions as JSON lines, CSV, TSV or Parquet; the ending of the output file selects the format."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from albert_cli import console, store
from albert_cli.errors import ConfigError, InputError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Row = Mapping[str, object]  # value by column
WriteRows = Callable[[Sequence[Row]], None]

TABLE_SUFFIXES: Final = (".csv", ".tsv", ".parquet")
SUFFIXES: Final = (".jsonl", *TABLE_SUFFIXES)
# A spreadsheet runs a cell that begins with one of these (OWASP, "CSV Injection").
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def check_output_format(out: Path | None) -> None:
    """Raise `ConfigError` if the ending of `out` is no format of predictions; None is standard output."""
    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out {out}: unknown format", f"use a name that ends in {', '.join(SUFFIXES)}")


def merge_columns(columns: Row, prediction: Row, origin: str) -> dict[str, object]:
    """Return an input's columns followed by the columns of its prediction.

    The prediction's id is left out, because it repeats a column of the input; without input columns it remains. Raises
    `InputError` if the input has a column of the same name as the prediction, with another value.
    """
    if not columns:
        return dict(prediction)
    added = {name: value for name, value in prediction.items() if name != "id"}
    for name in added:
        if name in columns and columns[name] != added[name]:
            raise InputError(f"{origin}: already has a column {name!r}", "rename it; the output adds this column")
    return {**columns, **added}


@contextmanager
def open_prediction_writer(out: Path | None) -> Iterator[WriteRows]:
    """Open a function that writes rows to a file, or without a file to stdout as JSON lines.

    The file appears only when the context ends without an error.
    """
    suffix = ".jsonl" if out is None else out.suffix.lower()
    if out is None:
        yield lambda rows: _write_json_lines(sys.stdout, rows, escape=console.escape_control_chars)
    elif suffix == ".parquet":
        with _parquet_writer(out) as write:
            yield write
    else:
        with store.open_text_writer(out) as stream:
            if suffix == ".jsonl":
                yield lambda rows: _write_json_lines(stream, rows)
            else:
                delimiter = "," if suffix == ".csv" else "\t"
                yield _DelimitedWriter(stream, delimiter).write


def _write_json_lines(stream: IO[str], rows: Sequence[Row], escape: Callable[[str], str] | None = None) -> None:
    """Write one JSON object per row; `escape` changes a line before it is written."""
    for row in rows:
        line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
        if escape is not None:
            line = escape(line)
        stream.write(line)
    stream.flush()  # so that the reader of a pipe gets the predictions immediately


def flatten(row: Row) -> dict[str, object]:
    """Return a row for a table: class probabilities become a column each, lists and objects become JSON."""
    flat: dict[str, object] = {}
    for name, value in row.items():
        if name == "probabilities" and isinstance(value, Mapping):
            flat |= {f"probability_{label}": probability for label, probability in value.items()}
        elif isinstance(value, list | dict):
            flat[name] = json.dumps(value, ensure_ascii=False)
        else:
            flat[name] = value
    return flat


def escape_formula(value: object) -> object:
    """Return a cell that a spreadsheet does not run: a text that begins like a formula gets a leading apostrophe.

    A number such as -1.5 is no formula and stays unchanged.
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA_STARTS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


class _DelimitedWriter:
    """A writer of delimited text, whose columns are those of the rows in the first call."""

    def __init__(self, stream: IO[str], delimiter: str) -> None:
        self._stream = stream
        self._delimiter = delimiter
        self._columns: list[str] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows; the first call also writes the header."""
        flat_rows = [flatten(row) for row in rows]
        is_first = not self._columns
        if is_first:
            self._columns = list(dict.fromkeys(name for row in flat_rows for name in row))
        writer = csv.DictWriter(self._stream, self._columns, restval="", delimiter=self._delimiter, lineterminator="\n")
        if is_first:
            writer.writerow({name: escape_formula(name) for name in self._columns})
        for row in flat_rows:
            if unknown := row.keys() - set(self._columns):
                raise InputError(
                    f"the key {min(unknown)!r} is new after {len(self._columns)} columns", "write --out FILE.jsonl"
                )
            writer.writerow({name: escape_formula(value) for name, value in row.items()})


@contextmanager
def _parquet_writer(out: Path) -> Iterator[WriteRows]:
    """Collect the compressed rows in memory, and write the file at the end.

    The columns and their types are those of the rows in the first call.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    writer: pq.ParquetWriter | None = None

    def write(rows: Sequence[Row]) -> None:
        nonlocal writer
        flat_rows = [flatten(row) for row in rows]
        try:
            if writer is None:
                writer = pq.ParquetWriter(buffer, _infer_schema(flat_rows))
            writer.write_table(pa.Table.from_pylist(flat_rows, schema=writer.schema))
        except pa.ArrowException as error:
            raise InputError(
                f"{out}: a column has values of several types ({error})", "write --out FILE.jsonl"
            ) from None

    yield write
    if writer is not None:
        writer.close()
    store.write_bytes(out, buffer.getvalue())


def _infer_schema(rows: Sequence[Row]) -> pa.Schema:
    """Return the Arrow schema of rows; a column in which all values are missing gets the type string."""
    import pyarrow as pa

    fields = []
    for field in pa.Table.from_pylist(rows).schema:
        is_without_values = pa.types.is_null(field.type)
        fields.append(field.with_type(pa.string()) if is_without_values else field)
    return pa.schema(fields)
