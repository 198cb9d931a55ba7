"""Write and compress text files, read the texts of sources, and build vocabularies from small texts."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from albert_cli.errors import InputError
from albert_cli.text.build_vocabulary import BuiltVocabulary, VocabularySettings, build_vocabulary
from albert_cli.text.corpus import read_documents
from albert_cli.text.docstring_prose import extract_prose
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.sources import SourceKind, TextSource


def read_texts(*sources: object, **options: Any) -> list[str]:
    """Return the texts of all documents; options: those of `ReadSettings`."""
    return [document.text for document in read_documents([str(source) for source in sources], ReadSettings(**options))]


def compress_zstd(data: bytes) -> bytes:
    """Compress with zstd, which the standard library lacks."""
    import pyarrow as pa

    return bytes(pa.compress(data, "zstd", asbytes=True))


COMPRESS_BY_ENDING: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": compress_zstd,
}


def iter_parts(path: Path, kind: SourceKind, part_bytes: int) -> Iterator[SourcePart]:
    """Yield the parts of a file, each of `part_bytes` bytes; the last part ends with the file."""
    source = TextSource(str(path), kind)
    file_bytes = path.stat().st_size
    for start in range(0, file_bytes, part_bytes):
        end = start + part_bytes
        yield SourcePart(source, start, end if end < file_bytes else None)


def manual_paragraphs() -> list[str]:
    """Return the prose of the Python manual, 3,000 sentences, from the module of `help()`."""
    from pydoc_data.topics import topics

    return [paragraph for topic in topics.values() for paragraph in extract_prose(topic)]


def write_numbered_sentences(folder: Path, count: int = 600) -> Path:
    """Write sentences with many numbers before commas, which tempt the trainer to join them."""
    path = folder / "numbers.txt"
    sentences = [f"In {1900 + i % 50}, {i},{i:03}, ships left the harbour of town {i % 7}." for i in range(count)]
    path.write_text("\n".join(sentences))
    return path


def build_largest_vocabulary(source: Path, out: Path, **options: Any) -> BuiltVocabulary:
    """Build a vocabulary of the largest size that a small text allows; options: those of `VocabularySettings`."""
    try:
        return build_vocabulary([str(source)], out, VocabularySettings(**options))
    except InputError as error:
        size = re.search(r"--size (\d+)", error.hint or "")
        assert size, error.message
        return build_vocabulary([str(source)], out, VocabularySettings(size=int(size[1]), **options))
