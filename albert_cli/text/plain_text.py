"""Join the lines of plain text to documents, by the rules of `--document` and `--join-lines`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

from albert_cli.text.lines import NumberedLines
from albert_cli.text.read_settings import DocumentRule, ReadSettings
from albert_cli.text.words import need_blank

MAX_DOCUMENT_CHARACTERS = 1 << 22  # a longer document is split into several, which bounds the memory
_LINE_END = re.compile(r"\r\n|\r|\n")


def iter_text_documents(numbered_lines: NumberedLines, settings: ReadSettings) -> Iterator[str]:
    """Yield documents with one line for each line of the text that is not blank.

    `settings.document` decides where a document ends. With `settings.join_lines`, the lines up to a blank one are first
    joined to one paragraph, so under the rule "blank-line" each paragraph is a document.
    """
    # A carriage return alone ends a line too, in files of old Macintoshes.
    lines: Iterable[str] = chain.from_iterable(text.split("\r") for _, text in numbered_lines)
    rule = settings.document
    if settings.join_lines:
        lines = _join_paragraphs(lines)
        if rule == "blank-line":
            rule = "line"  # there are no more blank lines
    return ("\n".join(document) for document in _group_lines(lines, rule))


def join_texts(texts: Sequence[str], settings: ReadSettings) -> str:
    """Return the texts of a record as the lines of one document.

    With `settings.join_lines`, the wrapped lines of each text are first joined to one line for each paragraph; in the
    input, a blank line ends a paragraph.
    """
    if settings.join_lines:
        # Lines end as in a text file: not at a form feed, at which `splitlines` also splits.
        texts = ["\n".join(_join_paragraphs(_LINE_END.split(text))) for text in texts]
    return "\n".join(texts)


def _join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield each paragraph as one line; a paragraph that is too long for a document becomes several."""
    return map(_join_lines, _group_lines(map(str.strip, lines), "blank-line"))


def _join_lines(lines: Sequence[str]) -> str:
    """Join lines, none of which may be empty: by a space, except in scripts without spaces between words."""
    further = [f" {right}" if need_blank(left[-1], right[0]) else right for left, right in pairwise(lines)]
    return "".join([lines[0], *further])


def _group_lines(lines: Iterable[str], rule: DocumentRule) -> Iterator[list[str]]:
    """Yield the lines of each document without the blank ones; a document that is too long becomes several."""
    group: list[str] = []
    characters = 0
    for line in lines:
        is_blank = not line or line.isspace()
        ends_group = rule == "line" or (is_blank and rule == "blank-line")
        if group and (ends_group or characters + len(line) > MAX_DOCUMENT_CHARACTERS):
            yield group
            group = []
            characters = 0
        if not is_blank:
            group.append(line)
            characters += len(line)
    if group:
        yield group
