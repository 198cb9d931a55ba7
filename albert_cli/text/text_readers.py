"""Read the texts of a corpus from records: JSON lines, tables, Parquet and Arrow files, and data sets on the Hub.

A record without a text (null or blank) is left out and counted, in every format. Every text passes the checks of
`_iter_nonblank_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import NamedTuple

from albert_cli.errors import InputError
from albert_cli.formatting import count_of
from albert_cli.text.fields import find_field, to_texts
from albert_cli.text.hub_datasets import open_rows, translate_hub_errors
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.lines import (
    NumberedLines,
    check_characters,
    lines_or_quote_counts,
    reject_or_count_long_line,
    text_lines,
    utf8_size,
)
from albert_cli.text.plain_text import join_texts
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.records import (
    Location,
    describe_location,
    has_wrong_delimiter,
    iter_arrow_rows,
    iter_csv_rows,
    iter_json_objects,
    iter_parquet_rows,
    missing_field_error,
    reject_repeated_column,
    wrong_type_error,
)
from albert_cli.text.source_parts import ReadCounter, SourcePart, open_part
from albert_cli.text.sources import HubDataset


def read_json_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text field of each line's JSON object."""
    return iter_json_texts(text_lines(part, settings, counter), part, settings, counter)


def iter_json_texts(
    lines: NumberedLines, part: SourcePart, settings: ReadSettings, counter: ReadCounter
) -> Iterator[str]:
    """Yield the text field of each line's JSON object; lines: those lines of the part that are not read yet."""
    for number, record in iter_json_objects(lines, part.location):
        text = find_text(record, settings, partial(part.location, number))
        yield from _iter_nonblank_text(text, part.location, number, settings, counter)


def find_text(record: Mapping[str, object], settings: ReadSettings, location: Location) -> str | None:
    """Return a record's text with a line for each text of a list; None if the field is null.

    Raises `InputError` if the field is missing or is no text.
    """
    field = settings.text_field
    try:
        value = find_field(record, field)
    except KeyError:
        raise missing_field_error(describe_location(location), field, list(record)) from None
    try:
        texts = to_texts(value)
    except TypeError:
        raise wrong_type_error(describe_location(location), field, value) from None
    return None if texts is None else join_texts(texts, settings)


def _iter_nonblank_text(
    text: str | None, location: Callable[[int], str], number: int, settings: ReadSettings, counter: ReadCounter
) -> Iterator[str]:
    """Yield the text unless it is null or blank; a text that is left out is counted.

    This generator yields at most one text, so that a reader can `yield from` it. The settings decide if invalid
    characters are replaced or raise `InputError`. number: the number of the text's line or record; location: a function
    that returns the location for a number, for errors.
    """
    if text is None or not text.strip():
        counter.counts += LineCounts(without_text=1)
        return
    yield check_characters(text, location, number, settings.on_bad_bytes, counter)


def read_table_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text column of a table with a header.

    In a `.csv`, quoted cells may contain line ends. The maximum length then applies to the whole row, not to each of
    its lines. In a `.tsv`, every line is a row and quotes have no meaning.
    """
    if part.source.kind == "csv":
        lines = lines_or_quote_counts(part, settings, counter)
        on_long_row = partial(reject_or_count_long_line, part.location, settings=settings, counter=counter)
        rows = iter_csv_rows(lines, part.location, max_row=settings.max_line, on_long_row=on_long_row)
    else:
        rows = _iter_tsv_rows(text_lines(part, settings, counter), counter)
    first_row = next(rows, None)
    if first_row is None:
        return
    header_line, header = first_row
    if settings.text_field not in header:
        location = part.location(header_line)
        if has_wrong_delimiter(header):
            hint = "separate the columns of a .csv by commas, and of a .tsv by tabs"
            raise InputError(f"{location}: a single column, {header[0]!r}", hint)
        raise missing_field_error(location, settings.text_field, header)
    reject_repeated_column(part.location(header_line), settings.text_field, header)
    column = header.index(settings.text_field)
    for number, cells in rows:
        if len(cells) != len(header):
            hint = "look for a separator or line end in an unquoted text, or for a truncated line"
            raise InputError(
                f"{part.location(number)}: {count_of(len(cells), 'field')}, but the header has {len(header)}", hint
            )
        text = join_texts([cells[column]], settings)  # joins wrapped lines within the cell, if the settings say so
        yield from _iter_nonblank_text(text, part.location, number, settings, counter)


def _iter_tsv_rows(lines: NumberedLines, counter: ReadCounter) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line; a line of only tabs is counted as a row without text, and a blank one is no row."""
    for number, line in lines:
        if line.strip():
            yield number, line.split("\t")
        elif "\t" in line:
            counter.counts += LineCounts(without_text=1)


def read_columnar_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text column of a Parquet file, or of an Arrow file, the format of the `datasets` library."""
    if part.source.kind == "arrow":
        rows = iter_arrow_rows(part, settings.text_field)
    else:
        rows = iter_parquet_rows(part, settings.text_field)
    for number, row in rows:
        text = find_text(row, settings, partial(part.record_location, number))
        yield from iter_text_within_limit(text, part.record_location, number, settings, counter)
    # pyarrow does not read the bytes in their order, so they are read again for the hash.
    with open_part(part, counter):
        pass  # `open_part` reads all bytes when the block ends


def iter_text_within_limit(
    text: str | None, location: Callable[[int], str], number: int, settings: ReadSettings, counter: ReadCounter
) -> Iterator[str]:
    """Yield the text unless it is too long, null or blank; a text that is left out is counted.

    For texts that do not come from a single line, because the length of a single line is already checked. location and
    number are those of `_iter_nonblank_text`.
    """
    if text is not None and utf8_size(text) > settings.max_line:
        reject_or_count_long_line(location, number, settings, counter)
    else:
        yield from _iter_nonblank_text(text, location, number, settings, counter)


class _HubRow(NamedTuple):
    """A row of a data set: its number from 1 and its text; adjacent rows with equal keys form a document."""

    document_key: object
    number: int
    text: str


def read_hub_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the documents of a data set on the Hugging Face Hub, with a line for each row; the rows are streamed."""
    with translate_hub_errors(part.source.name):
        rows = _iter_hub_rows(part, settings, counter)
        for _, group in groupby(rows, lambda row: row.document_key):
            document_rows = list(group)
            text = "\n".join(row.text for row in document_rows)
            yield from iter_text_within_limit(text, part.record_location, document_rows[0].number, settings, counter)


def _iter_hub_rows(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[_HubRow]:
    """Yield the rows that have a text; raise `InputError` if a column is missing or contains other values."""
    dataset = HubDataset.parse(part.source.name)
    for number, row in enumerate(open_rows(part), 1):
        text = find_text(row, settings, partial(part.location, number))
        if dataset.document_column and dataset.document_column not in row:
            message = f"{part.location(number)}: no field {dataset.document_column!r} (fields: {', '.join(row)})"
            raise InputError(message, "choose another with ?document=COLUMN")
        if text is None or not text.strip():
            counter.counts += LineCounts(without_text=1)
            continue
        counter.add(text.encode("utf-8", "replace"))  # instead of the bytes on disk, which `datasets` does not show
        document_key: object = (number - 1) // dataset.rows_per_document
        if dataset.document_column:
            document_key = row[dataset.document_column]
        yield _HubRow(document_key, number, text)
