"""Split text sources into work units, which can be read in parallel.

A work unit is a part of a large file, or a group of small files. Equal sources give equal units on every machine, and a
sentence's position in the text is defined by its unit's number and its index in the unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NotRequired

import numpy as np
from typing_extensions import TypedDict

from albert_cli.text.corpus import Document, hash_part, read_part
from albert_cli.text.hub_datasets import count_files
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import FileSignature, ReadCounter, SourcePart, source_signature
from albert_cli.text.sources import STDIN, TASK_FILE_ENDINGS, TextSource, resolve_sources

WORK_UNIT_BYTES = 32 << 20
_MAX_WORK_UNITS = 8192  # `albert data` maps six shard files for each, and a Linux process can map 65,530 files
_COMPRESSION_RATIO = 4  # bytes of text for each byte of a compressed file: an estimate


class SourcePartRecord(TypedDict):
    """One part of a source in a report.

    source: the source's name; kind: only for task files, from which each kind reads a different text; start and end:
    the part's byte range if the file is split, or the numbers of a data set's files; bytes: size of the whole file.
    """

    source: str
    kind: NotRequired[str]
    start: NotRequired[int]
    end: NotRequired[int]
    bytes: NotRequired[int]


class WorkUnitRecord(TypedDict):
    """A work unit in a report; `sha256` is added once the text has been read."""

    parts: list[SourcePartRecord]
    weight: float
    sha256: NotRequired[str | None]


@dataclass(frozen=True)
class WorkUnit:
    """Parts of sources with one weight, read one after the other; `number` is the unit's position in the text."""

    parts: tuple[SourcePart, ...]
    number: int

    @property
    def weight(self) -> float:
        """The mean number of times that a pass uses a document of the unit."""
        return self.parts[0].source.weight

    @property
    def size(self) -> int:
        """The number of bytes on disk; 0 if unknown."""
        return sum(part.size for part in self.parts)

    @property
    def text_size(self) -> int:
        """The number of bytes of decompressed text: an estimate for compressed files."""
        return sum(_estimate_text_bytes(part.source, part.size) for part in self.parts)

    @property
    def is_stream(self) -> bool:
        """True for stdin, which only the command's process can read, and only once."""
        return any(part.source.name == STDIN for part in self.parts)

    @property
    def is_installed_docs(self) -> bool:
        """True for the documentation installed on this machine."""
        return any(part.source.kind == "docs" for part in self.parts)

    @property
    def is_hub_dataset(self) -> bool:
        """True for a data set on the Hub, which is identified by its name: its bytes are not hashed."""
        return any(part.source.kind == "hub" for part in self.parts)

    @property
    def record(self) -> WorkUnitRecord:
        """The unit as a report records it, without the hash."""
        return {"parts": [_describe_part(part) for part in self.parts], "weight": self.weight}

    def documents(self, settings: ReadSettings, counter: ReadCounter) -> Iterator[Document]:
        """Yield the documents, each once regardless of the weight; `counter` counts and hashes the bytes on disk."""
        return chain.from_iterable(read_part(part, settings, counter) for part in self.parts)

    def sha256(self) -> str | None:
        """Return the hash of the bytes on disk; None for a data set on the Hub."""
        if self.is_hub_dataset:
            return None
        counter = ReadCounter()
        for part in self.parts:
            hash_part(part, counter)
        return str(counter.sha256.hexdigest())


def _estimate_text_bytes(source: TextSource, bytes_on_disk: int) -> int:
    return bytes_on_disk * _COMPRESSION_RATIO if source.compression else bytes_on_disk


def _describe_part(part: SourcePart) -> SourcePartRecord:
    """Return a part as reports record it."""
    record: SourcePartRecord = {"source": part.source.name}
    # A plain path reads the same files as another text.
    if part.source.kind in TASK_FILE_ENDINGS:
        record["kind"] = part.source.kind
    if part.signature:
        file_bytes = part.signature.size
        if part.start or part.end is not None:
            record["start"] = part.start
            record["end"] = file_bytes if part.end is None else part.end
        record["bytes"] = file_bytes
    elif part.end is not None:  # files of a data set on the Hub
        record["start"] = part.start
        record["end"] = part.end
    return record


