"""Documents out of any sources, streamed: nothing is held but one line, and one document of a few megabytes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import cast

from albert_cli.errors import InputError
from albert_cli.randomness import repetitions
from albert_cli.text import records
from albert_cli.text.lines import ReadCounter, ReadSettings, SourcePart, open_part, text_lines
from albert_cli.text.sentences import split_long_text
from albert_cli.text.sources import SourceKind, resolve_sources

_MAX_DOCUMENT_CHARACTERS = 1 << 22  # characters; the rest of a longer one follows as a document of its own


@dataclass(frozen=True)
class Document:
    """One document: `text` has a paragraph (or a sentence) a line; a name is given to those that have one."""

    text: str
    name: str = ""


def read_documents(sources: Sequence[str], settings: ReadSettings | None = None) -> Iterator[Document]:
    """Every document of every source, as often as its weight says, in a fixed order; none without text.

    Invalid UTF-8, lone surrogates and NUL are an `InputError` that says where, or, with "replace", become
    U+FFFD (NUL is dropped). Also raises `InputError` for what cannot be found or read, and for too long a line.
    """
    for source in resolve_sources(sources):
        for document in read_part(SourcePart(source), settings or ReadSettings(), ReadCounter()):
            yield from (document for _ in range(document_repetitions(document, source.weight)))


def document_repetitions(document: Document, weight: float) -> int:
    """How often a pass over a source of this weight uses the document."""
    return 1 if weight == 1 else repetitions(weight, document_hash(document.text))


def check_readable(source: str) -> None:
    """Read the first document of a source; raises `InputError` where that cannot be."""
    if next(read_documents([source]), None) is None:
        raise InputError(f"{source}: holds no text")


def read_part(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[Document]:
    """The documents of a part, each once; `tally` counts and hashes what is read as it lies on the disk.

    Raises what `read_documents` does, and `InputError` for a file that changes while it is read.
    """
    source = part.source
    kind = source.kind
    if kind == "docs":
        from albert_cli.text import installed_docs

        for name, text in installed_docs.read_installed_docs(stdlib_only=source.name == "docs:stdlib"):
            tally.add(f"{name}\n{text}\n".encode())
            yield Document(text, name)
        return
    if kind == "stdin":
        kind = "jsonl" if cast(io.BufferedReader, sys.stdin.buffer).peek(1)[:1] == b"{" else "text"
    for text in _READERS[kind](part, settings, tally):
        if "\r" in text:  # alone it ends a line too: old Macintosh files, mixed files
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        for document in split_long_text(text, _MAX_DOCUMENT_CHARACTERS):
            if not document.isspace():
                yield Document(document)


def _read_text(part: SourcePart, settings: ReadSettings, tally: ReadCounter) -> Iterator[str]:
    """The documents of a text file: paragraphs or sentences, a line each, up to a blank line."""
    lines: list[str] = []
    size = 0
    for _, text in text_lines(part, settings, tally):
        is_blank = not text or text.isspace()
        if lines and (is_blank or size + len(text) > _MAX_DOCUMENT_CHARACTERS):
            yield "\n".join(lines)
            lines, size = [], 0
        if not is_blank:
            lines.append(text)
            size += len(text)
    if lines:
        yield "\n".join(lines)


_READERS: dict[SourceKind, Callable[[SourcePart, ReadSettings, ReadCounter], Iterator[str]]] = {
    "text": _read_text,
    "jsonl": records.read_json_texts,
    "csv": records.read_table_texts,
    "tsv": records.read_table_texts,
    "parquet": records.read_parquet_texts,
    "hub": records.read_hub_texts,
    "squad": records.read_task_texts,
    "squad-answers": records.read_task_texts,
    "race": records.read_task_texts,
}


def hash_part(part: SourcePart, tally: ReadCounter) -> None:
    """Count and hash a part as `read_part` does, without reading any text out of it; not for Hub data sets."""
    if part.source.kind == "docs":
        for _ in read_part(part, ReadSettings(), tally):
            pass
        return
    with open_part(replace(part, source=replace(part.source, compression="")), tally):
        pass  # what is left unread is read at its end


def document_hash(text: str) -> int:
    """64 bits of BLAKE2b over the text with single spaces: the same in any file, under any vocabulary."""
    return hash_normalized_text(" ".join(text.split()))


def hash_normalized_text(text: str) -> int:
    """`document_hash` of a text that has only single spaces already."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
