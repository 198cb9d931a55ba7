"""Read the texts of JSON documents, of Arrow files, and of WikiExtractor's output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from albert_cli.errors import InputError
from albert_cli.text.lines import NumberedLines, text_lines
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.records import iter_arrow_rows, parse_json
from albert_cli.text.source_parts import ReadCounter, SourcePart, open_part
from albert_cli.text.text_readers import find_text, iter_json_texts, iter_short_text

_JSON_HINT = "write JSON lines, an array of objects, or one object"
_DOC_START = re.compile(r"<doc\b[^>]*>")
_DOC_END = "</doc>"


def read_json_document(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the texts of a `.json` file: an array of objects or of texts, one object, or JSON lines.

    An array, or an object on several lines, is in memory as a whole.
    """
    start, lines = peek_first_text_line(text_lines(part, settings, counter))
    if start.startswith("{") and start.rstrip().endswith("}"):
        yield from iter_json_texts(lines, part, settings, counter)
        return
    document = "\n".join(line for _, line in lines)
    if not document.strip():
        return
    value = parse_json(document, part.source.name, _JSON_HINT)
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        if isinstance(record, str) or record is None:
            text = record
        elif isinstance(record, dict):
            location = f"{part.source.name}: record {number}"
            text = find_text(record, settings, lambda: location)  # noqa: B023  (called at once)
        else:
            raise InputError(f"{part.source.name}: record {number} is neither an object nor a text", _JSON_HINT)
        yield from iter_short_text(text, part, number, settings, counter)


def peek_first_text_line(lines: NumberedLines) -> tuple[str, NumberedLines]:
    """Return the first line that is not blank, without leading white space, and an iterator over all lines."""
    first_lines: list[tuple[int, str]] = []
    start = ""
    for number, line in lines:
        first_lines.append((number, line))
        start = line.lstrip()
        if start:
            break
    return start, chain(first_lines, lines)


def read_wikiextractor(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the articles of WikiExtractor's output: JSON lines, or `<doc …>` to `</doc>`."""
    start, lines = peek_first_text_line(text_lines(part, settings, counter))
    if start.startswith("{"):
        yield from iter_json_texts(lines, part, settings, counter)
        return
    article: list[str] | None = None
    article_line = 0
    for number, line in lines:
        if _DOC_START.match(line):
            if article is not None:
                raise _unclosed_article(part, article_line)
            article = []
            article_line = number
            line = _DOC_START.sub("", line)
        if article is None:
            if line.strip():
                hint = "choose the format of these files with --format"
                raise InputError(f"{part.location(number)}: text outside of <doc>", hint)
            continue
        article.append(line.removesuffix(_DOC_END))
        if line.rstrip().endswith(_DOC_END):
            yield from iter_short_text("\n".join(article), part, article_line, settings, counter)
            article = None
    if article is not None:
        raise _unclosed_article(part, article_line)


def _unclosed_article(part: SourcePart, line: int) -> InputError:
    return InputError(f"{part.location(line)}: a <doc> without </doc>", "the file is truncated: extract it again")


def read_arrow_texts(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the text column of an Arrow file, the format of the `datasets` library."""
    for number, row in iter_arrow_rows(part, settings.text_field):
        text = find_text(row, settings, lambda: part.source.name)
        yield from iter_short_text(text, part, number, settings, counter)
    with open_part(part, counter):  # for the hash alone: the file is mapped into memory
        pass
