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
from albert_cli.inference.documents import CONLL_SUFFIXES
from albert_cli.inference.outputs import PREDICTION_SUFFIXES, merge_columns, open_prediction_writer
from albert_cli.inference.predict import predict_file, read_rows
from albert_cli.model.hub import FinetunedTask
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.table_sources import TableSource
from albert_cli.tasks.token_data import TokenFiles


def find_test_file(task: AnyTask) -> Path | None:
    """Return the test file of a task on a table or on tagged words.

    Return None for other tasks, without a test file, or if `predict` cannot read the test file.
    """
    source = task.source
    if isinstance(source, TokenFiles):
        name = source.files.get("test")
        suffixes: tuple[str, ...] = (".jsonl", *CONLL_SUFFIXES)
    elif isinstance(source, TableSource):
        name = source.tables.files.get("test")
        suffixes = PREDICTION_SUFFIXES
    else:
        return None
    if name is None or not Path(name).is_file() or Path(name).suffix.lower() not in suffixes:
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
    path = _predictions_path(test_file, out)
    summary = predict_file(str(checkpoint), str(test_file), path, device)
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
    rows = [row for chunk in read_rows(task, finetuned, str(test_file)) for row in chunk]
    examples = [row.example for row in rows]
    lines = task.format_predictions(examples, predict(examples), with_details=False)
    path = _predictions_path(test_file, out)
    with open_prediction_writer(path) as write:
        pairs = zip(rows, map(json.loads, lines), strict=True)
        write([merge_columns(row.columns, prediction, str(test_file)) for row, prediction in pairs])
    console.info(f"{path}: predictions for the {len(rows):,} rows of {test_file}")


def _predictions_path(test_file: Path, out: Path) -> Path:
    suffix = test_file.suffix.lower()
    if suffix not in PREDICTION_SUFFIXES:  # CoNLL columns
        suffix = ".jsonl"
    return out / f"predictions.test{suffix}"
