"""Compare the outputs of a model that was computed twice."""

from __future__ import annotations

from typing import Any

import pytest


def approximate(value: Any) -> Any:
    """Return a parsed JSON value whose floats are equal to floats that differ by rounding of fp32.

    A model that is read from its file need not round as the model in memory did: matmuls may depend on the alignment
    of tensors in memory.
    """
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-4, abs=1e-6)
    if isinstance(value, dict):
        return {key: approximate(item) for key, item in value.items()}
    if isinstance(value, list):
        return [approximate(item) for item in value]
    return value
