"""Infer a table's classes from its labels."""

from __future__ import annotations

import math

from albert_cli.errors import InputError
from albert_cli.tasks.columns import require_column
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable


def infer_labels(
    settings: TableSettings, train: TextTable | None, model_labels: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the classes, () for a regression: from the recipe, from train's labels, or from a model's outputs.

    None if there is neither train nor a model. Raises `InputError` for fewer than two classes.
    """
    if settings.kind == "regression":
        return ()
    if settings.labels:
        return settings.labels
    if train is None:
        is_regression = len(model_labels) == 1
        return () if is_regression else model_labels or None
    column = require_column(train, "label", settings)
    names = {row[column] for row in train.cells} - {""}
    if settings.kind == "auto" and _look_like_measurements(names):
        return ()
    labels = tuple(sorted(names, key=_label_sort_key))
    if len(labels) < 2:
        problem = f"only the label {labels[0]!r}" if labels else "no labels"
        raise InputError(f"{train.origin}: {problem}, so there is nothing to learn", "provide two classes or more")
    return labels


def _look_like_measurements(labels: set[str]) -> bool:
    """Return True if all labels are numbers and at least one has a fraction."""
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return False
    return any(math.isfinite(value) and value != int(value) for value in values)


def _label_sort_key(label: str) -> tuple[bool, float, str]:
    """Sort whole numbers by size (2 before 10), then everything else by characters."""
    is_number = label.isascii() and label.removeprefix("-").isdigit()
    return (not is_number, float(label) if is_number else 0.0, label)
