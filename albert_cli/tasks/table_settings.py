"""Settings of the task `table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from albert_cli.config import PositiveFraction
from albert_cli.errors import ConfigError

ChoiceLabels = Literal["auto", "letters", "numbers-from-0", "numbers-from-1", "names", "texts"]


@dataclass(frozen=True)
class TableSettings:
    """The recipe section `[table]`. An empty string or list means that the data decide.

    `title` is the task's name in results. `train`, `dev` and `test` are files; without them `--data` holds
    `train.tsv|csv|jsonl|parquet` and so on. `text`, `text_pair`, `label` and `id` are column names. `labels` are the
    classes in the order of the model's outputs (default: the labels of train, sorted). For multiple choice `choices`
    names a column per option, or one column with lists of options; `text` and `question` precede the options.
    `choice_labels` says how labels name an option. `label_columns` names a column of 0 and 1 per class of a multi-label
    table. `id = "none"` numbers the rows although there is a column with ids.
    `missing = "skip"` skips rows without a label, `decimal` is the decimal sign of values. Without dev data a fraction
    `holdout` of train is held out, chosen by `holdout_seed`.
    """

    title: str = "table"
    train: str = ""
    dev: str = ""
    test: str = ""
    text: str = ""
    text_pair: str = ""
    label: str = ""
    id: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()
    kind: Literal["auto", "classification", "multi-label", "regression", "choice"] = "auto"
    labels: tuple[str, ...] = ()
    choice_labels: ChoiceLabels = "auto"
    label_columns: tuple[str, ...] = ()
    missing: Literal["error", "skip"] = "error"
    decimal: Literal[".", ","] = "."
    delimiter: str = ""
    quoting: Literal["auto", "on", "off"] = "auto"
    holdout: PositiveFraction = 0.1
    holdout_seed: int = 0

    def __post_init__(self) -> None:
        if len(self.delimiter) > 1:
            raise ConfigError(f"table.delimiter = {self.delimiter!r} is not a single character")
        if len(set(self.labels)) != len(self.labels):
            raise ConfigError("table.labels lists a class twice")
        if len(self.labels) == 1:
            raise ConfigError(f"table.labels lists one class, {self.labels[0]!r}", "list two classes or more")

    def column_name(self, role: str) -> str:
        """Return the name that the user gave to the column of a role, or an empty string."""
        names = {"text": self.text, "text_pair": self.text_pair, "label": self.label, "id": self.id}
        return {**names, "question": self.question}.get(role, "")
