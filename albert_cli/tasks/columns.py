"""Find a table's columns with texts and labels, by the user's names or by usual ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from albert_cli.errors import InputError
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import DELIMITER_HINT, TextTable
from albert_cli.text.records import has_wrong_delimiter

# Usual names of columns in lower case; the first that a table has is taken.
COLUMN_NAMES: Mapping[str, Sequence[str]] = {
    "text": ("text", "sentence", "sentence1", "text_a", "question1", "premise"),
    "text_pair": ("text_pair", "sentence2", "text_b", "question2", "hypothesis"),
    "label": ("label", "class", "score", "target"),
    "id": ("id", "idx", "index"),
}


def find_column(
    table: TextTable, role: str, settings: TableSettings, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> int | None:
    """Return the index of a role's column, None if there is none; raises `InputError` if the user's name is missing."""
    user_name = settings.column_name(role)
    if user_name:
        if user_name not in table.columns:
            raise missing_column(table, role, [user_name])
        return table.columns.index(user_name)
    if role == "text_pair" and settings.text:
        return None  # a user who names only the text means single texts
    lowercase = [name.lower() for name in table.columns]
    return next((lowercase.index(name) for name in names[role] if name in lowercase), None)


def require_column(
    table: TextTable, role: str, settings: TableSettings, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> int:
    """Return the index of a role's column; raises `InputError` if there is none."""
    index = find_column(table, role, settings, names)
    if index is None:
        raise missing_column(table, role, names[role])
    return index


def missing_column(table: TextTable, role: str, names: Sequence[str]) -> InputError:
    """Return the error for a table that has none of a role's column names."""
    columns = ", ".join(map(repr, table.columns[:20]))
    hint = f"use -s table.{role}=COLUMN; line 1 names the columns"
    if has_wrong_delimiter(table.columns):
        hint = DELIMITER_HINT
    wanted = " or ".join(map(repr, names))
    return InputError(f"{table.origin}: no column {wanted} for the {role} (columns: {columns})", hint)
