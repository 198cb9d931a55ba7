"""Scores by hand, against the libraries on random cases, and where a correlation is not defined."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.metrics import scores


@pytest.fixture(autouse=True)
def _no_warnings() -> None:
    warnings.simplefilter("error")


def test_scores_equal_hand_computed_values() -> None:
    # 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
    labels = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    predictions = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    got = scores(("accuracy", "f1", "mcc"), predictions, labels)
    assert got["accuracy"] == pytest.approx(0.7)
    assert got["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert got["mcc"] == pytest.approx((3 * 4 - 1 * 2) / (4 * 5 * 5 * 6) ** 0.5)


def test_scores_mcc_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for num_classes in (2, 3, 5):
        labels = rng.integers(num_classes, size=100)
        predictions = np.where(rng.random(100) < 0.5, labels, rng.integers(num_classes, size=100))
        assert scores(("mcc",), predictions, labels)["mcc"] == matthews_corrcoef(labels, predictions) > 0.2


@pytest.mark.parametrize("unit", [1.0, 1e-15, 1e-40, 1e27])
def test_scores_correlations_equal_hand_computed(unit: float) -> None:
    predictions = unit * np.array([1.0, 2.0, 4.0])
    got = scores(("pearson", "spearman"), predictions, unit * np.array([1.0, 3.0, 2.0]))
    assert got["pearson"] == pytest.approx(1 / (2 * 14 / 3) ** 0.5)
    assert got["spearman"] == pytest.approx(0.5)


def test_scores_f1_counts_class_one() -> None:
    assert scores(("f1",), [2, 1, 1, 0], [2, 1, 0, 0])["f1"] == pytest.approx(2 / 3)
    assert scores(("macro_f1",), [2, 1, 1, 0], [2, 1, 0, 0])["macro_f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


@pytest.mark.parametrize("value", [0.0, 3.3, 1e9])
def test_scores_constant_predictions_are_zero(value: float) -> None:
    predictions = np.full(5, value, dtype=np.float32)
    predictions[0] = np.nextafter(predictions[0], np.float32(np.inf)) if value == 0 else predictions[0]
    got = scores(("pearson", "spearman"), predictions, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert got == {"pearson": 0.0, "spearman": 0.0}


def test_scores_rounding_errors_are_no_correlation() -> None:
    noise = np.array([0.0, 1e-16, 3e-16])
    assert scores(("pearson",), noise, [1.0, 2.0, 3.0]) == {"pearson": 0.0}
    assert scores(("pearson",), [1.0, 2.0, 3.0], 0.3 + noise) == {"pearson": 0.0}


def test_scores_one_class_has_zero_mcc() -> None:
    assert scores(("mcc", "f1"), [0, 0, 0], [0, 1, 1]) == {"mcc": 0.0, "f1": 0.0}
    assert scores(("mcc", "accuracy"), [1, 1], [1, 1]) == {"mcc": 0.0, "accuracy": 1.0}


def test_scores_bad_shapes_are_rejected() -> None:
    for predictions, labels in (([], []), ([1], [1, 0]), ([[1]], [[1]])):
        with pytest.raises(ValueError, match="labels"):
            scores(("accuracy",), predictions, labels)


@pytest.mark.parametrize(
    ("task", "train", "dev", "expected"),
    [
        ("mrpc", [1, 1, 0], [0, 0, 1], 1 / 3),
        ("mrpc", [1, 0], [0, 0, 1], 2 / 3),  # a tie goes to the first
        ("stsb", [1.0, 4.0], [0.5, 2.0], 0.0),
    ],
)
def test_score_majority_uses_train_labels(task: str, train: list[float], dev: list[float], expected: float) -> None:
    splits = ([TextExample("", None, label, "") for label in labels] for labels in (train, dev))
    assert GLUE[task].score_majority(*splits) == pytest.approx(expected)
