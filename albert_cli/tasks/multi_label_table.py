"""Read the labels of a multi-label table: lists, texts such as `a|b`, or a column with 0 and 1 for each class."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import NamedTuple

from albert_cli.errors import InputError
from albert_cli.tasks.columns import missing_column, require_column
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable

SEPARATOR = "|"
_YES = frozenset(("1", "1.0", "true", "yes"))
_NO = frozenset(("0", "0.0", "false", "no", ""))


class LabelSet(NamedTuple):
    """The names of a row's classes, and its file and line."""

    names: tuple[str, ...]
    where: str


def is_multi_label_table(table: TextTable, settings: TableSettings) -> bool:
    """Return True by the recipe, or if a label is a list or contains `|`."""
    if settings.kind != "auto":
        return settings.kind == "multi-label"
    if settings.label_columns:
        return True
    column = require_column(table, "label", settings)
    return any(row[column].lstrip().startswith("[") or SEPARATOR in row[column] for row in table.cells)


def read_label_sets(table: TextTable, settings: TableSettings) -> list[LabelSet]:
    """Return the classes of every row; raises `InputError` naming the line of a label that is not readable."""
    if settings.label_columns:
        return _read_label_columns(table, settings)
    column = require_column(table, "label", settings)
    rows = []
    for index, row in enumerate(table.cells):
        where = table.where(index)
        rows.append(LabelSet(_split(row[column], where), where))
    return rows


def _read_label_columns(table: TextTable, settings: TableSettings) -> list[LabelSet]:
    for name in settings.label_columns:
        if name not in table.columns:
            raise missing_column(table, "label_columns", [name])
    columns = [table.columns.index(name) for name in settings.label_columns]
    rows = []
    for index, row in enumerate(table.cells):
        names = []
        for name, column in zip(settings.label_columns, columns, strict=True):
            value = row[column].strip().lower()
            if value not in _YES | _NO:
                message = f"{table.where(index)}: {row[column]!r} in the column {name!r} is neither 0 nor 1"
                raise InputError(message, "write 1 for texts that have the class, 0 for others")
            if value in _YES:
                names.append(name)
        rows.append(LabelSet(tuple(names), table.where(index)))
    return rows


def _split(cell: str, where: str) -> tuple[str, ...]:
    """Return the names in a JSON or Python list, or between `|`; a name that occurs twice counts once."""
    cell = cell.strip()
    if not cell.startswith("["):
        names = [name.strip() for name in cell.split(SEPARATOR)]
        return tuple(dict.fromkeys(name for name in names if name))
    values = _parse_list(cell)
    if values is None or not all(isinstance(value, str | int) for value in values):
        raise InputError(f"{where}: the label {cell!r} is not a list of texts", 'write ["…", "…"], or [] for no class')
    return tuple(dict.fromkeys(str(value).strip() for value in values))


def _parse_list(cell: str) -> list[object] | None:
    try:
        value = json.loads(cell)
    except (json.JSONDecodeError, RecursionError):
        try:  # as pandas writes lists into a CSV file
            value = ast.literal_eval(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    return value if isinstance(value, list) else None


def infer_label_names(rows: Sequence[LabelSet], settings: TableSettings, origin: str) -> tuple[str, ...]:
    """Return the classes in the recipe's order, or sorted; raises `InputError` for fewer than two."""
    if settings.labels:
        return settings.labels
    names = settings.label_columns or tuple(sorted({name for row in rows for name in row.names}))
    if len(names) < 2:
        raise InputError(f"{origin}: {len(names)} classes, so there is nothing to learn", "provide two classes or more")
    return names


def label_indices(row: LabelSet, labels: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of a row's classes in ascending order; raises `InputError` for an unknown class."""
    for name in row.names:
        if name not in labels:
            message = f"{row.where}: label {name!r} is not one of {', '.join(labels)}"
            raise InputError(message, "correct the label, or remove the row")
    return tuple(sorted(labels.index(name) for name in row.names))
