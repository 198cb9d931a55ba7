"""Join the lines of plain text to documents, as `--document` and `--join-lines` require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from albert_cli.text.lines import NumberedLines
from albert_cli.text.read_settings import ReadSettings

MAX_DOCUMENT_CHARACTERS = 1 << 22  # a longer document is split into several


def iter_text_documents(numbered_lines: NumberedLines, settings: ReadSettings) -> Iterator[str]:
    """Yield documents with a line for each paragraph or sentence; `settings.document` decides where a document ends.

    With `settings.join_lines`, the lines up to a blank one are one paragraph, and under the rule "blank-line" each
    paragraph is a document.
    """
    # A carriage return alone ends a line too, in files of old Macintoshes.
    lines: Iterable[str] = chain.from_iterable(text.split("\r") for _, text in numbered_lines)
    if settings.join_lines:
        lines = _join_paragraphs(lines)
    document: list[str] = []
    characters = 0
    for line in lines:
        is_blank = not line or line.isspace()
        ends_previous = settings.document == "line" or (is_blank and settings.document == "blank-line")
        if document and (ends_previous or characters + len(line) > MAX_DOCUMENT_CHARACTERS):
            yield "\n".join(document)
            document = []
            characters = 0
        if not is_blank:
            document.append(line)
            characters += len(line)
    if document:
        yield "\n".join(document)


def join_wrapped_lines(text: str) -> str:
    """Join the lines of each paragraph of a text; a blank line ends a paragraph."""
    return "\n".join(filter(None, _join_paragraphs(text.splitlines())))


def _join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs as single lines with a blank line between them; an overlong one is cut into several."""
    paragraph: list[str] = []
    characters = 0
    for line in lines:
        stripped = line.strip()
        if paragraph and (not stripped or characters + len(stripped) > MAX_DOCUMENT_CHARACTERS):
            yield " ".join(paragraph)
            yield ""
            paragraph = []
            characters = 0
        if stripped:
            paragraph.append(stripped)
            characters += len(stripped)
    if paragraph:
        yield " ".join(paragraph)
