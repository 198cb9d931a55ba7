"""Rows of text with their line numbers: TSV, CSV, JSON lines, Parquet, and data sets of the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from albert_cli import console, hub_access
from albert_cli.errors import InputError, MissingDataError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.text.lines import check_characters, reject_utf16
from albert_cli.text.records import (
    has_wrong_delimiter,
    iter_csv_rows,
    iter_json_objects,
    iter_parquet_rows,
    parse_json,
    parse_json_object,
)
from albert_cli.text.source_parts import SourcePart, translate_read_errors
from albert_cli.text.sources import TextSource

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
DELIMITER_HINT = "is the delimiter another one? -s table.delimiter=';'"


@dataclass(frozen=True)
class InputLine:
    """A line of a file or of stdin (`-`), counted from 1."""

    text: str
    file: str
    number: int

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}:{self.number}"

    def values(self) -> dict[str, Any]:
        """The line as a JSON object; raises `InputError` for anything else."""
        return parse_json_object(self.text, self.where, 'each line of .jsonl is one: {"text": "…"}')

    def fields(self, first: Sequence[str], second: Sequence[str]) -> tuple[Any, Any, str]:
        """Two fields and the id: of `.jsonl` under the first of their names that is there, else around a tab."""
        if self.file.endswith(".jsonl"):
            value = self.values()
            a, b = (next((value[name] for name in names if name in value), None) for names in (first, second))
            return a, b, str(value.get("id", self.number))
        text, tab, rest = self.text.partition("\t")
        return text, rest if tab else None, str(self.number)


@dataclass(frozen=True)
class TextTable:
    """A table read whole, never an empty one. `columns` is empty for a file without a header."""

    origin: str
    columns: tuple[str, ...]
    cells: list[list[str]]
    lines: list[int]

    def __post_init__(self) -> None:
        if not self.cells:
            raise InputError(f"{self.origin}: holds no examples", "was it written to the end?")

    def where(self, index: int) -> str:
        """File and line (data set and row) of a row, for messages."""
        return f"{self.origin}:{self.lines[index]}"

    def places(self, names: Sequence[str]) -> list[int]:
        """Where the columns with these names are; raises `InputError` for one that is not there."""
        if missing := [name for name in names if name not in self.columns]:
            there = ", ".join(self.columns)
            raise InputError(f"{self.origin}: no column {missing[0]!r}; it has {there}", f"wanted: {', '.join(names)}")
        return [self.columns.index(name) for name in names]

    def check_widths(self) -> None:
        """Raise `InputError` at the first row that has more or fewer fields than there are columns."""
        width, cut = len(self.columns), "a tab or line break inside a text, or a cut line"
        hint = DELIMITER_HINT if has_wrong_delimiter(self.columns) else cut
        for index, row in enumerate(self.cells):
            if len(row) != width:
                raise InputError(f"{self.where(index)}: {len(row)} fields where {width} are expected", hint)

    def ids(self, place: int | None, *, is_unique: bool) -> list[str]:
        """The rows' identifiers, those at `place` or else their numbers; `check_unique` of those that must be so."""
        if place is None:
            return [str(index) for index in range(len(self.cells))]
        if is_unique:
            check_unique((row[place], self.where(index)) for index, row in enumerate(self.cells))
        return [row[place] for row in self.cells]


def check_unique(found: Iterable[tuple[str, str]]) -> None:
    """Of identifiers, each with where it stands, raise `InputError` at the first that repeats an earlier one."""
    first: dict[str, str] = {}
    for name, where in found:
        if (before := first.setdefault(name, where)) != where:
            hint = "predictions are named by their id; give each its own"
            raise InputError(f"{where}: the id {name!r} is that of {before} too", hint)


def hold_out_dev(
    split: str, examples: Sequence[T], units: Sequence[str], share: float, origin: str, what: str, remedy: str
) -> list[T]:
    """Train's or dev's of all examples, where a share of their units is held out as dev, and never all of them.

    Those whose hash comes first; `what` they are called. Raises `InputError` where there is a single one.
    """
    every = sorted(set(units))
    dev = set(sorted(every, key=hash_to_unit_interval)[: min(len(every) - 1, max(1, round(len(every) * share)))])
    if not dev:
        raise InputError(f"{origin}: a single {what} cannot be split into train and dev", remedy)
    if split == "dev":
        console.info(f"{origin}: no dev data, so {len(dev)} of {len(every)} {what}s are held out")
    return [example for example, unit in zip(examples, units, strict=True) if (unit in dev) == (split == "dev")]


# ---------------------------------------------------------------- files


def find_data_file(data: Path, names: Sequence[str], hub: str | None, hint: str | None = None) -> Path:
    """The first of some files or folders that is there in the folder `--data`.

    Raises `InputError` where that is no folder, `MissingData` where it holds none of them.
    """
    if not data.is_dir():
        reason = "is no directory" if data.exists() else "no such directory"
        raise InputError(f"{data}: {reason}", f"--data names the folder that holds {names[0]}")
    for name in names:
        if (data / name).exists():
            return data / name
    on_hub = f"without --data it is read from the Hugging Face Hub ({hub})" if hub else None
    raise MissingDataError(f"{data}: neither {' nor '.join(names)} is there", hint or on_hub)


