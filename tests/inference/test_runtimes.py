"""Tests of `inference.runtimes`: how the outputs of runtimes are compared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from albert_cli.inference.runtimes import max_difference

MASK = np.array([[1, 1, 0]])
AXES = {"logits": {0: "batch"}, "states": {0: "batch", 1: "sequence"}}
EXPECTED = {"logits": np.array([[1.0, 2.0]]), "states": np.array([[[1.0], [2.0], [3.0]]])}


def test_max_difference_ignores_padding() -> None:
    outputs = {"logits": np.array([[1.0, 2.5]]), "states": np.array([[[1.0], [2.75], [9.0]]])}
    assert max_difference(outputs, EXPECTED, AXES, MASK) == 0.75


@pytest.mark.parametrize("name", ["logits", "states"])
def test_max_difference_of_nan_is_nan(name: str) -> None:
    outputs = {key: values.copy() for key, values in EXPECTED.items()}
    outputs[name][0, 0] = math.nan
    assert math.isnan(max_difference(outputs, EXPECTED, AXES, MASK))
