"""Make a task of a user's labeled table: TSV, CSV, JSON lines or Parquet with named columns, or a data set of the Hub.

The kind of task is classification, regression, multi-label classification or multiple choice. `open_table` infers it
from the settings and the content of the files, and prints it. `table_sources` then reads the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.tasks.base import AnyTask, as_any_task
from albert_cli.tasks.choice import Choice
from albert_cli.tasks.choice_columns import (
    CHOICE_COLUMN_NAMES,
    LABEL_DESCRIPTIONS,
    ChoiceRow,
    counts_options_from_0,
    decide_label_reading,
    find_choice_columns,
    is_choice_table,
    read_choice_rows,
)
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.columns import (
    COLUMN_NAMES,
    check_texts,
    find_id_column,
    find_label_column,
    find_text_columns,
    name_label_column,
    reject_objects,
    reject_shared_columns,
    warn_unused_texts,
)
from albert_cli.tasks.label_cells import infer_classes, match_model_labels, read_label_cells
from albert_cli.tasks.label_names import find_label
from albert_cli.tasks.multi_label import METRICS as MULTI_LABEL_METRICS
from albert_cli.tasks.multi_label import MultiLabelClassification, MultiLabelExample
from albert_cli.tasks.multi_label_table import infer_label_names, is_multi_label_table, read_label_sets
from albert_cli.tasks.table_files import TableFiles, find_table_files
from albert_cli.tasks.table_layout import TrainedColumns, name_trained_columns
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.table_sources import ChoiceTableSource, TextTableSource, read_class_sets, read_classes
from albert_cli.tasks.text_table import TextTable

_MAX_LABELS_SHOWN = 10


@dataclass(frozen=True)
class ModelHead:
    """The classifier of a model that may be scored on a table, or trained further on it.

    `labels` are the classes, or () if the model has no classifier. `is_multi_label` is true if a text may have several
    classes. `columns` are the names of the training table's columns, empty if none is to be read by these names.
    """

    labels: tuple[str, ...] = ()
    is_multi_label: bool = False
    columns: TrainedColumns = field(default_factory=TrainedColumns)


NO_HEAD = ModelHead()


def open_table(settings: TableSettings, data: str | None = None, head: ModelHead = NO_HEAD) -> AnyTask:
    """Make a task of a table: find its files, read train, and decide on kind, columns and classes.

    `data` is a folder, a single file (train) or `hf:NAME[:CONFIG]`. `head` is the classifier of the model that may be
    scored on the table or trained further. Its labels are the classes if there is no train, or if the data are a single
    file whose labels are all among them. Its columns are read if the table has all of them, in upper or lower case.
    They are not read if `settings` name texts, question or choices, or give one of the columns another role.

    Raises `ConfigError` if no file is named, and `InputError` for a missing file or column, or for labels that are
    neither classes nor values.
    """
    files = find_table_files(settings, data)
    tables = TableFiles(files, data, settings)
    first_table = tables.table(next(iter(files)))  # train, or the first file if there is no train
    settings = name_trained_columns(settings, first_table, head.columns)
    is_choice = is_choice_table(first_table, settings)
    settings = name_label_column(settings, first_table, CHOICE_COLUMN_NAMES if is_choice else COLUMN_NAMES)
    tables = replace(tables, settings=settings)
    if is_choice:
        task = as_any_task(_choice_task(settings, tables, first_table))
    elif _is_multi_label(settings, tables, first_table, head):
        task = as_any_task(_multi_label_task(settings, tables, first_table, head))
    else:
        task = as_any_task(_classification_task(settings, tables, first_table, head.labels))
    # A single file, or data without train, may be for scoring only, so models of other tasks are accepted, too.
    return replace(task.with_splits(files), accepts_any_task=tables.may_be_for_scoring)


# ---------------------------------------------------------------- multiple choice


def _choice_task(settings: TableSettings, tables: TableFiles, first_table: TextTable) -> Choice:
    """Make a task of multiple choice; decide from train and dev together how a label denotes its option.

    If neither has labels, the labels of test decide.
    """
    option_counts: set[int] = set()
    labeled_rows: list[ChoiceRow] = []
    counts_from_0 = False
    for split in tables.files:
        table = tables.table(split)
        split_columns = find_choice_columns(table, settings)
        roles = [("text", split_columns.passage), ("question", split_columns.question)]
        roles += [("choices", column) for column in split_columns.options]
        reject_shared_columns(table, settings, roles, split_columns.label)
        rows = read_choice_rows(table, split_columns)
        option_counts |= {len(row.options) for row in rows}
        # The labels of test may be hidden. They decide only if train and dev, which precede test, have none.
        if split_columns.label is None or (split == "test" and labeled_rows):
            continue
        labeled_rows += [row for row in rows if not (settings.missing == "skip" and row.has_missing_label)]
        # Columns such as ending0, ending1, … suggest that the labels count from 0, too.
        counts_from_0 |= counts_options_from_0(table, split_columns)
    label_reading = decide_label_reading(labeled_rows, settings, counts_from_0=counts_from_0)
    columns = find_choice_columns(first_table, settings)
    texts = [index for index in (columns.passage, columns.question) if index is not None]
    reject_objects(first_table, texts)
    fewest = min(option_counts)
    most = max(option_counts)
    count = str(most) if fewest == most else f"{fewest} to {most}"
    message = f"{_column_names(first_table, texts)} → one of {count} choices"
    if label_reading != "auto":  # it remains "auto" without labels
        message += f", labels are {LABEL_DESCRIPTIONS[label_reading]}"
    console.info(f"{first_table.origin}: {message}")
    warn_unused_texts(first_table, [*texts, *columns.options, columns.label, find_id_column(first_table, settings)])
    return Choice(
        name="table",
        title=settings.title,
        labels=tuple(ascii_uppercase[:most]),
        metrics=("accuracy",),
        source=ChoiceTableSource(tables, label_reading),
    )


# ---------------------------------------------------------------- classification and regression


def _classification_task(
    settings: TableSettings, tables: TableFiles, first_table: TextTable, model_labels: tuple[str, ...]
) -> Classification:
    texts = _find_texts(first_table, settings)
    labels = _class_labels(settings, tables, model_labels)
    if labels is None:
        message = f"{first_table.origin}: no training data to take the classes from"
        raise InputError(message, "use -s table.train=FILE, or list the classes in table.labels")
    _report_text_columns(first_table, settings, texts, _describe_classes(labels) if labels else "a value")
    names = tuple(first_table.columns[index] for index in texts)
    return Classification(
        name="table",
        title=settings.title,
        labels=labels,
        metrics=("accuracy", "macro_f1") if labels else ("pearson", "spearman"),
        inputs=len(texts),
        source=TextTableSource(tables, names, read_classes, TextExample),
    )


def _find_texts(table: TextTable, settings: TableSettings) -> tuple[int, ...]:
    """Return the indices of the columns of texts; raises `InputError` if one of them has another role, too."""
    texts = find_text_columns(table, settings)
    roles = zip(("text", "text_pair"), texts, strict=False)  # a single text has no text_pair
    label = None if settings.label_columns else find_label_column(table, settings)
    reject_shared_columns(table, settings, roles, label)
    return texts


def _class_labels(settings: TableSettings, tables: TableFiles, model_labels: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the classes: those of the settings, or else of train, or else of the model; () for a regression.

    If the data may be for scoring and the model has all labels of the first file, the classes are the model's, in the
    spelling of these labels. Return None if there is neither train nor a model with a fitting classifier.
    """
    if settings.kind == "regression":
        return ()
    if settings.labels:
        return settings.labels
    first_table = tables.table(next(iter(tables.files)))
    has_labels = find_label_column(first_table, settings) is not None
    if tables.may_be_for_scoring and has_labels:
        labels = match_model_labels(read_label_cells(first_table, settings), model_labels)
        # A model that predicts a value does not fit if the user requests classes.
        if labels is not None and (labels or settings.kind == "auto"):
            return labels
    if "train" in tables.files:
        return infer_classes(read_label_cells(first_table, settings), settings, first_table.origin)
    if len(model_labels) == 1:  # the model predicts a value
        return () if settings.kind == "auto" else None
    return model_labels or None


