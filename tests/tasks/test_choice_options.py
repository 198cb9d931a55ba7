"""Options of a question in the layouts of published data sets."""

from __future__ import annotations

import json

import pytest

from albert_cli.tasks.choice_options import parse_options


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a", "b"], (("a", "b"), ())),
        ([1, 2.5, None, True], (("1", "2.5", "", "true"), ())),
        ({"text": ["a", "b"], "label": ["A", "B"]}, (("a", "b"), ("A", "B"))),
        ({"text": ["a", "b", ""], "label": ["1", "2", "3"]}, (("a", "b"), ("1", "2"))),
        ([{"label": "A", "text": "a"}, {"label": "B", "text": "b"}], (("a", "b"), ("A", "B"))),
        ([{"text": "a"}, {"text": "b"}], (("a", "b"), ())),
        ([{"text": "a"}, "b"], ((), ())),
        ([["a"], ["b"]], ((), ())),
        ({"text": "ab"}, ((), ())),
        ("no list", ((), ())),
        ("3", ((), ())),
        (None, ((), ())),
        ([], ((), ())),
    ],
)
def test_parse_options_value_and_its_json_are_equal(value: object, expected: tuple[tuple[str, ...], ...]) -> None:
    assert parse_options(value) == expected
    assert parse_options(json.dumps(value)) == expected
