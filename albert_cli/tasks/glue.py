"""GLUE (Wang et al., arXiv 1804.07461): its tasks, and their files as published or from the Hugging Face Hub.

The published files are tab-separated without quoting, in one folder per task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from albert_cli import console
from albert_cli.errors import InputError, MissingDataError
from albert_cli.formatting import count_of
from albert_cli.tasks.base import TaskInfo
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.data_files import find_data_file, read_lines
from albert_cli.tasks.delimited import width_error
from albert_cli.tasks.hub_data import is_hub_source, read_hub_split
from albert_cli.tasks.text_table import TextTable, read_texts

GLUE_ON_HUB = "hf:nyu-mll/glue"
_ID_COLUMNS = ("index", "id", "idx")
_SHOWN_CHARACTERS = 100  # of a file's first line in a message


@dataclass(frozen=True)
class GlueFiles:
    """A reader of a GLUE task.

    It reads `folder/SPLIT.tsv`, with the columns `texts` and `label`, or a data set of the Hub. Data without `folder`
    may hold the task's files themselves: the columns show that a file is not another task's.

    * `hub_texts` and `test_texts` are the names of the text columns on the Hub and in the test file, if they differ
      from `texts`.
    * `header` lists the columns of the labeled files if these have no header line.
    * With `skip_short`, rows with too few fields are skipped, as in ALBERT's released code: in QQP they are parts of
      questions that contain line breaks. Without `skip_short` such a row is an error.
    * `files` maps a split to the name of its file without the ending, if that is not the split's name.
    * `hub` is the data set of the Hub that has the task as a configuration, None if there is none.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    hub_texts: tuple[str, ...] = ()
    test_texts: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    skip_short: bool = False
    files: Mapping[str, str] = field(default_factory=dict, hash=False)  # a dict cannot be hashed
    hub: str | None = GLUE_ON_HUB

    def read(self, task: TaskInfo, split: str, data: str | None) -> list[TextExample]:
        """Read the examples of a split; a test split has no labels.

        `data` is a folder, a data set of the Hub with the same columns (`hf:NAME:CONFIG`), or None for `hub`.
        """
        is_test = split in task.test_splits
        # To score a model on test splits, `Task.for_scoring` moves them from `test_splits` to `dev_splits`. They then
        # need labels.
        if split.startswith("test") and not is_test:
            hint = "use --submission, and send the file to GLUE's server"
            raise InputError(f"{task.title}: GLUE hides the labels of its test sets", hint)
        source = self.hub if data is None else data
        if source is None:
            raise MissingDataError(f"{task.name}: not on the Hub", f"use --data for the folder with {self.folder}/")
        texts = self.texts
        label = self.label
        if is_hub_source(source):
            if source == self.hub:  # each task is a configuration of the same name
                source = f"{source}:{task.name}"
            # The classes 0 and 1 of CoLA, SST-2, MRPC, QQP and WNLI have names on the Hub. `read_hub_split` returns the
            # numbers instead, because `task.labels` lacks the names.
            table = read_hub_split(source, split.replace("dev", "validation"), task.labels)
            texts = self.hub_texts or texts
            label = "label"
        else:
            table = self._read_file(task, Path(source), split)
            if is_test:
                texts = self.test_texts or texts
        columns = table.column_indices(texts if is_test else [*texts, label])
        text_columns = columns[: len(texts)]
        id_column = next((table.columns.index(name) for name in _ID_COLUMNS if name in table.columns), None)
        ids = [str(index) for index in range(len(table.cells))]  # GLUE's server counts the rows from 0
        if id_column is not None:
            ids = table.ids(id_column, must_be_unique=split != task.train_split)
        examples = []
        for index, row in enumerate(table.cells):
            text_a, text_b = read_texts(row, text_columns)
            # The column of the label is the last of `columns`.
            gold = None if is_test else task.parse_label(row[columns[-1]], table.where(index))
            examples.append(TextExample(text_a, text_b, gold, ids[index]))
        return examples

    def _read_file(self, task: TaskInfo, data: Path, split: str) -> TextTable:
        """Read the file of a split in the folder `data` or its subfolder `folder`."""
        file = f"{self.files.get(split, split)}.tsv"
        path = find_data_file(data, (f"{self.folder}/{file}", file), self.hub)
        rows = [line.split("\t") for line in read_lines(path)]
        if not rows:
            raise InputError(f"{path}: empty", "check that the file is complete")
        if path.parent == data:
            self._check_is_own_file(task, path, rows[0], is_test=split in task.test_splits)
        lines = list(range(1, len(rows) + 1))
        if not self.header or split in task.test_splits:
            table = TextTable(str(path), tuple(rows[0]), rows[1:], lines[1:])
        elif {*self.texts, self.label} <= set(rows[0]):
            raise InputError(f"{path}:1: {task.title} is published without a header", "remove the first line")
        else:
            table = TextTable(str(path), self.header, rows, lines)
        if self.skip_short:
            return _skip_short_rows(table)
        for index, row in enumerate(table.cells):
            if len(row) != len(table.columns):
                raise width_error(table.columns, "\t", len(row), table.where(index))
        return table

    def _check_is_own_file(self, task: TaskInfo, path: Path, first_row: Sequence[str], *, is_test: bool) -> None:
        """Raise `MissingDataError` if the first row of a file outside of `folder` shows that it is another task's."""
        columns = (self.test_texts or self.texts) if is_test else (*self.texts, self.label)
        remedy = f"provide the columns {', '.join(columns)}"
        is_own_file = set(columns) <= set(first_row)
        if self.header and not is_test:
            remedy = f"provide the columns {', '.join(self.header)} without a line of their names"
            matching = {name for name, column in zip(first_row, self.header, strict=False) if name == column}
            has_column_names = not set(columns).isdisjoint(first_row)
            # The caller reports a header in the task's own file, in which the names are those of `self.header`.
            has_other_header = has_column_names and not matching.issuperset(columns)
            is_own_file = len(first_row) == len(self.header) and not has_other_header
        if not is_own_file:
            problem = f"{path}: is not {task.title}'s file (first line: {', '.join(first_row)[:_SHOWN_CHARACTERS]})"
            remedy += f", or use --data for the folder that holds {self.folder}/{path.name}"
            raise MissingDataError(problem, remedy)