# ---------------------------------------------------------------- multi-label classification


def _is_multi_label(settings: TableSettings, tables: TableFiles, first_table: TextTable, head: ModelHead) -> bool:
    """Return True if the labels of the first table are sets of classes.

    Labels of one class per row also count as sets if the data are for scoring a multi-label model with these classes.
    With a test file alone, the model decides.
    """
    if "train" not in tables.files and "dev" not in tables.files:
        return settings.kind == "multi-label" or (settings.kind == "auto" and head.is_multi_label)
    return is_multi_label_table(first_table, settings) or _fits_multi_label_head(settings, tables, first_table, head)


def _fits_multi_label_head(settings: TableSettings, tables: TableFiles, table: TextTable, head: ModelHead) -> bool:
    """Return True if the data may be for scoring a multi-label model, and the model has all classes of the table.

    The table may spell a class differently than the model.
    """
    if settings.kind not in ("auto", "multi-label") or not head.is_multi_label or not tables.may_be_for_scoring:
        return False
    names = {name for label_set in read_label_sets(table, settings, head.labels) for name in label_set.names}
    return all(find_label(name, head.labels) is not None for name in names)


def _multi_label_task(
    settings: TableSettings, tables: TableFiles, first_table: TextTable, head: ModelHead
) -> MultiLabelClassification:
    texts = _find_texts(first_table, settings)
    if _fits_multi_label_head(settings, tables, first_table, head) and not settings.labels:
        labels = head.labels
    else:
        label_sets = read_label_sets(first_table, settings, settings.labels)
        labels = infer_label_names(label_sets, settings, first_table.origin)
    _report_text_columns(first_table, settings, texts, f"any of {_describe_classes(labels)}")
    names = tuple(first_table.columns[index] for index in texts)
    return MultiLabelClassification(
        name="table",
        title=settings.title,
        labels=labels,
        metrics=MULTI_LABEL_METRICS,
        inputs=len(texts),
        source=TextTableSource(tables, names, read_class_sets, MultiLabelExample),
    )


# ---------------------------------------------------------------- messages


def _report_text_columns(table: TextTable, settings: TableSettings, texts: Sequence[int], target: str) -> None:
    """Print the columns that are read as texts, and `target`, what is predicted from them.

    Print warnings for unused columns and rows without text. Raises `InputError` if no row has a text, or if a column
    contains JSON objects.
    """
    reject_objects(table, texts)
    console.info(f"{table.origin}: {_column_names(table, texts)} → {target}")
    warn_unused_texts(table, [*texts, find_label_column(table, settings), find_id_column(table, settings)])
    check_texts(table, texts)


def _column_names(table: TextTable, columns: Sequence[int]) -> str:
    """Return the names of columns, in quotes and joined by "and"."""
    return " and ".join(repr(table.columns[index]) for index in columns)


def _describe_classes(labels: Sequence[str]) -> str:
    """Return the number of classes, and their names if there are at most `_MAX_LABELS_SHOWN`."""
    count = f"{len(labels)} classes"
    return f"{count} ({', '.join(labels)})" if len(labels) <= _MAX_LABELS_SHOWN else count
