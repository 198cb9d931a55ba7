"""Find and read the files of a table, by split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from albert_cli import console
from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks.columns import find_id_column
from albert_cli.tasks.data_files import read_objects, read_table, reject_file_of_other_format
from albert_cli.tasks.hub_data import is_hub_source, list_hub_splits, read_hub_split
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable

_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
_FILE_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
# Endings of tables that people forget to convert.
_CONVERTIBLE = (".xlsx", ".xls", ".ods", ".txt", ".tab", ".json", ".ndjson", ".gz", ".bz2", ".xz", ".zip", ".zst")
_ID_HINT = "give every example its own id, or use -s table.id=none to number the rows"


@dataclass(frozen=True)
class TableFiles:
    """A table's files by split, each read once. Without dev data a part of train is held out.

    `is_single_file` is true if the user named one file, whose split is open.
    """

    settings: TableSettings
    files: Mapping[str, str] = field(hash=False)
    is_single_file: bool = False
    _tables: dict[str, TextTable] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_for_scoring(self) -> bool:
        """True if there is a single file, or no train: a model's classes then precede those of the labels."""
        return self.is_single_file or "train" not in self.files

    def table(self, split: str) -> TextTable:
        """Return the cells of a split's file."""
        if split not in self._tables:
            self._tables[split] = _read_table(self.files[split], self.settings)
        return self._tables[split]

    def ids(self, split: str) -> list[str]:
        """Return the rows' ids. They must be unique if they name predictions, as for dev held out of train."""
        table = self.table(split)
        names_predictions = split != "train" or "dev" not in self.files
        return table.ids(find_id_column(table, self.settings), must_be_unique=names_predictions, hint=_ID_HINT)


def find_table_files(settings: TableSettings, data: str | None) -> dict[str, str]:
    """Map splits, train first, to files or to `hf:NAME#SPLIT`."""
    settings_files = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    named = {split: name for split, name in settings_files.items() if name}
    files: dict[str, str] = {}
    if data is not None and is_hub_source(data):
        files = _hub_files(data)
    elif data is not None:
        files = _folder_files(Path(data), [split for split in _FILE_NAMES if split not in named])
    files |= named
    if not files:
        raise ConfigError("the task 'table' has no data", "use --data DIR, or -s table.train=FILE")
    return {split: files[split] for split in _FILE_NAMES if split in files}


def _hub_files(source: str) -> dict[str, str]:
    hub_splits = list_hub_splits(source)
    dev = "dev" if "dev" in hub_splits else "validation"
    names = {"train": "train", "dev": dev, "test": "test"}
    return {split: f"{source}#{name}" for split, name in names.items() if name in hub_splits}


def _folder_files(folder: Path, splits: Sequence[str]) -> dict[str, str]:
    """Find the files of some splits; a file instead of a folder is train."""
    if folder.is_file():
        return {"train": str(folder)}
    if not folder.is_dir():
        raise InputError(f"{folder}: no such file or directory", "check the path")
    files: dict[str, str] = {}
    for split in splits:
        candidates = [folder / (name + suffix) for name in _FILE_NAMES[split] for suffix in _SUFFIXES]
        existing = [path for path in candidates if path.is_file()]
        if len(existing) > 1:
            message = f"{folder}: has both {existing[0].name} and {existing[1].name}"
            raise InputError(message, f"choose one with -s table.{split}=FILE")
        if existing:
            files[split] = str(existing[0])
        elif unread := _other_formats(folder, _FILE_NAMES[split]):
            console.warn(f"{unread}: not read, because it is not a .tsv, .csv, .jsonl or .parquet file; convert it")
    if not files and "train" in splits:
        message = f"{folder}: holds no train.tsv, train.csv, train.jsonl or train.parquet"
        raise InputError(message, "add one, or use -s table.train=FILE")
    return files


def _other_formats(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first file with one of the names and another ending, such as `train.xlsx`."""
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in _CONVERTIBLE]
    return next((path for path in paths if path.name.lower().partition(".")[0] in names), None)


def _read_table(name: str, settings: TableSettings) -> TextTable:
    """Read a file by its ending, or `hf:NAME#SPLIT`."""
    if is_hub_source(name):
        source, _, split = name.partition("#")
        return read_hub_split(source, split or "train")
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        reject_file_of_other_format(path)
        raise InputError(f"{path}: not a .tsv, .csv, .jsonl or .parquet file", "convert or rename it")
    if suffix in (".jsonl", ".parquet"):
        return read_objects(path)
    return read_table(path, settings)
