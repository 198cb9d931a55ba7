"""Read delimited files row by row: delimiter, quotes, header and widths, for training and for prediction alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.text.lines import NumberedLines
from albert_cli.text.records import has_wrong_delimiter, iter_csv_rows

DELIMITER_HINT: Final = "use -s table.delimiter=';' if the columns are separated by another character"
_SEPARATOR_LINE: Final = re.compile('"?sep=(.)"?')  # Excel's first line, which names the delimiter
_OTHER_DELIMITERS: Final = ";\t,"  # of spreadsheets in other languages

NumberedCells = Iterator[tuple[int, list[str]]]  # a row's first line from 1, and its cells


@dataclass(frozen=True)
class Dialect:
    """The delimiter of a file, and whether cells may be in quotes; without quoting every line is a row, as in GLUE.

    If the header contains one of the `alternatives` and not `delimiter`, the alternative is the delimiter.
    """

    delimiter: str = "\t"
    quoting: bool = False
    alternatives: str = ""


def choose_dialect(suffix: str, settings: TableSettings) -> Dialect:
    """Return the dialect of a custom table, by the ending of its file and the user's settings.

    A .tsv file may be quoted all the same: see `is_quoted`.
    """
    is_csv = suffix.lower() == ".csv"
    return Dialect(
        delimiter=settings.delimiter or ("," if is_csv else "\t"),
        quoting=settings.quoting == "on" or (settings.quoting == "auto" and is_csv),
        alternatives="" if settings.delimiter else _OTHER_DELIMITERS,
    )


@dataclass(frozen=True)
class DelimitedRows:
    """The rows of a delimited file, which can be read once; `columns` is empty for a file without a header."""

    origin: str
    columns: tuple[str, ...]
    delimiter: str
    rows: NumberedCells

    def rows_as_wide_as_the_header(self) -> tuple[tuple[str, ...], NumberedCells]:
        """Return the named columns and their cells; blank lines and empty columns without a name are left out.

        Raises `InputError` for a column that occurs twice, and for a row of another width.
        """
        names = list(self.columns)
        while len(names) > 1 and not names[-1].strip():
            names.pop()
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{self.origin}:1: the column {name!r} occurs twice", "rename one of them")
        return tuple(names), self._iter_cells(len(names))

    def _iter_cells(self, width: int) -> NumberedCells:
        for number, cells in self.rows:
            if cells == [""] and width > 1:
                continue
            if not width <= len(cells) <= len(self.columns) or any(map(str.strip, cells[width:])):
                raise width_error(self.columns[:width], self.delimiter, len(cells), f"{self.origin}:{number}")
            yield number, cells[:width]


def open_delimited(
    origin: str, lines: NumberedLines, dialect: Dialect, *, header: bool = True, is_silent: bool = False
) -> DelimitedRows:
    """Read the header of a delimited file; raises `InputError` for an empty file.

    A first line `sep=;` names the delimiter, as in files that Excel reads and writes. Another delimiter than the
    dialect's is printed unless `is_silent`.
    """
    first = next(lines, None)
    delimiter = dialect.delimiter
    separator = _SEPARATOR_LINE.fullmatch(first[1]) if header and first is not None else None
    if separator is not None:
        delimiter = separator[1]
    elif first is not None:
        delimiter = _find_delimiter(first[1], dialect)
        if delimiter != dialect.delimiter and not is_silent:
            console.info(f"{origin}: the columns are separated by {delimiter!r}")
        lines = chain([first], lines)
    if dialect.quoting:
        rows = iter_csv_rows(lines, f"{origin}:{{}}".format, delimiter)
    else:
        rows = ((number, line.split(delimiter)) for number, line in lines)
    columns: tuple[str, ...] = ()
    if header:
        first_row = next(rows, None)
        if first_row is None:
            raise InputError(f"{origin}: empty, without a header", "check that the file is complete")
        columns = tuple(first_row[1])
    return DelimitedRows(origin, columns, delimiter, rows)


def _find_delimiter(header: str, dialect: Dialect) -> str:
    """Return the dialect's delimiter, or the only alternative that a header contains instead."""
    if dialect.delimiter in header:
        return dialect.delimiter
    alternatives = [sign for sign in dialect.alternatives if sign in header]
    return alternatives[0] if len(alternatives) == 1 else dialect.delimiter


def is_quoted(lines: NumberedLines, dialect: Dialect) -> bool:
    """Return True if a whole file is written with quotes, as spreadsheets and pandas write a .tsv file.

    All its rows are then as wide as the header, and the header or a cell with a quote, a tab or a line end is in
    quotes. A quotation mark in a text that is not quoted breaks one of these rules.
    """
    try:
        first = next(lines, (1, ""))
        delimited = open_delimited("", chain([first], lines), replace(dialect, quoting=True), is_silent=True)
        _, rows = delimited.rows_as_wide_as_the_header()
        needs_quotes = re.compile(f'["\n{re.escape(delimited.delimiter)}]')
        cells = [cell for _, row in rows for cell in row if needs_quotes.search(cell)]
    except InputError:
        return False
    return bool(cells) or first[1].startswith('"')


def width_error(columns: Sequence[str], delimiter: str, fields: int, where: str) -> InputError:
    """Return the error for a row whose number of fields is not the number of columns."""
    message = f"{where}: {fields} {'field' if fields == 1 else 'fields'} instead of {len(columns)}"
    if has_wrong_delimiter(columns):
        return InputError(message, DELIMITER_HINT)
    if fields < len(columns):
        return InputError(message, "look for a line break inside a text, or a cut line")
    if delimiter == "\t":
        return InputError(message, "look for a tab inside a text")
    return InputError(message, f'put quotes around texts that contain {delimiter!r}, as in "a{delimiter} b"')
