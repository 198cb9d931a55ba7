"""The table layout in a checkpoint's config.json: written and read without loss, and the default for foreign values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from albert_cli.tasks.table_layout import TableLayout, TrainedColumns

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=5,
)
column_names = st.sampled_from(["text", "text_pair", "question", "choices"])
foreign_columns = json_values | st.dictionaries(column_names, json_values)


@given(columns=foreign_columns, delimiter=json_values, quoting=json_values)
def test_layout_of_any_settings_is_read(columns: object, delimiter: object, quoting: object) -> None:
    layout = TableLayout.from_settings({"columns": columns, "delimiter": delimiter, "quoting": quoting})
    assert layout == TableLayout() or layout.to_settings().items() <= {
        "columns": layout.columns.model_dump(exclude_defaults=True), "delimiter": delimiter, "quoting": quoting,
    }.items()  # fmt: skip


def test_layout_of_other_types_is_the_default() -> None:
    for settings in ({"columns": "a"}, {"columns": {"text": 1}}, {"delimiter": ";;"}, {"quoting": "yes"}):
        assert TableLayout.from_settings(settings) == TableLayout()


def test_layout_round_trip_leaves_out_defaults() -> None:
    layout = TableLayout(columns=TrainedColumns(text="review", choices=["a", "b"]), delimiter=";")
    settings = layout.to_settings()
    assert settings == {"columns": {"text": "review", "choices": ["a", "b"]}, "delimiter": ";"}
    assert TableLayout.from_settings({**settings, "threshold": 0.5}) == layout
    assert TableLayout.from_settings({}).columns.texts == ()
