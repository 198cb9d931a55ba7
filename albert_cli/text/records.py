"""Files of records to text: JSON lines, CSV and TSV, Parquet, data sets on the Hub, SQuAD's and RACE's files."""

from __future__ import annotations

import csv
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from albert_cli import network
from albert_cli.errors import InputError
from albert_cli.text.lines import (
    Part,
    ReadSettings,
    Tally,
    decode,
    errors_named,
    open_part,
    raw_lines,
    refuse_long,
    unchanged,
    without_bad_characters,
)
from albert_cli.text.sentences import split_sentences
from albert_cli.text.sources import HubRows

Numbered = Iterator[tuple[int, str]]  # line (row, file) number from 1 in the part, and text
_ROWS = 64  # rows of a Parquet file decoded at a time


def read_json_lines(part: Part, settings: ReadSettings, tally: Tally) -> Numbered:
    """The text of each JSON object, one a line; blank lines are allowed."""
    for number, offset, raw in raw_lines(part, settings, tally):
        if not raw or raw.isspace():
            continue
        line = decode(raw, part, number, offset, settings.on_bad_bytes)
        text = _field(_parse(line, part, number), part, number, settings.text_field)
        # What UTF-8 cannot hold comes out of an escape only.
        yield number, without_bad_characters(text, part.at, number, settings.on_bad_bytes) if "\\u" in line else text


