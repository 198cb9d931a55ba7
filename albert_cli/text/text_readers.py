"""Read the texts of a corpus from records: JSON lines, tables, Parquet files and data sets on the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from albert_cli import hub_access
from albert_cli.errors import InputError
from albert_cli.text.lines import check_characters, reject_or_count_long_line, text_lines
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
    for number, record in iter_json_objects(text_lines(part, settings, counter), part.location):
        text = record.get(settings.text_field)
        if not isinstance(text, str):
            raise missing_field_error(part.location(number), settings.text_field, list(record))
        yield check_characters(text, part.location, number, settings.on_bad_bytes)


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
            hint = "separate the columns of a .csv by commas and those of a .tsv by tabs"
            raise InputError(f"{part.location(line)}: a single column, {header[0]!r}", hint)
        raise missing_field_error(part.location(line), settings.text_field, header)
    column = header.index(settings.text_field)
    for number, cells in rows:
        if len(cells) != len(header):
            hint = "look for a separator or line end in an unquoted text, or for a truncated line"
            raise InputError(f"{part.location(number)}: {len(cells)} fields, but the header has {len(header)}", hint)
        yield cells[column]


def read_parquet_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text column of a Parquet file; a null row has no text."""
    column = settings.text_field
    for number, row in iter_parquet_rows(part, [column]):
        text = row[column]
        if text is None:
            continue
        if not isinstance(text, str):
            raise InputError(f"{part.source.name}: no text in column {column!r}", "choose another with --text-field")
        yield from check_text(text, part, number, settings, counter)
    with open_part(part, counter):  # for the hash alone: the Parquet reader does not read in order
        pass


def check_text(text: str, part: SourcePart, number: int, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield a text that was not read by lines, unless it is too long; number: its row."""
    if len(text) > settings.max_line:
        reject_or_count_long_line(part.location, number, settings, counter)
    else:
        yield check_characters(text, part.location, number, settings.on_bad_bytes)


class _HubRow(NamedTuple):
    """A row's text with its number from 1, and a key that is equal for the rows of one document."""

    document_key: object
    number: int
    text: str


def read_hub_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the documents of a data set on the Hugging Face Hub, streamed; joined rows become one line each."""
    name = part.source.name
    dataset = HubDataset.parse(name)
    hub_access.prefer_offline()
    try:
        from datasets import load_dataset

        rows = load_dataset(dataset.name, dataset.config or None, split=dataset.split, streaming=True)
        for _, group in groupby(_iter_hub_rows(rows, dataset, name, settings, counter), lambda row: row.document_key):
            document = list(group)
            text = "\n".join(row.text for row in document)
            yield from check_text(text, part, document[0].number, settings, counter)
    except InputError:
        raise
    except Exception as error:  # the library raises many types, for a wrong name as for a missing network
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        hint = "check the name, the configuration and the network; local files need none of them"
        raise InputError(f"{name}: cannot be read from the Hub ({reason})", hint) from error


def _iter_hub_rows(
    rows: Iterable[Mapping[str, object]], dataset: HubDataset, name: str, settings: ReadSettings, counter: ReadCounter
) -> Iterator[_HubRow]:
    """Yield the rows that have a text; raise `InputError` if a column is missing or holds no text."""
    field = settings.text_field
    for number, row in enumerate(rows, 1):
        text = row.get(field)
        if field not in row or not isinstance(text, str | None):
            raise missing_field_error(f"{name}: row {number}", field, list(row))
        if dataset.document and dataset.document not in row:
            message = f"{name}: row {number}: no field {dataset.document!r} (fields: {', '.join(row)})"
            raise InputError(message, "choose another with ?document=COLUMN")
        if text is not None:
            counter.add(text.encode("utf-8", "replace"))
            document_key = row[dataset.document] if dataset.document else (number - 1) // dataset.rows
            yield _HubRow(document_key, number, text)
