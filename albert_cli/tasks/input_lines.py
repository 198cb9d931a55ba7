"""Lines that `albert predict` and `albert encode` read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from albert_cli.errors import InputError
from albert_cli.text.records import parse_json_object


@dataclass(frozen=True)
class InputLine:
    """A line of a file or of standard input (`-`), counted from 1; `record` has the values of a parsed one."""

    text: str
    file: str
    number: int
    record: dict[str, object] | None = None

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}:{self.number}"

    @property
    def is_record(self) -> bool:
        """True if the line has named values: a row of a table or a JSON object."""
        return self.record is not None or self.file.lower().endswith(".jsonl")

    def values(self) -> dict[str, object]:
        """Parse the line as a JSON object; raises `InputError` for anything else."""
        if self.record is not None:
            return self.record
        return parse_json_object(self.text, self.where, 'write an object per line: {"text": "…"}')

    def fields(self, first: Sequence[str], second: Sequence[str]) -> tuple[object, object, str]:
        """Return two fields and the id: by name from JSON lines, else the texts before and after the first tab.

        `first` and `second` are alternative names; the first that occurs is taken. A field that is absent is None.
        """
        if self.is_record:
            values = self.values()
            return first_of(values, first), first_of(values, second), str(values.get("id", self.number))
        text, tab, rest = self.text.partition("\t")
        if "\t" in rest:
            columns = self.text.count("\t") + 1
            raise InputError(
                f"{self.where}: {columns} columns, but a line holds one text, or two separated by a tab",
                "name the columns in line 1 of a .tsv file",
            )
        return text, rest if tab else None, str(self.number)


def first_of(values: dict[str, object], names: Sequence[str]) -> object:
    """Return the value of the first name that occurs; None if none does."""
    for name in names:
        if name in values:
            return values[name]
    return None
