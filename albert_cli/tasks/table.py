"""Make a task of a user's labeled table: TSV, CSV, JSON lines or Parquet with named columns, or a data set of the Hub.

`open_table` decides from the content of the files and the settings which kind of task they are: classification,
regression, multi-label classification or multiple choice. It prints its decisions. `table_sources` reads the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TypedDict

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.tasks.base import AnyTask, as_any_task
from albert_cli.tasks.choice import Choice
from albert_cli.tasks.choice_columns import (
    decide_choice_labels,
    describe_choice_labels,
    find_choice_columns,
    is_choice_table,
    read_choice_rows,
    read_options,
)
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.columns import check_texts, find_column, find_id_column, find_text_columns, warn_unused_texts
from albert_cli.tasks.label_cells import infer_classes, match_model_labels, read_label_cells
from albert_cli.tasks.multi_label import METRICS as MULTI_LABEL_METRICS
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.multi_label_table import infer_label_names, is_multi_label_table, read_label_sets
from albert_cli.tasks.table_files import TableFiles, find_table_files
from albert_cli.tasks.table_settings import ChoiceLabels, TableSettings
from albert_cli.tasks.table_sources import ChoiceTableSource, MultiLabelTableSource, TextTableSource
from albert_cli.tasks.text_table import TextTable

_MAX_LABELS_SHOWN = 10


@dataclass(frozen=True)
class ModelHead:
    """The labels of a checkpoint's classifier, () without one, and whether a text may have several of them."""

    labels: tuple[str, ...] = ()
    is_multi_label: bool = False


NO_HEAD = ModelHead()


def open_table(settings: TableSettings, data: str | None = None, head: ModelHead = NO_HEAD) -> AnyTask:
    """Make a task of a table: find its files, read train, and decide on columns, kind and classes.

    `data` is a folder, a single file (train) or `hf:NAME[:CONFIG]`. The classes are the labels of the model's `head` if
    there is no train, or if the data are a single file and all its labels are among them. Raises `ConfigError` if no
    file is named, and `InputError` for a missing file or column, or for labels that are not classes or values.
    """
    files = find_table_files(settings, data)
    tables = TableFiles(settings, files, is_single_file=data is not None and files == {"train": data})
    reference = tables.table(next(iter(files)))  # train, or the first file if there is no train
    if is_choice_table(reference, settings):
        return as_any_task(_choice_task(settings, tables, reference))
    if _is_multi_label(settings, tables, head):
        return as_any_task(_multi_label_task(settings, tables, reference, head))
    return as_any_task(_classification_task(settings, tables, reference, head.labels))


class _CommonFields(TypedDict):
    name: str
    title: str
    accepts_any_task: bool
    train_split: str | None
    dev_splits: tuple[str, ...]
    test_splits: tuple[str, ...]


def _common_fields(settings: TableSettings, tables: TableFiles) -> _CommonFields:
    """Return the fields of a task that are the same for all kinds."""
    files = tables.files
    return {
        "name": "table",
        "title": settings.title,
        "accepts_any_task": tables.is_for_scoring,
        "train_split": "train" if "train" in files else None,
        "dev_splits": ("dev",) if "train" in files or "dev" in files else (),  # dev may be held out of train
        "test_splits": ("test",) if "test" in files else (),
    }


# ---------------------------------------------------------------- multiple choice


def _choice_task(settings: TableSettings, tables: TableFiles, reference: TextTable) -> Choice:
    columns = find_choice_columns(reference, settings)
    counts = _option_counts(settings, tables)
    fewest = min(counts)
    most = max(counts)
    label_reading = _choice_label_reading(settings, tables)
    texts = [index for index in (columns.passage, columns.question) if index is not None]
    count = str(most) if fewest == most else f"{fewest} to {most}"
    message = f"{_column_names(reference, texts)} → one of {count} choices"
    if label_reading != "auto":
        message += f", labels are {describe_choice_labels(label_reading)}"
    console.info(f"{reference.origin}: {message}")
    warn_unused_texts(reference, [*texts, *columns.options, columns.label, find_id_column(reference, settings)])
    return Choice(
        **_common_fields(settings, tables),
        labels=tuple(ascii_uppercase[:most]),
        metrics=("accuracy",),
        source=ChoiceTableSource(tables, label_reading),
    )


def _option_counts(settings: TableSettings, tables: TableFiles) -> set[int]:
    """Return the numbers of options that occur in any file."""
    counts = set()
    for split in tables.files:
        table = tables.table(split)
        columns = find_choice_columns(table, settings)
        counts |= {len(read_options(table, columns, row)) for row in range(len(table.cells))}
    return counts


