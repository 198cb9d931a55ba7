"""Find the files of a custom table, one for each split, and read each as a `TextTable`.

The files are in a folder, on the Hugging Face Hub, or listed in the settings. If `--data` is a single file, this file
is the train split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from albert_cli import console
from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks.columns import find_id_column, find_label_column
from albert_cli.tasks.data_files import (
    all_rejected_error,
    describe_rejected,
    find_split_files,
    is_rejected,
    read_objects,
    read_table,
    reject_file_of_other_format,
)
from albert_cli.tasks.delimited import format_suffix
from albert_cli.tasks.holdout import SplitFiles
from albert_cli.tasks.hub_data import (
    has_hub_layout,
    is_hub_source,
    list_hub_splits,
    read_hub_split,
    reject_saved_to_disk,
)
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable
from albert_cli.text.sources import JSON_LINES_ENDINGS

_TEXT_SUFFIXES = (".tsv", ".csv", ".txt", *JSON_LINES_ENDINGS, ".json")  # .txt is read as .tsv
_SUFFIXES = (*_TEXT_SUFFIXES, *(f"{suffix}.gz" for suffix in _TEXT_SUFFIXES), ".parquet")
_FORMATS = ".tsv, .csv, .txt, .jsonl, .json (also .gz) or .parquet"  # `_SUFFIXES` in messages
_FILE_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
# Endings of formats that are not read. A warning names a file that has a split's name and one of these endings.
_UNREAD_SUFFIXES = (".xlsx", ".xls", ".ods", ".tab", ".gz", ".bz2", ".xz", ".zip", ".zst")
_ID_HINT = "give every example its own id, or use -s table.id=none to number the rows"


@dataclass(frozen=True)
class TableFiles(SplitFiles):
    """A table's files by split; a file is read when it is first used."""

    unit_name = "row"
    dev_remedy = "use -s table.dev=FILE"
    settings: TableSettings
    _tables: dict[str, TextTable] = field(default_factory=dict, repr=False, compare=False)

    def table(self, split: str) -> TextTable:
        """Return the cells of a split's file, without the rows that an annotator rejected or ignored."""
        if split not in self._tables:
            self._tables[split] = _leave_out_rejected(_read_table(self.files[split], self.settings), self.settings)
        return self._tables[split]

    def ids(self, split: str) -> list[str]:
        """Return the ids of a split's rows; raises `InputError` for repeated ids if rows of the split are predicted."""
        table = self.table(split)
        id_column = find_id_column(table, self.settings)
        return table.ids(id_column, must_be_unique=self.is_predicted(split), hint=_ID_HINT)


def find_table_files(settings: TableSettings, data: str | None) -> dict[str, str]:
    """Map splits, in the order train, dev, test, to files or to `hf:NAME#SPLIT`.

    A file in the settings replaces that of `data`. Raises `ConfigError` if neither has a file, and `InputError` if
    `data` or a file in the settings does not exist, or if `data` holds no file.
    """
    settings_by_split = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    settings_files = {split: file for split, file in settings_by_split.items() if file}
    files: dict[str, str] = {}
    if is_hub_source(data):
        files = _hub_files(data, settings_files)
    elif data is not None:
        files = _folder_files(Path(data), settings_files)
    files |= {split: _find_named_file(file, data) for split, file in settings_files.items()}
    if not files:
        raise ConfigError("the task 'table' has no data", "use --data DIR, or -s table.train=FILE")
    return {split: files[split] for split in _FILE_NAMES if split in files}


def _find_named_file(name: str, data: str | None) -> str:
    """Return the path of a file that the settings name: in the working directory, or else in the folder `data`.

    Raises `InputError` if there is no such file; the name of a data set of the Hub is returned unchecked.
    """
    if is_hub_source(name) or Path(name).is_file():
        return name
    if data is None or not Path(data).is_dir():
        raise InputError(f"{name}: no such file", "check its name")
    path = Path(data) / name
    if not path.is_file():
        raise InputError(f"{name}: no such file in the working directory or in {data}", "check its name")
    return str(path)


