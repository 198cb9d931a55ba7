"""Write predictions in the format of the output's ending: JSON lines, CSV, TSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from albert_cli import console, store
from albert_cli.errors import ConfigError, InputError

Row = Mapping[str, object]
WriteRows = Callable[[Sequence[Row]], None]

TABLE_SUFFIXES: Final = (".csv", ".tsv", ".parquet")
SUFFIXES: Final = (".jsonl", *TABLE_SUFFIXES)
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def check_output_format(out: Path | None) -> None:
    """Raise `ConfigError` for an ending that names no format of predictions."""
    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out {out}: unknown format", f"use a name that ends in {', '.join(SUFFIXES)}")


def merge_columns(columns: Row, prediction: Row, origin: str) -> dict[str, object]:
    """Return an input's columns followed by its prediction; an id of the input stays in its column.

    Raises `InputError` if the input has a column with the name of a new one.
    """
    if not columns:
        return dict(prediction)
    new = {name: value for name, value in prediction.items() if name != "id"}
    for name in new:
        if name in columns and columns[name] != new[name]:
            raise InputError(f"{origin}: already has a column {name!r}", "rename it; the output adds this column")
    return {**columns, **new}


@contextmanager
def open_prediction_writer(out: Path | None) -> Iterator[WriteRows]:
    """Open a function that writes rows to a file, or as JSON lines to stdout; the file appears at the end."""
    suffix = ".jsonl" if out is None else out.suffix.lower()
    if out is None:
        yield lambda rows: _write_json_lines(sys.stdout, rows, console.escape_control_chars)
    elif suffix == ".parquet":
        with _parquet_writer(out) as write:
            yield write
    else:
        with store.open_text_writer(out) as stream:
            if suffix == ".jsonl":
                yield lambda rows: _write_json_lines(stream, rows, str)
            else:
                yield _DelimitedWriter(stream, "," if suffix == ".csv" else "\t").write


def _write_json_lines(stream: IO[str], rows: Sequence[Row], escape: Callable[[str], str]) -> None:
    stream.writelines(escape(json.dumps(row, ensure_ascii=False, default=str) + "\n") for row in rows)
    stream.flush()  # the reader of a pipe need not wait for more


def flatten(row: Row) -> dict[str, object]:
    """Return a row for a table: a column per class probability, lists and objects as JSON."""
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
    """Return a cell that a spreadsheet does not run: a text that begins like a formula gets a leading apostrophe."""
    if not isinstance(value, str) or not value.startswith(_FORMULA_STARTS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


class _DelimitedWriter:
    """Rows as delimited text; the first ones decide on the columns."""

    def __init__(self, stream: IO[str], delimiter: str) -> None:
        self._stream = stream
        self._delimiter = delimiter
        self._columns: list[str] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, after a header before the first ones."""
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
    """Collect row groups in memory, compressed, and write the file at the end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    writers: list[pq.ParquetWriter] = []

    def write(rows: Sequence[Row]) -> None:
        flat_rows = [flatten(row) for row in rows]
        try:
            if not writers:
                writers.append(pq.ParquetWriter(buffer, _schema(flat_rows)))
            writers[0].write_table(pa.Table.from_pylist(flat_rows, schema=writers[0].schema))
        except pa.ArrowException as error:
            raise InputError(
                f"{out}: a column has values of several types ({error})", "write --out FILE.jsonl"
            ) from None

    yield write
    for writer in writers:
        writer.close()
    store.write_bytes(out, buffer.getvalue())


def _schema(rows: Sequence[Row]) -> Any:
    """Return the Arrow schema of the first rows; a column without a value holds texts."""
    import pyarrow as pa

    inferred = pa.Table.from_pylist(rows).schema
    return pa.schema([pa.field(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in inferred])
