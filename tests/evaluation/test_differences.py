"""Tests of `evaluation.differences`: paired differences, and their error from seeds and dev examples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_cli.errors import CheckpointError
from albert_cli.evaluation import differences
from albert_cli.evaluation.differences import compare_predictions, read_predictions_by_seed
from albert_cli.evaluation.tables import format_difference
from albert_cli.tasks.classification import Classification
from tests.helpers.results import evaluation_result

RESAMPLES = differences._RESAMPLES  # read before a fixture of all tests changes it


@pytest.fixture(autouse=True)
def all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the number of bootstrap samples that `albert` uses; other tests use fewer."""
    monkeypatch.setattr(differences, "_RESAMPLES", RESAMPLES)


def predictions_with_errors(gold: np.ndarray, errors: int, seed: int) -> np.ndarray:
    """Return the gold labels with this number of errors, at indices sampled by the seed."""
    wrong = np.random.default_rng(seed).permutation(len(gold))[:errors]
    predictions = gold.copy()
    predictions[wrong] = 1 - predictions[wrong]
    return predictions


def test_difference_is_the_mean_over_common_seeds() -> None:
    gold = np.arange(1000) % 2
    first = {seed: predictions_with_errors(gold, 100, seed) for seed in range(4)}
    second = {seed: predictions_with_errors(gold, 300, 10 + seed) for seed in range(1, 6)}
    difference = compare_predictions("accuracy", gold, first, second)
    assert difference is not None and difference.seeds == 3
    assert difference.difference == pytest.approx(0.2)
    # All seeds have the same score, so the error is that of 1,000 examples, with independent mistakes in 3 seeds.
    assert difference.standard_error == pytest.approx(math.sqrt((0.1 * 0.9 + 0.3 * 0.7) / 1000 / 3), rel=0.2)
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * difference.standard_error)


def test_difference_of_equal_mistakes_has_no_example_error() -> None:
    gold = np.arange(500) % 2
    predictions = {seed: predictions_with_errors(gold, 50, 0) for seed in range(3)}
    difference = compare_predictions("accuracy", gold, predictions, dict(predictions))
    assert difference is not None and (difference.difference, difference.standard_error) == (0.0, 0.0)


def test_difference_error_grows_with_the_spread_of_seeds() -> None:
    gold = np.arange(2000) % 2
    second = {seed: predictions_with_errors(gold, 600, 9) for seed in range(3)}
    alike = {seed: predictions_with_errors(gold, 400, seed) for seed in range(3)}
    spread = {seed: predictions_with_errors(gold, 200 + 200 * seed, seed) for seed in range(3)}
    errors = []
    for first in (alike, spread):
        difference = compare_predictions("accuracy", gold, first, second)
        assert difference is not None
        errors.append(difference.standard_error)
    assert errors[1] > 3 * errors[0]


def test_difference_interval_misses_one_in_twenty_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seeds with a standard deviation of 3 points, and models that are equally good; 1.96 errors miss 18 %."""
    monkeypatch.setattr(differences, "_RESAMPLES", 10)  # the error from 4,000 examples is small in comparison
    rng = np.random.default_rng(0)
    gold = np.arange(4000) % 2
    second = {seed: predictions_with_errors(gold, 1200, 100 + seed) for seed in range(3)}
    misses = 0
    for _ in range(200):
        errors = (1200 + 120 * rng.standard_normal(3)).round().astype(int)
        first = {seed: predictions_with_errors(gold, count, seed) for seed, count in enumerate(errors)}
        difference = compare_predictions("accuracy", gold, first, second)
        assert difference is not None
        misses += not difference.low <= 0 <= difference.high
    assert 2 <= misses <= 20


def test_difference_of_one_seed_reports_the_missing_error() -> None:
    gold = np.arange(1000) % 2
    first = {seed: predictions_with_errors(gold, 100 + 50 * seed, seed) for seed in range(2)}
    second = {seed: predictions_with_errors(gold, 300, 10 + seed) for seed in range(2)}
    one_seed = compare_predictions("accuracy", gold, {0: first[0]}, second)
    two_seeds = compare_predictions("accuracy", gold, first, second)
    assert one_seed is not None and two_seeds is not None
    assert one_seed.high - one_seed.low == pytest.approx(2 * 1.96 * one_seed.standard_error)
    assert two_seeds.high - two_seeds.low > 4 * (one_seed.high - one_seed.low)
    assert "without the error from seeds" in format_difference(one_seed)
    assert "without" not in format_difference(two_seeds)


def test_difference_without_common_seed_is_none() -> None:
    gold = np.array([0, 1])
    assert compare_predictions("accuracy", gold, {0: gold}, {1: gold}) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b'{"id": "0", "prediction": "yes"}', b'{"id": "0", "prediction": "maybe"}\n' * 2, b"{}\n" * 2],
)
def test_damaged_predictions_name_the_file(content: bytes, tmp_path: Path) -> None:
    task: Any = Classification(name="t", title="t", metrics=("accuracy",), labels=("no", "yes"))
    path = tmp_path / "run-0" / "predictions.dev.jsonl"
    path.parent.mkdir()
    path.write_text('{"id": "0", "prediction": "yes"}\n{"id": "1", "prediction": "no"}\n')
    result = evaluation_result([0.5])
    assert read_predictions_by_seed(task, tmp_path, result, 2)[0].tolist() == [1, 0]
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run-0/predictions\.dev\.jsonl: damaged"):
        read_predictions_by_seed(task, tmp_path, result, 2)
