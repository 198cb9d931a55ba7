"""Find the columns that a task reads in a table or in JSON lines: by their names in training, or by usual names.

Each column that a task reads has a role: text, text_pair, question, context, choices, or id. `map_columns` returns a
function that turns a row, whose values are by column, into a record, whose values are by role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from albert_cli.errors import InputError
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.choice import Choice
from albert_cli.tasks.choice_columns import CHOICE_COLUMN_NAMES, find_choice_columns
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.columns import (
    COLUMN_NAMES,
    find_id_column,
    find_text_columns,
    match_text_columns,
)
from albert_cli.tasks.data_files import cell_text
from albert_cli.tasks.delimited import Dialect, choose_dialect
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.table_layout import TableLayout, find_trained_columns, name_trained_columns
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable
from albert_cli.tasks.token_classification import TokenClassification

ValuesByColumn = Mapping[str, object]  # a row of a table, or an object of JSON lines
ColumnsByRole = dict[str, str | list[str]]  # a list for the role `choices`, else one column
RecordMapper = Callable[[ValuesByColumn], dict[str, object]]  # returns the values by role

# The usual names of columns by role, for questions whose answer is a span of the context.
_SPAN_COLUMNS = {"question": ("question", "query"), "context": ("context", "passage", "paragraph", "text")}
# All usual names, in lower case. A line with two of them is the header of a table.
USUAL_NAMES = frozenset(chain(*COLUMN_NAMES.values(), *CHOICE_COLUMN_NAMES.values(), *_SPAN_COLUMNS.values()))


def choose_trained_dialect(suffix: str, layout: TableLayout) -> Dialect:
    """Return the dialect of a file with this ending: the delimiter of training and, as alternatives, usual ones."""
    dialect = choose_dialect(suffix, TableSettings(quoting=layout.quoting))
    if not layout.delimiter:
        return dialect
    # The delimiter is not passed as a setting, because then `choose_dialect` allows no other one.
    return replace(dialect, delimiter=layout.delimiter)


def map_columns(task: AnyTask, columns: Sequence[str], origin: str, layout: TableLayout) -> RecordMapper:
    """Return a function that turns a row with these columns into the record that the task reads: values by role.

    origin: the file, for messages. Raises `InputError` if a column that the task needs is missing.
    """
    header = _empty_table(origin, columns)
    try:
        roles = _find_roles(task, header, layout)
    except InputError as error:
        raise InputError(error.message, _suggest_names(task, layout)) from None
    id_column = find_id_column(header, TableSettings())
    if id_column is not None:
        roles["id"] = columns[id_column]

    def to_record(values: ValuesByColumn) -> dict[str, object]:
        record: dict[str, object] = {}
        for role, column in roles.items():
            if isinstance(column, list):
                record[role] = _read_options(values, column)
            else:
                value = values.get(column)
                is_object = role != "id" and isinstance(value, Mapping)  # no text, so the task rejects it
                record[role] = value if is_object else cell_text(value)
        return record

    return to_record


def _suggest_names(task: AnyTask, layout: TableLayout) -> str:
    """Return the remedy for missing columns: the names in training, or the usual names if there was no table."""
    names = layout.columns.names
    reads_texts = isinstance(task, Classification | MultiLabelClassification | TokenClassification)
    if names:
        remedy = f"name the columns as in training: {', '.join(names)}"
    elif not reads_texts:
        remedy = "rename the column to one of these names"
    elif task.inputs == 2:
        remedy = "rename the columns to text and text_pair"
    else:
        remedy = "keep one column of texts, and name it text"
    if reads_texts and task.inputs != 2:
        remedy += ", or write one text per line into a .txt file"
    return remedy


def has_task_keys(task: AnyTask, values: ValuesByColumn) -> bool:
    """Return True if an object of JSON lines has the keys that the task reads without a mapping.

    The result is False for multiple choice: a key such as `text` has another role in other layouts, so `map_columns`
    decides.
    """
    if isinstance(task, Classification | MultiLabelClassification):
        return "text" in values or "text_a" in values
    if isinstance(task, TokenClassification):
        return "text" in values or "tokens" in values
    if isinstance(task, Choice):
        return False
    return "question" in values and ("context" in values or "text" in values)


def has_trained_columns(columns: Iterable[str], layout: TableLayout) -> bool:
    """Return True if `columns` contains all columns of training, which have precedence over usual names."""
    return find_trained_columns(_empty_table("", columns), layout.columns) is not None


def _empty_table(origin: str, columns: Iterable[str]) -> TextTable:
    """Return a table with one row of empty cells, for functions that find columns by their names."""
    names = tuple(columns)
    return TextTable(origin, names, cells=[[""] * len(names)], lines=[1])


def _find_roles(task: AnyTask, header: TextTable, layout: TableLayout) -> ColumnsByRole:
    """Return the columns that the task needs; raises `InputError` if one is missing."""
    if isinstance(task, Classification | MultiLabelClassification | TokenClassification):
        return _find_text_roles(header, layout, task.inputs)
    if isinstance(task, Choice):
        return _find_choice_roles(header, layout)
    return _find_span_roles(header)


def _find_text_roles(header: TextTable, layout: TableLayout, inputs: int) -> ColumnsByRole:
    """Find the column of a text, or the columns of both texts of a pair.

    inputs: the number of texts that the task reads, 0 for one or two.
    """
    names = layout.columns.texts
    settings = TableSettings()
    indices = match_text_columns(header, names, settings) if names else find_text_columns(header, settings)
    columns = [header.columns[index] for index in indices]
    if inputs != 0 and len(columns) != inputs:
        shown = " and ".join(map(repr, columns))
        expected = "pairs of texts" if inputs == 2 else "single texts"
        raise InputError(f"{header.origin}: the texts are in {shown}, but the model reads {expected}")
    return dict(zip(("text", "text_pair"), columns, strict=False))  # a single text has no text_pair


def _find_choice_roles(header: TextTable, layout: TableLayout) -> ColumnsByRole:
    # Without the trained columns the settings name none, and `find_choice_columns` looks for usual names.
    settings = name_trained_columns(TableSettings(), header, layout.columns)
    choice_columns = find_choice_columns(header, settings)
    roles: ColumnsByRole = {"choices": [header.columns[index] for index in choice_columns.options]}
    if choice_columns.passage is not None:
        roles["text"] = header.columns[choice_columns.passage]
    if choice_columns.question is not None:
        roles["question"] = header.columns[choice_columns.question]
    return roles


def _find_span_roles(header: TextTable) -> ColumnsByRole:
    # If columns differ only in case, the first one must remain, so it is inserted last.
    columns_by_lowercase = {name.strip().lower(): name for name in reversed(header.columns)}
    roles: ColumnsByRole = {}
    for role, usual_names in _SPAN_COLUMNS.items():
        names = [name for name in usual_names if name in columns_by_lowercase]
        if not names:
            raise InputError(f"{header.origin}: no column {' or '.join(map(repr, usual_names))} for the {role}")
        roles[role] = columns_by_lowercase[names[0]]
    return roles


def _read_options(values: ValuesByColumn, names: Sequence[str]) -> object:
    """Return the options of a row, from one column per option or from one column, whose value the task parses."""
    if len(names) > 1:
        return [cell_text(values.get(name)) for name in names]
    return values.get(names[0])
