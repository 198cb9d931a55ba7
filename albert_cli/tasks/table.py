"""One's own labelled table as a task: TSV, CSV, JSON lines or Parquet with named columns, or a data set of the Hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from albert_cli import console
from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.columns import (
    CHOICE_COLUMN_NAMES,
    TableSettings,
    choice_columns,
    find_column,
    infer_labels,
    is_choice_table,
    parse_choice_label,
    read_options,
    require_column,
)
from albert_cli.tasks.rows import (
    TextTable,
    hold_out_dev,
    is_hub_source,
    list_hub_splits,
    read_delimited,
    read_hub_split,
    read_objects,
)

_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
_FILE_NAMES = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}


def open_table(settings: TableSettings, data: str | None = None, known: tuple[str, ...] = ()) -> AnyTask:
    """The task of one's own table: finds the files, reads train, and decides on columns, kind and classes.

    `data` is a folder, a single file (then train) or `hf:NAME[:CONFIG]`; `known` are the outputs of a model, for data
    without train to take the classes from. Raises `ConfigError` when nothing names a file, `InputError` for a missing
    file or column, or labels that make no task.
    """
    files = _find_files(settings, data)
    table = TableFiles(settings, files)
    reference = table.rows(next(iter(files)))
    common: dict[str, Any] = {
        "name": "table",
        "title": settings.title,
        "train_split": "train" if "train" in files else None,
        "dev_splits": ("dev",) if "train" in files or "dev" in files else (),
        "test_splits": ("test",) if "test" in files else (),
    }
    if is_choice_table(reference, settings):
        columns = choice_columns(reference, settings)
        count = len(read_options(reference, columns, 0))
        before = [repr(reference.columns[i]) for i in (columns.passage, columns.question) if i is not None]
        console.info(f"{reference.origin}: {' and '.join(before)} → one of {count} choices")
        return Choice(**common, labels=tuple(ascii_uppercase[:count]), metrics=("accuracy",), source=table)
    texts = [require_column(reference, "text", settings), find_column(reference, "text_pair", settings)]
    names = [repr(reference.columns[i]) for i in texts if i is not None]
    labels = infer_labels(settings, table.rows("train") if "train" in files else None, known)
    if labels is None:
        raise InputError(
            f"{data or next(iter(files.values()))}: no training data to take the classes from",
            "-s table.train=FILE, or name the classes by table.labels",
        )
    shown = f" ({', '.join(labels)})" if 0 < len(labels) <= 10 else ""
    console.info(
        f"{reference.origin}: {' and '.join(names)} → {f'{len(labels)} classes' if labels else 'a value'}{shown}"
    )
    metrics = ("accuracy", "macro_f1") if labels else ("pearson", "spearman")
    return Classification(**common, labels=labels, metrics=metrics, inputs=len(names), source=table)


# ---------------------------------------------------------------- files


def _find_files(settings: TableSettings, data: str | None) -> dict[str, str]:
    """Split to file (or to `hf:…` and the Hub's split after a `#`), train first."""
    found: dict[str, str] = {}
    given: dict[str, str] = {split: name for split in _FILE_NAMES if (name := getattr(settings, split))}
    if is_hub_source(data):
        there = list_hub_splits(str(data))
        wanted = {"train": "train", "dev": "dev" if "dev" in there else "validation", "test": "test"}
        found = {split: f"{data}#{name}" for split, name in wanted.items() if name in there}
    elif data is not None:
        found = _folder_files(Path(data), [split for split in _FILE_NAMES if split not in given])
    found |= given
    if not found:
        raise ConfigError("the task 'table' has no data", "--data DIR, or -s table.train=FILE")
    return {split: found[split] for split in _FILE_NAMES if split in found}


def _folder_files(folder: Path, splits: Sequence[str]) -> dict[str, str]:
    if folder.is_file():
        return {"train": str(folder)}
    if not folder.is_dir():
        raise InputError(f"{folder}: no such file or directory")
    found: dict[str, str] = {}
    for split in splits:
        names = [name + suffix for name in _FILE_NAMES[split] for suffix in _SUFFIXES]
        files = [path for name in names if (path := folder / name).is_file()]
        if len(files) > 1:
            raise InputError(
                f"{folder}: both {files[0].name} and {files[1].name} are there",
                f"choose by -s table.{split}=FILE",
            )
        if files:
            found[split] = str(files[0])
    if not found and "train" in splits:
        raise InputError(
            f"{folder}: holds no train.tsv, train.csv, train.jsonl or train.parquet", "or -s table.train=FILE"
        )
    return found


@dataclass(frozen=True)
class TableFiles:
    """The files of a table by split, each read once."""

    settings: TableSettings
    files: Mapping[str, str] = field(hash=False)
    _read: dict[str, TextTable] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, split: str) -> TextTable:
        """The cells of a split's file."""
        if split not in self._read:
            self._read[split] = _read_file(self.files[split], self.settings)
        return self._read[split]

    def read(self, task: Classification | Choice, split: str, data: str | None = None) -> list[Any]:
        """All examples of a split; the files were found by `open_table`, whatever `data` says."""
        if "dev" in self.files or split == "test":
            return self._examples(task, split)
        examples = self._examples(task, "train")
        keys = [f"{self.settings.holdout_seed}:{i}" for i in range(len(examples))]
        share, file = self.settings.holdout, self.files["train"]
        return hold_out_dev(split, examples, keys, share, file, "row", "-s table.dev=FILE")

    def _examples(self, task: Classification | Choice, split: str) -> list[Any]:
        rows = self.rows(split)
        is_unique = split != "train" or "dev" not in self.files  # dev is a part of train then
        ids = rows.ids(find_column(rows, "id", self.settings), is_unique=is_unique)
        if isinstance(task, Choice):
            return self._choices(task, split, rows, ids)
        text = require_column(rows, "text", self.settings)
        pair = require_column(rows, "text_pair", self.settings) if task.inputs == 2 else None
        label = (find_column if split == "test" else require_column)(rows, "label", self.settings)
        examples = []
        for i, row in enumerate(rows.cells):
            name = "" if label is None else row[label]
            if not name and split != "test":
                raise InputError(f"{rows.where(i)}: the label is empty", "fill it in, or leave the row out")
            gold = task.parse_label(name, rows.where(i)) if name else None
            examples.append(TextExample(row[text], None if pair is None else row[pair], gold, ids[i]))
        return examples

    def _choices(self, task: Choice, split: str, rows: TextTable, ids: list[str]) -> list[ChoiceExample]:
        columns = choice_columns(rows, self.settings)
        if split != "test":
            require_column(rows, "label", self.settings, CHOICE_COLUMN_NAMES)
        of_splits = [(self.rows(s), choice_columns(self.rows(s), self.settings).label) for s in self.files]
        found = {row[place] for there, place in of_splits if place is not None for row in there.cells}
        # Numbers count from 1 where the number of options is among the labels and 0 is not.
        first = 1 if str(len(task.labels)) in found and "0" not in found else 0
        examples = []
        for i, row in enumerate(rows.cells):
            options = read_options(rows, columns, i)
            if len(options) != len(task.labels):
                hint = "one number of choices a table"
                raise InputError(f"{rows.where(i)}: {len(options)} choices where train has {len(task.labels)}", hint)
            passage, question = ("" if place is None else row[place] for place in (columns.passage, columns.question))
            label = "" if columns.label is None else row[columns.label]
            is_hidden = not label and split == "test"
            right = None if is_hidden else parse_choice_label(label, options, first, rows.where(i))
            examples.append(ChoiceExample(ids[i], passage, question, options, right))
        return examples


def _read_file(name: str, settings: TableSettings) -> TextTable:
    if is_hub_source(name):
        source, _, split = name.partition("#")
        return read_hub_split(source, split or "train")
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"{path}: a table is a .tsv, .csv, .jsonl or .parquet file", "convert or rename it")
    if suffix in (".jsonl", ".parquet"):
        return read_objects(path)
    quoting = suffix == ".csv" if settings.quoting == "auto" else settings.quoting == "on"
    delimiter = settings.delimiter or ("," if suffix == ".csv" else "\t")
    rows = read_delimited(path, delimiter, quoting=quoting)
    if twice := [name for name in rows.columns if rows.columns.count(name) > 1]:
        raise InputError(f"{path}:1: the column {twice[0]!r} is there twice", "rename one of them")
    rows.check_widths()
    return rows
