"""A custom labeled table as a task: TSV, CSV, JSON lines or Parquet with named columns, or a data set of the Hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TypedDict, TypeVar

from albert_cli import console
from albert_cli.errors import InputError, MissingDataError
from albert_cli.tasks.base import AnyTask, TaskInfo, as_any_tasks
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.choice_columns import (
    CHOICE_COLUMN_NAMES,
    decide_choice_labels,
    describe_choice_labels,
    find_choice_columns,
    is_choice_table,
    parse_choice_label,
    read_choice_rows,
    read_options,
)
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.columns import (
    check_texts,
    find_column,
    find_id_column,
    find_same_columns,
    find_text_columns,
    require_column,
    warn_unused_texts,
)
from albert_cli.tasks.holdout import hold_out_dev
from albert_cli.tasks.label_cells import (
    infer_classes,
    is_missing,
    match_model_labels,
    missing_label,
    read_label_cells,
)
from albert_cli.tasks.multi_label import METRICS as MULTI_LABEL_METRICS
from albert_cli.tasks.multi_label import MultiLabelClassification, MultiLabelExample
from albert_cli.tasks.multi_label_table import (
    infer_label_names,
    is_multi_label_table,
    label_indices,
    read_label_sets,
)
from albert_cli.tasks.table_files import TableFiles, find_table_files
from albert_cli.tasks.table_settings import ChoiceLabels, TableSettings
from albert_cli.tasks.text_table import TextTable

T = TypeVar("T")
_MAX_LABELS_SHOWN = 10


# ---------------------------------------------------------------- the task


@dataclass(frozen=True)
class ModelHead:
    """The outputs of a checkpoint's classifier, and whether a text may have several of these classes."""

    labels: tuple[str, ...] = ()
    is_multi_label: bool = False


NO_HEAD = ModelHead()


def open_table(settings: TableSettings, data: str | None = None, head: ModelHead = NO_HEAD) -> AnyTask:
    """Make a task of a table: find its files, read train, and decide on columns, kind and classes.

    `data` is a folder, a single file (train) or `hf:NAME[:CONFIG]`. The outputs of a model's `head` are the classes if
    there is no train, or if they include all labels of a single file. Raises `ConfigError` if no file is named, and
    `InputError` for a missing file or column, or for labels that are not classes or values.
    """
    files = find_table_files(settings, data)
    tables = TableFiles(settings, files, is_single_file=data is not None and files == {"train": data})
    reference = tables.table(next(iter(files)))
    if is_choice_table(reference, settings):
        return as_any_tasks({"table": _choice_task(settings, tables, reference)})["table"]
    if _is_multi_label(settings, tables, head):
        return as_any_tasks({"table": _multi_label_task(settings, tables, reference, head)})["table"]
    return as_any_tasks({"table": _classification_task(settings, tables, reference, head.labels)})["table"]


class _Splits(TypedDict):
    name: str
    title: str
    accepts_any_task: bool
    train_split: str | None
    dev_splits: tuple[str, ...]
    test_splits: tuple[str, ...]


def _splits(settings: TableSettings, tables: TableFiles) -> _Splits:
    """Return the fields of a task that follow from its files; dev may be held out of train."""
    files = tables.files
    return {
        "name": "table",
        "title": settings.title,
        "accepts_any_task": tables.is_for_scoring,
        "train_split": "train" if "train" in files else None,
        "dev_splits": ("dev",) if "train" in files or "dev" in files else (),
        "test_splits": ("test",) if "test" in files else (),
    }


