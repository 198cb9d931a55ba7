"""Tests of `albert_cli.quickstart.summary`: the text that closes a quickstart agrees with the scores."""

from __future__ import annotations

from typing import Any

import pytest

from albert_cli.quickstart.summary import conclude, format_summary, summarize


def difference(value: float, low: float, high: float) -> dict[str, Any]:
    return {"difference": value, "standard_error": 0.01, "low": low, "high": high, "seeds": 3}


def evaluation(init_scores: list[float], classical: float) -> dict[str, Any]:
    """Return the output of `albert eval` for one number of labels, with pretrained seeds from 0.5 to 0.52."""
    controls = {
        name: {
            "median": sorted(scores)[1],
            "scores_by_seed": dict(enumerate(scores)),
            "every_seed_above": max(scores) < 0.5,
        }
        for name, scores in (("init", init_scores), ("random", [0.3, 0.31, 0.32]))
    }
    gain = 0.51 - classical
    return {
        "title": "which package?",
        "metric": "accuracy",
        "median": 0.51,
        "spread": 0.02,
        "scores_by_seed": {"0": 0.5, "1": 0.52, "2": 0.51},
        "controls": controls,
        "majority": 0.125,
        "baselines": {"words": {"accuracy": classical}},
        "differences": {"classical": difference(gain, gain - 0.02, gain + 0.02)},
    }


def result_of(evaluations: dict[str, dict[str, Any]]) -> dict[str, Any]:
    pretraining = {"mlm_loss": 4.0, "unigram_entropy": 6.3, "below_unigram_entropy": 2.3}
    result = {"pretraining": pretraining, "examples": [], "report": "report.html", "seconds": 281.0}
    return result | summarize(evaluations)


def test_format_summary_states_verdict_for_every_seed() -> None:
    few = evaluation([0.49, 0.505, 0.48], classical=0.2)
    many = evaluation([0.47, 0.48, 0.49], classical=0.44)
    lines = format_summary(result_of({"125": few, "2000": many})).splitlines()
    assert [" ".join(line.split()) for line in [*lines[2:4], *lines[5:10]]] == [
        "which package?: accuracy on the development set, the median and every seed",
        "labels 125 2,000",
        "mini ALBERT, pretrained 51.0 (50.0 52.0 51.0) 51.0 (50.0 52.0 51.0)",
        "same init, not pretrained 49.0 (49.0 50.5 48.0) 48.0 (47.0 48.0 49.0)",
        "random weights 31.0 (30.0 31.0 32.0) 31.0 (30.0 31.0 32.0)",
        "classical baseline 20.0 44.0",
        "majority class 12.5 12.5",
    ]
    assert lines[10:12] == [
        "with 125 labels every pretrained seed is above: random weights; classical baseline",
        "with 2,000 labels every pretrained seed is above: same init, not pretrained; random weights; "
        "classical baseline",
    ]
    all_alike = format_summary(result_of(dict.fromkeys(("125", "500", "2000"), many)))
    assert "with 125, 500 and 2,000 labels every pretrained seed is above: same init" in all_alike


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.05, "Yes"), (-0.01, 0.05, "Undecided, the interval includes zero"), (-0.05, -0.01, "No, it is worse")],
)
def test_conclusion_follows_the_interval(low: float, high: float, verdict: str) -> None:
    text = conclude({"500": {"classical": difference((low + high) / 2, low, high)}})
    assert f"here? {verdict}: with 500 labels" in text
    assert f"(95 % interval {100 * low:+.1f} to {100 * high:+.1f})" in text


def test_conclusion_without_a_baseline_names_the_controls() -> None:
    assert "no classical baseline" in conclude({"500": {"init": difference(0.1, 0.05, 0.2)}})


def test_format_summary_without_heldout_text_has_no_loss() -> None:
    result = result_of({"125": evaluation([0.47, 0.48, 0.49], classical=0.44)})
    result["pretraining"] = {}
    assert "no text is held out" in format_summary(result).splitlines()[0]


def test_diverged_control_is_shown_as_such() -> None:
    scores = evaluation([0.47, 0.48, 0.49], classical=0.44)
    scores["controls"]["random"] = {"median": None, "scores_by_seed": {}}
    lines = format_summary(result_of({"125": scores})).splitlines()
    assert ["random", "weights", "diverged"] in [line.split() for line in lines]
