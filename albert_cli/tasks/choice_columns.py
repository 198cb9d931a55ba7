"""Read the options and labels of a table of multiple-choice questions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import ascii_uppercase
from typing import NamedTuple

from albert_cli.errors import InputError
from albert_cli.tasks.choice import MAX_OPTIONS
from albert_cli.tasks.columns import find_column, missing_column
from albert_cli.tasks.table_settings import ChoiceLabels, TableSettings
from albert_cli.tasks.text_table import TextTable

CHOICE_COLUMN_NAMES: Mapping[str, Sequence[str]] = {
    "text": ("passage", "article", "context", "ctx", "text", "sent1", "premise"),
    "question": ("question", "sent2", "query", "prompt"),
    "choices": ("choices", "options", "endings"),
    "label": ("label", "answer", "answerkey", "answer_key", "correct", "class", "target"),
}
_OPTION_COLUMN = re.compile(r"(?:choice|option|ending|answer|sol)[_ ]?(?:[0-9]|[a-h])")
_INSPECTED_ROWS = 10  # rows that decide whether a column holds lists


class ChoiceColumns(NamedTuple):
    """Indices of a table's columns: options (one column of lists, or several), passage, question and label."""

    options: tuple[int, ...]
    passage: int | None
    question: int | None
    label: int | None


def is_choice_table(table: TextTable, settings: TableSettings) -> bool:
    """Return True for a table of multiple choice, by the recipe or by the names of the columns."""
    if settings.kind != "auto" or settings.labels:
        return settings.kind == "choice"
    options = _option_columns(table, settings)
    if len(options) != 1:
        return len(options) > 1
    return bool(settings.choices) or all(row[options[0]][:1] in ("[", "{") for row in table.cells[:_INSPECTED_ROWS])


def find_choice_columns(table: TextTable, settings: TableSettings) -> ChoiceColumns:
    """Find the columns of multiple choice; raises `InputError` if options, or passage and question, are missing."""
    options = _option_columns(table, settings)
    if not options:
        raise missing_column(table, "choices", CHOICE_COLUMN_NAMES["choices"])
    passage = find_column(table, "text", settings, CHOICE_COLUMN_NAMES)
    question = find_column(table, "question", settings, CHOICE_COLUMN_NAMES)
    label = find_column(table, "label", settings, CHOICE_COLUMN_NAMES)
    if passage is None and question is None:
        raise missing_column(table, "question", CHOICE_COLUMN_NAMES["question"])
    return ChoiceColumns(options, passage, question, label)


def _option_columns(table: TextTable, settings: TableSettings) -> tuple[int, ...]:
    """Return the user's columns, else the one with lists, else several with names such as `choice1` or `option_b`."""
    for name in settings.choices:
        if name not in table.columns:
            raise missing_column(table, "choices", [name])
    if settings.choices:
        return tuple(map(table.columns.index, settings.choices))
    lists = find_column(table, "choices", settings, CHOICE_COLUMN_NAMES)
    if lists is not None:
        return (lists,)
    numbered = tuple(index for index, name in enumerate(table.columns) if _OPTION_COLUMN.fullmatch(name.lower()))
    return numbered if len(numbered) > 1 else ()


def read_options(table: TextTable, columns: ChoiceColumns, index: int) -> tuple[str, ...]:
    """Return a row's options; raises `InputError` for anything but a list of two texts or more."""
    row = table.cells[index]
    if len(columns.options) > 1:
        return tuple(row[column] for column in columns.options)
    options = _parse_option_list(row[columns.options[0]])
    if options is None or len(options) < 2:
        name = table.columns[columns.options[0]]
        raise InputError(f"{table.where(index)}: {name!r} is not a list of two texts or more", 'write ["…", "…"]')
    if len(options) > MAX_OPTIONS:
        raise InputError(f"{table.where(index)}: {len(options)} choices", f"give at most {MAX_OPTIONS}")
    return options


def _parse_option_list(cell: str) -> tuple[str, ...] | None:
    """Parse a JSON list of texts, or the list `text` of an object as in ARC and CommonsenseQA; None for others."""
    value = _parse_json(cell)
    return _as_texts(value.get("text") if isinstance(value, dict) else value)


def _option_names(row: Sequence[str], columns: ChoiceColumns) -> tuple[str, ...]:
    """Return the names of a row's options, such as the list `label` of ARC's choices; () if they have none."""
    if len(columns.options) > 1:
        return ()
    value = _parse_json(row[columns.options[0]])
    return (_as_texts(value.get("label")) or ()) if isinstance(value, dict) else ()


