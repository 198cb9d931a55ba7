"""Resolve the sources of text on a command line to single files and streams.

A source is a file, a folder, a glob, a URL, `-` (stdin), `hf:NAME` (a data set on the Hub), `docs:` (the installed
documentation), or `squad:`, `squad-answers:` or `race:` with a path. `@WEIGHT` may follow.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

from albert_cli import console
from albert_cli.errors import ConfigError, InputError
from albert_cli.formatting import hide_secrets
from albert_cli.os_errors import translate_read_errors
from albert_cli.text.read_settings import FileFormat, FileKind
from albert_cli.text.remote_files import (
    RemoteFile,
    is_url,
    list_files,
    request_missing_versions,
    strip_query,
    supports_ranges,
)

SourceKind: TypeAlias = Literal[FileKind, "squad", "squad-answers", "race", "hub", "docs", "stdin"]
JSON_LINES_ENDINGS: tuple[str, ...] = (".jsonl", ".ndjson", ".jl")
KIND_BY_ENDING: dict[str, FileKind] = {
    ".txt": "text",
    **dict.fromkeys(JSON_LINES_ENDINGS, "jsonl"),
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
# The ending of the files in a source of the form KIND:FILES, for the tasks whose data sets are read as text
TASK_FILE_ENDINGS: dict[SourceKind, str] = {"squad": ".json", "squad-answers": ".json", "race": ".txt"}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
# These formats compress their columns, so no compression ending follows.
_SELF_COMPRESSED_ENDINGS = (".parquet", ".arrow")
_WIKIEXTRACTOR_NAME = re.compile(r"wiki_\d+(\.(gz|bz2|xz|zst))?")
_DATASETS_METADATA = ("dataset_info.json", "dataset_dict.json", "state.json")  # next to .arrow files
# A result of `map` repeats the text of the data set, and a result of `filter` or `shuffle` only has row numbers.
_DATASETS_CACHE_NAME = re.compile(r"cache-.*\.arrow")
_ARCHIVE_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_ENDINGS_HINT = (
    f"use a file that ends in {', '.join(KIND_BY_ENDING)}, perhaps followed by {', '.join(COMPRESSIONS)}, "
    "or, for vocab and data, name the format with --format"
)
STDIN = "-"
_MAX_WEIGHT = 100
_WEIGHT_HINT = "a weight is a number such as 2 or 0.3"
_WEIGHT = re.compile(r"(.+)@(\d+(?:\.\d+)?)", re.DOTALL)
_SOURCE_HINT = (
    "name a file, a folder, a glob, hf:NAME, squad:FILE, squad-answers:FILE, race:FOLDER or docs: as the source"
)
_LISTED_FILES = 3  # names of skipped files or folders in a message


@dataclass(frozen=True)
class TextSource:
    """One file or stream.

    name: a path, a URL without its secrets, `hf:…`, `docs:…` or `-`; kind: decides which reader reads it; compression:
    the last ending of a compressed file, else ""; weight: how often a pass over all sources uses the text (see
    `randomness.repetitions`); remote: for a URL, its file with the size and version at the time of resolving; None for
    any other source. Reports and messages have the name; only `remote` has the whole URL.
    """

    name: str
    kind: SourceKind
    compression: str = ""
    weight: float = 1.0
    remote: RemoteFile | None = None

    @property
    def path(self) -> Path | None:
        """The local file, or None for a URL or a stream."""
        is_stream = self.kind in ("hub", "docs") or self.name == STDIN
        return None if is_stream or self.remote else Path(self.name)

    @property
    def can_be_split(self) -> bool:
        """True if parts of the file can be read separately, because its records begin and end at line ends."""
        has_lines = self.kind in ("text", "jsonl") and not self.compression and self.name != STDIN
        return has_lines and (self.remote is None or supports_ranges(self.remote.url))


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hub, `hf:NAME[:CONFIG[:SPLIT]]`, and the rule by which its rows are joined to documents.

    A document consists of `rows_per_document` rows (`?rows=N`) or, if `document_column` is set (`?document=COLUMN`), of
    all adjacent rows with an equal value in this column.
    """

    name: str
    config: str
    split: str
    rows_per_document: int
    document_column: str

    @classmethod
    def parse(cls, source: str) -> HubDataset:
        """Parse a source's name, such as `hf:wikipedia::train?rows=10`; raise `InputError` if its form is wrong."""
        location, _, query = source.removeprefix("hf:").partition("?")
        parts = location.split(":")
        options = dict(parse_qsl(query, keep_blank_values=True))
        rows = options.pop("rows", "1")
        document_column = options.pop("document", "")
        is_valid_name = parts[0] != "" and len(parts) <= 3
        is_valid_count = rows.isdecimal() and int(rows) >= 1
        has_two_rules = document_column != "" and rows != "1"
        if not is_valid_name or not is_valid_count or has_two_rules or options:
            hint = "?rows=2000 joins 2,000 rows to a document, ?document=COLUMN joins rows with equal values"
            raise InputError(f"{source}: not of the form hf:NAME[:CONFIG[:SPLIT]][?rows=N or ?document=COLUMN]", hint)
        name, config, split = [*parts, "", ""][:3]  # a part that is left out is ""
        return cls(name, config, split or "train", int(rows), document_column)


