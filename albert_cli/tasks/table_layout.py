"""The layout of the table that a model was trained on, as the task checkpoint's `config.json` records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from albert_cli.model.hub import FinetunedTask
from albert_cli.tasks.columns import find_trained_column, label_and_id_columns
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable


class TrainedColumns(BaseModel):
    """The names of the training table's columns by role; `choices` has one column per option, or one with lists."""

    model_config = ConfigDict(frozen=True, strict=True)

    text: str = ""
    text_pair: str = ""
    question: str = ""
    choices: list[str] = Field(default_factory=list)

    @property
    def texts(self) -> tuple[str, ...]:
        """The column of the text, or the columns of both texts; empty without a column of texts."""
        return tuple(name for name in (self.text, self.text_pair) if name)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns of training, texts first; empty for a model that records none."""
        return tuple(name for name in (*self.texts, self.question, *self.choices) if name)


class TableLayout(BaseModel):
    """The columns and the dialect of a training table.

    The default is for models that were not trained on a table: usual names of columns, and the usual dialects.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")  # other tasks record other settings

    columns: TrainedColumns = TrainedColumns()
    delimiter: str = Field(default="", max_length=1)
    quoting: Literal["auto", "on", "off"] = "auto"

    @classmethod
    def from_finetuned(cls, finetuned: FinetunedTask | None) -> Self:
        """Read the layout that a task checkpoint records; the default for other checkpoints."""
        return cls() if finetuned is None else cls.from_settings(finetuned.settings)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Self:
        """Read the layout from the settings that a checkpoint records; the default if `albert` did not write them."""
        try:
            return cls.model_validate(settings)
        except ValidationError:
            return cls()

    def to_settings(self) -> dict[str, object]:
        """Return the entries to record; default values are left out."""
        return self.model_dump(exclude_defaults=True)


def find_trained_columns(table: TextTable, trained: TrainedColumns) -> dict[str, str] | None:
    """Return the table's spelling of each column of a model's training; None if the table lacks one.

    None also for a model that records no columns. A column may have the name of training, or one that differs only in
    case. Two columns of training need two columns.
    """
    names = set(trained.names)
    spelling: dict[str, str] = {}
    for name in names:
        column = find_trained_column(table, name)
        if column is not None:
            spelling[name] = table.columns[column]
    return spelling if names and len(set(spelling.values())) == len(names) else None


def name_trained_columns(settings: TableSettings, table: TextTable, trained: TrainedColumns) -> TableSettings:
    """Return settings that name the columns of a model's training, in the table's spelling.

    The settings are unchanged if the table lacks one of these columns, if the user chose texts, question or choices, or
    if the user named one of the columns as label or id.
    """
    spelling = find_trained_columns(table, trained)
    is_chosen_by_user = any((settings.text, settings.text_pair, settings.question, settings.choices))
    if spelling is None or is_chosen_by_user:
        return settings
    if not label_and_id_columns(settings).isdisjoint(spelling.values()):  # they have another role
        return settings
    spelling[""] = ""  # a role without a column
    return replace(
        settings,
        text=spelling[trained.text],
        text_pair=spelling[trained.text_pair],
        question=spelling[trained.question],
        choices=tuple(spelling[name] for name in trained.choices),
    )
