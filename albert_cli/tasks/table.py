"""One's own labelled table as a task: TSV, CSV, JSON lines or Parquet with named columns, or a data set of the Hub."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

from albert_cli import console
from albert_cli.config import Share
from albert_cli.errors import ConfigError, InputError
from albert_cli.random import text_share
from albert_cli.tasks.base import Task
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.classification import Classification, Example
from albert_cli.tasks.rows import Rows, hub_splits, is_hub, read_delimited, read_hub, read_jsonl, read_parquet

_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
_FILE_NAMES = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
# What people call their columns; the first that is there is taken, whatever its capitals.
_NAMES = {
    "text": ("text", "sentence", "sentence1", "text_a", "question1", "premise"),
    "text_pair": ("text_pair", "sentence2", "text_b", "question2", "hypothesis"),
    "label": ("label", "class", "score", "target"),
    "id": ("id", "idx", "index"),
}
_NAMES_OF_CHOICE = {
    "text": ("passage", "article", "context", "text", "sent1", "premise"),
    "question": ("question", "sent2", "query", "prompt"),
    "choices": ("choices", "options", "endings"),
    "label": ("label", "answer", "answerkey", "answer_key", "correct", "class", "target"),
    "id": _NAMES["id"],
}
_OPTION = re.compile(r"(?:choice|option|ending|answer|sol)[_ ]?(?:[0-9]|[a-h])")


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
    holdout: Share = 0.1
    holdout_seed: int = 0

    def __post_init__(self) -> None:
        if len(self.delimiter) > 1:
            raise ConfigError(f"table.delimiter = {self.delimiter!r} is not a single character")
        if len(set(self.labels)) != len(self.labels):
            raise ConfigError("table.labels names a class twice")
        if len(self.labels) == 1:
            raise ConfigError(f"table.labels names one class, {self.labels[0]!r}", "two classes or more")


def open_table(settings: TableSettings, data: str | None = None, known: tuple[str, ...] = ()) -> Task[Any, Any, Any]:
    """The task of one's own table: finds the files, reads train, and decides on columns, kind and classes.

    `data` is a folder, a single file (then train) or `hf:NAME[:CONFIG]`; `known` are the outputs of a model, for
    data without train to take the classes from. Raises `ConfigError` when nothing
    names a file, `InputError` for a missing file or column, or labels that make no task.
    """
    files = _locate(settings, data)
    table = TableFiles(settings, files)
    reference = table.rows(next(iter(files)))
    common: dict[str, Any] = {
        "name": "table",
        "title": settings.title,
        "train_split": "train" if "train" in files else None,
        "dev_splits": ("dev",) if "train" in files or "dev" in files else (),
        "test_splits": ("test",) if "test" in files else (),
    }
    if _is_choice(reference, settings):
        columns = _choice_columns(reference, settings)
        count = len(_options(reference, columns, 0))
        before = [repr(reference.columns[i]) for i in (columns.passage, columns.question) if i is not None]
        console.note(f"{reference.origin}: {' and '.join(before)} → one of {count} choices")
        return Choice(**common, labels=tuple(ascii_uppercase[:count]), metrics=("accuracy",), source=table)
    texts = [_column(reference, "text", settings), _find(reference, "text_pair", settings)]
    names = [repr(reference.columns[i]) for i in texts if i is not None]
    labels = _labels(settings, table.rows("train") if "train" in files else None, known)
    if labels is None:
        raise InputError(
            f"{data or next(iter(files.values()))}: no training data to take the classes from",
            "-s table.train=FILE, or name the classes by table.labels",
        )
    shown = f" ({', '.join(labels)})" if 0 < len(labels) <= 10 else ""
    console.note(
        f"{reference.origin}: {' and '.join(names)} → {f'{len(labels)} classes' if labels else 'a value'}{shown}"
    )
    metrics = ("accuracy", "macro_f1") if labels else ("pearson", "spearman")
    return Classification(**common, labels=labels, metrics=metrics, inputs=len(names), source=table)


def _labels(settings: TableSettings, train: Rows | None, known: tuple[str, ...]) -> tuple[str, ...] | None:
    """The classes, or () for a regression: as asked, as the labels of train look, or as a model has them."""
    if settings.kind == "regression":
        return ()
    if settings.labels:
        return settings.labels
    if train is None:
        return () if len(known) == 1 else known or None
    found = {row[_column(train, "label", settings)] for row in train.cells} - {""}
    if settings.kind == "auto" and _are_values(found):
        return ()
    labels = tuple(sorted(found, key=_label_order))
    if len(labels) < 2:
        only = f"only the label {labels[0]!r}" if labels else "no labels"
        raise InputError(f"{train.origin}: {only}: nothing to learn", "two classes or more")
    return labels


# ---------------------------------------------------------------- files


def _locate(settings: TableSettings, data: str | None) -> dict[str, str]:
    """Split to file (or to `hf:…` and the Hub's split after a `#`), train first."""
    given: dict[str, str] = {split: name for split in _FILE_NAMES if (name := getattr(settings, split))}
    if is_hub(data):
        there = hub_splits(str(data))
        wanted = {"train": "train", "dev": "dev" if "dev" in there else "validation", "test": "test"}
        found = {split: f"{data}#{name}" for split, name in wanted.items() if name in there}
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


@dataclass(frozen=True)
class TableFiles:
    """The files of a table by split, each read once."""

    settings: TableSettings
    files: Mapping[str, str] = field(hash=False)
    _read: dict[str, Rows] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, split: str) -> Rows:
        """The cells of a split's file."""
        if split not in self._read:
            self._read[split] = _read_file(self.files[split], self.settings)
        return self._read[split]

    def read(self, task: Classification | Choice, split: str, data: str | None = None) -> list[Any]:
        """All examples of a split; the files were found by `open_table`, whatever `data` says."""
        if "dev" in self.files or split == "test":
            return self._examples(task, split)
        examples = self._examples(task, "train")
        held_out = _held_out(len(examples), self.settings)
        if split == "dev":
            console.note(f"{self.files['train']}: no dev data, so {len(held_out)} of {len(examples)} rows are held out")
        return [example for i, example in enumerate(examples) if (i in held_out) == (split == "dev")]

    def _examples(self, task: Classification | Choice, split: str) -> list[Any]:
        rows = self.rows(split)
        identifier = _find(rows, "id", self.settings)
        if identifier is not None and split != "train":
            rows.check_unique(identifier)
        ids = [str(i) if identifier is None else row[identifier] for i, row in enumerate(rows.cells)]
        if isinstance(task, Choice):
            return self._choices(task, split, rows, ids)
        text = _column(rows, "text", self.settings)
        pair = _column(rows, "text_pair", self.settings) if task.inputs == 2 else None
        label = (_find if split == "test" else _column)(rows, "label", self.settings)

        def label_of(row: list[str], where: str) -> int | float | None:
            if label is None or (not row[label] and split == "test"):
                return None
            if not row[label]:
                raise InputError(f"{where}: the label is empty", "fill it in, or leave the row out")
            return task.parse_label(row[label], where)

        return [
            Example(row[text], None if pair is None else row[pair], label_of(row, rows.where(i)), ids[i])
            for i, row in enumerate(rows.cells)
        ]

    def _choices(self, task: Choice, split: str, rows: Rows, ids: list[str]) -> list[ChoiceExample]:
        columns = _choice_columns(rows, self.settings)
        if columns.label is None and split != "test":
            raise _no_column(rows, "label", _NAMES_OF_CHOICE["label"])
        of_splits = [(self.rows(s), _choice_columns(self.rows(s), self.settings).label) for s in self.files]
        found = {row[place] for there, place in of_splits if place is not None for row in there.cells}
        # Numbers count from 1 where the number of options is among the labels and 0 is not.
        first = 1 if str(len(task.labels)) in found and "0" not in found else 0
        examples = []
        for i, row in enumerate(rows.cells):
            options = _options(rows, columns, i)
            if len(options) != len(task.labels):
                hint = "one number of choices a table"
                raise InputError(f"{rows.where(i)}: {len(options)} choices where train has {len(task.labels)}", hint)
            passage, question = ("" if place is None else row[place] for place in (columns.passage, columns.question))
            label = None if columns.label is None else row[columns.label]
            is_hidden = label is None or (not label and split == "test")
            right = None if is_hidden else _right_option(str(label), options, first, rows.where(i))
            examples.append(ChoiceExample(ids[i], passage, question, options, right))
        return examples


