"""The sampling error of measured numbers: what samples drawn anew would show, and that of a score's own formula."""

from __future__ import annotations

import json
import math
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
    value_without_error,
)
from albert_cli.results import Result


def test_a_share_has_the_binomial_s_error() -> None:
    right = np.random.default_rng(0).random(6400) < 0.3
    found = jackknife_examples(lambda kept: float(right[kept].mean()), len(right))
    assert found[0] == right.mean()
    assert jackknife_error(found) == pytest.approx(math.sqrt(0.3 * 0.7 / 6400), rel=0.3)


def test_a_correlation_has_the_error_of_samples_drawn_anew() -> None:
    rng = np.random.default_rng(1)

    def drawn() -> tuple[float, float]:
        gold = (rng.random(500) < 0.3).astype(int)
        said = np.where(rng.random(500) < 0.8, gold, 1 - gold)
        found = jackknife_examples(
            lambda kept: float(np.corrcoef(said[kept], gold[kept])[0, 1]), 500
        )  # of classes, MCC
        return float(found[0]), jackknife_error(found)

    values, errors = zip(*(drawn() for _ in range(60)), strict=True)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)


def test_a_mean_without_a_part_is_that_of_the_others() -> None:
    sums, counts = np.arange(JACKKNIFE_GROUPS), np.full(JACKKNIFE_GROUPS, 2)
    found = jackknife_mean(sums, counts)
    assert found[0] == sums.sum() / counts.sum()
    assert found[3] == (sums.sum() - 2) / (counts.sum() - 2)


def test_what_nothing_is_known_of_may_be_anything() -> None:
    assert jackknife_error(exact_value(0.5)) == 0
    assert jackknife_error(value_without_error(0.5)) == math.inf
    assert jackknife_error(value_without_error(0.5) - exact_value(0.1)) == math.inf
    assert jackknife_error(jackknife_examples(lambda kept: float(len(kept)), 1)) > 0, "fewer examples than parts"


@pytest.mark.parametrize("runs", [1, 3])
def test_a_task_s_score_is_the_one_in_its_result(runs: int, tmp_path: Path) -> None:
    """And its error that of the metric itself, computed from the predictions of every run."""
    rng = np.random.default_rng(2)
    gold = rng.random(1000) < 0.5
    for run in range(runs):
        said = np.where(rng.random(1000) < 0.7, gold, ~gold)
        lines = [
            {"id": str(n), "label": f"is {a}", "prediction": f"is {b}", "probabilities": {f"is {b}": 1.0}}
            for n, (a, b) in enumerate(zip(gold, said, strict=True))
        ]
        (tmp_path / f"run-{run}").mkdir()
        (tmp_path / f"run-{run}/predictions.dev.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = Result(all_scores={"mcc": [0.41] * runs}, labels=["is False", "is True"])
    found = jackknife_task("cola", result, tmp_path)["mcc"]
    assert found[0] == pytest.approx(0.41)
    # (1 - r²) / √n for one run; several runs that err by themselves are surer together.
    assert jackknife_error(found) < (1.3 if runs == 1 else 0.95) * (1 - 0.4**2) / math.sqrt(1000)
    assert jackknife_error(jackknife_task("cola", result, tmp_path / "run-0")["mcc"]) > 0.7 * (1 - 0.4**2) / math.sqrt(
        1000
    )