def resolve_sources(sources: Sequence[str], file_format: FileFormat = "auto") -> list[TextSource]:
    """Return the files and streams of the sources, in order, each once.

    file_format: of files and stdin; "auto" decides by a file's name, and for stdin by its first line. Raises
    `InputError` for a source that does not exist or cannot be read, `ConfigError` for a file that is listed twice with
    different weights.
    """
    if not sources:
        raise InputError("no source of text", _SOURCE_HINT)
    resolved: dict[tuple[SourceKind, str], TextSource] = {}
    for argument in sources:
        name, weight = _split_weight(argument)
        with translate_read_errors(name):
            named_sources = _resolve_one(name, weight, file_format)
        for source in named_sources:
            identity = source.remote.url if source.remote else source.name
            if source.path:
                # `Path.resolve` would follow links, but two links to one file are two sources.
                identity = os.path.abspath(source.name)  # noqa: PTH100
            earlier = resolved.setdefault((source.kind, identity), source)
            if earlier.weight != source.weight:
                message = f"{source.name}: listed twice, with weights {earlier.weight:g} and {source.weight:g}"
                raise ConfigError(message, "list it once")
    return list(resolved.values())


def is_stdin(argument: str) -> bool:
    """Return True if a source is stdin, with a weight or without."""
    name, _ = _split_weight(argument)
    return name == STDIN


def _split_weight(argument: str) -> tuple[str, float]:
    """Split `SOURCE@WEIGHT` into its two values; without `@WEIGHT` the weight is 1."""
    name, separator, suffix = argument.rpartition("@")
    if not separator or os.path.exists(argument):  # noqa: PTH110  (`Path.exists` raises an error for a long name)
        return argument, 1.0  # the name of a file may contain an @ and a number
    match = _WEIGHT.fullmatch(argument)
    if match is None:
        is_path = "/" in suffix or glob.has_magic(suffix)  # such as node_modules/@types/*.txt
        if not is_path and os.path.exists(name):  # noqa: PTH110
            raise ConfigError(f"{argument}: @{suffix} is not a weight", _WEIGHT_HINT)
        return argument, 1.0
    weight = float(match[2])
    if not 0 < weight <= _MAX_WEIGHT:
        message = f"{hide_secrets(argument)}: a weight must be above 0 and at most {_MAX_WEIGHT}"
        raise ConfigError(message, _WEIGHT_HINT)
    return match[1], weight


def _resolve_one(name: str, weight: float, file_format: FileFormat) -> list[TextSource]:
    """Return the files or the stream of one source."""
    if name == STDIN:
        if file_format in ("parquet", "arrow"):
            hint = "write the bytes to a file and name the file"
            raise InputError(f"-: stdin cannot be read with --format {file_format}", hint)
        return [TextSource(name, "stdin" if file_format == "auto" else file_format, weight=weight)]
    if is_url(name):
        return _url_sources(name, weight, file_format)
    if name.startswith("hf:"):
        HubDataset.parse(name)  # raises an error now, not when the data set is read
        return [TextSource(name, "hub", weight=weight)]
    if name.startswith("docs:"):
        if name not in ("docs:", "docs:stdlib"):
            raise InputError(f"{name}: unknown", "use docs: for all installed documentation, docs:stdlib for Python's")
        return [TextSource(name, "docs", weight=weight)]
    for kind, ending in TASK_FILE_ENDINGS.items():
        prefix = f"{kind}:"
        if name.startswith(prefix):
            is_readable = partial(_has_ending, ending)
            files = _find_files(name.removeprefix(prefix), is_readable, f"use a file that ends in {ending}")
            return [TextSource(str(path), kind, weight=weight) for path in files]
    files = _find_files(name, partial(_has_known_kind, file_format), _ENDINGS_HINT)
    return [_file_source(path, weight, file_format) for path in files]


