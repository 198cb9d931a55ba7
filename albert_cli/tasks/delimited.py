"""Split delimited files (TSV, CSV) into rows of cells, in the same way for training and for prediction.

The delimiter and the quoting depend on the file's ending, the settings and the file's content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath
from typing import Final, NamedTuple

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.formatting import count_of
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.text.lines import NumberedLines
from albert_cli.text.records import carriage_return_error, has_wrong_delimiter, iter_csv_rows, reject_repeated_column
from albert_cli.text.sources import JSON_LINES_ENDINGS

DELIMITER_HINT: Final = "use -s table.delimiter=';' if the columns are separated by another character"
_SEPARATOR_LINE: Final = re.compile('"?sep=(.)"?')  # a first line that names the delimiter, as Excel writes it
_ALTERNATIVES: Final = ";\t,"  # a spreadsheet program writes .csv files with the delimiter of the user's language
_MAX_ROW_BYTES: Final = 64 << 20  # with an open quote, a row would be the rest of the file

NumberedCells = Iterator[tuple[int, list[str]]]  # the number of a row's first line, from 1, and the row's cells


@dataclass(frozen=True)
class Dialect:
    """The delimiter of a file, and whether its cells may be in quotes.

    Without quoting, every line is a row. If the header does not contain `delimiter`, but exactly one of the characters
    in `alternatives`, then this character is the delimiter.
    """

    delimiter: str
    quoting: bool
    alternatives: str = ""


def format_suffix(name: str) -> str:
    """Return the ending that shows a file's format, in lower case and without .gz; .jsonl for .ndjson and .jl."""
    suffix = PurePath(name.lower().removesuffix(".gz")).suffix
    return ".jsonl" if suffix in JSON_LINES_ENDINGS else suffix


def is_delimited_file(name: str) -> bool:
    """Return True if a file's name has an ending of delimited text."""
    return format_suffix(name) in (".csv", ".tsv", ".txt")


def choose_dialect(suffix: str, settings: TableSettings) -> Dialect:
    """Return the dialect of a custom table, by its file's ending and the user's settings.

    With `quoting = "auto"` the cells of .csv files may be in quotes, and those of other files may not. For other files
    the caller then checks the content by `is_quoted`.
    """
    is_csv = suffix.lower() == ".csv"
    quoting = is_csv if settings.quoting == "auto" else settings.quoting == "on"
    if settings.delimiter:
        return Dialect(settings.delimiter, quoting)
    return Dialect("," if is_csv else "\t", quoting, _ALTERNATIVES)


class DelimitedTable(NamedTuple):
    """A delimited file whose header has been read; `rows` are read when they are iterated over."""

    columns: tuple[str, ...]
    rows: NumberedCells
    delimiter: str


def open_delimited(origin: str, lines: NumberedLines, dialect: Dialect, *, is_silent: bool = False) -> DelimitedTable:
    """Decide on the delimiter of a file's lines, and read the header.

    * A first line such as `sep=;` gives the delimiter, as in files that Excel reads and writes. Otherwise, unless
      `is_silent`, a delimiter that is not the dialect's is printed.
    * `columns` are the names in the header without empty names at its end.
    * `rows` are the rows that are not blank. While they are read, a row that is not as wide as the header raises
      `InputError`.

    Raises `InputError` if the header is missing or contains line ends outside quotes, or if a column name occurs twice.
    """
    delimiter = dialect.delimiter
    first = next(lines, None)
    if first is not None:
        if separator_line := _SEPARATOR_LINE.fullmatch(first[1]):
            delimiter = separator_line[1]
        else:
            lines = chain([first], lines)
            alternatives = [character for character in dialect.alternatives if character in first[1]]
            if delimiter not in first[1] and len(alternatives) == 1:
                delimiter = alternatives[0]
                if not is_silent:
                    console.info(f"{origin}: the columns are separated by {delimiter!r}")

    def reject_long_row(number: int) -> None:
        message = f"{origin}:{number}: the row is longer than {_MAX_ROW_BYTES / 2**20:g} MiB"
        raise InputError(message, "if a quote in it is open, close or double the quote; otherwise shorten the row")

    if dialect.quoting:
        rows = iter_csv_rows(lines, lambda number: f"{origin}:{number}", delimiter, _MAX_ROW_BYTES, reject_long_row)
    else:
        rows = ((number, line.split(delimiter)) for number, line in lines)
    header_row = next(rows, None)
    if header_row is None:
        raise InputError(f"{origin}: empty, without a header", "check that the file is complete")
    _, header = header_row
    width = len(header)
    while width > 1 and not header[width - 1].strip():  # a spreadsheet may add delimiters at the ends of all lines
        width -= 1
    columns = header[:width]
    # Without quoting, a file whose lines end with carriage returns would be a single line. A carriage return at the end
    # of a name is allowed: some programs end lines with two of them and a line feed.
    if not dialect.quoting and any("\r" in name.rstrip("\r") for name in header):
        raise carriage_return_error(f"{origin}:1")
    for name in columns:
        reject_repeated_column(f"{origin}:1", name, columns)
    return DelimitedTable(tuple(columns), _iter_cells(origin, rows, header, width, delimiter), delimiter)


