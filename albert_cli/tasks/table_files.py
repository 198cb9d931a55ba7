"""Find the files of a custom table, one for each split, and read them as `TextTable`."""

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
# Endings of tables that are not read; a file with a split's name and one of these endings causes a warning.
_CONVERTIBLE = (".xlsx", ".xls", ".ods", ".txt", ".tab", ".json", ".ndjson", ".gz", ".bz2", ".xz", ".zip", ".zst")
_ID_HINT = "give every example its own id, or use -s table.id=none to number the rows"


@dataclass(frozen=True)
class TableFiles:
    """A table's files by split, each read once.

    `is_single_file` is true if `--data` names one file, listed as train: training holds dev out of it, and scoring uses
    all of it.
    """

    settings: TableSettings
    files: Mapping[str, str] = field(hash=False)
    is_single_file: bool = False
    _tables: dict[str, TextTable] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_for_scoring(self) -> bool:
        """True if a model may be scored on the data: they are a single file, or lack train.

        The classes are then the model's, if the labels are among them.
        """
        return self.is_single_file or "train" not in self.files

    def table(self, split: str) -> TextTable:
        """Return the cells of a split's file."""
        if split not in self._tables:
            self._tables[split] = _read_table(self.files[split], self.settings)
        return self._tables[split]

    def ids(self, split: str) -> list[str]:
        """Return the rows' ids; raises `InputError` if ids that name predictions are not unique."""
        table = self.table(split)
        names_predictions = split != "train" or "dev" not in self.files  # without dev, a part of train is predicted
        return table.ids(find_id_column(table, self.settings), must_be_unique=names_predictions, hint=_ID_HINT)


def find_table_files(settings: TableSettings, data: str | None) -> dict[str, str]:
    """Map splits, in the order train, dev, test, to files or to `hf:NAME#SPLIT`; settings precede `data`.

    Raises `ConfigError` if no file is named, and `InputError` if `data` does not exist or holds no train file.
    """
    files_in_settings = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    named = {split: file for split, file in files_in_settings.items() if file}
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
    """Map splits to the splits of a data set of the Hub, whose dev split may be called "validation"."""
    hub_splits = list_hub_splits(source)
    dev = "dev" if "dev" in hub_splits else "validation"
    hub_names = {"train": "train", "dev": dev, "test": "test"}
    return {split: f"{source}#{name}" for split, name in hub_names.items() if name in hub_splits}


def _folder_files(path: Path, splits: Sequence[str]) -> dict[str, str]:
    """Map these splits to the files of a folder; if `path` is a file, it is train."""
    if path.is_file():
        return {"train": str(path)}
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory", "check the path")
    files: dict[str, str] = {}
    for split in splits:
        candidates = [path / (name + suffix) for name in _FILE_NAMES[split] for suffix in _SUFFIXES]
        existing = [candidate for candidate in candidates if candidate.is_file()]
        if len(existing) > 1:
            message = f"{path}: has both {existing[0].name} and {existing[1].name}"
            raise InputError(message, f"choose one with -s table.{split}=FILE")
        if existing:
            files[split] = str(existing[0])
        elif unread := _find_convertible_file(path, _FILE_NAMES[split]):
            console.warn(f"{unread}: not read, because it is not a .tsv, .csv, .jsonl or .parquet file; convert it")
    if not files and "train" in splits:
        message = f"{path}: holds no train.tsv, train.csv, train.jsonl or train.parquet"
        raise InputError(message, "add one, or use -s table.train=FILE")
    return files


def _find_convertible_file(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first file with one of these names and the ending of another format, such as `train.xlsx`."""
    for path in sorted(folder.iterdir()):
        stem, _, _ = path.name.lower().partition(".")
        if stem in names and path.suffix.lower() in _CONVERTIBLE:
            return path
    return None


def _read_table(name: str, settings: TableSettings) -> TextTable:
    """Read a file by its ending, or `hf:NAME#SPLIT` (without `#SPLIT` its train split)."""
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
