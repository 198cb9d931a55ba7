"""Predict the test file of a table after training on it."""

from __future__ import annotations

from pathlib import Path

from albert_cli import console
from albert_cli.inference.outputs import SUFFIXES
from albert_cli.inference.predict import predict_file
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.table import ChoiceTableSource, MultiLabelTableSource, TextTableSource


def find_test_file(task: AnyTask) -> Path | None:
    """Return the test file of a table; None for other tasks and for a table without a readable test file."""
    if not isinstance(task.source, TextTableSource | ChoiceTableSource | MultiLabelTableSource):
        return None
    name = task.source.tables.files.get("test")
    if name is None:
        return None
    path = Path(name)
    return path if path.is_file() and path.suffix.lower() in SUFFIXES else None


def check_test_file(task: AnyTask) -> None:
    """Read the test file before training; raises `InputError` if its columns are not the task's."""
    if find_test_file(task) is not None and task.source is not None:
        task.read("test")


def predict_test_file(task: AnyTask, checkpoint: Path, out: Path, device: str) -> Path | None:
    """Predict the test file of a table with a task checkpoint; returns the path of the predictions in `out`.

    The predictions have the file's format and keep its columns. None if there is no test file.
    """
    test_file = find_test_file(task)
    if test_file is None:
        return None
    path = out / f"predictions.test{test_file.suffix.lower()}"
    summary = predict_file(str(checkpoint), str(test_file), path, device)
    console.info(f"{path}: predictions for the {summary.lines:,} rows of {test_file}")
    return path
