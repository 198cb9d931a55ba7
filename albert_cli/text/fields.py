"""Find the text of a record in a field, which may be nested and may contain a list of sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping


def find_field(record: Mapping[str, object], field: str) -> object:
    """Return the value of a record's field, or of a path of keys through nested records, such as `content.text`.

    Returns None if a record on the path is null. Raises `KeyError` if the record has neither the field nor the path.
    """
    if field in record:
        return record[field]
    value: object = record
    for key in field.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise KeyError(field)
        value = value[key]
    return value


def to_texts(value: object) -> list[str] | None:
    """Return the texts of a field's value, which is a string or a list of sentences; None for null and NaN.

    Nulls in the list are left out. Raises `TypeError` for any other value.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(sentence is None or isinstance(sentence, str) for sentence in value):
        return [sentence for sentence in value if sentence is not None]
    raise TypeError("neither text nor a list of texts")
