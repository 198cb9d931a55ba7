"""A table of text cells with the file and the line of each row, so that every message can name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from albert_cli.errors import InputError
from albert_cli.tasks.delimited import width_error

UNIQUE_HINT = "give every example its own id"


@dataclass(frozen=True)
class TextTable:
    """A table with at least one row; an empty one raises `InputError`.

    `origin` is the file, or the data set of the Hub. `columns` are the names of the columns, () without a header.
    `cells` are the rows. `lines` has the line of each row in a file, or its number in a data set, from 1. `delimiter`
    only serves messages.
    """

    origin: str
    columns: tuple[str, ...]
    cells: list[list[str]]
    lines: list[int]
    delimiter: str = "\t"

    def __post_init__(self) -> None:
        if not self.cells:
            raise InputError(f"{self.origin}: holds no examples", "check that the file is complete")

    def where(self, row: int) -> str:
        """Return the file and line of a row (the data set and its row number), for messages."""
        return f"{self.origin}:{self.lines[row]}"

    def column_indices(self, names: Sequence[str]) -> list[int]:
        """Return the indices of the columns with these names; raises `InputError` if a column is missing."""
        for name in names:
            if name not in self.columns:
                columns = ", ".join(self.columns)
                message = f"{self.origin}: no column {name!r} (columns: {columns})"
                raise InputError(message, f"provide the columns {', '.join(names)}")
        return [self.columns.index(name) for name in names]

    def check_widths(self) -> None:
        """Raise `InputError` for the first row whose number of fields is not the number of columns."""
        for index, row in enumerate(self.cells):
            if len(row) != len(self.columns):
                raise width_error(self.columns, self.delimiter, len(row), self.where(index))

    def ids(self, column: int | None, *, must_be_unique: bool, hint: str = UNIQUE_HINT) -> list[str]:
        """Return the rows' ids from a column, or for the column None their indices.

        With `must_be_unique` raises `InputError` with `hint` for an id that occurs twice.
        """
        if column is None:
            return [str(index) for index in range(len(self.cells))]
        if must_be_unique:
            check_unique(((row[column], self.where(index)) for index, row in enumerate(self.cells)), hint)
        return [row[column] for row in self.cells]


def check_unique(ids: Iterable[tuple[str, str]], hint: str = UNIQUE_HINT) -> None:
    """Raise `InputError` for the first id that repeats an earlier one; `ids` are pairs of an id and its location."""
    first_use: dict[str, str] = {}
    for name, where in ids:
        earlier = first_use.setdefault(name, where)
        if earlier != where:
            raise InputError(f"{where}: the id {name!r} is already used at {earlier}", hint)


def read_texts(row: Sequence[str], columns: Sequence[int]) -> tuple[str, str | None]:
    """Return the text in a row, or both of a pair, from the indices of one or two columns; None: no second text."""
    if len(columns) == 1:
        return row[columns[0]], None
    return row[columns[0]], row[columns[1]]