def _url_sources(name: str, weight: float, file_format: FileFormat) -> list[TextSource]:
    """Return the files behind a URL, which may be a glob or a folder."""
    is_readable = partial(_has_known_kind, file_format)
    listing = list_files(name)
    urls = list(listing)
    is_single_file = urls == [name]
    shown_name = hide_secrets(name)  # for messages
    paths = [Path(strip_query(url)) for url in urls]
    if not is_single_file:
        readable_paths = set(_select_readable(shown_name, paths, is_readable, _ENDINGS_HINT))
    elif is_readable(paths[0]):
        readable_paths = set(paths)
    elif shown_name.startswith("http") and (shown_name.endswith("/") or not paths[0].suffix):
        pattern = f"{strip_query(shown_name).rstrip('/')}/*.txt"
        hint = f"web servers have no folders; use a glob ('{pattern}') or, for vocab and data, name the file's --format"
        raise InputError(f"{shown_name}: unknown kind of file", hint)
    else:
        raise _unknown_kind_error(shown_name, paths[0], _ENDINGS_HINT)
    path_by_url = {url: path for url, path in zip(urls, paths, strict=True) if path in readable_paths}
    files = request_missing_versions({url: listing[url] for url in path_by_url})
    return [
        replace(_file_source(path, weight, file_format), name=hide_secrets(url), remote=files[url])
        for url, path in path_by_url.items()
    ]


def _unknown_kind_error(name: str, path: Path, endings_hint: str) -> InputError:
    """Return the error for a file or URL that cannot be read; path: as in `_find_files`, without a URL's query."""
    is_archive = path.name.lower().endswith(_ARCHIVE_ENDINGS)
    return InputError(f"{name}: unknown kind of file", "unpack the archive" if is_archive else endings_hint)


def _has_ending(ending: str, path: Path) -> bool:
    return path.name.lower().endswith(ending)


def _has_known_kind(file_format: FileFormat, path: Path) -> bool:
    """Return True if the format is explicit, or can be read from the file's name."""
    if file_format != "auto" or _WIKIEXTRACTOR_NAME.fullmatch(path.name):
        return True
    ending, compression = _split_endings(path)
    return ending in KIND_BY_ENDING and (compression == "" or ending not in _SELF_COMPRESSED_ENDINGS)


def _split_endings(path: Path) -> tuple[str, str]:
    """Return the endings of a file's name for its format and its compression; "" if there is no such ending."""
    suffixes = ["", *Path(path.name.lower()).suffixes]  # with "", there always is a last ending
    compression = ""
    if suffixes[-1] in COMPRESSIONS:
        compression = suffixes.pop()
    return suffixes[-1], compression


def _file_source(path: Path, weight: float, file_format: FileFormat) -> TextSource:
    """Return a file as a source; its compression and, with the format "auto", its kind are read from its name."""
    ending, compression = _split_endings(path)
    if file_format != "auto":
        return TextSource(str(path), file_format, compression, weight)
    kind: FileKind = "wiki" if _WIKIEXTRACTOR_NAME.fullmatch(path.name) else KIND_BY_ENDING[ending]
    return TextSource(str(path), kind, compression, weight)


def describe_format(name: str, file_format: FileFormat) -> str:
    """Return the kind and the compression with which a file or URL is read, such as "text.gz".

    name: of a source that `resolve_sources` returned for this format.
    """
    source = _file_source(Path(strip_query(name)), 1.0, file_format)
    return source.kind + source.compression