def _iter_cells(origin: str, rows: NumberedCells, header: Sequence[str], width: int, delimiter: str) -> NumberedCells:
    """Yield the first `width` cells of each row that is not blank.

    Raises `InputError` for a row with fewer cells, with more cells than the header, or with text in further cells.
    """
    for number, cells in rows:
        if cells == [""] and width > 1:
            continue
        has_valid_length = width <= len(cells) <= len(header)
        if not has_valid_length or any(cell.strip() for cell in cells[width:]):
            raise width_error(header[:width], delimiter, len(cells), f"{origin}:{number}")
        yield number, cells[:width]


def is_quoted(lines: NumberedLines, dialect: Dialect) -> bool:
    """Return True if a file looks as if its cells are in quotes where they must be, as pandas writes .tsv files.

    If the file is read with quoting, all rows must be as wide as the header. Quotation marks in the texts of a file
    without quoting usually violate this condition. In addition, one of two conditions must hold:

    * The header begins with a quotation mark.
    * A cell needs quotes, because it contains the delimiter, a line end, or a quotation mark that the file doubles. If
      a cell contains a line end, some lines must not be rows by themselves. Otherwise the marks are in two texts, such
      as the first and the last sentence of a quotation.
    """
    row_lines: list[str] = []  # of the current row
    are_lines_rows = True
    has_line_end = False
    needs_quotes = False
    try:
        first = next(lines, (1, ""))
        recorded_lines = _record_lines(chain([first], lines), row_lines)
        delimited = open_delimited("", recorded_lines, replace(dialect, quoting=True), is_silent=True)
        delimiters_in_header = row_lines[-1].count(delimited.delimiter)
        row_lines.clear()
        for _, cells in delimited.rows:
            counts = {line.count(delimited.delimiter) for line in row_lines if line}
            are_lines_rows &= counts <= {delimiters_in_header}
            raw_row = "\n".join(row_lines)
            row_lines.clear()
            for cell in cells:
                has_line_end |= "\n" in cell
                has_doubled_mark = '"' in cell and cell.replace('"', '""') in raw_row
                needs_quotes |= has_doubled_mark or "\n" in cell or delimited.delimiter in cell
    except InputError:
        return False
    is_two_texts = has_line_end and are_lines_rows
    return first[1].startswith('"') or (needs_quotes and not is_two_texts)


def _record_lines(lines: NumberedLines, recorded: list[str]) -> NumberedLines:
    """Yield the lines, and append each to `recorded`."""
    for number, line in lines:
        recorded.append(line)
        yield number, line


def width_error(columns: Sequence[str], delimiter: str, fields: int, where: str) -> InputError:
    """Return the error for a row that has more or fewer `fields` than columns; the hint names the likely cause."""
    message = f"{where}: {count_of(fields, 'field')} instead of {len(columns)}"
    if has_wrong_delimiter(columns):
        return InputError(message, DELIMITER_HINT)
    if fields < len(columns):
        return InputError(message, "look for a line break inside a text, or a cut line")
    if delimiter == "\t":
        return InputError(message, "look for a tab inside a text")
    return InputError(message, f'put quotes around texts that contain {delimiter!r}, as in "a{delimiter} b"')