def read_text(path: Path) -> str:
    """A whole UTF-8 file without its byte order mark; raises `InputError` naming file and line."""
    with translate_read_errors(path):
        raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reject_utf16(path, raw)
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not valid UTF-8", "convert the file, for example by iconv") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file. Only line feeds end a line: U+2028 and its like belong to the text."""
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def parse_json_as(schema: type[M], text: str, where: str, hint: str) -> M:
    """A JSON document by a schema; raises `InputError` with the path of what does not fit, as `data[0].title`."""
    try:
        return schema.model_validate(parse_json(text, where, hint), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        raise InputError(f"{where}: {path or 'the document'}: {first['msg']}", hint) from None


def read_delimited(path: Path, delimiter: str = "\t", *, quoting: bool = False, header: bool = True) -> TextTable:
    """A delimited file; without quoting every line is a row and every quote a character, as in GLUE."""
    found = enumerate(read_lines(path), start=1)
    where = f"{path}:{{}}".format
    rows = iter_csv_rows(found, where, delimiter) if quoting else ((n, line.split(delimiter)) for n, line in found)
    numbered = list(rows)
    lines, cells = [number for number, _ in numbered], [row for _, row in numbered]
    if not header:
        return TextTable(str(path), (), cells, lines)
    if not cells:
        raise InputError(f"{path}: empty, not even a header", "was it written to the end?")
    return TextTable(str(path), tuple(cells[0]), cells[1:], lines[1:])


def read_objects(path: Path) -> TextTable:
    """A Parquet file, or a JSON object a line; the columns are the keys of the first, which all must have."""
    if path.suffix.lower() == ".parquet":
        return _table_from_objects(str(path), iter_parquet_rows(SourcePart(TextSource(str(path), "parquet"))))
    return _table_from_objects(
        str(path), iter_json_objects(enumerate(read_lines(path), start=1), f"{path}:{{}}".format)
    )


def _table_from_objects(origin: str, objects: Iterable[tuple[int, Mapping[str, object]]]) -> TextTable:
    columns: tuple[str, ...] = ()
    cells: list[list[str]] = []
    lines: list[int] = []
    for number, values in objects:
        columns = columns or tuple(values)
        if missing := [name for name in columns if name not in values]:
            hint = "write null where there is nothing"
            raise InputError(f"{origin}:{number}: no key {missing[0]!r}, which the first line has", hint)
        cells.append([_cell_text(values[name]) for name in columns])
        lines.append(number)
    return TextTable(origin, columns, cells, lines)


def _cell_text(value: object) -> str:
    """A cell as text: null is empty, numbers and truth values are written as in JSON, half a character is U+FFFD."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return check_characters(text, str, 0, "replace")


# ---------------------------------------------------------------- the Hub, through `datasets`, which is imported late


def is_hub_source(source: str | None) -> bool:
    """Whether a source names a data set of the Hub: `hf:NAME[:CONFIG]`."""
    return source is not None and source.startswith("hf:")


def list_hub_splits(source: str) -> tuple[str, ...]:
    """The names of the splits of `hf:NAME[:CONFIG]`."""
    hub_access.prefer_offline()
    import datasets

    name, _, config = source.removeprefix("hf:").partition(":")
    try:
        return tuple(datasets.get_dataset_split_names(name, config or None))
    except Exception as error:
        raise _hub_error(source, error) from None


def read_hub_split(source: str, split: str, labels: Sequence[str] = ()) -> TextTable:
    """A split of `hf:NAME[:CONFIG]`; classes are written by their names, hidden ones (-1) as empty cells.

    Where the task knows them by other `labels`, they are written by their numbers. Raises `MissingData` when the Hub,
    the data set, its configuration or the split cannot be reached.
    """
    hub_access.prefer_offline()
    import datasets

    name, _, config = source.removeprefix("hf:").partition(":")
    origin = ":".join(part for part in ("hf", name, config, split) if part)
    datasets.disable_progress_bars()
    try:
        table: Any = datasets.load_dataset(name, config or None, split=split)
    except Exception as error:
        raise _hub_error(origin, error) from None
    columns = {column: table[column][:] for column in table.column_names}
    for column, kind in table.features.items():
        if isinstance(kind, datasets.ClassLabel):
            known = kind.names if not labels or set(kind.names) <= set(labels) else range(len(kind.names))
            columns[column] = ["" if v is None or v < 0 else str(known[v]) for v in columns[column]]
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return _table_from_objects(origin, enumerate(rows, start=1))


def _hub_error(origin: str, error: Exception) -> MissingDataError:
    # The library raises whatever its network and file layers raise; the first line says what matters.
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return MissingDataError(f"{origin}: cannot be loaded: {reason}", "name a local copy by --data DIR")
