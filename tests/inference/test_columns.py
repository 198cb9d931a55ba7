"""The columns of a table by role, and the remedy if one is missing."""

from __future__ import annotations

import pytest

from albert_cli.errors import InputError
from albert_cli.inference.columns import map_columns
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.table_layout import TableLayout, TrainedColumns

TRAINED = TableLayout(columns=TrainedColumns(text="review"))


@pytest.mark.parametrize(
    ("task", "layout", "remedy"),
    [
        (find_task("cola"), TableLayout(), "keep one column of texts, and name it text, or write"),
        (find_task("mrpc"), TableLayout(), "rename the columns to text and text_pair"),
        (find_task("squad1"), TableLayout(), "rename the column to one of these names"),
        (find_task("cola"), TRAINED, "name the columns as in training: review, or write"),
    ],
)
def test_map_columns_missing_column_names_the_remedy(task: AnyTask, layout: TableLayout, remedy: str) -> None:
    with pytest.raises(InputError, match="no column") as raised:
        map_columns(task, ["a", "b"], "in.csv", layout)
    assert str(raised.value.hint).startswith(remedy)