def _choice_label_reading(settings: TableSettings, tables: TableFiles) -> ChoiceLabels:
    """Decide how labels name an option, from train and dev together; "auto" if neither has labels."""
    rows = []
    counts_from_0 = False
    for split in tables.files:
        table = tables.table(split)
        columns = find_choice_columns(table, settings)
        if split == "test" or columns.label is None:
            continue
        rows += read_choice_rows(table, columns)
        if len(columns.options) > 1 and table.columns[columns.options[0]].endswith("0"):
            counts_from_0 = True
    return decide_choice_labels(rows, settings, counts_from_0=counts_from_0) if rows else settings.choice_labels


# ---------------------------------------------------------------- classification and regression


def _classification_task(
    settings: TableSettings, tables: TableFiles, reference: TextTable, model_labels: tuple[str, ...]
) -> Classification:
    texts = find_text_columns(reference, settings)
    labels = _class_labels(settings, tables, model_labels)
    if labels is None:
        message = f"{reference.origin}: no training data to take the classes from"
        raise InputError(message, "use -s table.train=FILE, or list the classes in table.labels")
    _report_text_columns(reference, settings, texts, _describe_classes(labels) if labels else "a value")
    return Classification(
        **_common_fields(settings, tables),
        labels=labels,
        metrics=("accuracy", "macro_f1") if labels else ("pearson", "spearman"),
        inputs=len(texts),
        source=TextTableSource(tables, tuple(reference.columns[index] for index in texts)),
    )


def _class_labels(settings: TableSettings, tables: TableFiles, model_labels: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the classes from the settings, the labels of train, or the model; () for a regression.

    Return None if there is neither train nor a model.
    """
    if settings.kind == "regression":
        return ()
    if settings.labels:
        return settings.labels
    if "train" not in tables.files:
        if len(model_labels) == 1:  # the model predicts a value
            return ()
        return model_labels or None
    train = tables.table("train")
    cells = read_label_cells(train, settings)
    if tables.is_for_scoring and settings.kind == "auto":
        labels = match_model_labels(cells, model_labels)
        if labels is not None:
            return labels
    return infer_classes(cells, settings, train.origin)


# ---------------------------------------------------------------- multi-label classification


def _is_multi_label(settings: TableSettings, tables: TableFiles, head: ModelHead) -> bool:
    """Return True if the labels of train, or without train those of dev, are sets of classes.

    The labels of a multi-label model count as sets, even if every row has only one class.
    """
    for split in ("train", "dev"):
        if split in tables.files:
            table = tables.table(split)
            return is_multi_label_table(table, settings) or _fits_multi_label_head(settings, tables, table, head)
    return settings.kind == "multi-label"


def _fits_multi_label_head(settings: TableSettings, tables: TableFiles, table: TextTable, head: ModelHead) -> bool:
    """Return True if a multi-label model may be scored on the data, and has all classes of the table."""
    if settings.kind != "auto" or not head.is_multi_label or not tables.is_for_scoring:
        return False
    names = {name for label_set in read_label_sets(table, settings) for name in label_set.names}
    return names <= set(head.labels)


def _multi_label_task(
    settings: TableSettings, tables: TableFiles, reference: TextTable, head: ModelHead
) -> MultiLabelClassification:
    texts = find_text_columns(reference, settings)
    if _fits_multi_label_head(settings, tables, reference, head) and not settings.labels:
        labels = head.labels
    else:
        labels = infer_label_names(read_label_sets(reference, settings), settings, reference.origin)
    _report_text_columns(reference, settings, texts, f"any of {_describe_classes(labels)}")
    return MultiLabelClassification(
        **_common_fields(settings, tables),
        labels=labels,
        metrics=MULTI_LABEL_METRICS,
        inputs=len(texts),
        source=MultiLabelTableSource(tables, tuple(reference.columns[index] for index in texts)),
    )


# ---------------------------------------------------------------- messages


def _report_text_columns(table: TextTable, settings: TableSettings, texts: Sequence[int], target: str) -> None:
    """Print which columns are read as texts and for which target; warn of unused columns and of rows without text.

    Raises `InputError` if no row has a text.
    """
    console.info(f"{table.origin}: {_column_names(table, texts)} → {target}")
    label = find_column(table, "label", settings)
    warn_unused_texts(table, [*texts, label, find_id_column(table, settings)])
    check_texts(table, texts)


def _column_names(table: TextTable, columns: Sequence[int]) -> str:
    return " and ".join(repr(table.columns[index]) for index in columns)


def _describe_classes(labels: Sequence[str]) -> str:
    """Return the number of classes, and their names unless they are many."""
    count = f"{len(labels)} classes"
    return f"{count} ({', '.join(labels)})" if len(labels) <= _MAX_LABELS_SHOWN else count
