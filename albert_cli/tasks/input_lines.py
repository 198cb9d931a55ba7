"""A line of the input of `albert predict` and `albert encode`, and the fields that a task reads from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from albert_cli.errors import InputError
from albert_cli.text.records import parse_json_object
from albert_cli.text.sources import JSON_LINES_ENDINGS


@dataclass(frozen=True)
class InputLine:
    """Line `number` (from 1) of a file, or of standard input (the file `-`).

    `record` holds the values of a table's row by column name. It is None for a line of plain text or JSON, which is
    parsed from `text`.
    """

    text: str
    file: str
    number: int
    record: dict[str, object] | None = None

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}:{self.number}"

    @property
    def has_named_values(self) -> bool:
        """True if the line has named values: a row of a table or a JSON object."""
        return self.record is not None or self.file.lower().endswith(JSON_LINES_ENDINGS)

    def values(self) -> dict[str, object]:
        """Return the record, or parse the text as a JSON object; raises `InputError` for anything else."""
        if self.record is not None:
            return self.record
        return parse_json_object(self.text, self.where, 'write an object per line: {"text": "…"}')

    def fields(self, names_a: Sequence[str], names_b: Sequence[str]) -> tuple[object, object, str]:
        """Return two fields and the id; an absent field is None, and the default id is the line's number.

        In a record or a JSON object, the first field is the value of the earliest of `names_a` that occurs, and the
        second field that of `names_b`. In plain text the fields are the texts before and after a tab. Raises
        `InputError` for a line with two tabs or more.
        """
        if self.has_named_values:
            values = self.values()
            return first_of(values, names_a), first_of(values, names_b), row_id(values, self.number)
        texts = self.text.split("\t")
        if len(texts) > 2:
            raise InputError(
                f"{self.where}: {len(texts)} columns, but a line holds one text, or two separated by a tab",
                "name the columns in line 1 of a .tsv file",
            )
        second_text = texts[1] if len(texts) == 2 else None
        return texts[0], second_text, str(self.number)


def first_of(values: dict[str, object], names: Sequence[str]) -> object:
    """Return the value of the first of these names that occurs in `values`; None if no name does."""
    for name in names:
        if name in values:
            return values[name]
    return None


def row_id(values: dict[str, object], default: int | str) -> str:
    """Return the id of an object or of a table's row; `default` if it has none, or if its id is null or empty."""
    value = values.get("id")
    return str(default if value in (None, "") else value)


def text_fields(text_a: str, text_b: str | None) -> dict[str, object]:
    """Return the JSON fields of a text or, unless `text_b` is None, of a pair of texts."""
    if text_b is None:
        return {"text": text_a}
    return {"text": text_a, "text_pair": text_b}
