"""Find the text of a record: a field, a key of a nested record, or a list of sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping


def find_field(record: Mapping[str, object], field: str) -> object:
    """Return a record's field, or the value at a path of keys such as `content.text`.

    A path that ends at a null has the value None. Raises `KeyError` if there is neither.
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


def to_text(value: object) -> str | None:
    """Return a field's text, with a line for each of a list of sentences; None for null and NaN.

    Raises `TypeError` for any other value.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
        return "\n".join(value)
    raise TypeError("neither text nor a list of texts")
