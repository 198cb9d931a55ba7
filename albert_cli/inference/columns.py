"""Find the columns of a table to predict, by their names in training or by usual names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from albert_cli.errors import InputError
from albert_cli.model.hub import FinetunedTask
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.choice import Choice
from albert_cli.tasks.choice_columns import CHOICE_COLUMN_NAMES, find_choice_columns
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.columns import COLUMN_NAMES, find_id_column, find_same_columns, find_text_columns
from albert_cli.tasks.data_files import cell_text
from albert_cli.tasks.delimited import Dialect, choose_dialect
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable
from albert_cli.tasks.token_classification import TokenClassification

Values = Mapping[str, object]  # a row of a table, or an object of JSON lines: value by column
ColumnsByRole = dict[str, str | list[str]]  # a list for choices
RecordMapper = Callable[[Values], dict[str, object]]

_SPAN_COLUMNS = {"question": ("question", "query"), "context": ("context", "passage", "paragraph", "text")}
# Names that tell the header of a table from a text.
USUAL_NAMES = frozenset(
    name for names in (*COLUMN_NAMES.values(), *CHOICE_COLUMN_NAMES.values(), *_SPAN_COLUMNS.values()) for name in names
)
_CHOICE_KEYS = ("choices", "options")
_TEXT_ROLES = ("text", "text_pair", "question")


@dataclass(frozen=True)
class TableLayout:
    """The layout of the table that a model was trained on: the names of its columns by role, and its dialect."""

    columns: Mapping[str, Any] = field(default_factory=dict)
    delimiter: str = ""
    quoting: Literal["auto", "on", "off"] = "auto"

    @classmethod
    def of_training(cls, finetuned: FinetunedTask | None) -> Self:
        """Return the layout that a task checkpoint records; the default one for other checkpoints."""
        settings = {} if finetuned is None else finetuned.settings
        return cls(settings.get("columns", {}), settings.get("delimiter", ""), settings.get("quoting", "auto"))

    def dialect(self, suffix: str) -> Dialect:
        """Return the dialect of a file; if its header lacks the delimiter of training, it may have a usual one."""
        dialect = choose_dialect(suffix, TableSettings(quoting=self.quoting))
        return replace(dialect, delimiter=self.delimiter) if self.delimiter else dialect


def map_columns(task: AnyTask, columns: Sequence[str], origin: str, layout: TableLayout) -> RecordMapper:
    """Return a function from a row to the keys that the task reads: text, text_pair, question, context, choices, id.

    Raises `InputError` if the columns that the task needs are missing.
    """
    header = TextTable(origin, tuple(columns), [[""] * len(columns)], [1])
    try:
        roles = _find_roles(task, header, layout)
    except InputError as error:
        raise InputError(
            error.message, "name the columns as in training, or write one text per line into a .txt file"
        ) from None
    id_column = find_id_column(header, TableSettings())
    if id_column is not None:
        roles["id"] = columns[id_column]

    def to_record(values: Values) -> dict[str, object]:
        record: dict[str, object] = {}
        for role, column in roles.items():
            if role == "choices":
                names = column if isinstance(column, list) else [column]
                record[role] = _read_options(values, names)
            else:
                record[role] = cell_text(values.get(str(column)))
        return record

    return to_record


def has_task_keys(task: AnyTask, values: Values) -> bool:
    """Return True if an object of JSON lines has the keys that the task reads without a mapping."""
    if isinstance(task, Classification | MultiLabelClassification):
        return "text" in values or "text_a" in values
    if isinstance(task, TokenClassification):
        return "text" in values or "tokens" in values
    if isinstance(task, Choice):
        return any(key in values for key in _CHOICE_KEYS)
    return "question" in values


def has_trained_columns(values: Values, layout: TableLayout) -> bool:
    """Return True if an object of JSON lines has all columns of training, which then precede usual names."""
    return bool(layout.columns) and set(_trained_names(layout)) <= set(values)


def _trained_names(layout: TableLayout) -> list[str]:
    texts = [layout.columns[role] for role in _TEXT_ROLES if layout.columns.get(role)]
    return [*texts, *layout.columns.get("choices", ())]


def _choice_settings(layout: TableLayout, columns: Sequence[str]) -> TableSettings:
    """Return the column names of training, unless one of them is missing here."""
    if not set(_trained_names(layout)) <= set(columns):
        return TableSettings()
    texts = {role: layout.columns[role] for role in _TEXT_ROLES if layout.columns.get(role)}
    return TableSettings(**texts, choices=tuple(layout.columns.get("choices", ())))


def _find_roles(task: AnyTask, header: TextTable, layout: TableLayout) -> ColumnsByRole:
    columns = header.columns
    if isinstance(task, Classification | MultiLabelClassification | TokenClassification):
        names = [layout.columns[role] for role in ("text", "text_pair") if layout.columns.get(role)]
        if names:
            texts = find_same_columns(header, names, TableSettings())
        else:
            texts = find_text_columns(header, TableSettings())
        if task.inputs and len(texts) != task.inputs:
            shown = " and ".join(repr(columns[index]) for index in texts)
            trained_on = "pairs" if task.inputs == 2 else "single texts"
            raise InputError(f"{header.origin}: the texts are in {shown}, but the model was fine-tuned on {trained_on}")
        return dict(zip(("text", "text_pair"), (columns[index] for index in texts), strict=False))
    if isinstance(task, Choice):
        choice_columns = find_choice_columns(header, _choice_settings(layout, columns))
        roles: ColumnsByRole = {"choices": [columns[index] for index in choice_columns.options]}
        if choice_columns.passage is not None:
            roles["text"] = columns[choice_columns.passage]
        if choice_columns.question is not None:
            roles["question"] = columns[choice_columns.question]
        return roles
    lowercase = [name.strip().lower() for name in columns]
    span_roles: ColumnsByRole = {}
    for role, usual_names in _SPAN_COLUMNS.items():
        column = next((columns[lowercase.index(name)] for name in usual_names if name in lowercase), None)
        if column is None:
            raise InputError(f"{header.origin}: no column {' or '.join(map(repr, usual_names))} for the {role}")
        span_roles[role] = column
    return span_roles


def _read_options(values: Values, names: Sequence[str]) -> object:
    """Return the options of a row: a column each, or one column with a list (in text: as JSON)."""
    if len(names) > 1:
        return [cell_text(values.get(name)) for name in names]
    value = values.get(names[0])
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return value.get("text") if isinstance(value, Mapping) else value