def split_sources(
    sources: Sequence[str], read_settings: ReadSettings | None = None, unit_bytes: int = WORK_UNIT_BYTES
) -> list[WorkUnit]:
    """Return the work units of the sources, in order, without opening a local file.

    - A large uncompressed `.txt` or `.jsonl` file is split into parts of `unit_bytes`. A large file of another kind is
      one unit.
    - A data set on the Hub is split into its files.
    - Consecutive small files with equal weights share a unit, up to `unit_bytes` of text.

    For a very large corpus `unit_bytes` is doubled until the files make at most 8,192 units, or all fit in one.
    """
    read_settings = read_settings or ReadSettings()
    files = [(source, source_signature(source)) for source in resolve_sources(sources, read_settings.format)]
    total_bytes = sum(_estimate_text_bytes(source, signature.size) for source, signature in files if signature)
    while total_bytes > _MAX_WORK_UNITS * unit_bytes:
        unit_bytes *= 2
    hub_parts = {source: _split_hub_dataset(source) for source, _ in files if source.kind == "hub"}
    max_groups = _MAX_WORK_UNITS + sum(map(len, hub_parts.values()))
    groups = _group_files(files, hub_parts, read_settings, unit_bytes)
    # Files of more than half of `unit_bytes` do not share a unit, so there may still be too many groups.
    while len(groups) > max_groups and unit_bytes < total_bytes:
        unit_bytes *= 2
        groups = _group_files(files, hub_parts, read_settings, unit_bytes)
    return [WorkUnit(tuple(parts), number) for number, parts in enumerate(groups)]


def _group_files(
    files: Sequence[tuple[TextSource, FileSignature | None]],
    hub_parts: Mapping[TextSource, list[SourcePart]],
    read_settings: ReadSettings,
    unit_bytes: int,
) -> list[list[SourcePart]]:
    """Return the parts of each work unit; hub_parts: those of each data set on the Hub, which become a unit each."""
    groups: list[list[SourcePart]] = []
    free_bytes = -1  # bytes of text that still fit in the last group; -1: not even an empty file may join it
    for source, signature in files:
        whole_file = SourcePart(source, signature=signature)
        # A stream has no size and is a unit by itself.
        text_bytes = _estimate_text_bytes(source, signature.size) if signature else unit_bytes
        is_small = text_bytes < unit_bytes
        if is_small and text_bytes <= free_bytes and groups[-1][0].source.weight == source.weight:
            groups[-1].append(whole_file)
            free_bytes -= text_bytes
            continue
        is_one_document = source.kind == "text" and read_settings.document == "file"
        parts = hub_parts.get(source, [whole_file])
        if not is_small and signature and source.can_be_split and not is_one_document:
            parts = _split_file(source, signature, unit_bytes)
        groups += [[part] for part in parts]
        free_bytes = unit_bytes - text_bytes if is_small else -1
    return groups


def _split_hub_dataset(source: TextSource) -> list[SourcePart]:
    """Split a data set on the Hub into its files, or into groups of about equal numbers of files if it has over 8,192.

    Rows in different parts are never joined to one document.
    """
    n_files = count_files(source.name)
    if n_files == 1:
        return [SourcePart(source)]
    n_parts = min(n_files, _MAX_WORK_UNITS)
    bounds = np.linspace(0, n_files, n_parts + 1).round().astype(int).tolist()
    return [SourcePart(source, start, end) for start, end in pairwise(bounds)]


def _split_file(source: TextSource, signature: FileSignature, part_bytes: int) -> list[SourcePart]:
    """Return the parts of a file, of `part_bytes` each; the last one extends to the end of the file."""
    starts = range(0, signature.size, part_bytes)
    ends = [*starts[1:], None]
    return [SourcePart(source, start, end, signature) for start, end in zip(starts, ends, strict=True)]