def _read_file(name: str, settings: TableSettings) -> Rows:
    if is_hub(name):
        source, _, split = name.partition("#")
        return read_hub(source, split or "train").not_empty()
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return read_jsonl(path).not_empty()
    if suffix not in _SUFFIXES:
        raise InputError(f"{path}: a table is a .tsv, .csv, .jsonl or .parquet file", "convert or rename it")
    if suffix == ".parquet":
        return read_parquet(path).not_empty()
    quoting = suffix == ".csv" if settings.quoting == "auto" else settings.quoting == "on"
    delimiter = settings.delimiter or ("," if suffix == ".csv" else "\t")
    rows = read_delimited(path, delimiter, quoting=quoting)
    if twice := [name for name in rows.columns if rows.columns.count(name) > 1]:
        raise InputError(f"{path}:1: the column {twice[0]!r} is there twice", "rename one of them")
    rows.check_widths(len(rows.columns))
    return rows.not_empty()


# ---------------------------------------------------------------- columns


def _find(rows: Rows, role: str, settings: TableSettings, names: Mapping[str, Sequence[str]] = _NAMES) -> int | None:
    """The place of the column with this role, or None; a column that the user named must be there."""
    named: str = getattr(settings, role)
    if named:
        if named not in rows.columns:
            raise _no_column(rows, role, [named])
        return rows.columns.index(named)
    if role == "text_pair" and settings.text:
        return None  # who names the text and no second one means a single text
    lowered = [name.lower() for name in rows.columns]
    return next((lowered.index(name) for name in names[role] if name in lowered), None)


