"""Tables of text as strings with line numbers: TSV, CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path

from albert_cli.errors import InputError


@dataclass(frozen=True)
class Rows:
    """A table read whole. `columns` is empty for a file without a header; `names` holds the class names of a
    Hub data set's label columns, whose cells then hold those names.
    """

    origin: str
    columns: tuple[str, ...]
    cells: list[list[str]]
    lines: list[int]
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def where(self, index: int) -> str:
        """File and line (data set and row) of a row, for messages."""
        return f"{self.origin}:{self.lines[index]}"

    def column(self, name: str) -> list[str]:
        """All cells of a column."""
        position = self.columns.index(name)
        return [row[position] for row in self.cells]

    def check_widths(self, width: int) -> None:
        """Raise `InputError` at the first row that has not `width` fields."""
        for index, row in enumerate(self.cells):
            if len(row) != width:
                raise InputError(
                    f"{self.where(index)}: {len(row)} fields where {width} are expected",
                    "a tab or line break inside a text, or a cut line",
                )

    def check_unique(self, place: int) -> None:
        """Raise `InputError` at the first row that repeats an earlier one's value at `place`: its identifier."""
        first: dict[str, int] = {}
        for index, row in enumerate(self.cells):
            if (before := first.setdefault(row[place], index)) != index:
                raise InputError(
                    f"{self.where(index)}: the id {row[place]!r} is that of {self.where(before)} too",
                    "predictions are named by their id; give each example its own",
                )


def check_folder(data: Path, holding: str) -> None:
    """Raise `InputError` unless `--data` is a folder, which should be `holding` what the task reads."""
    if not data.is_dir():
        reason = "is no directory" if data.exists() else "no such directory"
        raise InputError(f"{data}: {reason}", f"--data names the folder that holds {holding}")


def read_text(path: Path) -> str:
    """A whole UTF-8 file without its byte order mark; raises `InputError` naming file and line."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not valid UTF-8", "convert the file, for example by iconv") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file. Only line feeds end a line: U+2028 and its like belong to the text."""
    text = read_text(path)
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_delimited(path: Path, delimiter: str = "\t", *, quoting: bool = False, header: bool = True) -> Rows:
    """A delimited file; without quoting every line is a row and every quote a character, as in GLUE."""
    if quoting:
        cells, lines = _read_quoted(path, delimiter)
    else:
        cells = [line.split(delimiter) for line in read_lines(path)]
        lines = list(range(1, len(cells) + 1))
    if not header:
        return Rows(str(path), (), cells, lines)
    if not cells:
        raise InputError(f"{path}: empty, not even a header", "was it written to the end?")
    return Rows(str(path), tuple(cells[0]), cells[1:], lines[1:])


def _read_quoted(path: Path, delimiter: str) -> tuple[list[list[str]], list[int]]:
    csv.field_size_limit(2**31 - 1)  # the module refuses fields of more than 128 KiB otherwise
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    cells: list[list[str]] = []
    lines: list[int] = []
    start = 1
    try:
        for row in reader:
            if row:  # the module gives [] for a blank line
                cells.append(row)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{start}: {error}", "a quote that is not closed or not doubled") from None
    return cells, lines


def read_jsonl(path: Path) -> Rows:
    """One JSON object a line; its keys are the columns, those of the first line being required of all."""
    columns: dict[str, int] = {}
    cells: list[list[str]] = []
    lines: list[int] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not valid JSON: {error}", "one JSON object a line") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}:{number}: not a JSON object", "one JSON object a line")
        columns = columns or {name: i for i, name in enumerate(values)}
        missing = [name for name in columns if name not in values]
        if missing:
            hint = "write null where there is nothing"
            raise InputError(f"{path}:{number}: no key {missing[0]!r}, which the first line has", hint)
        cells.append([as_text(values[name]) for name in columns])
        lines.append(number)
    return Rows(str(path), tuple(columns), cells, lines)


def read_parquet(path: Path) -> Rows:
    """A Parquet file; its rows count from 1 in messages."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: not a readable Parquet file ({reason})", "copy it again") from None
    by_column = [[as_text(value) for value in column.to_pylist()] for column in table.columns]
    cells = [list(row) for row in zip(*by_column, strict=True)]
    return Rows(str(path), tuple(table.column_names), cells, list(range(1, len(cells) + 1)))


def as_text(value: object) -> str:
    """A cell as text: null is empty, numbers and truth values are written as in JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
