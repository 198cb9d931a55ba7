"""Stream the documents of any sources: files in every format, stdin, data sets on the Hub, installed documentation.

Memory holds only one line and one document of a few megabytes; JSON that is not JSON lines is read as a whole. Parts of
sources can be read separately, so that several processes can share the work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.formatting import hide_secrets
from albert_cli.randomness import repetitions
from albert_cli.text import document_readers, task_passages, text_readers
from albert_cli.text.document_readers import peek_first_text_line
from albert_cli.text.lines import text_lines
from albert_cli.text.plain_text import MAX_DOCUMENT_CHARACTERS, iter_text_documents
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.records import CONVERT_ARRAY
from albert_cli.text.sentences import split_long_text
from albert_cli.text.source_parts import ReadCounter, SourcePart, open_part
from albert_cli.text.sources import SourceKind, resolve_sources

# Matches the first line of a JSON array of objects, but no other line that begins with a bracket, such as "[Music]".
_ARRAY_OF_OBJECTS = re.compile(r'\[\s*(?:\{\s*(?:"|\}|$)|$)')


@dataclass(frozen=True)
class Document:
    """A document: `text` has one paragraph or sentence per line; `name` is a module's name (only `docs:`) or ""."""

    text: str
    name: str = ""


def read_documents(sources: Sequence[str], settings: ReadSettings | None = None) -> Iterator[Document]:
    """Yield every document that is not blank, in a fixed order, repeated according to its source's weight.

    Raises `InputError` for missing or unreadable sources, for lines that are too long, and for invalid UTF-8, lone
    surrogates and NUL. With `on_bad_bytes="replace"`, NUL is dropped, and the other two become U+FFFD.
    """
    settings = settings or ReadSettings()
    for source in resolve_sources(sources, settings.format):
        for document in read_part(SourcePart(source), settings, ReadCounter()):
            for _ in range(document_repetitions(document, source.weight)):
                yield document


def document_repetitions(document: Document, weight: float) -> int:
    """Return how often a pass over a source of this weight uses the document."""
    return 1 if weight == 1 else repetitions(weight, document_hash(document.text))


def check_readable(source: str) -> None:
    """Raise `InputError` if a source cannot be read or has no document; reads only the first document."""
    if next(read_documents([source]), None) is None:
        raise InputError(f"{hide_secrets(source)}: contains no text")


def read_part(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[Document]:
    """Yield the documents of a part, each once regardless of the weight; `counter` counts and hashes the bytes on disk.

    Raises `InputError` in the same cases as `read_documents`, and for a file that changes while it is read.
    """
    kind = part.source.kind
    if kind == "docs":
        yield from _read_installed_docs(part, counter)
        return
    for text in _READERS[kind](part, settings, counter):
        if "\r" in text:  # in files of old Macintoshes, a carriage return alone ends a line
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        for document_text in split_long_text(text, MAX_DOCUMENT_CHARACTERS):
            if not document_text.isspace():
                yield Document(document_text)


def _read_installed_docs(part: SourcePart, counter: ReadCounter) -> Iterator[Document]:
    # Imported late, because it compiles many patterns, which only `docs:` needs.
    from albert_cli.text.installed_docs import read_installed_docs

    for name, text in read_installed_docs(stdlib_only=part.source.name == "docs:stdlib"):
        counter.add(f"{name}\n{text}\n".encode())
        yield Document(text, name)


def _read_stdin(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    """Yield the documents of stdin: JSON lines if the first line that is not blank begins an object, else text."""
    first_line, lines = peek_first_text_line(text_lines(part, settings, counter))
    if _ARRAY_OF_OBJECTS.match(first_line):
        hint = f"use --format json, or convert it before the pipe: {CONVERT_ARRAY}"
        raise InputError("-: is a JSON array, not JSON lines", hint)
    if first_line.startswith("{"):
        yield from text_readers.iter_json_texts(lines, part, settings, counter)
    else:
        _warn_of_wikiextractor(first_line, part, settings)
        yield from iter_text_documents(lines, settings)


def _read_text(part: SourcePart, settings: ReadSettings, counter: ReadCounter) -> Iterator[str]:
    first_line, lines = peek_first_text_line(text_lines(part, settings, counter))
    if part.start == 0:
        _warn_of_wikiextractor(first_line, part, settings)
    return iter_text_documents(lines, settings)


def _warn_of_wikiextractor(first_line: str, part: SourcePart, settings: ReadSettings) -> None:
    """Print a warning if text that is WikiExtractor's output by its first line is read as plain text."""
    if settings.format == "auto" and document_readers.is_wikiextractor_line(first_line):
        console.warn(
            f"{part.source.name}: looks like WikiExtractor's output, but is read as plain text; "
            "name the file wiki_00, or for vocab and data use --format wiki"
        )


_TextReader = Callable[[SourcePart, ReadSettings, ReadCounter], Iterator[str]]
_READERS: dict[SourceKind, _TextReader] = {
    "text": _read_text,
    "stdin": _read_stdin,
    "json": document_readers.read_json_document,
    "wiki": document_readers.read_wikiextractor,
    "arrow": text_readers.read_columnar_texts,
    "jsonl": text_readers.read_json_texts,
    "csv": text_readers.read_table_texts,
    "tsv": text_readers.read_table_texts,
    "parquet": text_readers.read_columnar_texts,
    "hub": text_readers.read_hub_texts,
    "squad": task_passages.read_task_texts,
    "squad-answers": task_passages.read_task_texts,
    "race": task_passages.read_task_texts,
}


def hash_part(part: SourcePart, counter: ReadCounter) -> None:
    """Count and hash the bytes on disk as `read_part` does, without decoding text; not for data sets on the Hub."""
    if part.source.kind == "docs":
        for _ in read_part(part, ReadSettings(), counter):
            pass
        return
    # The bytes on disk are hashed, so a compressed file is opened without decompression.
    raw_part = replace(part, source=replace(part.source, compression=""))
    with open_part(raw_part, counter):
        pass  # `open_part` reads the rest when the block ends


def document_hash(text: str) -> int:
    """Return 64 bits of BLAKE2b over the text with single spaces, so that line breaks do not change the hash."""
    return hash_single_spaced(" ".join(text.split()))


def hash_single_spaced(text: str) -> int:
    """Return the `document_hash` of a text whose words are already separated by single spaces."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
