"""Split delimited files (TSV, CSV) into rows of cells, in the same way for training and for prediction.

The delimiter and the quoting follow from the file's ending, the settings, and the file's first lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.formatting import count_of
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.text.lines import NumberedLines
from albert_cli.text.records import has_wrong_delimiter, iter_csv_rows

DELIMITER_HINT: Final = "use -s table.delimiter=';' if the columns are separated by another character"
_SEPARATOR_LINE: Final = re.compile('"?sep=(.)"?')  # a first line that names the delimiter, as Excel writes it
_ALTERNATIVES: Final = ";\t,"  # a spreadsheet program writes .csv files with the delimiter of its user's language

NumberedCells = Iterator[tuple[int, list[str]]]  # the number of a row's first line, from 1, and the row's cells


@dataclass(frozen=True)
class Dialect:
    """The delimiter of a file, and whether its cells may be in quotes; the default is GLUE's.

    Without quoting, every line is a row. If the header lacks `delimiter` and contains exactly one of the characters in
    `alternatives`, this character is the delimiter.
    """

    delimiter: str = "\t"
    quoting: bool = False
    alternatives: str = ""


def choose_dialect(suffix: str, settings: TableSettings) -> Dialect:
    """Return the dialect of a custom table, by its file's ending and the user's settings.

    With `quoting = "auto"` a .csv file has quotes; `is_quoted` decides about other files by their content.
    """
    is_csv = suffix.lower() == ".csv"
    quoting = is_csv if settings.quoting == "auto" else settings.quoting == "on"
    if settings.delimiter:
        return Dialect(settings.delimiter, quoting)
    return Dialect("," if is_csv else "\t", quoting, _ALTERNATIVES)


@dataclass(frozen=True)
class DelimitedRows:
    """A delimited file whose header has been read: `columns`, () without a header, and an iterator over the rows."""

    origin: str
    columns: tuple[str, ...]
    delimiter: str
    rows: NumberedCells

    def named_columns_and_rows(self) -> tuple[tuple[str, ...], NumberedCells]:
        """Return the columns without empty ones at the end of the header, and the rows without blank lines.

        Raises `InputError` for a column name that occurs twice. The iterator raises it for a row that is not as wide
        as the header.
        """
        names = list(self.columns)
        while len(names) > 1 and not names[-1].strip():  # a spreadsheet may add delimiters at the ends of all lines
            names.pop()
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{self.origin}:1: the column {name!r} occurs twice", "rename one of them")
        return tuple(names), self._iter_cells(len(names))

    def _iter_cells(self, width: int) -> NumberedCells:
        for number, cells in self.rows:
            if cells == [""] and width > 1:
                continue
            has_fitting_length = width <= len(cells) <= len(self.columns)
            if not has_fitting_length or any(cell.strip() for cell in cells[width:]):
                raise width_error(self.columns[:width], self.delimiter, len(cells), f"{self.origin}:{number}")
            yield number, cells[:width]


def open_delimited(
    origin: str, lines: NumberedLines, dialect: Dialect, *, header: bool = True, is_silent: bool = False
) -> DelimitedRows:
    """Decide on the delimiter of a file's lines, and read its header if it has one.

    A first line `sep=;` names the delimiter, as in files that Excel reads and writes. A delimiter that is not the
    dialect's is printed unless `is_silent`. Raises `InputError` for a file without its header.
    """
    delimiter = dialect.delimiter
    first = next(lines, None)
    if first is not None:
        separator_line = _SEPARATOR_LINE.fullmatch(first[1]) if header else None
        if separator_line is not None:
            delimiter = separator_line[1]
        else:
            delimiter = _find_delimiter(first[1], dialect)
            lines = chain([first], lines)
            if delimiter != dialect.delimiter and not is_silent:
                console.info(f"{origin}: the columns are separated by {delimiter!r}")
    if dialect.quoting:
        rows = iter_csv_rows(lines, lambda number: f"{origin}:{number}", delimiter)
    else:
        rows = ((number, line.split(delimiter)) for number, line in lines)
    columns: tuple[str, ...] = ()
    if header:
        header_row = next(rows, None)
        if header_row is None:
            raise InputError(f"{origin}: empty, without a header", "check that the file is complete")
        columns = tuple(header_row[1])
    return DelimitedRows(origin, columns, delimiter, rows)


def _find_delimiter(header: str, dialect: Dialect) -> str:
    """Return the dialect's delimiter, or the alternative that a header contains if it contains no other."""
    alternatives = [character for character in dialect.alternatives if character in header]
    if dialect.delimiter not in header and len(alternatives) == 1:
        return alternatives[0]
    return dialect.delimiter


def is_quoted(lines: NumberedLines, dialect: Dialect) -> bool:
    """Return True if the cells of a file are in quotes where they must be, as spreadsheets and pandas write .tsv files.

    Two conditions must hold. Read with quoting, all rows are as wide as the header: a file without quoting breaks this
    rule by a quotation mark in a text. And quoting makes a difference: the header begins with a quotation mark, or a
    cell contains a quotation mark, a line end or the delimiter.
    """
    try:
        first = next(lines, (1, ""))
        delimited = open_delimited("", chain([first], lines), replace(dialect, quoting=True), is_silent=True)
        _, rows = delimited.named_columns_and_rows()
        needs_quotes = re.compile(f'["\n{re.escape(delimited.delimiter)}]')
        quoted_cells = [cell for _, row in rows for cell in row if needs_quotes.search(cell)]
    except InputError:
        return False
    return bool(quoted_cells) or first[1].startswith('"')


def width_error(columns: Sequence[str], delimiter: str, fields: int, where: str) -> InputError:
    """Return the error for a row with another number of `fields` than columns; the hint names the likely cause."""
    message = f"{where}: {count_of(fields, 'field')} instead of {len(columns)}"
    if has_wrong_delimiter(columns):
        return InputError(message, DELIMITER_HINT)
    if fields < len(columns):
        return InputError(message, "look for a line break inside a text, or a cut line")
    if delimiter == "\t":
        return InputError(message, "look for a tab inside a text")
    return InputError(message, f'put quotes around texts that contain {delimiter!r}, as in "a{delimiter} b"')