def _hub_files(source: str, settings_files: Mapping[str, str]) -> dict[str, str]:
    """Map the splits without a file in the settings (`settings_files`) to those of a data set of the Hub.

    A split is mapped to `hf:NAME#SPLIT`. The dev split may be called "validation". Prints the splits that are not read.
    Raises `InputError` if the settings list no file, and no split is called train, dev, validation or test.
    """
    hub_splits = list_hub_splits(source)
    dev = "dev" if "dev" in hub_splits else "validation"
    hub_names = {"train": "train", "dev": dev, "test": "test"}
    files = {
        split: f"{source}#{name}"
        for split, name in hub_names.items()
        if name in hub_splits and split not in settings_files
    }
    if not files and not settings_files:
        message = f"{source}: has no split train, dev, validation or test, but {', '.join(hub_splits)}"
        raise InputError(message, f"choose one, for example: -s table.train={source}#{hub_splits[0]}")
    read = {*files.values(), *settings_files.values()}
    unread = [name for name in hub_splits if f"{source}#{name}" not in read]
    if unread:
        console.info(f"{source}: not read: {', '.join(unread)}; use -s table.dev={source}#SPLIT for another split")
    return files


def _folder_files(path: Path, settings_files: Mapping[str, str]) -> dict[str, str]:
    """Map the splits without a file in the settings (`settings_files`) to the files of the folder `path`.

    If `path` is a file, it is the train split. A folder in the layout of the Hub is read as `hf:PATH`. Raises
    `InputError` if `path` does not exist, if a split has two files, or if the settings list no train file and the
    folder has no file of a split.
    """
    if path.is_file():
        return {"train": str(path)}
    names = {split: stems for split, stems in _FILE_NAMES.items() if split not in settings_files}
    files = find_split_files(path, names, _SUFFIXES, "choose one with -s table.{split}=FILE")
    for split in names:
        if split not in files and (unread := _find_unread_file(path, names[split])):
            console.warn(f"{unread}: not read, because it is not a {_FORMATS} file; convert it")
    if not files and has_hub_layout(path):
        return _hub_files(f"hf:{path}", settings_files)
    if not files and "train" not in settings_files:
        reject_saved_to_disk(path)
        message = f"{path}: holds no train.tsv, train.csv, train.jsonl or train.parquet"
        raise InputError(message, "add one, or use -s table.train=FILE")
    return files


def _find_unread_file(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first file with one of these names and an ending of `_UNREAD_SUFFIXES`, such as `train.xlsx`."""
    for path in sorted(folder.iterdir()):
        stem, _, _ = path.name.lower().partition(".")
        if stem in names and path.suffix.lower() in _UNREAD_SUFFIXES:
            return path
    return None


def _read_table(name: str, settings: TableSettings) -> TextTable:
    """Read a file in the format of its ending, or `hf:NAME#SPLIT`; without `#SPLIT` the split is train."""
    if is_hub_source(name):
        source, _, split = name.partition("#")
        return read_hub_split(source, split or "train")
    path = Path(name)
    if not path.name.lower().endswith(_SUFFIXES):
        reject_file_of_other_format(path)
        raise InputError(f"{path}: not a {_FORMATS} file", "convert or rename it")
    if format_suffix(name) in (".jsonl", ".json", ".parquet"):
        return read_objects(path)
    return read_table(path, settings)


def _leave_out_rejected(table: TextTable, settings: TableSettings) -> TextTable:
    """Return a table without the rows that an annotator rejected or ignored, and print their number.

    Prodigy writes the column `answer` with accept, reject or ignore next to a column of labels. A column `answer` with
    the labels, or with any other value, does not count. Raises `InputError` if no row remains.
    """
    if "answer" not in table.columns:
        return table
    column = table.columns.index("answer")
    answers = [row[column] for row in table.cells]
    rejected = sum(map(is_rejected, answers))
    if not rejected or not all(is_rejected(answer) or answer in ("accept", "") for answer in answers):
        return table
    if find_label_column(table, settings) in (None, column):
        return table
    if rejected == len(answers):
        raise all_rejected_error(table.origin)
    console.info(describe_rejected(table.origin, rejected))
    accepted = [index for index, answer in enumerate(answers) if not is_rejected(answer)]
    cells = [table.cells[index] for index in accepted]
    return replace(table, cells=cells, lines=[table.lines[index] for index in accepted])
