"""Tests of `find_collapse`: runs that learned nothing are reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_cli.tasks.choice import ChoiceExample
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.squad.data import Answer, Question
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.windows import AnswerSpans, encode_spans
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.finetune import find_collapse
from albert_cli.training.task_inputs import Inputs, InputSettings
from tests.helpers.labeled import labeled
from tests.helpers.results import run_result
from tests.helpers.task_runs import as_text, summarize

CLASS_EXAMPLES = [TextExample("a", None, int(i < 3), str(i)) for i in range(4)]  # entropy 0.562
VALUE_EXAMPLES = [TextExample("a", "b", float(v), str(v)) for v in (0, 2, 4)]  # variance 8/3
CHOICE_EXAMPLES = [ChoiceExample("0", "a", "b", ("c", "d"), 0)]  # chance: ln 2 = 0.693
LOGITS_OF_BOTH_CLASSES = np.array([[1.0, 0.0], [0.0, 1.0]])


def make_inputs(train: Sequence[Any], dev: Any) -> Inputs:
    """Return inputs with only what `find_collapse` reads: training examples and dev features."""
    return Inputs(InputSettings("train", ("dev",), 80), {"train": train}, {"dev": dev}, "")


def write_journal(path: Path, losses: list[float]) -> Path:
    """Write a journal with the losses of some evaluations, and a training loss."""
    rows: list[dict[str, Any]] = [{"step": 10 * (i + 1), "eval": {"loss": loss}} for i, loss in enumerate(losses)]
    rows.append({"step": rows[-1]["step"], "loss": 9.0})  # a training loss, which `find_collapse` must ignore
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("task", "outputs", "losses", "beats_majority", "expected"),
    [
        ("sst2", LOGITS_OF_BOTH_CLASSES, [0.7, 0.3], False, None),
        ("sst2", [[1.0, 0.0]] * 3, [0.7, 0.3], True, "one class for all inputs"),
        ("sst2", LOGITS_OF_BOTH_CLASSES, [0.6, 0.56], False,
         "loss at chance (lowest 0.56; without the texts it is 0.5623)"),
        ("sst2", LOGITS_OF_BOTH_CLASSES, [0.6, 0.9], True, None),  # overfitted, yet better than the majority
        ("sst2", LOGITS_OF_BOTH_CLASSES, [0.5, 0.9], False, None),
        ("stsb", [[2.0], [2.001]], [3.0, 0.5], False, "one value for all inputs"),
        ("stsb", [[2.0], [3.0]], [2.7], False, "loss at chance (lowest 2.7; without the texts it is 2.667)"),
        ("stsb", [[2.0], [3.0]], [3.0, 0.5], False, None),
        ("race", LOGITS_OF_BOTH_CLASSES, [0.7], False, "loss at chance (lowest 0.7; without the texts it is 0.6931)"),
    ],
)  # fmt: skip
def test_find_collapse_returns_the_reason(
    tmp_path: Path, task: str, outputs: Any, losses: list[float], beats_majority: bool, expected: str | None
) -> None:
    # Only whether labels and predictions vary matters, so their numbers need not be equal.
    train: dict[str, Sequence[Any]] = {"sst2": CLASS_EXAMPLES, "stsb": VALUE_EXAMPLES, "race": CHOICE_EXAMPLES}
    inputs = make_inputs(train[task], labeled([0, 1, 1]))
    log = write_journal(tmp_path / "metrics.jsonl", losses)
    reason = find_collapse(find_task(task), np.array(outputs), inputs, log, beats_majority=beats_majority)
    assert reason == expected


def test_find_collapse_prints_losses_of_small_values(tmp_path: Path) -> None:
    train = [TextExample("a", "b", 1e-6 * value, "") for value in (0, 2, 4)]
    log = write_journal(tmp_path / "metrics.jsonl", [2.7e-12])
    inputs = make_inputs(train, labeled([0.0, 1e-6]))
    reason = find_collapse(find_task("stsb"), np.array([[1e-6], [2e-6]]), inputs, log, beats_majority=False)
    assert reason == "loss at chance (lowest 2.7e-12; without the texts it is 2.667e-12)"


@pytest.mark.parametrize("task", ["sst2", "stsb", "race"])
@pytest.mark.parametrize("labels", [[1], [1, 1, 1]])
def test_find_collapse_dev_with_one_label_is_no_collapse(tmp_path: Path, task: str, labels: list[int]) -> None:
    outputs = np.array([[0.0] if task == "stsb" else [0.0, 1.0, 0.0, 0.0]] * len(labels))
    log = write_journal(tmp_path / "metrics.jsonl", [0.1])
    inputs = make_inputs(CLASS_EXAMPLES, labeled(labels))
    assert find_collapse(find_task(task), outputs, inputs, log, beats_majority=True) is None
    inputs = make_inputs(CLASS_EXAMPLES, labeled([*labels, 0]))
    reason = find_collapse(find_task(task), outputs.repeat(2, axis=0), inputs, log, beats_majority=True)
    assert reason is not None and "all" in reason


@pytest.mark.parametrize(
    ("task", "null", "starts", "expected"),
    [
        # null: for each question the score of "no answer", which is chosen if it is above 0; starts: of the answers.
        ("squad2", [0.1, 7.0], [0, 5], "no question answered"),
        ("squad2", [-0.1, 7.0], [0, 5], None),
        ("squad1", [0.1, 7.0], [0, 5], None),  # SQuAD 1.1 has no question without an answer
        ("squad1", [0.1, 7.0], [5, 5], "the same span in every context"),
        ("squad2", [-1.0, 7.0], [5, 5], "the same span in every context"),
    ],
)
def test_find_collapse_reports_constant_spans(
    tmp_path: Path, tiny_vocabulary: Path, task: str, null: list[float], starts: list[int], expected: str | None
) -> None:
    questions = [Question(str(i), "ba?", "bade figo", (Answer("bade", 0),) if i else ()) for i in (0, 1)]
    dev = encode_spans(questions, Vocabulary.load(tiny_vocabulary), 80, SpanSettings())
    start = np.array(starts)
    spans = AnswerSpans(np.arange(2), start, start + 4, np.ones(2), np.array(null))
    log = write_journal(tmp_path / "metrics.jsonl", [0.1])
    reason = find_collapse(find_task(task), spans, make_inputs(questions, dev), log, beats_majority=False)
    assert reason == expected


def make_run(seed: int, score: float, collapsed: str | None) -> dict[str, Any]:
    return run_result(score, seed, collapsed=collapsed).to_json()


def test_summarize_runs_counts_collapsed_seeds() -> None:
    reason = "one class for all inputs"
    result = summarize(
        [make_run(0, 0.5, reason), make_run(1, 0.7, None), make_run(2, 0.5, reason), make_run(3, 0.6, None)]
    )
    assert result.collapsed == {"0": reason, "2": reason}
    assert result.median == pytest.approx(0.55)
    assert result.median_without_collapsed == pytest.approx(0.65)
    printed = as_text(result.to_json())
    assert "collapsed" in printed.splitlines()[0]
    assert "2 of 4" in printed
    note = f"RTE collapsed: seed 0 ({reason}), seed 2 ({reason}); the median of the others is 65.0"
    assert note in " ".join(printed.split())
    assert "collapsed" not in as_text(summarize([make_run(0, 0.5, None)]).to_json())
    assert summarize([make_run(0, 0.5, reason)]).median_without_collapsed is None
