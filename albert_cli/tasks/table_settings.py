"""Settings of the task `table`, which reads a user's labeled files; the task `ner` uses `title` and `holdout`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from albert_cli.config import PositiveFraction
from albert_cli.errors import ConfigError

# How a label denotes the correct option of a multiple choice.
LabelReading = Literal["auto", "letters", "numbers-from-0", "numbers-from-1", "names", "texts"]


@dataclass(frozen=True)
class TableSettings:
    """The recipe section `[table]`. A value that is empty or "auto" is inferred from the data.

    * `title` is the task's name in results.
    * `train`, `dev` and `test` are files. If they are empty, the files are those of the folder `--data`, such as
      `train.tsv`, `.csv`, `.txt` (read as `.tsv`), `.jsonl`, `.json` (all also as `.gz`) or `.parquet`.
    * `text`, `text_pair`, `label` and `id` are column names. With `id = "none"` the ids are the numbers of the rows,
      even if there is a column of ids.
    * `kind` is the kind of task.
    * `labels` are the classes in the order of the model's outputs, by default the labels of train, sorted.
    * In multiple choice `text` is the column of passages, `question` the column of questions. `choices` names a column
      for each option, or one column with lists of options. `choice_labels` says how a label denotes the correct option:
      by its letter, its number from 0 or from 1, its text (`texts`) or, if the data set names the options, its name
      (`names`).
    * In a multi-label table `label_columns` names the columns of 0 and 1, one for each class.
    * `missing = "skip"` skips rows without a label. `decimal` is the decimal sign of labels in a regression.
    * `delimiter` and `quoting` describe .tsv and .csv files.
    * Without dev data, the fraction `holdout` of train is held out; `holdout_seed` selects its rows.
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
    choice_labels: LabelReading = "auto"
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
        for key, columns in (("label_columns", self.label_columns), ("choices", self.choices)):
            if len(set(columns)) != len(columns):
                raise ConfigError(f"table.{key} lists a column twice", "list each column once")
