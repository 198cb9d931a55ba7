"""Predict a task's unlabeled test file at the end of `albert finetune`, `eval` or `ensemble`.

Only tasks whose data are a table, or files of tagged words (named entities), have such a file. The predictions are in
`predictions.test.*` in the output directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from albert_cli import console
from albert_cli.inference.outputs import merge_columns, open_prediction_writer
from albert_cli.inference.predict import predict_file, read_rows
from albert_cli.model.hub import FinetunedTask
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.table_sources import TableSource
from albert_cli.tasks.token_data import CONLL_SUFFIXES, TokenExample, TokenFiles, read_conll_words


def find_test_file(task: AnyTask) -> Path | None:
    """Return the test file of a task on a table or on tagged words.

    Return None for other tasks, without a test split, or if it is in a data set of the Hub.
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
    """Read the test file before training, so that an error in it costs no training; raises `InputError`."""
    if find_test_file(task) is not None:
        task.read("test")


def predict_test_file(task: AnyTask, checkpoint: Path, out: Path, device: str) -> None:
    """Predict a task's test file, if it has one, with a task checkpoint, and write the predictions into `out`.

    Predictions for a table have the format of its test file and repeat its columns; predictions of entities are JSON
    lines.
    """
    test_file = find_test_file(task)
    if test_file is None:
        return
    path = _predictions_path(task, test_file, out)
    document = _read_tagged_words(task, test_file)
    summary = predict_file(str(checkpoint), str(test_file), path, device, document=document)
    console.info(f"{path}: predictions for the {summary.lines:,} rows of {test_file}")


def predict_test_file_with_ensemble(
    task: AnyTask, predict: Callable[[Sequence[Any]], object], finetuned: FinetunedTask | None, out: Path
) -> None:
    """Predict a task's test file, if it has one, with the average outputs of several models, like `predict_test_file`.

    predict: returns the average outputs for examples; finetuned: the record of a member's fine-tuning, with the layout
    of the training table.
    """
    test_file = find_test_file(task)
    if test_file is None:
        return
    chunks = read_rows(task, finetuned, str(test_file), document=_read_tagged_words(task, test_file))
    rows = [row for chunk in chunks for row in chunk]
    examples = [row.example for row in rows]
    lines = task.format_predictions(examples, predict(examples), with_details=False)
    path = _predictions_path(task, test_file, out)
    with open_prediction_writer(path) as write:
        pairs = zip(rows, map(json.loads, lines), strict=True)
        write([merge_columns(row.columns, prediction, str(test_file)) for row, prediction in pairs])
    console.info(f"{path}: predictions for the {len(rows):,} rows of {test_file}")


def _read_tagged_words(task: AnyTask, test_file: Path) -> list[TokenExample] | None:
    """Return the texts of a test file of CoNLL columns, which `predict` reads from fewer file endings than training."""
    if isinstance(task.source, TokenFiles) and test_file.suffix.lower() in CONLL_SUFFIXES:
        return read_conll_words(test_file)
    return None


def _predictions_path(task: AnyTask, test_file: Path, out: Path) -> Path:
    suffix = ".jsonl" if isinstance(task.source, TokenFiles) else test_file.suffix.lower()
    return out / f"predictions.test{suffix}"
