"""Multiple choice in one's own table: the options in a column each, or all in one as a list; labels of any habit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from albert_cli.errors import InputError
from albert_cli.tasks.rows import Rows
from albert_cli.tasks.task import ChoiceExample

# What people call the columns; the first that is there is taken, whatever its capitals.
PASSAGES = ("passage", "article", "context", "text", "sent1", "premise")
QUESTIONS = ("question", "sent2", "query", "prompt")
LABELS = ("label", "answer", "answerkey", "answer_key", "correct", "class", "target")
LISTS = ("choices", "options", "endings")
_OPTION = re.compile(r"(?:choice|option|ending|answer|sol)[_ ]?(?:[0-9]|[a-h])")


@dataclass(frozen=True)
class ChoiceColumns:
    """The places of a table's columns: the options (one column with lists, or several), and what goes before them."""

    options: tuple[int, ...]
    passage: int | None
    question: int | None
    label: int | None
    id: int | None


def option_columns(rows: Rows, named: Sequence[str], *, sure: bool = True) -> tuple[int, ...]:
    """The places of the columns with the options: those that are named, or those that are called so; else none.

    Unless one is `sure` that there are options, a column of lists must begin with lists.
    """
    if named:
        missing = next((name for name in named if name not in rows.columns), None)
        if missing is not None:
            there = ", ".join(map(repr, rows.columns[:20]))
            raise InputError(f"{rows.origin}: no column {missing!r} for the choices; columns there: {there}")
        return tuple(rows.columns.index(name) for name in named)
    lowered = [name.lower() for name in rows.columns]
    single = next((lowered.index(name) for name in LISTS if name in lowered), None)
    if single is not None and (sure or all(row[single][:1] in ("[", "{") for row in rows.cells[:10])):
        return (single,)
    several = tuple(i for i, name in enumerate(lowered) if _OPTION.fullmatch(name))
    return several if len(several) > 1 else ()


def read_choices(rows: Rows, columns: ChoiceColumns, labels: Callable[[int, str], int | None]) -> list[ChoiceExample]:
    """All questions of a table; `labels` gives the index of the right option from a row's number and label."""
    examples: list[ChoiceExample] = []
    for i, row in enumerate(rows.cells):
        options = options_of(rows, columns, i)
        if examples and len(options) != len(examples[0].options):
            raise InputError(
                f"{rows.where(i)}: {len(options)} choices where the first row has {len(examples[0].options)}",
                "one number of choices a table",
            )
        passage, question = ("" if place is None else row[place] for place in (columns.passage, columns.question))
        label = None if columns.label is None else labels(i, row[columns.label])
        identifier = str(i) if columns.id is None else row[columns.id]
        examples.append(ChoiceExample(identifier, passage, question, options, label))
    return examples


def options_of(rows: Rows, columns: ChoiceColumns, index: int) -> tuple[str, ...]:
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


def reader_of_labels(
    rows: Rows, columns: ChoiceColumns, found: set[str], *, hidden: bool
) -> Callable[[int, str], int | None]:
    """How this table's labels name the right option: by letter, by number from 0 or from 1, or by its text.

    `found` are the labels of all splits: numbers count from 1 where the number of options is among them and 0 is not.
    With `hidden` a label may be empty.
    """
    count = len(options_of(rows, columns, 0))
    first = 1 if str(count) in found and "0" not in found else 0

    def read(index: int, label: str) -> int | None:
        if not label and hidden:
            return None
        options = options_of(rows, columns, index)
        if label.isascii() and label.isdigit() and first <= int(label) < first + len(options):
            return int(label) - first
        if len(label) == 1 and label.upper() in ascii_uppercase[: len(options)]:
            return ascii_uppercase.index(label.upper())
        if label in options:
            return options.index(label)
        letters = f"{ascii_uppercase[0]} to {ascii_uppercase[len(options) - 1]}"
        wanted = f"{letters}, {first} to {first + len(options) - 1}, or the text of a choice"
        raise InputError(f"{rows.where(index)}: label {label!r} names none of {len(options)} choices", wanted)

    return read
