"""A table of text cells, as all readers of tables return it, with the line of each row for error messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from albert_cli.errors import InputError

_UNIQUE_HINT = "give every example its own id"


@dataclass(frozen=True)
class TextTable:
    """A table with at least one row; an empty table raises `InputError`.

    * `origin` is the file, or the data set of the Hub.
    * `columns` are the names of the columns, () without a header.
    * `cells` are the rows.
    * `lines` are the line numbers of the rows in a file, or their row numbers in a data set, from 1.
    * `object_columns` are the names of the columns whose cells are the JSON of objects.
    """

    origin: str
    columns: tuple[str, ...]
    cells: list[list[str]]
    lines: list[int]
    object_columns: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.cells:
            raise InputError(f"{self.origin}: holds no examples", "check that the file is complete")

    def where(self, row: int) -> str:
        """Return `origin:line` of the row with this index, for messages."""
        return f"{self.origin}:{self.lines[row]}"

    def column_indices(self, names: Sequence[str]) -> list[int]:
        """Return the indices of the columns with these names; raises `InputError` if a column is missing."""
        for name in names:
            if name not in self.columns:
                columns = ", ".join(self.columns)
                message = f"{self.origin}: no column {name!r} (columns: {columns})"
                raise InputError(message, f"provide the columns {', '.join(names)}")
        return [self.columns.index(name) for name in names]

    def ids(self, column: int | None, *, must_be_unique: bool, hint: str = _UNIQUE_HINT) -> list[str]:
        """Return the rows' ids from a column; the id of a row without one is `row N`, with N from `lines`.

        Without a column (None) the ids are the numbers in `lines`, as in `InputLine.fields`, which `predict` uses.
        If `must_be_unique` is true, raises `InputError` with `hint` for an id that occurs twice.
        """
        if column is None:
            return [str(line) for line in self.lines]
        ids = [row[column] or f"row {line}" for row, line in zip(self.cells, self.lines, strict=True)]
        if must_be_unique:
            check_unique(((name, self.where(index)) for index, name in enumerate(ids)), hint)
        return ids


def check_unique(ids: Iterable[tuple[str, str]], hint: str = _UNIQUE_HINT) -> None:
    """Raise `InputError` for the first repeated id; `ids` are pairs of an id and its file and line."""
    first_use: dict[str, str] = {}
    for name, where in ids:
        earlier = first_use.setdefault(name, where)
        if earlier != where:
            raise InputError(f"{where}: the id {name!r} is already used at {earlier}", hint)


def read_texts(row: Sequence[str], columns: Sequence[int]) -> tuple[str, str | None]:
    """Return the texts in one or two columns of a row, by the columns' indices; the second text may be None."""
    if len(columns) == 1:
        return row[columns[0]], None
    return row[columns[0]], row[columns[1]]
