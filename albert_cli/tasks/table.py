"""One's own labelled table as a task: TSV, CSV, JSON lines or Parquet with named columns, or a data set of the Hub."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from albert_cli import console
from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks import table_choice
from albert_cli.tasks.hub import hub_splits, is_hub, read_hub
from albert_cli.tasks.rows import Rows, read_delimited, read_jsonl, read_parquet
from albert_cli.tasks.table_choice import ChoiceColumns
from albert_cli.tasks.task import ChoiceExample, Example, Kind, Task

_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
_FILE_NAMES = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
# What people call their columns; the first that is there is taken, whatever its capitals.
_DEFAULTS = {
    "text": ("text", "sentence", "sentence1", "text_a", "question1", "premise"),
    "text_pair": ("text_pair", "sentence2", "text_b", "question2", "hypothesis"),
    "label": ("label", "class", "score", "target"),
    "question": table_choice.QUESTIONS,
    "id": ("id", "idx", "index"),
}


@dataclass(frozen=True)
class TableSettings:
    """The recipe's section `[table]`. An empty string or list stands for a default that is found in the data.

    `title` is what results call the task. `train`, `dev` and `test` are files, else `--data` holds
    `train.tsv|csv|jsonl|parquet` and so on; `text`, `text_pair`, `label` and `id` are column names; `labels` the
    classes in the order of the model's outputs (default: those of train, sorted). For multiple choice `choices` names
    the columns with an option each, or the one with lists of them, `text` and `question` what stands before them.
    Without dev data a part `holdout` of train is held out, drawn by `holdout_seed`.
    """

    title: str = "table"
    train: str = ""
    dev: str = ""
    test: str = ""
    text: str = ""
    text_pair: str = ""
    label: str = ""
    id: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()
    kind: Literal["auto", "classification", "regression", "choice"] = "auto"
    labels: tuple[str, ...] = ()
    delimiter: str = ""
    quoting: Literal["auto", "on", "off"] = "auto"
    holdout: float = 0.1
    holdout_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.holdout < 1:
            raise ConfigError(f"table.holdout = {self.holdout} is not between 0 and 1")
        if len(self.delimiter) > 1:
            raise ConfigError(f"table.delimiter = {self.delimiter!r} is not a single character")
        if len(set(self.labels)) != len(self.labels):
            raise ConfigError("table.labels names a class twice")
        if len(self.labels) == 1:
            raise ConfigError(f"table.labels names one class, {self.labels[0]!r}", "two classes or more")


def open_table(settings: TableSettings, data: str | None = None, known: tuple[str, ...] = ()) -> Task:
    """The task of one's own table: finds the files, reads train, and settles columns, kind and classes.

    `data` is a folder, a single file (then train) or `hf:NAME[:CONFIG]`; `known` are the outputs of a model, for
    data without train to take the classes from. Raises `ConfigError` when nothing
    names a file, `InputError` for a missing file or column, or labels that make no task.
    """
    files = _locate(settings, data)
    table = TableFiles(settings, files)
    reference = table.rows(next(iter(files)))
    if table.is_choice(reference):
        return _choice_task(table, reference)
    if "train" not in files and not settings.labels and settings.kind != "regression":
        if not known:
            raise InputError(
                f"{data or next(iter(files.values()))}: no training data to take the classes from",
                "-s table.train=FILE, or name the classes by table.labels",
            )
        settings = replace(settings, kind="regression") if len(known) == 1 else replace(settings, labels=known)
    table = replace(table, settings=settings)
    texts = [reference.columns[_column(reference, "text", settings)]]
    if (pair := _find_column(reference, "text_pair", settings)) is not None:
        texts.append(reference.columns[pair])
    kind, labels = table.kind_and_labels()
    task = Task(
        name="table",
        title=settings.title,
        labels=labels,
        metrics=("pearson", "spearman") if kind == "regression" else ("accuracy", "macro_f1"),
        inputs=len(texts),
        source=table,
        kind=kind,
        **_splits(table),
    )
    output = "a value" if kind == "regression" else f"{len(labels)} classes"
    shown = f" ({', '.join(labels)})" if 0 < len(labels) <= 10 else ""
    console.note(f"{reference.origin}: {' and '.join(map(repr, texts))} → {output}{shown}")
    return task


def _choice_task(table: TableFiles, reference: Rows) -> Task:
    columns = table.choice_columns(reference)
    count = len(table_choice.options_of(reference, columns, 0))
    before = [reference.columns[place] for place in (columns.passage, columns.question) if place is not None]
    console.note(f"{reference.origin}: {' and '.join(map(repr, before))} → one of {count} choices")
    title = table.settings.title
    return Task("table", title, tuple(ascii_uppercase[:count]), ("accuracy",), 2, table, "choice", **_splits(table))


def _splits(table: TableFiles) -> dict[str, Any]:
    """Which splits a task of these files has."""
    has_train = "train" in table.files
    return {
        "train_split": "train" if has_train else None,
        "dev_splits": ("dev",) if has_train or "dev" in table.files else (),
        "test_splits": ("test",) if "test" in table.files else (),
    }


# ---------------------------------------------------------------- files


def _locate(settings: TableSettings, data: str | None) -> dict[str, str]:
    """Split to file (or to `hf:…` and the Hub's split after a `#`), train first."""
    given: dict[str, str] = {split: name for split in _FILE_NAMES if (name := getattr(settings, split))}
    if is_hub(data):
        found = _hub_files(str(data))
    elif data is not None:
        found = _folder_files(Path(data), [split for split in _FILE_NAMES if split not in given])
    else:
        found = {}
    files = {split: name for split in _FILE_NAMES if (name := given.get(split) or found.get(split))}
    if not files:
        raise ConfigError("the task 'table' has no data", "--data DIR, or -s table.train=FILE")
    return files


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


def _hub_files(source: str) -> dict[str, str]:
    there = hub_splits(source)
    wanted = {"train": "train", "dev": "dev" if "dev" in there else "validation", "test": "test"}
    return {split: f"{source}#{name}" for split, name in wanted.items() if name in there}


@dataclass(frozen=True)
class TableFiles:
    """The files of a table, each read once."""

    settings: TableSettings
    files: Mapping[str, str]
    _read: dict[str, Rows] = field(default_factory=dict, repr=False, compare=False)

    def read(self, task: Task, split: str, data: str | None = None) -> list[Any]:
        """All examples of a split; the files were settled by `open_table`, whatever `data` says."""
        if "dev" in self.files or split == "test":
            return list(self._examples(task, split))
        examples = self._examples(task, "train")
        held_out = _held_out(len(examples), self.settings)
        if split == "dev":
            console.note(f"{self.files['train']}: no dev data, so {len(held_out)} of {len(examples)} rows are held out")
        return [example for i, example in enumerate(examples) if (i in held_out) == (split == "dev")]

    def rows(self, split: str) -> Rows:
        """The cells of a split's file."""
        if split not in self._read:
            self._read[split] = _read_file(self.files[split], self.settings)
        return self._read[split]

    def is_choice(self, rows: Rows) -> bool:
        """Whether the table asks for a choice: because it is said, or because it has columns called so and no class."""
        if self.settings.kind != "auto" or self.settings.labels:
            return self.settings.kind == "choice"
        return bool(self.settings.choices or table_choice.option_columns(rows, (), sure=False))

    def choice_columns(self, rows: Rows) -> ChoiceColumns:
        """The columns of a table for multiple choice."""
        s = self.settings
        options = table_choice.option_columns(rows, s.choices)
        if not options:
            raise _no_column(rows, "choices", table_choice.LISTS)
        found = ChoiceColumns(
            options,
            _find_column(rows, "text", s, table_choice.PASSAGES),
            _find_column(rows, "question", s),
            _find_column(rows, "label", s, table_choice.LABELS),
            _find_column(rows, "id", s),
        )
        if found.passage is None and found.question is None:
            raise _no_column(rows, "question", _DEFAULTS["question"])
        return found

    def _choices(self, task: Task, split: str) -> list[ChoiceExample]:
        rows = self.rows(split)
        columns = self.choice_columns(rows)
        if (count := len(table_choice.options_of(rows, columns, 0))) != len(task.labels):
            raise InputError(f"{rows.where(0)}: {count} choices, but {next(iter(self.files))} has {len(task.labels)}")
        if columns.id is not None and split != "train":
            rows.check_unique(columns.id)
        if columns.label is None:
            if split != "test":
                raise _no_column(rows, "label", table_choice.LABELS)
            return table_choice.read_choices(rows, columns, lambda _, __: None)
        labelled = [(self.rows(other), self.choice_columns(self.rows(other)).label) for other in self.files]
        found = {row[place] for there, place in labelled if place is not None for row in there.cells}
        reader = table_choice.reader_of_labels(rows, columns, found, hidden=split == "test")
        return table_choice.read_choices(rows, columns, reader)

    def kind_and_labels(self) -> tuple[Kind, tuple[str, ...]]:
        """Classification with its classes, or regression, as asked or as the labels of train look."""
        settings = self.settings
        if settings.kind == "regression":
            return "regression", ()
        if settings.labels:
            return "classification", settings.labels
        rows = self.rows("train")
        found = set(rows.column(rows.columns[_column(rows, "label", settings)])) - {""}
        if settings.kind == "auto" and _are_values(found):
            return "regression", ()
        labels = tuple(sorted(found, key=_label_order))
        if len(labels) < 2:
            only = f"only the label {labels[0]!r}" if labels else "no labels"
            raise InputError(f"{rows.origin}: {only}: nothing to learn", "two classes or more")
        return "classification", labels

    def _examples(self, task: Task, split: str) -> Sequence[Any]:
        rows = self.rows(split)
        if task.kind == "choice":
            return self._choices(task, split)
        text = _column(rows, "text", self.settings)
        pair = _column(rows, "text_pair", self.settings) if task.inputs == 2 else None
        find = _find_column if split == "test" else _column
        label = find(rows, "label", self.settings)
        identifier = _find_column(rows, "id", self.settings)
        if identifier is not None and split != "train":
            rows.check_unique(identifier)
        return [
            Example(
                text_a=row[text],
                text_b=None if pair is None else row[pair],
                label=self._label(task, split, row[label], rows.where(i)) if label is not None else None,
                id=row[identifier] if identifier is not None else str(i),
            )
            for i, row in enumerate(rows.cells)
        ]

    @staticmethod
    def _label(task: Task, split: str, text: str, where: str) -> int | float | None:
        if not text:
            if split == "test":
                return None
            raise InputError(f"{where}: the label is empty", "fill it in, or leave the row out")
        return task.parse_label(text, where)


def _read_file(name: str, settings: TableSettings) -> Rows:
    if is_hub(name):
        source, _, split = name.partition("#")
        return _not_empty(read_hub(source, split or "train"))
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return _not_empty(read_jsonl(path))
    if suffix not in _SUFFIXES:
        raise InputError(f"{path}: a table is a .tsv, .csv, .jsonl or .parquet file", "convert or rename it")
    if suffix == ".parquet":
        return _not_empty(read_parquet(path))
    quoting = suffix == ".csv" if settings.quoting == "auto" else settings.quoting == "on"
    delimiter = settings.delimiter or ("," if suffix == ".csv" else "\t")
    rows = read_delimited(path, delimiter, quoting=quoting)
    twice = next((name for name in rows.columns if rows.columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}:1: the column {twice!r} is there twice", "rename one of them")
    rows.check_widths(len(rows.columns))
    return _not_empty(rows)


def _not_empty(rows: Rows) -> Rows:
    if not rows.cells:
        raise InputError(f"{rows.origin}: holds no examples", "was it written to the end?")
    return rows


# ---------------------------------------------------------------- columns, labels, held-out rows


def _find_column(rows: Rows, role: str, settings: TableSettings, names: Sequence[str] = ()) -> int | None:
    """The place of the column with this role, or None; by `names` in place of the usual ones.

    A column that the user named must be there.
    """
    named: str = getattr(settings, role)
    if named:
        if named not in rows.columns:
            raise _no_column(rows, role, [named])
        return rows.columns.index(named)
    if role == "text_pair" and settings.text:
        return None  # who names the text and no second one means a single text
    lowered = [name.lower() for name in rows.columns]
    return next((lowered.index(name) for name in names or _DEFAULTS[role] if name in lowered), None)


def _column(rows: Rows, role: str, settings: TableSettings) -> int:
    place = _find_column(rows, role, settings)
    if place is None:
        raise _no_column(rows, role, _DEFAULTS[role])
    return place


def _no_column(rows: Rows, role: str, wanted: Sequence[str]) -> InputError:
    there = ", ".join(map(repr, rows.columns[:20]))
    hint = f"-s table.{role}=COLUMN"
    if len(rows.columns) == 1 and any(sign in rows.columns[0] for sign in ";\t|,"):
        hint = "is the delimiter another one? -s table.delimiter=';'"
    names = " or ".join(map(repr, wanted))
    return InputError(f"{rows.origin}: no column {names} for the {role}; columns there: {there}", hint)


def _are_values(labels: set[str]) -> bool:
    """Whether labels look like measurements: all are numbers and at least one has a fraction."""
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return False
    return any(math.isfinite(value) and value != int(value) for value in values)


def _label_order(label: str) -> tuple[bool, float, str]:
    """Whole numbers by size (2 before 10), then everything else by its characters."""
    is_number = label.isascii() and label.removeprefix("-").isdigit()
    return (not is_number, float(label) if is_number else 0.0, label)


def _held_out(size: int, settings: TableSettings) -> set[int]:
    """The rows of train that serve as dev: those whose hash comes first; no library's draw decides."""
    if size < 2:
        raise InputError(f"{size} training row cannot be split into train and dev", "-s table.dev=FILE")
    count = min(size - 1, max(1, round(size * settings.holdout)))

    def draw(row: int) -> bytes:
        return hashlib.sha256(f"{settings.holdout_seed}:{row}".encode()).digest()

    return set(sorted(range(size), key=draw)[:count])
