"""Find the columns of a table of multiple-choice questions, and read options and labels from its rows.

A label denotes the correct option by a letter, by a number, by a name that the data set gives to the option, or by the
option's text. The way in which the labels of a table denote options is called their reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import ascii_uppercase
from typing import NamedTuple

from albert_cli.errors import InputError
from albert_cli.tasks.choice_options import MAX_OPTIONS, drop_empty_options, parse_options
from albert_cli.tasks.columns import (
    find_column,
    find_label_column,
    find_named_columns,
    find_usual_column,
    label_and_id_columns,
    label_and_id_roles,
    lowercase_columns,
    missing_column,
)
from albert_cli.tasks.label_cells import are_hidden, is_missing
from albert_cli.tasks.table_settings import LabelReading, TableSettings
from albert_cli.tasks.text_table import TextTable

# The usual column names, in lower case, by the setting that replaces them (`table.text` and so on).
CHOICE_COLUMN_NAMES: Mapping[str, Sequence[str]] = {
    "text": ("passage", "article", "context", "ctx", "text", "sent1", "premise"),
    "question": ("question", "question_stem", "sent2", "query", "prompt"),
    "choices": ("choices", "options", "endings"),
    "label": ("label", "answer", "answerkey", "answer_key", "correct", "class", "target"),
}
# Lowercase names such as `choice1` and `option_b`; each such column holds one option of every question. A plural such
# as `answers` is excluded: it is not the option `s`, and may hold the labels. `answer_s` is the option `s`.
_OPTION_COLUMN = re.compile(r"(?![a-z]+s$)(choice|option|ending|answer|sol)[_ ]?([0-9]+|[a-z])")
_NUMBER_DIGITS = 9  # the width to which numbers are filled up with zeros, so that `choice10` follows `choice9`
_COUNTS_FROM_0 = re.compile(r".*(?<![0-9])0+")  # names such as `ending0`, but not `choice10`
_INSPECTED_ROWS = 10  # the first rows, which decide whether a column holds lists


class ChoiceColumns(NamedTuple):
    """Indices of a table's columns: options (one column of lists, or several), passage, question and label."""

    options: tuple[int, ...]
    passage: int | None
    question: int | None
    label: int | None


def is_choice_table(table: TextTable, settings: TableSettings) -> bool:
    """Return True if the settings or the table's columns say that its rows are multiple-choice questions."""
    if settings.kind != "auto":
        return settings.kind == "choice"
    if settings.labels:  # the user lists classes, and multiple choice has none
        return False
    options = _find_option_columns(table, settings)
    if not options:
        return False
    if settings.choices or len(options) > 1:
        return True
    # A single column counts only if it holds lists, because the columns of other tables are named "options", too.
    (list_column,) = options
    return all(row[list_column].startswith(("[", "{")) for row in table.cells[:_INSPECTED_ROWS])


def find_choice_columns(table: TextTable, settings: TableSettings) -> ChoiceColumns:
    """Find the columns of multiple choice; raises `InputError` without options, or without passage and question."""
    options = _find_option_columns(table, settings)
    if not options:
        raise missing_column(table, "choices", CHOICE_COLUMN_NAMES["choices"])
    passage = find_column(table, "text", settings, CHOICE_COLUMN_NAMES)
    question = find_column(table, "question", settings, CHOICE_COLUMN_NAMES)
    label = find_label_column(table, settings, CHOICE_COLUMN_NAMES)
    # A column that the user names for one role may have a usual name for the other role. It then has only the user's
    # role.
    if passage == question:
        if settings.text:
            question = None
        else:
            passage = None
    if passage is None and question is None:
        roles = label_and_id_roles(settings)
        raise missing_column(table, "question", CHOICE_COLUMN_NAMES["question"], roles)
    return ChoiceColumns(options, passage, question, label)


def _find_option_columns(table: TextTable, settings: TableSettings) -> tuple[int, ...]:
    """Return the indices of the columns with options; () if there are none.

    They are the columns that the settings name, or one column with a usual name for lists of options, or several
    columns with names such as `choice1` or `option_b`, sorted by number or letter.
    """
    if settings.choices:
        return find_named_columns(table, "choices", settings.choices)
    excluded = label_and_id_columns(settings)
    list_column = find_usual_column(table, CHOICE_COLUMN_NAMES["choices"], excluded)
    if list_column is not None:
        return (list_column,)
    names = enumerate(lowercase_columns(table, excluded))
    matches = [(match, index) for index, name in names if (match := _OPTION_COLUMN.fullmatch(name))]
    # Sorted, because a label A denotes `option_a` even if the column `option_b` is before it.
    options = sorted((match[1], match[2].zfill(_NUMBER_DIGITS), index) for match, index in matches)
    return tuple(index for *_, index in options) if len(options) > 1 else ()


def counts_options_from_0(table: TextTable, columns: ChoiceColumns) -> bool:
    """Return True if there is a column per option and the first column's number is 0, as `ending0` before `ending1`."""
    first, *further = columns.options
    return bool(further) and _COUNTS_FROM_0.fullmatch(table.columns[first].strip()) is not None


class ChoiceRow(NamedTuple):
    """The label and the options of a question."""

    label: str  # "" if it is hidden
    options: tuple[str, ...]
    names: tuple[str, ...]  # of the options; () if the data set gives them no names
    where: str  # file and line, for messages

    @property
    def has_missing_label(self) -> bool:
        """True if the label is empty, or spells a missing value ("NA") and is no option and no option's name."""
        return self.label == "" or is_missing(self.label, (*self.options, *self.names))


