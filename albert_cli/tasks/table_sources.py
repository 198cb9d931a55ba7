"""Read the examples of a custom table; each kind of task has its own source.

`table.open_table` makes the task and decides once which columns and classes the table has, mostly from train. The
sources apply its decisions to every file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.tasks.base import ExampleT, TaskInfo
from albert_cli.tasks.choice import ChoiceExample
from albert_cli.tasks.choice_columns import (
    CHOICE_COLUMN_NAMES,
    find_choice_columns,
    parse_choice_label,
    read_choice_rows,
)
from albert_cli.tasks.columns import find_label_column, match_text_columns, require_label_column
from albert_cli.tasks.label_cells import LabelCell, are_hidden, is_missing, missing_label, read_label_cells
from albert_cli.tasks.multi_label_table import label_indices, read_label_sets
from albert_cli.tasks.table_files import TableFiles
from albert_cli.tasks.table_layout import TableLayout, TrainedColumns
from albert_cli.tasks.table_settings import LabelReading, TableSettings
from albert_cli.tasks.text_table import TextTable, read_texts

LabelT = TypeVar("LabelT")


@dataclass(frozen=True)
class TableSource(ABC, Generic[ExampleT]):
    """A reader of a table's splits; a subclass defines how the rows of a file become examples."""

    tables: TableFiles

    @abstractmethod
    def read_file(self, task: TaskInfo, split: str) -> list[ExampleT]:
        """Read the rows of a split's file as examples."""

    def read(self, task: TaskInfo, split: str, data: str | None) -> list[ExampleT]:
        """Read a split as `SplitFiles.read_split` does.

        `data` is ignored, because `open_table` has already found the files (`tables`).
        """
        settings = self.tables.settings
        return self.tables.read_split(task, split, self._read_rows, settings.holdout, f"{settings.holdout_seed}:")

    def _read_rows(self, task: TaskInfo, split: str) -> list[ExampleT]:
        """Read a split's file, and print the number of rows that `table.missing = "skip"` leaves out.

        Raises `InputError` if no row remains.
        """
        examples = self.read_file(task, split)
        table = self.tables.table(split)
        if not examples:
            raise InputError(f"{table.origin}: no row has a label", "fill in the labels")
        skipped = len(table.cells) - len(examples)
        if skipped:
            console.info(f"{table.origin}: skipped {skipped} of {len(table.cells)} rows without a label")
        return examples


@dataclass(frozen=True)
class TextTableSource(TableSource[ExampleT], Generic[ExampleT, LabelT]):
    """A reader of texts, or pairs of texts, with labels; `names` are the names of train's text columns.

    `read_labels` is `read_classes` or `read_class_sets`; `new_example` makes an example of its texts, label and id.
    """

    names: tuple[str, ...]
    read_labels: Callable[[TextTable, TableSettings, TaskInfo, str], Iterable[LabelT | LabelCell | None]]
    new_example: Callable[[str, str | None, LabelT | None, str], ExampleT]

    def read_file(self, task: TaskInfo, split: str) -> list[ExampleT]:
        """Read the rows of a split's file; except in test, a row without a label is an error or skipped.

        The setting `table.missing` decides between the two.
        """
        settings = self.tables.settings
        table = self.tables.table(split)
        ids = self.tables.ids(split)
        text_columns = match_text_columns(table, self.names, settings)
        labels = self.read_labels(table, settings, task, split)
        examples = []
        for row, label, example_id in zip(table.cells, labels, ids, strict=True):
            if isinstance(label, LabelCell) and split not in task.test_splits:
                if settings.missing == "error":
                    raise missing_label(label)
                continue
            text_a, text_b = read_texts(row, text_columns)
            gold = None if isinstance(label, LabelCell) else label
            examples.append(self.new_example(text_a, text_b, gold, example_id))
        return examples


def read_classes(
    table: TextTable, settings: TableSettings, task: TaskInfo, split: str
) -> Iterator[int | float | LabelCell | None]:
    """Yield the class or the value of each row, or its cell if the label is missing or hidden (`are_hidden`).

    A test file may lack the column of labels. Then each label is None.
    """
    if split in task.test_splits and find_label_column(table, settings) is None:
        yield from [None] * len(table.cells)
        return
    cells = read_label_cells(table, settings)
    is_hidden = split == "test" and are_hidden([cell.text for cell in cells], task.labels)
    for cell in cells:
        is_absent = is_hidden or is_missing(cell.text, task.labels)
        yield cell if is_absent else task.parse_label(cell.text, cell.where)


def read_class_sets(
    table: TextTable, settings: TableSettings, task: TaskInfo, split: str
) -> Iterator[tuple[int, ...] | LabelCell | None]:
    """Yield the indices of the classes of each row in a multi-label table, or else as in `read_classes`."""
    if split in task.test_splits and not _has_label_columns(table, settings):
        yield from [None] * len(table.cells)
        return
    for label_set in read_label_sets(table, settings, task.labels):
        yield label_set.missing or label_indices(label_set, task.labels)


def _has_label_columns(table: TextTable, settings: TableSettings) -> bool:
    """Return True if a table has all columns that multi-label labels are read from."""
    if settings.label_columns:
        return set(settings.label_columns) <= set(table.columns)
    return find_label_column(table, settings) is not None


@dataclass(frozen=True)
class ChoiceTableSource(TableSource[ChoiceExample]):
    """A reader of multiple-choice questions; `label_reading` is the way in which a label denotes its option."""

    label_reading: LabelReading

    def read_file(self, task: TaskInfo, split: str) -> list[ChoiceExample]:
        """Read the rows of a split's file; a test file may lack labels, and `table.missing` may skip rows without one.

        If a row has a label, `label_reading` is not "auto", because `open_table` inferred the reading from such rows.
        """
        settings = self.tables.settings
        table = self.tables.table(split)
        ids = self.tables.ids(split)
        columns = find_choice_columns(table, settings)
        must_have_labels = split not in task.test_splits
        if must_have_labels:
            require_label_column(table, settings, CHOICE_COLUMN_NAMES)
        examples = []
        for index, row in enumerate(read_choice_rows(table, columns)):
            if must_have_labels and settings.missing == "skip" and row.has_missing_label:
                continue
            cells = table.cells[index]
            passage = "" if columns.passage is None else cells[columns.passage]
            question = "" if columns.question is None else cells[columns.question]
            correct = None
            if must_have_labels or not row.has_missing_label:
                correct = parse_choice_label(row, self.label_reading)
            examples.append(ChoiceExample(ids[index], passage, question, row.options, correct))
        return examples


def find_layout(source: object) -> TableLayout:
    """Return the columns and the dialect of a task's table, which `albert predict` expects in other tables.

    source: a task's source. The result is the default if the source is not a table.
    """
    if not isinstance(source, TableSource):
        return TableLayout()
    settings = source.tables.settings
    columns = TrainedColumns(text=settings.text, question=settings.question, choices=list(settings.choices))
    if isinstance(source, TextTableSource):
        first, *second = source.names  # the column of a text, or the columns of both texts of a pair
        columns = TrainedColumns(text=first, text_pair="".join(second))
    return TableLayout(columns=columns, delimiter=settings.delimiter, quoting=settings.quoting)
