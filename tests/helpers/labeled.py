"""Features of examples of which only the labels matter."""

from __future__ import annotations

from typing import Any

import numpy as np

from albert_cli.tasks.features import PairFeatures, TokenSlices


def labeled(labels: Any) -> PairFeatures:
    """Examples of no words with these labels."""
    labels = np.asarray(labels)
    nothing = np.zeros(len(labels), dtype=np.int64)
    none = TokenSlices(nothing, nothing)
    return PairFeatures(np.empty(0, np.int32), none, none, np.zeros(len(labels), dtype=bool), labels, 0, 0, 0)
