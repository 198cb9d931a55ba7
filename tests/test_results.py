"""Records of results are read from files of any kind: what is wrong counts as absent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.results import Result, SearchResult, SuiteResult, standard_error

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*Result.model_fields, *SearchResult.model_fields, "tasks", "else"]), VALUES))
def test_any_object_is_read(values: dict[str, Any]) -> None:
    SearchResult.model_validate(values)
    SuiteResult.model_validate(values)
    result = Result.model_validate(values)
    error = standard_error(result.by_seed.values())
    assert error is None or error >= 0
    for found in (result.by_seed, result.medians):
        assert all(isinstance(value, float) for value in found.values())
    for why in (result.collapse_reasons, result.divergence_reasons):
        assert all(isinstance(text, str) for text in why.values())
    assert result.classical is None or isinstance(result.classical[1], float)
    assert result.title == (values["title"] if isinstance(values.get("title"), str) else "")


def test_numbers_that_are_none_are_left_out_and_the_others_kept() -> None:
    scores = {"0": 0.5, "1": None, "2": float("nan"), "3": True, "4": 1}
    result = Result.model_validate(
        {"scores_by_seed": scores, "majority": "high", "baselines": {"a": {"m": 0.2}, "b": 3}}
    )
    assert (result.by_seed, result.majority) == ({"0": 0.5, "4": 1.0}, None)
    assert result.baselines == {"a": {"m": 0.2}, "b": {}}
    assert Result(score=0.25, seed=7).by_seed == {"7": 0.25}


def test_the_standard_error_of_the_mean_needs_two_scores() -> None:
    assert standard_error([0.5, 0.6, 0.7]) == pytest.approx(0.1 / 3**0.5)
    assert standard_error([0.5]) is None and standard_error([]) is None
