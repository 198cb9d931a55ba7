"""Predict a task's unlabeled test file at the end of `albert finetune`, `eval` or `ensemble`.

Only tasks whose data are a table, or files of tagged words (named entities), have such a file. The predictions are in
`predictions.test.*` in the output directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from albert_cli import console
from albert_cli.evaluation.output import TEST_PREDICTIONS
from albert_cli.inference.inputs import InputReader, InputRow
from albert_cli.inference.outputs import merge_columns, open_prediction_writer, probability_column, taken_column_error
from albert_cli.tasks.base import AnyTask, Example
from albert_cli.tasks.conll import CONLL_SUFFIXES
from albert_cli.tasks.delimited import format_suffix
from albert_cli.tasks.table_sources import TableSource, find_layout
from albert_cli.tasks.token_data import TokenFiles, read_conll_words

# Returns a task's outputs for examples, in the form of `Task.predict`.
PredictExamples = Callable[[Sequence[Example]], object]


def find_test_file(task: AnyTask) -> Path | None:
    """Return the test file of a task on a table or on tagged words.

    Return None for other tasks, for a task without a test split, and for a test split in a data set of the Hub.
    """
    source = task.source
    if isinstance(source, TokenFiles):
        name = source.files.get("test")
    elif isinstance(source, TableSource):
        name = source.tables.files.get("test")
    else:
        return None
    if name is None or not Path(name).is_file():  # a data set of the Hub is no file
        return None
    return Path(name)


def check_test_file(task: AnyTask) -> None:
    """Read the test file as training and prediction do, so that an error in it costs no training or scoring.

    Raises `InputError` also if the file has a column that the predictions add.
    """
    test_file = find_test_file(task)
    if test_file is None:
        return
    task.read("test")
    added = {"prediction"}
    if isinstance(task.source, TableSource) and task.labels:
        added.add("probabilities")
        if format_suffix(test_file.name) not in (".jsonl", ".json"):  # in a table, each probability is in a column
            added.update(map(probability_column, task.labels))
    for row in _read_rows(task, test_file):
        if taken := added & row.columns.keys():
            raise taken_column_error(str(test_file), min(taken))


def predict_test_file(task: AnyTask, predict: PredictExamples, out: Path) -> None:
    """Predict a task's test file, if it has one, and write the predictions into `out`.

    The file is read with the columns and the dialect of the task's table. Predictions for a table have the format of
    its test file and repeat its columns; predictions of entities are JSON lines. Predictions that an earlier call wrote
    in another format, or for a test file that is missing now, are deleted: they may be those of another model.
    """
    test_file = find_test_file(task)
    path = None if test_file is None else _predictions_path(task, test_file, out)
    for earlier in out.glob(TEST_PREDICTIONS):
        if earlier != path:
            earlier.unlink()
    if test_file is None or path is None:
        return
    rows = _read_rows(task, test_file)
    examples = [row.example for row in rows]
    lines = task.format_predictions(examples, predict(examples), with_details=False)
    with open_prediction_writer(path, str(test_file)) as write:
        pairs = zip(rows, map(json.loads, lines), strict=True)
        write([merge_columns(row.columns, prediction, str(test_file)) for row, prediction in pairs])
    console.info(f"{path}: predictions for the {len(rows):,} rows of {test_file}")


def _read_rows(task: AnyTask, test_file: Path) -> list[InputRow]:
    """Read a test file; a .txt file contains a table or CoNLL columns as in training, not a text per line."""
    if isinstance(task.source, TokenFiles) and test_file.suffix.lower() in CONLL_SUFFIXES:
        examples, _ = read_conll_words(test_file)
        return [InputRow(example, {}) for example in examples]
    reader = InputReader(task, find_layout(task.source), txt_is_table=isinstance(task.source, TableSource))
    return [row for chunk in reader.read_chunks(str(test_file)) for row in chunk]


def _predictions_path(task: AnyTask, test_file: Path, out: Path) -> Path:
    """Return the file of predictions; its ending selects the format."""
    suffix = format_suffix(test_file.name)
    if isinstance(task.source, TokenFiles) or suffix == ".json":
        suffix = ".jsonl"
    elif suffix == ".txt":  # a table in the format of .tsv
        suffix = ".tsv"
    return out / f"predictions.test{suffix}"