def require_task_folders(data: str | None) -> None:
    """Raise `InputError` if the files of a single task are in `data` itself, where several tasks are to be read from.

    Tasks such as RTE and WNLI have the same columns, so one task would be read from the other's files.
    """
    if data is None or is_hub_source(data):
        return
    folder = Path(data)
    for task in GLUE.values():
        for split in task.splits:
            file = folder / f"{split}.tsv"
            if file.exists():
                name = folder.absolute().name
                hint = f"name the folder that holds {name}/: {folder.absolute().parent}"
                raise InputError(f"{data}: is the folder of a single task, with {file.name}", hint)


def _skip_short_rows(table: TextTable) -> TextTable:
    """Return the table without rows that have fewer fields than columns, and print their number."""
    complete = [index for index, row in enumerate(table.cells) if len(row) >= len(table.columns)]
    skipped = len(table.cells) - len(complete)
    if skipped:
        console.info(f"{table.origin}: skipped {count_of(skipped, 'row')} with fewer than {len(table.columns)} fields")
    cells = [table.cells[index] for index in complete]
    lines = [table.lines[index] for index in complete]
    return replace(table, cells=cells, lines=lines)


# ---------------------------------------------------------------- the tasks

# The labels are in the order of ALBERT's released code, so the classes of its classifiers have the same numbers here.
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")
_SENTENCES = ("sentence1", "sentence2")
_MNLI = ("premise", "hypothesis")
_COLA = ("source", "label", "mark", "sentence")

# Tasks and metrics are those of Wang et al., Table 1. A task's first metric selects its best checkpoint. For MRPC and
# QQP it is accuracy, which Table 9 of the ALBERT paper reports on dev. A task's first dev or test split is its main
# one: for MNLI, the matched one.
GLUE: dict[str, Classification] = {
    task.name: task
    for task in (
        Classification(
            name="cola", title="CoLA", labels=_BINARY, metrics=("mcc", "accuracy"), inputs=1,
            source=GlueFiles("CoLA", ("sentence",), header=_COLA),
        ),
        Classification(
            name="sst2", title="SST-2", labels=_BINARY, metrics=("accuracy",), inputs=1,
            source=GlueFiles("SST-2", ("sentence",)),
        ),
        Classification(
            name="mrpc", title="MRPC", labels=_BINARY, metrics=("accuracy", "f1"),
            source=GlueFiles("MRPC", ("#1 String", "#2 String"), "Quality", hub_texts=_SENTENCES),
        ),
        Classification(
            name="stsb", title="STS-B", metrics=("pearson", "spearman"), value_range=(0.0, 5.0),
            source=GlueFiles("STS-B", _SENTENCES, "score"),
        ),
        Classification(
            name="qqp", title="QQP", labels=_BINARY, metrics=("accuracy", "f1"),
            source=GlueFiles("QQP", ("question1", "question2"), "is_duplicate", skip_short=True),
        ),
        Classification(
            name="mnli", title="MNLI", labels=_INFERENCE, metrics=("accuracy",),
            source=GlueFiles("MNLI", _SENTENCES, "gold_label", hub_texts=_MNLI),
            dev_splits=("dev_matched", "dev_mismatched"), test_splits=("test_matched", "test_mismatched"),
        ),
        Classification(
            name="qnli", title="QNLI", labels=_ENTAILMENT, metrics=("accuracy",),
            source=GlueFiles("QNLI", ("question", "sentence")),
        ),
        Classification(
            name="rte", title="RTE", labels=_ENTAILMENT, metrics=("accuracy",),
            source=GlueFiles("RTE", _SENTENCES),
        ),
        Classification(
            name="wnli", title="WNLI", labels=_BINARY, metrics=("accuracy",),
            source=GlueFiles("WNLI", _SENTENCES),
        ),
        # GLUE's diagnostics (§4 of Wang et al.): the benchmark's file has no labels, a separate file has them.
        Classification(
            name="ax", title="AX", labels=_INFERENCE, metrics=("mcc",), train_split=None, classifier_of="mnli",
            source=GlueFiles(
                "diagnostic", ("Premise", "Hypothesis"), "Label", hub_texts=_MNLI, test_texts=_SENTENCES,
                files={"dev": "diagnostic-full", "test": "diagnostic"},
            ),
        ),
    )
}  # fmt: skip

# The GLUE score is the mean over these nine tasks; the diagnostics do not count.
GLUE_SCORE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
