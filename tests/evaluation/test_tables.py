"""Tests of `evaluation.tables`: the notes below a table have the metrics and differences that the table leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from albert_cli.evaluation.tables import format_protocol
from albert_cli.results import ControlResult, ScoreDifference
from tests.helpers.results import evaluation_result, scored_result
from tests.helpers.task_runs import as_text


def printed_words(*results: Any) -> str:
    """Return the text of a result, or of a suite with several results, with single spaces."""
    values = results[0].to_json()
    if len(results) > 1:
        tasks = {result.task: result.to_json() for result in results}
        values = {"kind": "suite", "tasks": tasks, "tasks_scored": len(tasks), "glue_score": 0.5}
    return " ".join(as_text(values).split())


def test_notes_have_the_medians_of_the_other_metrics() -> None:
    scores = {"accuracy": [0.7, 0.8, 0.9], "middle_accuracy": [0.8, 0.81, 0.95], "high_accuracy": [0.6, 0.72, 0.7]}
    race = evaluation_result(scores["accuracy"], task="race", title="RACE", all_scores=scores)
    assert "RACE, other metrics: middle accuracy 81.0, high accuracy 70.0" in printed_words(race)
    squad_scores = {"f1": [0.7], "em": [0.6], "best_f1": [0.75], "best_em": [0.65]}
    squad = evaluation_result([0.7], task="squad2", title="SQuAD 2.0", metric="f1", all_scores=squad_scores)
    assert "SQuAD 2.0, other metrics: em 60.0, best f1 75.0, best em 65.0" in printed_words(squad)
    assert "other metrics" not in printed_words(evaluation_result([0.7]))


def test_format_result_mnli_has_both_dev_sets() -> None:
    scores = {"accuracy": [0.7, 0.8], "mismatched_accuracy": [0.5, 0.6]}
    examples = {"train": 9, "dev_matched": 24, "dev_mismatched": 30}
    result = evaluation_result([0.7, 0.8], task="mnli", title="MNLI", all_scores=scores, examples=examples).to_json()
    for values in (result, {"kind": "suite", "tasks": {"mnli": result}, "tasks_scored": 1, "glue_score": 0.75}):
        printed = " ".join(as_text(values).split())
        assert "mismatched accuracy 55.0" in printed
        assert "24 dev matched and 30 dev mismatched" in printed


def test_notes_of_a_suite_have_the_other_metrics() -> None:
    mrpc = evaluation_result([0.7], task="mrpc", title="MRPC", all_scores={"accuracy": [0.7], "f1": [0.8]})
    scored = scored_result(0.6, task="qqp", title="QQP", scores={"accuracy": 0.6, "f1": 0.5})
    printed = printed_words(mrpc, scored, evaluation_result([0.6]))
    assert "MRPC, other metrics: f1 80.0" in printed
    assert "QQP, other metrics: f1 50.0" in printed
    assert "RTE, other metrics" not in printed


@pytest.mark.parametrize(
    ("weights", "model", "seed"),
    [("pretrained", "pretrained", "pretrained seed"), ("random", "model", "seed of the model")],
)
def test_notes_name_the_weights_of_the_model(weights: str, model: str, seed: str) -> None:
    difference = ScoreDifference(difference=0.1, standard_error=0.01, low=0.05, high=0.15, seeds=3)
    controls = {"init": ControlResult(every_seed_above=True), "random": ControlResult(every_seed_above=False)}
    result = evaluation_result(weights=weights, differences={"classical": difference}, controls=controls)
    printed = printed_words(result)
    assert f"RTE, {model} minus classical: +10.0" in printed
    assert f"Every {seed} is above every seed of the same init on RTE." in printed
    assert f"On RTE not every {seed} is above every seed of the random weights." in printed


def test_protocol_has_the_weights_before_the_intermediate_task() -> None:
    for weights, words in (("random", "random"), ("init", "step 0")):
        assert words in format_protocol(evaluation_result(weights=weights))
        protocol = format_protocol(evaluation_result(weights=weights, intermediate_task="mnli"))
        assert "fine-tuned on MNLI" in protocol and words in protocol
    assert "initial weights a model fine-tuned on MNLI, " in format_protocol(
        evaluation_result(intermediate_task="mnli")
    )
