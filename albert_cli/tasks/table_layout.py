"""The layout of the table that a model was trained on, as the task checkpoint's `config.json` records it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from albert_cli.model.hub import FinetunedTask


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
