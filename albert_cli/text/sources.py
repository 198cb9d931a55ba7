"""Resolve the sources of text on a command line to single files and streams."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

from albert_cli import console
from albert_cli.errors import ConfigError, InputError
from albert_cli.text.remote_files import is_url, list_files, supports_ranges

SourceKind: TypeAlias = Literal[
    "text", "jsonl", "csv", "tsv", "parquet", "squad", "squad-answers", "race", "hub", "docs", "stdin"
]
KIND_BY_ENDING: dict[str, SourceKind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
TASK_FILE_ENDINGS: dict[SourceKind, str] = {  # of the sources KIND:FILES
    "squad": ".json",
    "squad-answers": ".json",
    "race": ".txt",
}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_COMPRESSED_ENDINGS = tuple(
    ending + compression for ending in KIND_BY_ENDING if ending != ".parquet" for compression in COMPRESSIONS
)
_ALL_ENDINGS = (*KIND_BY_ENDING, *_COMPRESSED_ENDINGS)
_ENDINGS_HINT = f"use a file that ends in {', '.join(KIND_BY_ENDING)}, perhaps followed by {', '.join(COMPRESSIONS)}"
_MAX_WEIGHT = 100
_WEIGHT = re.compile(r"(.+)@(\d+(?:\.\d+)?)", re.DOTALL)
_SOURCE_FORMS = (
    "name a file, a folder, a glob, -, hf:NAME, squad:FILE, squad-answers:FILE, race:FOLDER or docs: as the source"
)
_LISTED_FILES = 3


@dataclass(frozen=True)
class TextSource:
    """One file or stream.

    name: a path, `hf:…`, `docs:…` or `-`; compression: the last ending of a compressed file, else ""; weight: how often
    a pass over all sources uses the text (see `randomness.repetitions`).
    """

    name: str
    kind: SourceKind
    compression: str = ""
    weight: float = 1.0

    @property
    def path(self) -> Path | None:
        """The local file, or None for a URL or a stream."""
        return None if self.kind in ("hub", "docs", "stdin") or self.is_remote else Path(self.name)

    @property
    def is_remote(self) -> bool:
        """True for a file behind a URL."""
        return is_url(self.name)

    @property
    def can_be_split(self) -> bool:
        """True if a part of the file can be read alone, because its records begin and end at line ends."""
        has_lines = self.kind in ("text", "jsonl") and not self.compression
        return has_lines and (not self.is_remote or supports_ranges(self.name))


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hub, `hf:NAME[:CONFIG[:SPLIT]]`, and the rows that make a document.

    A document is one row, `rows` rows (`?rows=N`), or all adjacent rows with an equal value in the column `document`
    (`?document=COLUMN`).
    """

    name: str
    config: str = ""
    split: str = "train"
    rows: int = 1
    document: str = ""

    @classmethod
    def parse(cls, source: str) -> HubDataset:
        """Parse a source's name; raise `InputError` if it is not of that form."""
        location, _, query = source.removeprefix("hf:").partition("?")
        parts = location.split(":")
        options = dict(parse_qsl(query, keep_blank_values=True))
        rows = options.pop("rows", "1")
        document = options.pop("document", "")
        has_valid_rows = rows.isdecimal() and int(rows) >= 1 and not (document and rows != "1")
        if not parts[0] or len(parts) > 3 or options or not has_valid_rows:
            hint = "?rows=2000 joins 2,000 rows to a document, ?document=COLUMN joins rows with equal values"
            raise InputError(f"{source}: not of the form hf:NAME[:CONFIG[:SPLIT]][?rows=N or ?document=COLUMN]", hint)
        name, config, split = [*parts, "", ""][:3]
        return cls(name, config, split or "train", int(rows), document)


def resolve_sources(sources: Sequence[str]) -> list[TextSource]:
    """Return the files and streams of the sources, in order, each once; raise `InputError` for what does not exist."""
    if not sources:
        raise InputError("no source of text", _SOURCE_FORMS)
    resolved: dict[tuple[SourceKind, str], TextSource] = {}
    for argument in sources:
        name, weight = _split_weight(argument)
        for source in _resolve_one(name, weight):
            # Links stay as named, so the path is made absolute without resolving them.
            path = os.path.abspath(source.name) if source.path else source.name  # noqa: PTH100
            earlier = resolved.setdefault((source.kind, path), source)
            if earlier.weight != source.weight:
                message = f"{source.name}: named twice, with weights {earlier.weight:g} and {source.weight:g}"
                raise ConfigError(message, "name it once")
    return list(resolved.values())


