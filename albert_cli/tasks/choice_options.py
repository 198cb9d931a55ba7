"""Read the options of a question from a value of JSON or Parquet or from a cell, for training and for prediction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from albert_cli.tasks.data_files import cell_text

MAX_OPTIONS = len(ascii_uppercase)  # an option's name in predictions is a letter


def parse_options(value: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts and the names of options; both are () for a value in none of the formats.

    The formats are a list of texts or numbers, without names; an object with the lists `text` and `label` (the names),
    as in ARC on the Hub; a list of objects with `text` and `label`, as in ARC's published files; and the JSON of these.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return (), ()
    if isinstance(value, list) and value and all(isinstance(option, dict) and "text" in option for option in value):
        has_names = all("label" in option for option in value)
        names = [option["label"] for option in value] if has_names else []
        value = {"text": [option["text"] for option in value], "label": names}
    if isinstance(value, Mapping):
        options = drop_empty_options(_to_texts(value.get("text")))
        return options, _to_texts(value.get("label"))[: len(options)]
    return drop_empty_options(_to_texts(value)), ()


def drop_empty_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options without blank ones at the end, with which tables fill up questions with fewer options.

    The first two options remain, even if they are blank.
    """
    count = len(options)
    while count > 2 and not options[count - 1].strip():
        count -= 1
    return tuple(options[:count])


def _to_texts(value: object) -> tuple[str, ...]:
    """Return the items of a list as texts, as in the cells of a table; () for other values and for nested lists."""
    if not isinstance(value, list) or any(isinstance(item, list | Mapping) for item in value):
        return ()
    return tuple(map(cell_text, value))
