"""The columns of a table: which have the texts, the choices and the label, as they are named or as people call them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Literal, NamedTuple

from albert_cli.config import PositiveFraction
from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks.rows import DELIMITER_HINT, TextTable
from albert_cli.text.records import has_wrong_delimiter

# What people call their columns; the first that is there is taken, whatever its capitals.
COLUMN_NAMES = {
    "text": ("text", "sentence", "sentence1", "text_a", "question1", "premise"),
    "text_pair": ("text_pair", "sentence2", "text_b", "question2", "hypothesis"),
    "label": ("label", "class", "score", "target"),
    "id": ("id", "idx", "index"),
}
CHOICE_COLUMN_NAMES = {
    "text": ("passage", "article", "context", "text", "sent1", "premise"),
    "question": ("question", "sent2", "query", "prompt"),
    "choices": ("choices", "options", "endings"),
    "label": ("label", "answer", "answerkey", "answer_key", "correct", "class", "target"),
}
_OPTION_COLUMN = re.compile(r"(?:choice|option|ending|answer|sol)[_ ]?(?:[0-9]|[a-h])")


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
    holdout: PositiveFraction = 0.1
    holdout_seed: int = 0

    def __post_init__(self) -> None:
        if len(self.delimiter) > 1:
            raise ConfigError(f"table.delimiter = {self.delimiter!r} is not a single character")
        if len(set(self.labels)) != len(self.labels):
            raise ConfigError("table.labels names a class twice")
        if len(self.labels) == 1:
            raise ConfigError(f"table.labels names one class, {self.labels[0]!r}", "two classes or more")


def find_column(
    rows: TextTable, role: str, settings: TableSettings, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> int | None:
    """The place of the column with this role, or None; a column that the user named must be there."""
    named: str = getattr(settings, role)
    if named:
        if named not in rows.columns:
            raise _missing_column(rows, role, [named])
        return rows.columns.index(named)
    if role == "text_pair" and settings.text:
        return None  # who names the text and no second one means a single text
    lowered = [name.lower() for name in rows.columns]
    return next((lowered.index(name) for name in names[role] if name in lowered), None)


def require_column(
    rows: TextTable, role: str, settings: TableSettings, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> int:
    """The place of the column with this role; raises `InputError` where there is none."""
    place = find_column(rows, role, settings, names)
    if place is None:
        raise _missing_column(rows, role, names[role])
    return place


def _missing_column(rows: TextTable, role: str, wanted: Sequence[str]) -> InputError:
    """The error for a table without a column of these names."""
    there = ", ".join(map(repr, rows.columns[:20]))
    hint = DELIMITER_HINT if has_wrong_delimiter(rows.columns) else f"line 1 names the columns; -s table.{role}=COLUMN"
    names = " or ".join(map(repr, wanted))
    return InputError(f"{rows.origin}: no column {names} for the {role}; columns there: {there}", hint)


# ---------------------------------------------------------------- multiple choice


class ChoiceColumns(NamedTuple):
    """The places of a table's columns: the options (one column with lists, or several), and what goes before them."""

    options: tuple[int, ...]
    passage: int | None
    question: int | None
    label: int | None


def is_choice_table(rows: TextTable, settings: TableSettings) -> bool:
    """Whether the table asks for a choice: because the recipe says so, or by the names of its columns."""
    if settings.kind != "auto" or settings.labels:
        return settings.kind == "choice"
    options = _option_columns(rows, settings)
    return len(options) > 1 or (
        len(options) == 1
        and (bool(settings.choices) or all(row[options[0]][:1] in ("[", "{") for row in rows.cells[:10]))
    )


def _option_columns(rows: TextTable, settings: TableSettings) -> tuple[int, ...]:
    """The columns with the options: those that are named, or the one with lists, or several that are called so."""
    for name in settings.choices:
        if name not in rows.columns:
            raise _missing_column(rows, "choices", [name])
    if settings.choices:
        return tuple(map(rows.columns.index, settings.choices))
    single = find_column(rows, "choices", settings, CHOICE_COLUMN_NAMES)
    several = tuple(i for i, name in enumerate(rows.columns) if _OPTION_COLUMN.fullmatch(name.lower()))
    return (single,) if single is not None else several if len(several) > 1 else ()


def choice_columns(rows: TextTable, settings: TableSettings) -> ChoiceColumns:
    """The columns of multiple choice; raises `InputError` where one is lacking."""
    options = _option_columns(rows, settings)
    if not options:
        raise _missing_column(rows, "choices", CHOICE_COLUMN_NAMES["choices"])
    roles = ("text", "question", "label")
    found = ChoiceColumns(options, *(find_column(rows, role, settings, CHOICE_COLUMN_NAMES) for role in roles))
    if found.passage is None and found.question is None:
        raise _missing_column(rows, "question", CHOICE_COLUMN_NAMES["question"])
    return found


def read_options(rows: TextTable, columns: ChoiceColumns, index: int) -> tuple[str, ...]:
    """The options of a row. Raises `InputError` for a list that is none, or that holds fewer than two texts."""
    row = rows.cells[index]
    if len(columns.options) > 1:
        return tuple(row[place] for place in columns.options)
    found = _parse_option_list(row[columns.options[0]])
    if found is None or len(found) < 2:
        name = rows.columns[columns.options[0]]
        raise InputError(f"{rows.where(index)}: {name!r} is not a list of two texts or more", '["…", "…"]')
    if len(found) > len(ascii_uppercase):
        raise InputError(f"{rows.where(index)}: {len(found)} choices; {len(ascii_uppercase)} have a letter")
    return found


def _parse_option_list(cell: str) -> tuple[str, ...] | None:
    """The texts of a JSON list, or of the list `text` of an object, as ARC and CommonsenseQA have them."""
    try:
        value = json.loads(cell)
    except (json.JSONDecodeError, RecursionError):
        return None
    texts = value.get("text") if isinstance(value, dict) else value
    if not isinstance(texts, list):
        return None
    return tuple(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in texts)


def parse_choice_label(label: str, options: Sequence[str], first: int, where: str) -> int:
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


# ---------------------------------------------------------------- labels


def infer_labels(settings: TableSettings, train: TextTable | None, known: tuple[str, ...]) -> tuple[str, ...] | None:
    """The classes, or () for a regression: as asked, as the labels of train look, or as a model has them."""
    if settings.kind == "regression":
        return ()
    if settings.labels:
        return settings.labels
    if train is None:
        return () if len(known) == 1 else known or None
    found = {row[require_column(train, "label", settings)] for row in train.cells} - {""}
    if settings.kind == "auto" and _look_like_measurements(found):
        return ()
    labels = tuple(sorted(found, key=_label_sort_key))
    if len(labels) < 2:
        only = f"only the label {labels[0]!r}" if labels else "no labels"
        raise InputError(f"{train.origin}: {only}: nothing to learn", "two classes or more")
    return labels


def _look_like_measurements(labels: set[str]) -> bool:
    """Whether labels look like measurements: all are numbers and at least one has a fraction."""
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return False
    return any(math.isfinite(value) and value != int(value) for value in values)


def _label_sort_key(label: str) -> tuple[bool, float, str]:
    """Whole numbers by size (2 before 10), then everything else by its characters."""
    is_number = label.isascii() and label.removeprefix("-").isdigit()
    return (not is_number, float(label) if is_number else 0.0, label)
