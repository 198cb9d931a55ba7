"""Find the columns of a table by their roles (text, text_pair, label, id).

The setting `table.ROLE` contains the name of the role's column. If the user leaves the setting empty, the column
is found by the role's usual names, in upper or lower case. A column that the settings name as label or id has no other
role, so that no label is read as a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.tasks.delimited import DELIMITER_HINT, is_delimited_file
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable
from albert_cli.text.records import has_wrong_delimiter
from albert_cli.text.words import is_unspaced

# The usual names of each role's column, in lower case; the first that a table has is taken.
COLUMN_NAMES: Mapping[str, Sequence[str]] = {
    "text": ("text", "sentence", "sentence1", "text_a", "question1", "premise", "question", "#1 string"),
    "text_pair": ("text_pair", "sentence2", "text_b", "question2", "hypothesis", "#2 string"),
    "label": ("label", "gold_label", "class", "score", "target", "is_duplicate", "quality"),
    "id": ("id", "idx", "index", "pairid", "pair_id"),
}
# The names of the two text columns in GLUE, SNLI and similar data sets; the first pair that a table has is taken.
_PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("text_a", "text_b"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("question", "answer"),
    ("query", "passage"),
    ("#1 string", "#2 string"),
    ("text1", "text2"),
)
_ENTITY_COLUMNS = {"entities", "spans", "tokens", "ner_tags"}  # of a file for the task `ner`
_SAMPLED_ROWS = 100  # rows from which `_holds_texts` judges a column
# A cell counts as text from this number of words on, or of characters in scripts without spaces between words. A single
# word, and a few such characters, may be a label or a name.
_MIN_WORDS = 2
_MIN_UNSPACED = 15


def find_column(
    table: TextTable, role: str, settings: TableSettings, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> int | None:
    """Return the index of a role's column; None if there is none.

    `names` has the usual names by role. The roles `choices` and `label_columns` are not for this function, because they
    may have several columns. Raises `InputError` if the settings name a column that the table lacks.
    """
    user_name: str = getattr(settings, role)
    if user_name:
        return find_named_columns(table, role, [user_name])[0]
    return find_usual_column(table, names[role], label_and_id_columns(settings))


def find_named_columns(table: TextTable, role: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of the columns that the user named for a role; raises `InputError` if the table lacks one."""
    for name in names:
        if name not in table.columns:
            raise missing_column(table, role, [name])
    return tuple(map(table.columns.index, names))


def find_usual_column(table: TextTable, names: Sequence[str], excluded: Collection[str] = ()) -> int | None:
    """Return the index of the column with the first of these names that the table has; None if it has none.

    `excluded` are the names of columns that have another role.
    """
    lowercase = lowercase_columns(table, excluded)
    return next((lowercase.index(name) for name in names if name in lowercase), None)


def require_column(table: TextTable, role: str, settings: TableSettings) -> int:
    """Return the index of a role's column; raises `InputError` if there is none. For labels: `require_label_column`."""
    index = find_column(table, role, settings)
    if index is None:
        raise missing_column(table, role, COLUMN_NAMES[role], label_and_id_roles(settings))
    return index