def _choice_task(settings: TableSettings, tables: TableFiles, reference: TextTable) -> Choice:
    columns = find_choice_columns(reference, settings)
    counts = sorted(_option_counts(settings, tables))
    count = str(counts[-1]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    labels = _choice_labels(settings, tables)
    texts = [index for index in (columns.passage, columns.question) if index is not None]
    names = " and ".join(repr(reference.columns[index]) for index in texts)
    read_as = f", labels are {describe_choice_labels(labels)}" if labels != "auto" else ""
    console.info(f"{reference.origin}: {names} → one of {count} choices{read_as}")
    warn_unused_texts(reference, [*texts, *columns.options, columns.label, find_id_column(reference, settings)])
    return Choice(
        **_splits(settings, tables),
        labels=tuple(ascii_uppercase[: counts[-1]]),
        metrics=("accuracy",),
        source=ChoiceTableSource(tables, labels),
    )


def _option_counts(settings: TableSettings, tables: TableFiles) -> set[int]:
    """Return the numbers of options that questions have in any file."""
    counts = set()
    for split in tables.files:
        table = tables.table(split)
        columns = find_choice_columns(table, settings)
        counts |= {len(read_options(table, columns, row)) for row in range(len(table.cells))}
    return counts


def _choice_labels(settings: TableSettings, tables: TableFiles) -> ChoiceLabels:
    """Decide how labels name an option, from all labeled files together; "auto" if there is none."""
    rows = []
    counts_from_0 = False
    for split in tables.files:
        table = tables.table(split)
        columns = find_choice_columns(table, settings)
        if split != "test" and columns.label is not None:
            rows += read_choice_rows(table, columns)
            names = [table.columns[index] for index in columns.options]
            counts_from_0 = counts_from_0 or (len(names) > 1 and names[0].endswith("0"))
    return decide_choice_labels(rows, settings, counts_from_0=counts_from_0) if rows else settings.choice_labels


def _classification_task(
    settings: TableSettings, tables: TableFiles, reference: TextTable, model_labels: tuple[str, ...]
) -> Classification:
    texts = find_text_columns(reference, settings)
    names = tuple(reference.columns[index] for index in texts)
    labels = _class_labels(settings, tables, model_labels)
    if labels is None:
        message = f"{reference.origin}: no training data to take the classes from"
        raise InputError(message, "use -s table.train=FILE, or list the classes in table.labels")
    target = f"{len(labels)} classes" if labels else "a value"
    if 0 < len(labels) <= _MAX_LABELS_SHOWN:
        target += f" ({', '.join(labels)})"
    console.info(f"{reference.origin}: {' and '.join(map(repr, names))} → {target}")
    label = find_column(reference, "label", settings)
    warn_unused_texts(reference, [*texts, label, find_id_column(reference, settings)])
    check_texts(reference, texts)
    return Classification(
        **_splits(settings, tables),
        labels=labels,
        metrics=("accuracy", "macro_f1") if labels else ("pearson", "spearman"),
        inputs=len(texts),
        source=TextTableSource(tables, names),
    )


def _is_multi_label(settings: TableSettings, tables: TableFiles, head: ModelHead) -> bool:
    """Return True if the labels of train, or else of dev, are sets of classes, or a multi-label model's classes."""
    for split in ("train", "dev"):
        if split in tables.files:
            table = tables.table(split)
            return is_multi_label_table(table, settings) or _fits_multi_label_head(settings, tables, table, head)
    return settings.kind == "multi-label"


def _fits_multi_label_head(settings: TableSettings, tables: TableFiles, table: TextTable, head: ModelHead) -> bool:
    """Return True if a file without train data has only classes of a multi-label model."""
    if settings.kind != "auto" or not head.is_multi_label or not tables.is_for_scoring:
        return False
    names = {name for row in read_label_sets(table, settings) for name in row.names}
    return names <= set(head.labels)


def _multi_label_task(
    settings: TableSettings, tables: TableFiles, reference: TextTable, head: ModelHead
) -> MultiLabelClassification:
    texts = find_text_columns(reference, settings)
    names = tuple(reference.columns[index] for index in texts)
    if _fits_multi_label_head(settings, tables, reference, head) and not settings.labels:
        labels = head.labels
    else:
        labels = infer_label_names(read_label_sets(reference, settings), settings, reference.origin)
    shown = f" ({', '.join(labels)})" if len(labels) <= _MAX_LABELS_SHOWN else ""
    console.info(f"{reference.origin}: {' and '.join(map(repr, names))} → any of {len(labels)} classes{shown}")
    label = find_column(reference, "label", settings)
    warn_unused_texts(reference, [*texts, label, find_id_column(reference, settings)])
    check_texts(reference, texts)
    return MultiLabelClassification(
        **_splits(settings, tables),
        labels=labels,
        metrics=MULTI_LABEL_METRICS,
        inputs=len(texts),
        source=MultiLabelTableSource(tables, names),
    )


def _class_labels(settings: TableSettings, tables: TableFiles, model_labels: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the classes, () for a regression: from the recipe, from train's labels, or from a model's outputs.

    None if there is neither train nor a model.
    """
    if settings.kind == "regression":
        return ()
    if settings.labels:
        return settings.labels
    if "train" not in tables.files:
        is_regression = len(model_labels) == 1
        return () if is_regression else model_labels or None
    train = tables.table("train")
    cells = read_label_cells(train, settings)
    if tables.is_for_scoring and settings.kind == "auto":
        labels = match_model_labels(cells, model_labels)
        if labels is not None:
            return labels
    return infer_classes(cells, settings, train.origin)


# ---------------------------------------------------------------- examples


@dataclass(frozen=True)
class TextTableSource:
    """Examples of a table of texts with classes or values; `names` are the reference table's columns of texts."""

    tables: TableFiles
    names: tuple[str, ...]

    def read(self, task: TaskInfo, split: str, data: str | None = None) -> list[TextExample]:
        """Read a split. `open_table` has found the files, so `data` is ignored."""
        file_split = _file_of_split(self.tables.files, split)
        examples = self._read_file(task, file_split)
        return _train_or_dev(task, self.tables, split, examples) if file_split == "train" else examples

    def _read_file(self, task: TaskInfo, split: str) -> list[TextExample]:
        settings = self.tables.settings
        table = self.tables.table(split)
        ids = self.tables.ids(split)
        texts = find_same_columns(table, self.names, settings)
        is_labeled = split not in task.test_splits
        label = require_column(table, "label", settings) if is_labeled else find_column(table, "label", settings)
        labels = [] if label is None else read_label_cells(table, settings, label)
        examples = []
        for index, row in enumerate(table.cells):
            gold = None
            if labels and is_missing(labels[index].text, task.labels):
                if is_labeled and settings.missing == "error":
                    raise missing_label(labels[index])
                if is_labeled:
                    continue
            elif labels:
                gold = task.parse_label(labels[index].text, labels[index].where)
            pair = row[texts[1]] if len(texts) == 2 else None
            examples.append(TextExample(row[texts[0]], pair, gold, ids[index]))
        skipped = len(table.cells) - len(examples)
        if skipped:
            console.info(f"{table.origin}: skipped {skipped} of {len(table.cells)} rows without a label")
        return examples


@dataclass(frozen=True)
class MultiLabelTableSource:
    """Examples of a multi-label table; `names` are the reference table's columns of texts."""

    tables: TableFiles
    names: tuple[str, ...]

    def read(self, task: TaskInfo, split: str, data: str | None = None) -> list[MultiLabelExample]:
        """Read a split. `open_table` has found the files, so `data` is ignored."""
        file_split = _file_of_split(self.tables.files, split)
        examples = self._read_file(task, file_split)
        return _train_or_dev(task, self.tables, split, examples) if file_split == "train" else examples

    def _read_file(self, task: TaskInfo, split: str) -> list[MultiLabelExample]:
        settings = self.tables.settings
        table = self.tables.table(split)
        ids = self.tables.ids(split)
        texts = find_same_columns(table, self.names, settings)
        is_labeled = split not in task.test_splits or _has_labels(table, settings)
        rows = read_label_sets(table, settings) if is_labeled else []
        examples = []
        for index, row in enumerate(table.cells):
            labels = label_indices(rows[index], task.labels) if rows else None
            pair = row[texts[1]] if len(texts) == 2 else None
            examples.append(MultiLabelExample(row[texts[0]], pair, labels, ids[index]))
        return examples


@dataclass(frozen=True)
class ChoiceTableSource:
    """Examples of a table of multiple-choice questions, whose labels are read as `labels` says."""

    tables: TableFiles
    labels: ChoiceLabels

    def read(self, task: TaskInfo, split: str, data: str | None = None) -> list[ChoiceExample]:
        """Read a split. `open_table` has found the files, so `data` is ignored."""
        file_split = _file_of_split(self.tables.files, split)
        examples = self._read_file(task, file_split)
        return _train_or_dev(task, self.tables, split, examples) if file_split == "train" else examples

    def _read_file(self, task: TaskInfo, split: str) -> list[ChoiceExample]:
        settings = self.tables.settings
        table = self.tables.table(split)
        ids = self.tables.ids(split)
        columns = find_choice_columns(table, settings)
        is_labeled = split not in task.test_splits
        if is_labeled:
            require_column(table, "label", settings, CHOICE_COLUMN_NAMES)
        examples = []
        for index, row in enumerate(read_choice_rows(table, columns)):
            cells = table.cells[index]
            passage = "" if columns.passage is None else cells[columns.passage]
            question = "" if columns.question is None else cells[columns.question]
            is_hidden = not is_labeled and (self.labels == "auto" or is_missing(row.label))
            correct = None if is_hidden else parse_choice_label(row, self.labels)
            examples.append(ChoiceExample(ids[index], passage, question, row.options, correct))
        return examples


def _has_labels(table: TextTable, settings: TableSettings) -> bool:
    """Return True if a test file has the columns of labels."""
    if settings.label_columns:
        return set(settings.label_columns) <= set(table.columns)
    return find_column(table, "label", settings) is not None


def _file_of_split(files: Mapping[str, str], split: str) -> str:
    """Return the split whose file holds a split: dev without a file is a part of train."""
    return "train" if split == "dev" and "dev" not in files else split


def _train_or_dev(task: TaskInfo, tables: TableFiles, split: str, examples: Sequence[T]) -> list[T]:
    """Return the training or the held-out part of train; all of it if there is a dev file.

    To score a model, all rows of a single file are dev. It then has no training split (`MissingDataError`).
    """
    if "dev" in tables.files:
        return list(examples)
    if task.scores_whole_file and tables.is_single_file:
        if split == "train":
            raise MissingDataError(f"{tables.files['train']}: scored as a whole, so there is no training data")
        return list(examples)
    settings = tables.settings
    rows = [f"{settings.holdout_seed}:{index}" for index in range(len(examples))]
    return hold_out_dev(split, examples, rows, settings.holdout, tables.files["train"], "row", "use -s table.dev=FILE")
