"""Join the lines of plain text to documents, by the rules of `--document` and `--join-lines`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from albert_cli.text.lines import NumberedLines
from albert_cli.text.read_settings import ReadSettings

MAX_DOCUMENT_CHARACTERS = 1 << 22  # a longer document is split into several, which bounds the memory


def iter_text_documents(numbered_lines: NumberedLines, settings: ReadSettings) -> Iterator[str]:
    """Yield documents with one line for each line of the text that is not blank.

    `settings.document` decides where a document ends. With `settings.join_lines`, the lines up to a blank one are first
    joined to one paragraph, so under the rule "blank-line" each paragraph is a document.
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
    """Return a text with one line for each paragraph; in the input, a blank line ends a paragraph."""
    return "\n".join(paragraph for paragraph in _join_paragraphs(text.splitlines()) if paragraph)


def _join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield each paragraph as one line, with a blank line between two; a paragraph that is too long becomes several."""
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
