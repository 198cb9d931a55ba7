"""Read the texts of a corpus from records: JSON lines, tables, Parquet files and data sets on the Hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import NamedTuple

from albert_cli.errors import InputError
from albert_cli.text.fields import find_field, to_text
from albert_cli.text.hub_datasets import open_rows, translate_hub_errors
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.lines import NumberedLines, check_characters, reject_or_count_long_line, text_lines
from albert_cli.text.plain_text import join_wrapped_lines
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.records import (
    has_wrong_delimiter,
    iter_csv_rows,
    iter_json_objects,
    iter_parquet_rows,
    missing_field_error,
)
from albert_cli.text.source_parts import ReadCounter, SourcePart, open_part
from albert_cli.text.sources import HubDataset


def read_json_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text field of each JSON object."""
    return iter_json_texts(text_lines(part, settings, counter), part, settings, counter)


def iter_json_texts(
    lines: NumberedLines, part: SourcePart, settings: ReadSettings, counter: ReadCounter
) -> Iterator[str]:
    """Yield the text field of each line's JSON object."""
    for number, record in iter_json_objects(lines, part.location):
        text = find_text(record, settings, partial(part.location, number))
        yield from _iter_valid_text(text, part, number, settings, counter)


def find_text(record: Mapping[str, object], settings: ReadSettings, location: Callable[[], str]) -> str | None:
    """Return a record's text, None if it is null; raise `InputError` if the field is missing or is no text."""
    try:
        return to_text(find_field(record, settings.text_field))
    except (KeyError, TypeError):
        raise missing_field_error(location(), settings.text_field, list(record)) from None


def _iter_valid_text(
    text: str | None, part: SourcePart, number: int, settings: ReadSettings, counter: ReadCounter
) -> Iterator[str]:
    """Yield a text with valid characters; count one that is null or blank."""
    if text is None or not text.strip():
        counter.counts += LineCounts(without_text=1)
    else:
        text = check_characters(text, part.location, number, settings.on_bad_bytes, counter)
        yield join_wrapped_lines(text) if settings.join_lines else text


def read_table_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text column of a table with a header; in `.tsv` every line is a row and quotes have no meaning."""
    lines = text_lines(part, settings, counter)
    rows: Iterator[tuple[int, list[str]]]
    if part.source.kind == "csv":
        rows = iter_csv_rows(lines, part.location, max_cell=settings.max_line)
    else:
        rows = ((number, line.split("\t")) for number, line in lines if line.strip())
    first = next(rows, None)
    if first is None:
        return
    line, header = first
    if settings.text_field not in header:
        if has_wrong_delimiter(header):
            hint = "separate the columns of a .csv by commas, and of a .tsv by tabs"
            raise InputError(f"{part.location(line)}: a single column, {header[0]!r}", hint)
        raise missing_field_error(part.location(line), settings.text_field, header)
    column = header.index(settings.text_field)
    for number, cells in rows:
        if len(cells) != len(header):
            hint = "look for a separator or line end in an unquoted text, or for a truncated line"
            raise InputError(f"{part.location(number)}: {len(cells)} fields, but the header has {len(header)}", hint)
        yield from _iter_valid_text(cells[column], part, number, settings, counter)


def read_parquet_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text column of a Parquet file."""
    for number, row in iter_parquet_rows(part, [settings.text_field]):
        text = find_text(row, settings, lambda: part.source.name)
        yield from iter_short_text(text, part, number, settings, counter)
    with open_part(part, counter):  # for the hash alone: the Parquet reader does not read in order
        pass


def iter_short_text(
    text: str | None, part: SourcePart, number: int, settings: ReadSettings, counter: ReadCounter
) -> Iterator[str]:
    """Yield a text that was not read by lines, unless it is too long or blank; number: its row."""
    if text is not None and len(text) > settings.max_line:
        reject_or_count_long_line(part.location, number, settings, counter)
    else:
        yield from _iter_valid_text(text, part, number, settings, counter)


class _HubRow(NamedTuple):
    """A row's text with its number from 1, and a key that is equal for the rows of one document."""

    document_key: object
    number: int
    text: str


def read_hub_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the documents of a data set on the Hugging Face Hub, streamed; joined rows become one line each."""
    name = part.source.name
    dataset = HubDataset.parse(name)
    with translate_hub_errors(name):
        rows = _iter_hub_rows(open_rows(part), dataset, name, settings, counter)
        for _, group in groupby(rows, lambda row: row.document_key):
            document = list(group)
            text = "\n".join(row.text for row in document)
            yield from iter_short_text(text, part, document[0].number, settings, counter)


def _iter_hub_rows(
    rows: Iterable[Mapping[str, object]], dataset: HubDataset, name: str, settings: ReadSettings, counter: ReadCounter
) -> Iterator[_HubRow]:
    """Yield the rows that have a text; raise `InputError` if a column is missing or holds no text."""
    for number, row in enumerate(rows, 1):
        text = find_text(row, settings, lambda: f"{name}: row {number}")  # noqa: B023  (called at once)
        if dataset.document and dataset.document not in row:
            message = f"{name}: row {number}: no field {dataset.document!r} (fields: {', '.join(row)})"
            raise InputError(message, "choose another with ?document=COLUMN")
        if text is None or not text.strip():
            counter.counts += LineCounts(without_text=1)
        else:
            counter.add(text.encode("utf-8", "replace"))
            document_key = row[dataset.document] if dataset.document else (number - 1) // dataset.rows
            yield _HubRow(document_key, number, text)
