"""Read the options and labels of a table of multiple-choice questions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from albert_cli.errors import InputError
from albert_cli.tasks.choice import MAX_OPTIONS
from albert_cli.tasks.columns import find_column, missing_column
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable

CHOICE_COLUMN_NAMES: Mapping[str, Sequence[str]] = {
    "text": ("passage", "article", "context", "text", "sent1", "premise"),
    "question": ("question", "sent2", "query", "prompt"),
    "choices": ("choices", "options", "endings"),
    "label": ("label", "answer", "answerkey", "answer_key", "correct", "class", "target"),
}
_OPTION_COLUMN = re.compile(r"(?:choice|option|ending|answer|sol)[_ ]?(?:[0-9]|[a-h])")
_LOOKED_AT = 10  # rows that decide whether a column holds lists


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
    return bool(settings.choices) or all(row[options[0]][:1] in ("[", "{") for row in table.cells[:_LOOKED_AT])


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
    try:
        value = json.loads(cell)
    except (json.JSONDecodeError, RecursionError):
        return None
    texts = value.get("text") if isinstance(value, dict) else value
    if not isinstance(texts, list):
        return None
    return tuple(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in texts)


def parse_choice_label(label: str, options: Sequence[str], first: int, where: str) -> int:
    """Return the index of the option that a label names: by number from `first` (0 or 1), by letter, or by text."""
    if label.isascii() and label.isdigit() and first <= int(label) < first + len(options):
        return int(label) - first
    if len(label) == 1 and label.upper() in ascii_uppercase[: len(options)]:
        return ascii_uppercase.index(label.upper())
    if label in options:
        return options.index(label)
    last_letter = ascii_uppercase[len(options) - 1]
    hint = f"write A to {last_letter}, {first} to {first + len(options) - 1}, or the text of a choice"
    raise InputError(f"{where}: label {label!r} names none of {len(options)} choices", hint)
