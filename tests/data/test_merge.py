from __future__ import annotations

import numpy as np
import pytest

from albert_cli.data.merge import unigram_entropies


def test_unigram_entropies_of_known_counts_are_exact() -> None:
    train = np.array([3, 1, 0, 0])
    heldout = np.array([2, 1, 1, 0])
    cross_entropy, entropy = unigram_entropies(train, heldout)
    # Each train count is increased by 1: the frequencies are 4, 2, 1 and 1 of 8.
    expected = -(2 * np.log(4 / 8) + np.log(2 / 8) + np.log(1 / 8)) / 4
    assert cross_entropy == pytest.approx(expected, abs=1e-6)
    assert entropy == pytest.approx(1.5 * np.log(2), abs=1e-6)