def find_label_column(
    table: TextTable, settings: TableSettings, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> int | None:
    """Return the index of the column with labels; None without such a column, even if the settings name one.

    The column may differ in case from the name in the settings. A file with hidden labels lacks the column. If labels
    are needed, use `require_label_column`.
    """
    if settings.label:
        return find_trained_column(table, settings.label)
    return find_column(table, "label", settings, names)


def require_label_column(
    table: TextTable, settings: TableSettings, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> int:
    """Return the index of the column with labels; raises `InputError` if there is none."""
    index = find_label_column(table, settings, names)
    if index is None:
        expected = [settings.label] if settings.label else names["label"]
        raise missing_column(table, "label", expected, label_and_id_roles(settings))
    return index


def name_label_column(
    settings: TableSettings, table: TextTable, names: Mapping[str, Sequence[str]] = COLUMN_NAMES
) -> TableSettings:
    """Return settings that name the label column of `table`, a task's first table.

    In the task's other tables, a column with another usual name, such as `score`, is then not read as the label.
    """
    column = None if settings.label_columns else find_label_column(table, settings, names)
    return settings if column is None else replace(settings, label=table.columns[column])


def find_id_column(table: TextTable, settings: TableSettings) -> int | None:
    """Return the index of the column with ids; None without such a column, and for `table.id = "none"`."""
    if settings.id == "none" and "none" not in table.columns:
        return None
    return find_column(table, "id", settings)


def find_text_columns(table: TextTable, settings: TableSettings) -> tuple[int, ...]:
    """Return the index of the text column, or the indices of the two text columns of a table of pairs.

    If the settings name only `text`, the texts are single, even if another column has a usual name of a second text.
    Raises `InputError` if there is no text column.
    """
    if settings.text_pair:
        second_column = require_column(table, "text_pair", settings)
        return _find_first_text(table, settings), second_column
    if settings.text:
        return (require_column(table, "text", settings),)
    lowercase = lowercase_columns(table, label_and_id_columns(settings))
    for first, second in _PAIRS:
        if first in lowercase and second in lowercase:
            return lowercase.index(first), lowercase.index(second)
    text = require_column(table, "text", settings)
    pair = find_column(table, "text_pair", settings)
    return (text,) if pair is None else (text, pair)


def _find_first_text(table: TextTable, settings: TableSettings) -> int:
    """Return the index of the first text's column in a table whose second text is in the column `table.text_pair`.

    Unless the settings name the column, it is the usual partner of the second one, or has another usual name. Raises
    `InputError` if there is none.
    """
    if settings.text:
        return require_column(table, "text", settings)
    partners = [first for first, second in _PAIRS if second == settings.text_pair.strip().lower()]
    roles = {**label_and_id_roles(settings), settings.text_pair: "second text"}
    column = find_usual_column(table, [*partners, *COLUMN_NAMES["text"]], roles)
    if column is None:
        raise missing_column(table, "text", COLUMN_NAMES["text"], roles)
    return column


def reject_shared_columns(
    table: TextTable, settings: TableSettings, texts: Iterable[tuple[str, int | None]], label: int | None
) -> None:
    """Raise `InputError` if a text's column is also the label's, or if two roles of texts have the same column.

    texts: roles (text, text_pair, question or choices) with the indices of their columns. label: the index of the
    label's column. The columns that the settings name for these roles, for ids or for label columns count, too.
    """
    named = [(role, getattr(settings, role)) for role in ("text", "text_pair", "question", "label", "id")]
    named += [("choices", name) for name in settings.choices]
    named += [("label_columns", name) for name in settings.label_columns]
    columns: list[tuple[str, int | None]] = [*texts]
    columns += [(role, table.columns.index(name)) for role, name in named if name and name in table.columns]
    columns.append(("label", label))
    used = [(role, column) for role, column in columns if column is not None]
    text_roles: dict[int, str] = {}
    for role, column in used:
        if role not in ("label", "id", "label_columns"):
            text_roles.setdefault(column, role)
    for role, column in used:
        text_role = text_roles.get(column, role)
        if text_role != role:
            message = f"the column {table.columns[column]!r} is both table.{text_role} and table.{role}"
            raise InputError(
                f"{table.origin}: {message}", f"use another column: -s table.{text_role}=… or -s table.{role}=…"
            )


def find_trained_column(table: TextTable, name: str) -> int | None:
    """Return the index of the column that has the name of a training table's column; None if there is none.

    If no column has exactly this name, the name may differ in case.
    """
    if name in table.columns:
        return table.columns.index(name)
    return find_usual_column(table, [name.strip().lower()])


def match_text_columns(table: TextTable, names: Sequence[str], settings: TableSettings) -> tuple[int, ...]:
    """Return the indices of the text columns that match `names`, the names of the training table's text columns.

    These are the columns with the same names, or with names that differ only in case. If one is missing, the result is
    that of `find_text_columns`. Raises `InputError` if that result has fewer or more columns than `names`.
    """
    trained_columns = [find_trained_column(table, name) for name in names]
    matching = tuple(column for column in trained_columns if column is not None)
    if len(matching) == len(names):
        return matching
    columns = find_text_columns(table, settings)
    if len(columns) < len(names):
        raise missing_column(table, "text_pair", [names[1], *COLUMN_NAMES["text_pair"]])
    if len(columns) > len(names):
        texts = " and ".join(repr(table.columns[index]) for index in columns)
        message = f"{table.origin}: the texts are in {texts}, but the model reads single texts"
        raise InputError(message, f"call the column with the texts {names[0]!r}, as in training")
    return columns


def warn_unused_texts(table: TextTable, used: Collection[int | None]) -> None:
    """Print a warning that lists the columns with texts that the task does not use.

    `used` are the indices of the columns that it uses; None stands for a column that the table does not have.
    """
    unused = [
        repr(name) for index, name in enumerate(table.columns) if index not in used and _holds_texts(table, index)
    ]
    if unused:
        columns = "column" if len(unused) == 1 else "columns"
        hint = "use -s table.text=COLUMN and -s table.text_pair=COLUMN to choose other ones"
        console.warn(f"{table.origin}: the {columns} {', '.join(unused)} with text will not be used; {hint}")


def reject_objects(table: TextTable, texts: Sequence[int]) -> None:
    """Raise `InputError` if one of the columns `texts` contains JSON objects."""
    for column in texts:
        name = table.columns[column]
        if name in table.object_columns:
            hint = "write the text as a string under a key of the line, or use -s table.text=COLUMN"
            raise InputError(f"{table.origin}: the column {name!r} contains JSON objects, not texts", hint)


def check_texts(table: TextTable, texts: Sequence[int]) -> None:
    """Print a warning if some rows lack a text in one of the columns `texts`.

    Raises `InputError` if no row has any text.
    """
    incomplete = [index for index, row in enumerate(table.cells) if not all(row[column].strip() for column in texts)]
    if not any(row[column].strip() for row in table.cells for column in texts):
        names = " and ".join(repr(table.columns[column]) for column in texts)
        hint = "use -s table.text=COLUMN to choose another column"
        raise InputError(f"{table.origin}: the column {names} has no text in any row", hint)
    if incomplete:
        names = " or ".join(repr(table.columns[column]) for column in texts)
        state = "empty" if len(texts) == 1 else "incomplete"
        count = f"{len(incomplete)} of {len(table.cells)} rows"
        console.warn(f"{table.where(incomplete[0])}: no text in {names}; {count} are {state}")


def _holds_texts(table: TextTable, column: int) -> bool:
    """Return True if most of a column's cells that are not blank are texts (`_is_text`)."""
    cells = [row[column].strip() for row in table.cells[:_SAMPLED_ROWS]]
    filled = [cell for cell in cells if cell]
    return sum(map(_is_text, filled)) > len(filled) / 2


def _is_text(cell: str) -> bool:
    """Return True if a cell has several words, or many characters of scripts without spaces; JSON is no text."""
    if cell.startswith(("[", "{")):
        return False
    return len(cell.split()) >= _MIN_WORDS or sum(map(is_unspaced, cell)) >= _MIN_UNSPACED


def missing_column(
    table: TextTable, role: str, names: Sequence[str], other_roles: Mapping[str, str] | None = None
) -> InputError:
    """Return the error for a table that has none of these column names of a role; the hint names the likely cause.

    other_roles: the roles that the settings give to other columns, by the column's name.
    """
    columns = ", ".join(map(repr, table.columns[:20]))
    setting = '\'table.choices=["COLUMN", "COLUMN"]\'' if role == "choices" else f"table.{role}=COLUMN"
    hint = f"use -s {setting}"
    if has_wrong_delimiter(table.columns):
        hint = DELIMITER_HINT
    elif _ENTITY_COLUMNS & set(lowercase_columns(table)):
        hint = f"for named entities, use the task ner; otherwise use -s {setting}"
    elif role == "label" and len(binary := _binary_columns(table)) > 1:
        listed = ", ".join(f'"{name}"' for name in binary)
        hint = f"use -s 'table.label_columns=[{listed}]' if these are classes, or -s table.label=COLUMN"
    elif role == "label" and len(names) == 1:  # the label's column in another file, or in the settings
        hint += " for a column of all files"
    elif is_delimited_file(table.origin):
        hint += "; if the first row is no header, add one"
    expected = " or ".join(map(repr, names))
    for name, other_role in (other_roles or {}).items():
        if name in table.columns and name.strip().lower() in names:
            message = f"{name!r} is already the {other_role}, and no other column is for the {role}"
            return InputError(f"{table.origin}: {message} (columns: {columns})", f"use -s {setting}")
    return InputError(f"{table.origin}: no column {expected} for the {role} (columns: {columns})", hint)


def _binary_columns(table: TextTable) -> list[str]:
    """Return the names of the columns that hold only 0 and 1."""
    return [name for index, name in enumerate(table.columns) if {row[index] for row in table.cells} <= {"0", "1"}]


def label_and_id_columns(settings: TableSettings) -> set[str]:
    """Return the names of the columns that the settings name as labels or ids."""
    return set(label_and_id_roles(settings))


def label_and_id_roles(settings: TableSettings) -> dict[str, str]:
    """Return the role, "label" or "id", of each column that the settings name as label or id, by the column's name."""
    return {**dict.fromkeys(settings.label_columns, "label"), settings.id: "id", settings.label: "label"}


def lowercase_columns(table: TextTable, excluded: Collection[str] = ()) -> list[str]:
    """Return the name of each column in lower case, or "" for a column in `excluded`."""
    return ["" if name in excluded else name.strip().lower() for name in table.columns]