def _find_files(name: str, is_readable: Callable[[Path], bool], endings_hint: str) -> list[Path]:
    """Return the file of a path, or the files of a folder or glob, sorted.

    is_readable: returns True if a file's name shows that the file can be read. In a folder, files of other kinds are
    skipped. Raises `InputError` if a path or a glob leads to a file of another kind (with the hint `endings_hint`), or
    to a broken link (with another hint). Folders that a glob matches are skipped, and printed unless the glob matches
    files in them.
    """
    if not name:  # `Path("")` is the working directory
        raise InputError("an empty source name", _SOURCE_HINT)
    path = Path(name)
    if path.is_dir():
        return _find_files_in_folder(path, is_readable, endings_hint)
    files = [path]
    if not path.exists() and glob.has_magic(name):
        matches = [Path(match) for match in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207  (may be absolute)
        files = [match for match in matches if not match.is_dir()]
        if not files:
            raise InputError(f"{name}: no file matches", "check the pattern")
        folders_with_files = {parent for file in files for parent in file.parents}
        folders = [str(match) for match in matches if match.is_dir() and match not in folders_with_files]
        _print_skipped(name, "folders", folders)
    for file in files:
        if not file.exists():
            if file.is_symlink():
                raise InputError(f"{file}: is a broken link", "repair the link or delete it")
            raise InputError(f"{file}: no such file or folder", _SOURCE_HINT)
        if not file.is_file():
            raise InputError(f"{file}: not a regular file", "read a pipe from stdin, as the source -")
        if not is_readable(file):
            raise _unknown_kind_error(str(file), file, endings_hint)
    return files


def _find_files_in_folder(folder: Path, is_readable: Callable[[Path], bool], endings_hint: str) -> list[Path]:
    """Return the readable files in a folder and its subfolders, without hidden ones; print that others are skipped.

    Links to subfolders are skipped and printed, and so are links to files that the folder or a subfolder also contains
    without a link. Raises `InputError` if there are no files, for a broken link or an unreadable subfolder, and for a
    link that leads out of the folder: the author of a downloaded folder could otherwise make this program read any file
    of this machine.
    """
    paths: list[Path] = []
    linked_folders: list[Path] = []
    for parent, folder_names, file_names in os.walk(folder, onerror=_raise_unreadable):
        # `os.walk` then does not enter hidden folders.
        folder_names[:] = [name for name in folder_names if not name.startswith(".")]
        paths += [Path(parent, name) for name in file_names if not name.startswith(".")]
        linked_folders += [Path(parent, name) for name in folder_names if Path(parent, name).is_symlink()]
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path}: is a broken link", "repair the link or delete it")
    regular_files = sorted(path for path in paths if path.is_file())
    # Check links to folders first: if the folder contains nothing else, `_select_readable` would report that there are
    # no files.
    _check_links(folder, linked_folders)
    files = _select_readable(str(folder), regular_files, is_readable, endings_hint)
    _check_links(folder, files)
    linked_files = {file for file in files if file.is_symlink()}
    if linked_files:  # without links, the paths of thousands of files need not be resolved
        unlinked_files = {file.resolve() for file in files if file not in linked_files}
        linked_files = {file for file in linked_files if file.resolve() in unlinked_files}
    _print_skipped(str(folder), "links to files", [path.name for path in sorted(linked_files)])
    _print_skipped(str(folder), "links to folders", [path.name for path in sorted(linked_folders)])
    return [file for file in files if file not in linked_files]


def _raise_unreadable(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})", "check its permissions")


def _check_links(folder: Path, paths: Sequence[Path]) -> None:
    """Raise `InputError` if one of the paths in a folder is, or is behind, a link that leads out of the folder."""
    resolved_folder = folder.resolve()
    for path in paths:
        if not path.resolve().is_relative_to(resolved_folder):
            remedy = f"instead of {folder}, name its parts as sources, such as {path}"
            if path.is_file():
                ending_length = len("".join(_split_endings(path)))
                ending = path.name[len(path.name) - ending_length :]  # as the file's name spells it
                remedy = f"to read them, name the files: '{path.parent}/*{ending}'"
            hint = f"links that leave the folder are not followed; {remedy}"
            raise InputError(f"{path}: is a link to {path.resolve()}, outside of the folder", hint)


def _select_readable(
    name: str, files: Sequence[Path], is_readable: Callable[[Path], bool], endings_hint: str
) -> list[Path]:
    """Return the files that can be read, and print that others are skipped.

    name: the folder, or the URL of a folder or glob, that contains the files; is_readable: as in `_find_files`. Raises
    `InputError` if there are no such files.
    """
    datasets_folders = {file.parent for file in files if file.name in _DATASETS_METADATA}
    datasets_internal_files = {
        file
        for file in files
        if file.name in _DATASETS_METADATA
        or (file.parent in datasets_folders and _DATASETS_CACHE_NAME.fullmatch(file.name))
    }
    readable_files = [file for file in files if is_readable(file) and file not in datasets_internal_files]
    if not readable_files:
        raise InputError(f"{name}: no file with a known ending", endings_hint)
    readable = set(readable_files)
    _print_skipped(name, "files of other kinds", [file.name for file in files if file not in readable])
    return readable_files


def _print_skipped(source: str, kind: str, names: Sequence[str]) -> None:
    """Print the first names of the files or folders in a source that are not read; print nothing if all are."""
    if names:
        listed = ", ".join(names[:_LISTED_FILES])
        rest = f", … ({len(names):,} in all)" if len(names) > _LISTED_FILES else ""
        console.info(f"{source}: skipped {kind}: {listed}{rest}")