def _split_weight(argument: str) -> tuple[str, float]:
    """Split `SOURCE@WEIGHT`; a file whose name has this form has no weight."""
    match = _WEIGHT.fullmatch(argument)
    if match is None or Path(argument).exists():
        return argument, 1.0
    weight = float(match[2])
    if not 0 < weight <= _MAX_WEIGHT:
        raise ConfigError(f"{argument}: a weight must be above 0 and at most {_MAX_WEIGHT}")
    return match[1], weight


def _resolve_one(name: str, weight: float) -> list[TextSource]:
    if name == "-":
        return [TextSource(name, "stdin", weight=weight)]
    if is_url(name):
        return _describe_urls(name, weight)
    if name.startswith("hf:"):
        HubDataset.parse(name)
        return [TextSource(name, "hub", weight=weight)]
    if name.startswith("docs:"):
        if name not in ("docs:", "docs:stdlib"):
            raise InputError(f"{name}: unknown", "use docs: for all installed documentation, docs:stdlib for Python's")
        return [TextSource(name, "docs", weight=weight)]
    for kind, ending in TASK_FILE_ENDINGS.items():
        prefix = f"{kind}:"
        if name.startswith(prefix):
            files = _find_files(name.removeprefix(prefix), (ending,), f"use a file that ends in {ending}")
            return [TextSource(str(path), kind, "", weight) for path in files]
    return [_describe_file(path, weight) for path in _find_files(name, _ALL_ENDINGS, _ENDINGS_HINT)]


def _describe_urls(name: str, weight: float) -> list[TextSource]:
    """Describe the files behind a URL, which may be a glob or a folder."""
    urls = list_files(name)
    known = [url for url in urls if url.lower().partition("?")[0].endswith(_ALL_ENDINGS)]
    if not known:
        raise InputError(f"{name}: no file with a known ending", _ENDINGS_HINT)
    return [replace(_describe_file(Path(url.partition("?")[0]), weight), name=url) for url in known]


def _describe_file(path: Path, weight: float) -> TextSource:
    """Read a file's kind and compression from its endings, which are known."""
    suffixes = Path(path.name.lower()).suffixes
    compression = suffixes.pop() if suffixes[-1] in COMPRESSIONS else ""
    return TextSource(str(path), KIND_BY_ENDING[suffixes[-1]], compression, weight)


def _find_files(name: str, endings: tuple[str, ...], endings_hint: str) -> list[Path]:
    """Return the files of a path, folder or glob, sorted; a folder's by their endings, in lower or upper case."""
    path = Path(name)
    if path.is_dir():
        return _find_files_in_folder(path, endings, endings_hint)
    files = [path]
    if not path.exists() and glob.has_magic(name):
        matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207  (the pattern may be absolute)
        files = [Path(match) for match in matches if Path(match).is_file()]
        if not files:
            raise InputError(f"{name}: no file matches", "check the pattern")
    for file in files:
        if not file.exists():
            raise InputError(f"{file}: no such file or folder", _SOURCE_FORMS)
        if not file.is_file():
            raise InputError(f"{file}: not a regular file", "read a pipe from stdin, as the source -")
        if not file.name.lower().endswith(endings):
            raise InputError(f"{file}: unknown kind of file", endings_hint)
    return files


def _find_files_in_folder(folder: Path, endings: tuple[str, ...], endings_hint: str) -> list[Path]:
    """Return a folder's files with these endings, without hidden ones; print the names of some of the others.

    Raises `InputError` if there are none, and for a link that leaves the folder: whoever made the folder could
    otherwise choose any file of this machine.
    """
    visible = list(_iter_visible_files(folder))
    files = [path for path in visible if path.name.lower().endswith(endings)]
    if not files:
        raise InputError(f"{folder}: no file with a known ending in this folder", endings_hint)
    skipped = [path.name for path in visible if not path.name.lower().endswith(endings)]
    if skipped:
        ellipsis = ", …" if len(skipped) > _LISTED_FILES else ""
        console.info(f"{folder}: skipped files of other kinds: {', '.join(skipped[:_LISTED_FILES])}{ellipsis}")
    resolved_folder = folder.resolve()
    for path in files:
        if not path.resolve().is_relative_to(resolved_folder):
            hint = (
                f"links that leave the folder are not followed; to read them, name the files: '{folder}/*{path.suffix}'"
            )
            raise InputError(f"{path}: is a link to {path.resolve()}, outside of the folder", hint)
    return files


def _iter_visible_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and path.is_file():
            yield path
