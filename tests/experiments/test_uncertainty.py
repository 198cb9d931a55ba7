"""Tests of `experiments.uncertainty`: jackknife errors agree with repeated samples and with known formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from albert_cli.experiments.uncertainty import (
    JACKKNIFE_GROUPS,
    exact_value,
    jackknife_error,
    jackknife_examples,
    jackknife_mean,
    jackknife_task,
    jackknife_time,
    value_of_unknown_error,
)
from tests.helpers.results import evaluation_result


def test_jackknife_of_a_fraction_has_binomial_error() -> None:
    correct = np.random.default_rng(0).random(6400) < 0.3
    estimate = jackknife_examples(lambda left: float(correct[left].mean()), len(correct))
    assert estimate[0] == correct.mean()
    assert jackknife_error(estimate) == pytest.approx(math.sqrt(0.3 * 0.7 / 6400), rel=0.3)


def test_jackknife_of_a_correlation_has_sampling_error() -> None:
    rng = np.random.default_rng(1)

    def sample_score() -> tuple[float, float]:
        gold = (rng.random(500) < 0.3).astype(int)
        predicted = np.where(rng.random(500) < 0.8, gold, 1 - gold)
        estimate = jackknife_examples(
            lambda left: float(np.corrcoef(predicted[left], gold[left])[0, 1]), 500
        )  # of classes, MCC
        return float(estimate[0]), jackknife_error(estimate)

    values, errors = zip(*(sample_score() for _ in range(60)), strict=True)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)


def test_jackknife_mean_leaves_out_one_group() -> None:
    sums, counts = np.arange(JACKKNIFE_GROUPS), np.full(JACKKNIFE_GROUPS, 2)
    estimate = jackknife_mean(sums, counts)
    assert estimate[0] == sums.sum() / counts.sum()
    assert estimate[3] == (sums.sum() - 2) / (counts.sum() - 2)


def test_jackknife_time_leaves_out_compilation(tmp_path: Path) -> None:
    """The first line of the journal comes after the compilation."""
    rows = [{"step": 100 * n, "loss": 1.0, "seconds": 60.0 + 5.0 * (n - 1)} for n in range(1, 5)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    estimate = jackknife_time(75.0, 400, tmp_path)
    assert estimate[0] == pytest.approx(20.0)
    assert jackknife_error(estimate) == pytest.approx(0.0)


def test_unknown_error_is_infinite() -> None:
    assert jackknife_error(exact_value(0.5)) == 0
    assert jackknife_error(value_of_unknown_error(0.5)) == math.inf
    assert jackknife_error(value_of_unknown_error(0.5) - exact_value(0.1)) == math.inf
    assert jackknife_error(jackknife_examples(lambda left: float(len(left)), 1)) > 0, "fewer examples than parts"


@pytest.mark.parametrize("runs", [1, 3])
def test_jackknife_task_has_the_result_and_its_error(runs: int, tmp_path: Path) -> None:
    """The value is that of the result file, and the error is computed from the predictions of all runs."""
    rng = np.random.default_rng(2)
    gold = rng.random(1000) < 0.5
    for run in range(runs):
        predicted = np.where(rng.random(1000) < 0.7, gold, ~gold)
        lines = [
            {"id": str(n), "label": f"is {a}", "prediction": f"is {b}", "probabilities": {f"is {b}": 1.0}}
            for n, (a, b) in enumerate(zip(gold, predicted, strict=True))
        ]
        (tmp_path / f"run-{run}").mkdir()
        (tmp_path / f"run-{run}/predictions.dev.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = evaluation_result(all_scores={"mcc": [0.41] * runs}, labels=["is False", "is True"])
    estimate = jackknife_task(["mcc"], result, tmp_path)["mcc"]
    assert estimate[0] == pytest.approx(0.41)
    # The error of a correlation is (1 - r²) / √n for one run, and smaller for the mean of several independent runs.
    assert jackknife_error(estimate) < (1.3 if runs == 1 else 0.95) * (1 - 0.4**2) / math.sqrt(1000)
    assert jackknife_error(jackknife_task(["mcc"], result, tmp_path / "run-0")["mcc"]) > 0.7 * (1 - 0.4**2) / math.sqrt(
        1000
    )


def class_line(n: int) -> dict[str, object]:
    return {"label": "ab"[n % 2], "prediction": "ab"[n % 3 % 2], "probabilities": {"a": 0.5, "b": 0.5}}


def value_line(n: int) -> dict[str, object]:
    return {"label": n / 7, "prediction": float(n % 5)}


def span_line(n: int) -> dict[str, object]:
    return {"prediction": "b", "answers": ["b"], "f1": 1.0, "em": float(n % 2)}


@pytest.mark.parametrize(
    ("line", "metric"),
    [
        (class_line, "middle_accuracy"),
        (class_line, "mismatched_accuracy"),
        (value_line, "mismatched_pearson"),
        (span_line, "no_answer_em"),
    ],
)
def test_jackknife_task_other_metric_has_unknown_error(
    line: Callable[[int], dict[str, object]], metric: str, tmp_path: Path
) -> None:
    """A run's predictions do not have the examples, or the groups of examples, of these metrics."""
    (tmp_path / "run-0").mkdir()
    lines = [json.dumps({"id": str(n)} | line(n)) for n in range(100)]
    (tmp_path / "run-0" / "predictions.dev.jsonl").write_text("\n".join(lines) + "\n")
    result = evaluation_result(all_scores={metric: [0.4]})
    estimate = jackknife_task([metric], result, tmp_path)[metric]
    assert estimate[0] == 0.4
    assert jackknife_error(estimate) == math.inf
