"""Read the texts of files whose first line decides how they are read: JSON documents and WikiExtractor's output.

Each reader yields the texts of one part of a source; `corpus` selects the reader by the source's kind. Readers of the
other formats are in `text_readers`, `task_passages` and `plain_text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from albert_cli.errors import InputError
from albert_cli.text.lines import (
    NumberedLines,
    collect_text,
    iter_short_lines,
    reject_or_count_long_line,
    unlimited_lines,
    utf8_size,
)
from albert_cli.text.plain_text import join_texts
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.records import parse_json
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.text_readers import find_text, iter_json_texts, iter_text_within_limit

_JSON_HINT = "write JSON lines, an array of objects, or one object"
_DOC_START = re.compile(r"<doc\b[^>]*>")
_DOC_END = "</doc>"


def read_json_document(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the texts of a `.json` file: an array of objects or of texts, one object, or JSON lines.

    If the first line has a whole object, the file is read as JSON lines, one by one, and memory holds the longest line.
    An array, or an object on several lines, is read as a whole. `collect_text` limits its size if it is compressed.
    """
    name = part.source.name
    first_line, lines = peek_first_text_line(unlimited_lines(part, settings, counter))
    if first_line.startswith("{") and first_line.rstrip().endswith("}"):
        short_lines = iter_short_lines(lines, part, settings, counter)
        yield from iter_json_texts(short_lines, part, settings, counter)
        return
    content = collect_text(lines, part, settings)
    if not content.strip():
        return
    value = parse_json(content, name, _JSON_HINT)
    records = value if isinstance(value, list) else [value]
    for number, record in enumerate(records, 1):
        text: str | None = None
        if isinstance(record, str):
            text = join_texts([record], settings)
        elif isinstance(record, dict):
            text = find_text(record, settings, part.record_location(number))
        elif record is not None:
            raise InputError(f"{part.record_location(number)} is neither an object nor a text", _JSON_HINT)
        yield from iter_text_within_limit(text, part.record_location, number, settings, counter)


def peek_first_text_line(lines: NumberedLines) -> tuple[str, NumberedLines]:
    """Return the first line that is not blank, without leading white space, and an iterator over the lines from it on.

    Returns "" and no lines if all lines are blank.
    """
    for number, line in lines:
        first_line = line.lstrip()
        if first_line:
            return first_line, chain([(number, line)], lines)
    return "", lines


def read_wikiextractor(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the articles of WikiExtractor's output: JSON lines, or the lines from `<doc …>` to `</doc>`.

    WikiExtractor writes &, < and > as HTML entities by default (`--html-safe`).
    """
    first_line, lines = peek_first_text_line(unlimited_lines(part, settings, counter))
    if first_line.startswith("{"):
        short_lines = iter_short_lines(lines, part, settings, counter)
        yield from map(_unescape, iter_json_texts(short_lines, part, settings, counter))
        return
    article: list[str] | None = None  # the lines of the current article, None between two articles
    article_line = 0  # the number of the article's first line
    article_bytes = -1  # with the line ends between its lines, of which there is one less than lines
    for number, line in lines:
        if _DOC_START.match(line):
            if article is not None:
                raise _unclosed_article(part, article_line)
            article = []
            article_line = number
            article_bytes = -1
            line = _DOC_START.sub("", line)
        if article is None:
            if line.strip():
                hint = "for vocab and data, choose the format with --format; otherwise rename the file, such as: a.txt"
                raise InputError(f"{part.location(number)}: text outside of <doc>", hint)
            continue
        line = line.rstrip()
        content = line.removesuffix(_DOC_END)
        article_bytes += utf8_size(content) + 1
        if article_bytes <= settings.max_line:  # a longer article is not read into memory
            article.append(content)
        if line.endswith(_DOC_END):
            if article_bytes > settings.max_line:
                reject_or_count_long_line(part.location, article_line, settings, counter)
            else:
                text = _unescape(join_texts(["\n".join(article)], settings))
                yield from iter_text_within_limit(text, part.location, article_line, settings, counter)
            article = None
    if article is not None:
        raise _unclosed_article(part, article_line)


def _unescape(text: str) -> str:
    """Replace the entities of &, < and >, which are all that WikiExtractor writes; other entities are text."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def is_wikiextractor_line(line: str) -> bool:
    """Return True if the line begins an article in WikiExtractor's output."""
    return line.startswith("<doc id=") and _DOC_START.match(line) is not None


def _unclosed_article(part: SourcePart, line: int) -> InputError:
    return InputError(f"{part.location(line)}: a <doc> without </doc>", "the file is truncated: extract it again")
