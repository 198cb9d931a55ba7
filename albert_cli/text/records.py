"""Records of corpora and labelled tables: JSON lines, CSV and TSV, Parquet, the Hub, SQuAD's and RACE's files."""

from __future__ import annotations

import csv
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

from albert_cli import hub_access
from albert_cli.errors import InputError
from albert_cli.text.lines import (
    ReadCounter,
    ReadSettings,
    SourcePart,
    check_characters,
    ensure_unmodified,
    open_part,
    reject_or_count_long_line,
    text_lines,
    translate_read_errors,
)
from albert_cli.text.sentences import split_sentences
from albert_cli.text.sources import HubDataset

NumberedLines = Iterator[tuple[int, str]]  # line number from 1 in the part, and text
_MAX_CELL_CHARACTERS = 2**31 - 1  # of a cell, in characters
_PARQUET_BATCH_ROWS = 64  # rows of a Parquet file decoded at a time


def parse_json(text: str, where: str | Callable[[], str], hint: str) -> Any:
    """The value of a JSON text; raises `InputError` with `where` it stands (asked for only then) and the hint."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = where if isinstance(where, str) else where()
        if isinstance(error, RecursionError):
            raise InputError(f"{place}: not valid JSON (nested too deeply)", hint) from None
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) and "\n" in text else ""
        raise InputError(f"{place}{line}: not valid JSON ({error})", hint) from None


def parse_json_object(text: str, where: str | Callable[[], str], hint: str) -> dict[str, Any]:
    """`parse_json` of an object; raises `InputError` for any other value."""
    value = parse_json(text, where, hint)
    if not isinstance(value, dict):
        raise InputError(f"{where if isinstance(where, str) else where()}: not a JSON object", hint)
    return value


# ---------------------------------------------------------------- rows


def iter_json_objects(lines: NumberedLines, at: Callable[[int], str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of lines with a JSON object each; blank ones are allowed. `at` says where a line stands."""
    for number, line in lines:
        if line and not line.isspace():
            yield number, parse_json_object(line, partial(at, number), "one JSON object a line")


