"""What a source of text is: the names that a command line gives, resolved to single files and streams."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

from albert_cli import console
from albert_cli.errors import ConfigError, InputError

SourceKind: TypeAlias = Literal[
    "text", "jsonl", "csv", "tsv", "parquet", "squad", "squad-answers", "race", "hub", "docs", "stdin"
]
TASK_FILE_ENDINGS: dict[SourceKind, str] = {
    "squad": ".json",
    "squad-answers": ".json",
    "race": ".txt",
}  # read as KIND:FILES

KIND_BY_ENDING: dict[str, SourceKind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_MAX_WEIGHT = 100
_WEIGHT = re.compile(r"(.+)@(\d+(?:\.\d+)?)", re.DOTALL)
_SOURCE_FORMS = "a source is a file, a folder, a glob, -, hf:NAME, squad:FILE, squad-answers:FILE, race:FOLDER or docs:"


@dataclass(frozen=True)
class TextSource:
    """One file or stream.

    name: a path, `hf:…`, `docs:…` or `-`; compression: the file's last ending where it is compressed, else "";
    weight: how often the text is used in a pass over all sources, see `copies`.
    """

    name: str
    kind: SourceKind
    compression: str = ""
    weight: float = 1.0

    @property
    def path(self) -> Path | None:
        """The file, or None for a stream."""
        return None if self.kind in ("hub", "docs", "stdin") else Path(self.name)

    @property
    def can_be_split(self) -> bool:
        """Whether parts of the file can be read alone: its records begin and end at line ends."""
        return self.kind in ("text", "jsonl") and not self.compression


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hub, and how its rows are documents: one each, `rows` of them, or all with the same `document`.

    `hf:NAME[:CONFIG[:SPLIT]]`, then perhaps `?rows=N`, or `?document=COLUMN` for rows that stand together.
    """

    name: str
    config: str = ""
    split: str = "train"
    rows: int = 1
    document: str = ""

    @classmethod
    def parse(cls, source: str) -> HubDataset:
        """Raises `InputError` for what is not of that form."""
        place, _, options = source.removeprefix("hf:").partition("?")
        name, *more = place.split(":")
        given = dict(parse_qsl(options, keep_blank_values=True))
        rows = given.pop("rows", "1")
        document = given.pop("document", "")
        if not name or len(more) > 2 or given or not rows.isdecimal() or int(rows) < 1 or (document and rows != "1"):
            hint = "rows of a sentence each: ?rows=2000 joins 2,000 rows, ?document=COLUMN joins rows with equal values"
            raise InputError(f"{source}: not of the form hf:NAME[:CONFIG[:SPLIT]][?rows=N or ?document=COLUMN]", hint)
        config, split = [*more, "", ""][:2]
        return cls(name, config, split or "train", int(rows), document)


def resolve_sources(sources: Sequence[str]) -> list[TextSource]:
    """The files and streams that the sources stand for, in order, none twice; `InputError` for what is not there."""
    if not sources:
        raise InputError("no source of text is named", _SOURCE_FORMS)
    found: dict[tuple[SourceKind, str], TextSource] = {}
    for given in sources:
        name, weight = given, 1.0
        if (match := _WEIGHT.fullmatch(given)) and not Path(given).exists():
            name, weight = match[1], float(match[2])
            if not 0 < weight <= _MAX_WEIGHT:
                raise ConfigError(f"{given}: a weight lies above 0 and is at most {_MAX_WEIGHT}")
        for source in _resolve_one(name, weight):
            place = os.path.abspath(source.name) if source.path else source.name  # noqa: PTH100  (links stay as named)
            before = found.setdefault((source.kind, place), source)
            if before.weight != source.weight:
                raise ConfigError(f"{source.name}: named twice, with weights {before.weight:g} and {source.weight:g}")
    return list(found.values())


def _resolve_one(name: str, weight: float) -> list[TextSource]:
    if name == "-":
        return [TextSource(name, "stdin", weight=weight)]
    if name.startswith("hf:"):
        HubDataset.parse(name)
        return [TextSource(name, "hub", weight=weight)]
    if name.startswith("docs:"):
        if name not in ("docs:", "docs:stdlib"):
            raise InputError(f"{name}: unknown", "docs: is all installed documentation, docs:stdlib Python's own")
        return [TextSource(name, "docs", weight=weight)]
    for kind, ending in TASK_FILE_ENDINGS.items():
        if name.startswith(f"{kind}:"):
            return [TextSource(str(p), kind, "", weight) for p in _find_files(name.removeprefix(f"{kind}:"), (ending,))]
    found = []
    for path in _find_files(name, _ALL_ENDINGS):
        *_, ending, last = ["", "", *Path(path.name.lower()).suffixes]
        compression = last if last in COMPRESSIONS else ""
        found.append(TextSource(str(path), KIND_BY_ENDING[ending if compression else last], compression, weight))
    return found


_ALL_ENDINGS = (*KIND_BY_ENDING, *(e + packed for e in KIND_BY_ENDING if e != ".parquet" for packed in COMPRESSIONS))


def _find_files(name: str, endings: Sequence[str]) -> list[Path]:
    """The files that a path, folder or glob stands for, sorted; those in a folder by their ending, in any case."""
    path, known = Path(name), tuple(endings)
    hint = f"what is read ends in {', '.join(ending for ending in known if ending.count('.') == 1)}"
    hint += f", or in one of them and {', '.join(COMPRESSIONS)}" if known == _ALL_ENDINGS else ""
    if path.is_dir():
        files = [p for p in sorted(path.rglob("*")) if p.is_file()]
        files = [p for p in files if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        found = [p for p in files if p.name.lower().endswith(known)]
        if not found:
            raise InputError(f"{name}: no file in this folder is of a known kind", hint)
        if others := [p.name for p in files if p not in set(found)]:
            console.info(f"{name}: not read, of other kinds: {', '.join(others[:3])}{', …' * (len(others) > 3)}")
        inside_of = path.resolve()
        if (away := next((p for p in found if not p.resolve().is_relative_to(inside_of)), None)) is not None:
            hint = f"who made the folder chose what is read; if that is meant, name the files: '{name}/*{away.suffix}'"
            raise InputError(f"{away}: is a link to {away.resolve()}, outside of the folder", hint)
        return found
    if not path.exists() and glob.has_magic(name):
        matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207  (the pattern may be absolute)
        found = [Path(p) for p in matches if Path(p).is_file()]
        if not found:
            raise InputError(f"{name}: no file matches")
    else:
        found = [path]
    for path in found:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder", _SOURCE_FORMS)
        if not path.is_file():
            raise InputError(f"{path}: not a regular file", "a pipe is read from stdin, as the source -")
        if not path.name.lower().endswith(known):
            raise InputError(f"{path}: unknown kind of file", hint)
    return found