def _column(rows: Rows, role: str, settings: TableSettings) -> int:
    place = _find(rows, role, settings)
    if place is None:
        raise _no_column(rows, role, _NAMES[role])
    return place


def _no_column(rows: Rows, role: str, wanted: Sequence[str]) -> InputError:
    there = ", ".join(map(repr, rows.columns[:20]))
    hint = f"-s table.{role}=COLUMN"
    if len(rows.columns) == 1 and any(sign in rows.columns[0] for sign in ";\t|,"):
        hint = "is the delimiter another one? -s table.delimiter=';'"
    names = " or ".join(map(repr, wanted))
    return InputError(f"{rows.origin}: no column {names} for the {role}; columns there: {there}", hint)


# ---------------------------------------------------------------- multiple choice


class ChoiceColumns(NamedTuple):
    """The places of a table's columns: the options (one column with lists, or several), and what goes before them."""

    options: tuple[int, ...]
    passage: int | None
    question: int | None
    label: int | None


def _is_choice(rows: Rows, settings: TableSettings) -> bool:
    """Whether the table asks for a choice: because the recipe says so, or by the names of its columns."""
    if settings.kind != "auto" or settings.labels:
        return settings.kind == "choice"
    options = _option_columns(rows, settings)
    return len(options) > 1 or (
        len(options) == 1
        and (bool(settings.choices) or all(row[options[0]][:1] in ("[", "{") for row in rows.cells[:10]))
    )


def _option_columns(rows: Rows, settings: TableSettings) -> tuple[int, ...]:
    """The columns with the options: those that are named, or the one with lists, or several that are called so."""
    for name in settings.choices:
        if name not in rows.columns:
            raise _no_column(rows, "choices", [name])
    if settings.choices:
        return tuple(map(rows.columns.index, settings.choices))
    lowered = [name.lower() for name in rows.columns]
    single = next((lowered.index(name) for name in _NAMES_OF_CHOICE["choices"] if name in lowered), None)
    several = tuple(i for i, name in enumerate(lowered) if _OPTION.fullmatch(name))
    return (single,) if single is not None else several if len(several) > 1 else ()


def _choice_columns(rows: Rows, settings: TableSettings) -> ChoiceColumns:
    options = _option_columns(rows, settings)
    if not options:
        raise _no_column(rows, "choices", _NAMES_OF_CHOICE["choices"])
    find = partial(_find, rows, settings=settings, names=_NAMES_OF_CHOICE)
    found = ChoiceColumns(options, find(role="text"), find(role="question"), find(role="label"))
    if found.passage is None and found.question is None:
        raise _no_column(rows, "question", _NAMES_OF_CHOICE["question"])
    return found


def _options(rows: Rows, columns: ChoiceColumns, index: int) -> tuple[str, ...]:
    """The options of a row. Raises `InputError` for a list that is none, or that holds fewer than two texts."""
    row = rows.cells[index]
    if len(columns.options) > 1:
        return tuple(row[place] for place in columns.options)
    found = _listed(row[columns.options[0]])
    if found is None or len(found) < 2:
        name = rows.columns[columns.options[0]]
        raise InputError(f"{rows.where(index)}: {name!r} is not a list of two texts or more", '["…", "…"]')
    if len(found) > len(ascii_uppercase):
        raise InputError(f"{rows.where(index)}: {len(found)} choices; {len(ascii_uppercase)} have a letter")
    return found


def _listed(cell: str) -> tuple[str, ...] | None:
    """The texts of a JSON list, or of the list `text` of an object, as ARC and CommonsenseQA have them."""
    try:
        value = json.loads(cell)
    except (json.JSONDecodeError, RecursionError):
        return None
    texts = value.get("text") if isinstance(value, dict) else value
    if not isinstance(texts, list):
        return None
    return tuple(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in texts)


def _right_option(label: str, options: Sequence[str], first: int, where: str) -> int:
    """The index of the option that a label names: by letter, by number from `first` (0 or 1), or by its text."""
    if label.isascii() and label.isdigit() and first <= int(label) < first + len(options):
        return int(label) - first
    if len(label) == 1 and label.upper() in ascii_uppercase[: len(options)]:
        return ascii_uppercase.index(label.upper())
    if label in options:
        return options.index(label)
    last = ascii_uppercase[len(options) - 1]
    hint = f"A to {last}, {first} to {first + len(options) - 1}, or the text of a choice"
    raise InputError(f"{where}: label {label!r} names none of {len(options)} choices", hint)


# ---------------------------------------------------------------- labels and held-out rows


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
    return set(sorted(range(size), key=lambda row: text_share(f"{settings.holdout_seed}:{row}"))[:count])