def _parse_json(cell: str) -> object:
    try:
        return json.loads(cell)
    except (json.JSONDecodeError, RecursionError):
        return None


def _as_texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in value)


# ---------------------------------------------------------------- labels


class ChoiceRow(NamedTuple):
    """A question's label with its options, their names if they have any, and file and line."""

    label: str
    options: tuple[str, ...]
    names: tuple[str, ...]
    where: str


def read_choice_rows(table: TextTable, columns: ChoiceColumns) -> list[ChoiceRow]:
    """Read options and label of every row; the label is empty if it is hidden."""
    rows = []
    for index, row in enumerate(table.cells):
        label = "" if columns.label is None else row[columns.label].strip()
        options = read_options(table, columns, index)
        rows.append(ChoiceRow(label, options, _option_names(row, columns), table.where(index)))
    return rows


def _by_letter(row: ChoiceRow) -> int | None:
    letters = ascii_uppercase[: len(row.options)]
    return letters.index(row.label.upper()) if len(row.label) == 1 and row.label.upper() in letters else None


def _by_number(row: ChoiceRow, first: int) -> int | None:
    if not (row.label.isascii() and row.label.isdigit()):
        return None
    index = int(row.label) - first
    return index if 0 <= index < len(row.options) else None


def _by_name(row: ChoiceRow) -> int | None:
    return row.names.index(row.label) if row.names.count(row.label) == 1 else None


def _by_text(row: ChoiceRow) -> int | None:
    options = [option.strip() for option in row.options]
    return options.index(row.label) if row.label in options else None


_READINGS: Mapping[ChoiceLabels, Callable[[ChoiceRow], int | None]] = {
    "names": _by_name,
    "letters": _by_letter,
    "numbers-from-0": partial(_by_number, first=0),
    "numbers-from-1": partial(_by_number, first=1),
    "texts": _by_text,
}
_DESCRIPTIONS: Mapping[ChoiceLabels, str] = {
    "names": "the names of the choices",
    "letters": "letters",
    "numbers-from-0": "numbers from 0",
    "numbers-from-1": "numbers from 1",
    "texts": "the texts of the choices",
}


def decide_choice_labels(rows: Sequence[ChoiceRow], settings: TableSettings, *, counts_from_0: bool) -> ChoiceLabels:
    """Decide how the labels of a table name an option: the one reading that fits every row.

    With `counts_from_0` the option columns are numbered from 0, and so are the labels. Raises `InputError` if no
    reading fits, and if two fit that disagree about a row.
    """
    if settings.choice_labels != "auto":
        return settings.choice_labels
    fitting = [name for name, read in _READINGS.items() if all(read(row) is not None for row in rows)]
    if counts_from_0 and "numbers-from-0" in fitting:
        fitting = [name for name in fitting if name != "numbers-from-1"]
    if not fitting:
        raise _no_reading(rows)
    if "names" in fitting:  # the data set itself names the choices
        return "names"
    for row in rows:
        indices = {_READINGS[name](row) for name in fitting}
        if len(indices) > 1:
            ways = " or ".join(_DESCRIPTIONS[name] for name in fitting)
            hint = " or ".join(f"-s table.choice_labels={name}" for name in fitting)
            raise InputError(f"{row.where}: the labels may be {ways}", f"use {hint}")
    return fitting[0]


def _no_reading(rows: Sequence[ChoiceRow]) -> InputError:
    """Return the error for the first row that the reading with the fewest misfits cannot read."""
    misfits = {name: [row for row in rows if read(row) is None] for name, read in _READINGS.items()}
    best = min(misfits, key=lambda name: len(misfits[name]))
    return choice_label_error(misfits[best][0], best)


def choice_label_error(row: ChoiceRow, reading: ChoiceLabels) -> InputError:
    """Return the error for a label that names none of the row's options."""
    message = f"{row.where}: label {row.label!r} names none of {len(row.options)} choices"
    ways = f"write {_DESCRIPTIONS[reading]}, as in other rows, or use -s table.choice_labels=…"
    return InputError(message, ways)


def parse_choice_label(row: ChoiceRow, reading: ChoiceLabels) -> int:
    """Return the index of the option that a label names; raises `InputError` if it names none."""
    index = _READINGS[reading](row)
    if index is None:
        raise choice_label_error(row, reading)
    return index


def describe_choice_labels(reading: ChoiceLabels) -> str:
    """Return how labels are read, for messages."""
    return _DESCRIPTIONS[reading]