def _parse(line: str, part: Part, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{part.at(number)}: not valid JSON ({error})", "one JSON object a line") from None


def _field(record: Any, part: Part, number: int, name: str) -> str:
    text = record.get(name) if isinstance(record, dict) else None
    if not isinstance(text, str):
        known = list(record) if isinstance(record, dict) else [type(record).__name__]
        raise _no_field(part.at(number), name, known)
    return text


def _no_field(where: str, name: str, known: list[str]) -> InputError:
    found = ", ".join(map(str, known[:8]))
    return InputError(f"{where}: no field {name!r} with text (found: {found})", "--text-field names another one")


def read_table(part: Part, settings: ReadSettings, tally: Tally) -> Numbered:
    """The text column of a table with a header.

    `.csv` has commas and quotes as RFC 4180 says, a quoted cell may hold line ends; in `.tsv` every line is a
    row, every tab a border and every quote a character.
    """
    width, position, numbers = 0, 0, _Lines(part, settings, tally)
    for cells in _rows(part, settings, numbers):
        number = numbers.start
        if not width:
            width = len(cells)
            if settings.text_field not in cells:
                raise _no_field(part.at(number), settings.text_field, cells)
            position = cells.index(settings.text_field)
        elif len(cells) != width:
            hint = "a separator or line end inside a text without quotes, or a cut line"
            raise InputError(f"{part.at(number)}: {len(cells)} fields where the header has {width}", hint)
        else:
            yield number, cells[position]


class _Lines:
    """The lines of a table as the csv module wants them; `start` is the line at which the current row began."""

    def __init__(self, part: Part, settings: ReadSettings, tally: Tally) -> None:
        self.start = self.next = 1
        self._lines = raw_lines(part, settings, tally)
        self._part, self._on_bad_bytes = part, settings.on_bad_bytes

    def __iter__(self) -> Iterator[str]:
        for number, offset, raw in self._lines:
            self.next = number + 1
            yield decode(raw, self._part, number, offset, self._on_bad_bytes) + "\n"


def _rows(part: Part, settings: ReadSettings, lines: _Lines) -> Iterator[list[str]]:
    """The cells of each row that is not blank."""
    if part.source.kind == "tsv":
        for line in lines:
            lines.start = lines.next - 1
            if line.strip():
                yield line[:-1].split("\t")
        return
    csv.field_size_limit(settings.max_line)
    try:
        for cells in csv.reader(lines, strict=True):
            if cells:
                yield cells
            lines.start = lines.next
    except csv.Error as error:
        hint = "a quote that is not closed or not doubled, or --max-line is too small"
        raise InputError(f"{part.at(lines.start)}: {error}", hint) from None


def read_parquet(part: Part, settings: ReadSettings, tally: Tally) -> Numbered:
    """The text column of a Parquet file, a few rows at a time; null is no text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = part.source.name
    with unchanged(part), errors_named(name):
        try:
            # A buffered stream holds a page of the column, not the whole row group.
            with pq.ParquetFile(name, buffer_size=1 << 20, pre_buffer=False) as file:
                names, field = file.schema_arrow.names, settings.text_field
                if field not in names or not _is_text(file.schema_arrow.field(field).type):
                    raise _no_field(name, field, names)
                number = 0
                for batch in file.iter_batches(_ROWS, columns=[field], use_threads=False):
                    for text in batch.column(0).to_pylist():
                        number += 1
                        yield from _cell(text, part, number, settings, tally)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = str(error).partition("\n")[0]
            raise InputError(f"{name}: not a readable Parquet file ({reason})", "copy it again") from None
        with open_part(part, tally) as stream:  # for its hash: the reader jumps to and fro
            while stream.read(1 << 20):
                pass


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _cell(text: str | None, part: Part, number: int, settings: ReadSettings, tally: Tally) -> Numbered:
    """A cell that came ready-made, if it holds text and is not too long."""
    if text is None:
        return
    if len(text) > settings.max_line:
        refuse_long(part.at, number, settings, tally)
    else:
        yield number, without_bad_characters(text, part.at, number, settings.on_bad_bytes)


def read_task(part: Part, settings: ReadSettings, tally: Tally) -> Numbered:
    """The texts of a task's file, SQuAD's (1.1 and 2.0) or RACE's.

    `squad`: the contexts of an article, a line each, are one text, for the paper's intrinsic dev set (its Section 4.1);
    `race`: a file's `article` is one. `squad-answers`: every question and, on the next line, the sentence of its
    context that holds its answer, so that pretraining sees the one beside the other.
    """
    data = bytearray()
    for number, offset, raw in raw_lines(part, settings, tally):
        data += decode(raw, part, number, offset, settings.on_bad_bytes).encode() + b"\n"
    name, kind = part.source.name, part.source.kind
    if not data.strip():
        return
    try:
        value = json.loads(data)
        if kind == "race":
            texts = [value["article"]]
        elif kind == "squad":
            texts = ["\n".join(p["context"] for p in article["paragraphs"]) for article in value["data"]]
        else:
            texts = [t for article in value["data"] for p in article["paragraphs"] for t in _questions_and_answers(p)]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("its text is no string")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        task = "RACE" if kind == "race" else "SQuAD"
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{name}: not a file of {task}'s format ({reason})", "JSON lines end in .jsonl") from None
    if kind == "squad-answers" and not texts:
        raise InputError(f"{name}: no question has an answer in its context", "a file to train on has them")
    for number, text in enumerate(texts, 1):
        yield from _cell(text, part, number, settings, tally)


def _questions_and_answers(paragraph: dict[str, Any]) -> Iterator[str]:
    """Each answered question of a paragraph, and below it the sentence that holds its first answer, or sentences.

    Characters that are not blank are counted, since sentences have every one of them and not the white space.
    """
    context = paragraph["context"]
    sentences = split_sentences(context)
    ends = list(accumulate(_solid(sentence) for sentence in sentences))
    for question in paragraph["qas"]:
        for answer in question.get("answers", [])[:1]:
            start, text = answer["answer_start"], answer["text"]
            if not text.strip() or context[start : start + len(text)] != text:
                continue  # its place is not known
            before = _solid(context[:start])
            first, last = bisect_right(ends, before), bisect_left(ends, before + _solid(text))
            yield " ".join(question["question"].split()) + "\n" + " ".join(sentences[first : last + 1])


def _solid(text: str) -> int:
    """How many characters are not blank."""
    return sum(map(len, text.split()))


def read_hub(part: Part, settings: ReadSettings, tally: Tally) -> Numbered:
    """The rows of a data set on the Hugging Face Hub (`sources.HubRows`), streamed; joined ones are a line each."""
    source, field = part.source.name, settings.text_field
    hub = HubRows.parse(source)
    network.prefer_offline()
    try:
        from datasets import load_dataset

        rows = iter(load_dataset(hub.name, hub.config or None, split=hub.split, streaming=True))
        first, texts, key = 1, list[str](), None
        for number, row in enumerate(rows, 1):
            text = row.get(field)
            if (text is not None and not isinstance(text, str)) or field not in row:
                raise _no_field(f"{source}: row {number}", field, list(row))
            if hub.document and hub.document not in row:
                found = ", ".join(row)
                raise InputError(f"{source}: row {number}: no field {hub.document!r} (found: {found})", "?document=…")
            now = row[hub.document] if hub.document else (number - 1) // hub.rows
            if texts and now != key:
                yield from _cell("\n".join(texts), part, first, settings, tally)
                texts = []
            if text is not None:
                tally.add(text.encode("utf-8", "replace"))
                first, key = first if texts else number, now
                texts.append(text)
        yield from _cell("\n".join(texts) if texts else None, part, first, settings, tally)
    except (InputError, GeneratorExit):
        raise
    except Exception as error:  # the library raises many kinds, for a wrong name as for a missing network
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise InputError(
            f"{source}: cannot be read from the Hub ({reason})",
            "check the name, the configuration and the network; local files need none of them",
        ) from error