def iter_csv_rows(
    lines: NumberedLines, at: Callable[[int], str], delimiter: str = ",", longest: int = _MAX_CELL_CHARACTERS
) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of every row that is not blank, quoted as RFC 4180 says: a quoted cell may hold line ends.

    Only a line feed ends a row; a carriage return within a cell must be quoted. `longest`: characters of a cell.
    """
    start = following = 1

    def ended() -> Iterator[str]:
        nonlocal following
        for number, line in lines:
            following = number + 1
            yield line + "\n"

    csv.field_size_limit(longest)  # 128 KiB by itself
    try:
        for cells in csv.reader(ended(), delimiter=delimiter, strict=True):
            if cells:
                yield start, cells
            start = following
    except csv.Error as error:
        if "new-line character" in str(error):
            hint = "only a line feed ends a row: convert the line ends (tr '\\r' '\\n'), or quote the cell"
            raise InputError(f"{at(start)}: a carriage return outside quotes", hint) from None
        hint = "a quote that is not closed or not doubled"
        hint += ", or --max-line is too small" if longest < _MAX_CELL_CHARACTERS else ""
        raise InputError(f"{at(start)}: {error}", hint) from None


def iter_parquet_rows(part: SourcePart, columns: Sequence[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of a Parquet file, of all columns or of some, a few rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = part.source.name
    with ensure_unmodified(part), translate_read_errors(name):
        try:
            # A buffered stream holds a page of the column, not the whole row group.
            with pq.ParquetFile(name, buffer_size=1 << 20, pre_buffer=False) as file:
                known = file.schema_arrow.names
                for column in columns or ():
                    if column not in known:
                        raise missing_field_error(name, column, known)
                number = 0
                for batch in file.iter_batches(
                    _PARQUET_BATCH_ROWS, columns=columns and list(columns), use_threads=False
                ):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
        except (pa.ArrowException, ValueError, OverflowError, OSError) as error:  # Python's are of its values
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = str(error).partition("\n")[0]
            raise InputError(f"{name}: not a readable Parquet file ({reason})", "copy it again") from None


def missing_field_error(where: str, name: str, known: Sequence[str]) -> InputError:
    """The error for a row without the text."""
    found = ", ".join(map(str, known[:8]))
    return InputError(f"{where}: no field {name!r} with text (found: {found})", "--text-field names another one")


def has_wrong_delimiter(header: Sequence[str]) -> bool:
    """Whether the single column of a table looks like several that are cut at another sign."""
    return len(header) == 1 and any(sign in header[0] for sign in ";\t|,")


# ---------------------------------------------------------------- texts of a corpus


def read_json_texts(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[str]:
    """The text field of each JSON object."""
    for number, record in iter_json_objects(text_lines(part, settings, tally), part.at):
        text = record.get(settings.text_field)
        if not isinstance(text, str):
            raise missing_field_error(part.at(number), settings.text_field, list(record))
        yield check_characters(text, part.at, number, settings.on_bad_bytes)


def read_table_texts(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[str]:
    """The text column of a table with a header; in `.tsv` every line is a row and every quote a character."""
    lines = text_lines(part, settings, tally)
    rows: Iterator[tuple[int, list[str]]]
    if part.source.kind == "csv":
        rows = iter_csv_rows(lines, part.at, longest=settings.max_line)
    else:
        rows = ((number, line.split("\t")) for number, line in lines if line.strip())
    line, header = next(rows, (1, None))
    if header is None:
        return
    if settings.text_field not in header:
        if has_wrong_delimiter(header):
            hint = "a .csv is cut at commas and a .tsv at tabs: convert it"
            raise InputError(f"{part.at(line)}: a single column, {header[0]!r}", hint)
        raise missing_field_error(part.at(line), settings.text_field, header)
    position = header.index(settings.text_field)
    for number, cells in rows:
        if len(cells) != len(header):
            hint = "a separator or line end inside a text without quotes, or a cut line"
            raise InputError(f"{part.at(number)}: {len(cells)} fields where the header has {len(header)}", hint)
        yield cells[position]


def read_parquet_texts(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[str]:
    """The text column of a Parquet file; null is no text."""
    name = settings.text_field
    for number, row in iter_parquet_rows(part, [name]):
        if not isinstance(row[name], str | None):
            raise InputError(f"{part.source.name}: column {name!r} holds no text", "--text-field names another one")
        yield from _check_cell(row[name], part, number, settings, tally)
    with open_part(part, tally):  # for its hash: the reader jumps to and fro
        pass


def _check_cell(
    text: str | None, part: SourcePart, number: int, settings: ReadSettings, tally: ReadCounter
) -> Iterator[str]:
    """A cell that came ready-made, if it holds text and is not too long."""
    if text is None:
        return
    if len(text) > settings.max_line:
        reject_or_count_long_line(part.at, number, settings, tally)
    else:
        yield check_characters(text, part.at, number, settings.on_bad_bytes)


def read_task_texts(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[str]:
    """The texts of a task's file, SQuAD's (1.1 and 2.0) or RACE's.

    `squad`: the contexts of an article, a line each, are one text, for the paper's intrinsic dev set (its Section 4.1);
    `race`: a file's `article` is one. `squad-answers`: every question and, on the next line, the sentence of its
    context that holds its answer, so that pretraining sees the one beside the other.
    """
    data = "\n".join(line for _, line in text_lines(part, settings, tally))
    if not data.strip():
        return
    name, kind = part.source.name, part.source.kind
    task, hint = "RACE" if kind == "race" else "SQuAD", "JSON lines end in .jsonl"
    value = parse_json(data, name, f"it is read as a file of {task}'s format; {hint}")
    try:
        if kind == "race":
            texts = [value["article"]]
        elif kind == "squad":
            texts = ["\n".join(p["context"] for p in article["paragraphs"]) for article in value["data"]]
        else:
            texts = [
                t for article in value["data"] for p in article["paragraphs"] for t in _iter_questions_with_context(p)
            ]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("its text is no string")
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{name}: not a file of {task}'s format ({reason})", hint) from None
    if kind == "squad-answers" and not texts:
        raise InputError(f"{name}: no question has an answer in its context", "a file to train on has them")
    for number, text in enumerate(texts, 1):
        yield from _check_cell(text, part, number, settings, tally)


def _iter_questions_with_context(paragraph: dict[str, Any]) -> Iterator[str]:
    """Each answered question of a paragraph, and below it the sentence that holds its first answer, or sentences.

    Characters that are not blank are counted, since sentences have every one of them and not the white space.
    """
    context = paragraph["context"]
    sentences = split_sentences(context)
    ends = list(accumulate(_count_non_space(sentence) for sentence in sentences))
    for question in paragraph["qas"]:
        for answer in question.get("answers", [])[:1]:
            start, text = answer["answer_start"], answer["text"]
            if not text.strip() or context[start : start + len(text)] != text:
                continue  # its place is not known
            before = _count_non_space(context[:start])
            first, last = bisect_right(ends, before), bisect_left(ends, before + _count_non_space(text))
            yield " ".join(question["question"].split()) + "\n" + " ".join(sentences[first : last + 1])


def _count_non_space(text: str) -> int:
    """How many characters are not blank."""
    return sum(map(len, text.split()))


def read_hub_texts(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[str]:
    """The rows of a data set on the Hugging Face Hub (`sources.HubRows`), streamed; joined ones are a line each."""
    source, field = part.source.name, settings.text_field
    hub = HubDataset.parse(source)
    hub_access.prefer_offline()
    try:
        from datasets import load_dataset

        def rows() -> Iterator[tuple[object, int, str]]:
            """(document, number, text) of every row that has one."""
            found = load_dataset(hub.name, hub.config or None, split=hub.split, streaming=True)
            for number, row in enumerate(found, 1):
                text = row.get(field)
                if (text is not None and not isinstance(text, str)) or field not in row:
                    raise missing_field_error(f"{source}: row {number}", field, list(row))
                if hub.document and hub.document not in row:
                    what = f"{source}: row {number}: no field {hub.document!r} (found: {', '.join(row)})"
                    raise InputError(what, "?document=…")
                if text is not None:
                    tally.add(text.encode("utf-8", "replace"))
                    yield row[hub.document] if hub.document else (number - 1) // hub.rows, number, text

        for _, together in groupby(rows(), key=itemgetter(0)):
            _, numbers, texts = zip(*together, strict=True)
            yield from _check_cell("\n".join(texts), part, numbers[0], settings, tally)
    except InputError:
        raise
    except Exception as error:  # the library raises many kinds, for a wrong name as for a missing network
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        hint = "check the name, the configuration and the network; local files need none of them"
        raise InputError(f"{source}: cannot be read from the Hub ({reason})", hint) from error
