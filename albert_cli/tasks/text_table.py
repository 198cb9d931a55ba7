"""A table of text cells that remembers its file and line numbers, so that every message can name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from albert_cli.errors import InputError
from albert_cli.tasks.delimited import width_error

UNIQUE_HINT = "give every example its own id"


@dataclass(frozen=True)
class TextTable:
    """A table with at least one row. `columns` is empty for a file without a header; `lines` are the rows' lines."""

    origin: str
    columns: tuple[str, ...]
    cells: list[list[str]]
    lines: list[int]
    delimiter: str = "\t"

    def __post_init__(self) -> None:
        if not self.cells:
            raise InputError(f"{self.origin}: holds no examples", "check that the file is complete")

    def where(self, row: int) -> str:
        """File and line (data set and row number) of a row, for messages."""
        return f"{self.origin}:{self.lines[row]}"

    def column_indices(self, names: Sequence[str]) -> list[int]:
        """Return the indices of the columns with these names; raises `InputError` for a missing one."""
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
        """Return the rows' ids from a column, or their indices if there is no such column."""
        if column is None:
            return [str(index) for index in range(len(self.cells))]
        if must_be_unique:
            check_unique(((row[column], self.where(index)) for index, row in enumerate(self.cells)), hint)
        return [row[column] for row in self.cells]


def check_unique(ids: Iterable[tuple[str, str]], hint: str = UNIQUE_HINT) -> None:
    """Raise `InputError` for the first id that repeats an earlier one; each id comes with its file and line."""
    first_seen: dict[str, str] = {}
    for name, where in ids:
        earlier = first_seen.setdefault(name, where)
        if earlier != where:
            raise InputError(f"{where}: the id {name!r} is already used at {earlier}", hint)