def read_choice_rows(table: TextTable, columns: ChoiceColumns) -> list[ChoiceRow]:
    """Read options and label of every row; a label is empty if it is hidden or has no column.

    A row has fewer options than others if its last ones are blank (`drop_empty_options`).
    Raises `InputError` for more than `MAX_OPTIONS` options, and if a column of lists holds anything but a list of two
    options or more (`parse_options`).
    """
    rows = []
    for index, cells in enumerate(table.cells):
        where = table.where(index)
        names: tuple[str, ...] = ()
        if len(columns.options) > 1:
            options = drop_empty_options([cells[column] for column in columns.options])
        else:
            (list_column,) = columns.options
            options, names = parse_options(cells[list_column])
            if len(options) < 2:
                message = f"{where}: {table.columns[list_column]!r} is not a list of two texts or more"
                raise InputError(message, 'write ["…", "…"]')
        if len(options) > MAX_OPTIONS:
            raise InputError(f"{where}: {len(options)} choices", f"give at most {MAX_OPTIONS}")
        label = "" if columns.label is None else cells[columns.label].strip()
        rows.append(ChoiceRow(label, options, names, where))
    # Labels of -1 hide the answers, unless -1 is an option or an option's name in every row.
    is_minus_1_an_option = all("-1" in (*row.options, *row.names) for row in rows)
    if are_hidden([row.label for row in rows]) and not is_minus_1_an_option:
        return [row._replace(label="") for row in rows]
    return rows


# ---------------------------------------------------------------- labels


def _index_by_name(row: ChoiceRow) -> int | None:
    return row.names.index(row.label) if row.label and row.names.count(row.label) == 1 else None


def _index_by_letter(row: ChoiceRow) -> int | None:
    letters = list(ascii_uppercase[: len(row.options)])
    label = row.label.upper()
    return letters.index(label) if label in letters else None


def _index_by_number(row: ChoiceRow, first: int) -> int | None:
    if not (row.label.isascii() and row.label.isdigit()):
        return None
    index = int(row.label) - first
    return index if 0 <= index < len(row.options) else None


def _index_by_text(row: ChoiceRow) -> int | None:
    options = [option.strip() for option in row.options]
    # An empty label is missing. It must not match a blank option, which a row may have before its last option.
    return options.index(row.label) if row.label and row.label in options else None


# The functions that read a label. They return the index of the option, or None if the reading does not fit the label.
_READINGS: Mapping[LabelReading, Callable[[ChoiceRow], int | None]] = {
    "names": _index_by_name,
    "letters": _index_by_letter,
    "numbers-from-0": partial(_index_by_number, first=0),
    "numbers-from-1": partial(_index_by_number, first=1),
    "texts": _index_by_text,
}
LABEL_DESCRIPTIONS: Mapping[LabelReading, str] = {
    "names": "the names of the choices",
    "letters": "letters",
    "numbers-from-0": "numbers from 0",
    "numbers-from-1": "numbers from 1",
    "texts": "the texts of the choices",
}


def decide_label_reading(rows: Sequence[ChoiceRow], settings: TableSettings, *, counts_from_0: bool) -> LabelReading:
    """Return the reading in the settings or, if that is "auto", the reading that fits the labels of all rows.

    Without rows the result is "auto". `counts_from_0` is true if the option columns are numbered from 0; numbers in
    labels then count from 0, too. Raises `InputError` if no reading fits, or if two fit but disagree about a row.
    """
    if settings.choice_labels != "auto" or not rows:
        return settings.choice_labels
    misfits: dict[LabelReading, list[ChoiceRow]] = {}
    for reading, read_index in _READINGS.items():
        misfits[reading] = [row for row in rows if read_index(row) is None]
    fitting = [reading for reading, misfit_rows in misfits.items() if not misfit_rows]
    if not fitting:  # report a row that does not fit the reading with the fewest misfits
        best = min(misfits, key=lambda reading: len(misfits[reading]))
        raise _choice_label_error(misfits[best][0], best)
    if "names" in fitting:  # the data set itself names the choices
        return "names"
    if counts_from_0 and "numbers-from-0" in fitting:
        fitting = [reading for reading in fitting if reading != "numbers-from-1"]
    for row in rows:
        indices = {_READINGS[reading](row) for reading in fitting}
        if len(indices) > 1:
            descriptions = " or ".join(LABEL_DESCRIPTIONS[reading] for reading in fitting)
            hint = " or ".join(f"-s table.choice_labels={reading}" for reading in fitting)
            raise InputError(f"{row.where}: the labels may be {descriptions}", f"use {hint}")
    return fitting[0]


def _choice_label_error(row: ChoiceRow, reading: LabelReading) -> InputError:
    """Return the error for a label that denotes none of the row's options in this reading."""
    message = f"{row.where}: label {row.label!r} names none of {len(row.options)} choices"
    hint = f"write {LABEL_DESCRIPTIONS[reading]}, as in other rows, or use -s table.choice_labels=…"
    if row.has_missing_label:
        hint = "fill in the label, remove the row, or use -s table.missing=skip"
    return InputError(message, hint)


def parse_choice_label(row: ChoiceRow, reading: LabelReading) -> int:
    """Return the index of the option that the row's label denotes; raises `InputError` if it denotes none."""
    index = _READINGS[reading](row)
    if index is None:
        raise _choice_label_error(row, reading)
    return index
