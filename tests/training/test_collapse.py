"""Runs that learnt nothing are noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_cli.results import Result
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.squad.data import Answer, Question
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.windows import AnswerSpans, encode_spans
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.finetune import collapse_reason as reason
from tests.glue import as_text, summarise
from tests.labelled import labelled

TRAIN = [TextExample("a", None, int(i < 3), str(i)) for i in range(4)]  # entropy 0.562
VALUES = [TextExample("a", "b", float(v), str(v)) for v in (0, 2, 4)]  # variance 8/3
DIFFERENT = np.array([[1.0, 0.0], [0.0, 1.0]])


def journal(path: Path, losses: list[float]) -> Path:
    rows: list[dict[str, Any]] = [{"step": 10 * (i + 1), "eval": {"loss": loss}} for i, loss in enumerate(losses)]
    rows.append({"step": rows[-1]["step"], "loss": 9.0})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("task", "outputs", "losses", "score", "expected"),
    [
        ("sst2", DIFFERENT, [0.7, 0.3], 0.5, None),
        ("sst2", [[1.0, 0.0]] * 3, [0.7, 0.3], 0.9, "one class for all inputs"),
        ("sst2", DIFFERENT, [0.6, 0.56], 0.5, "loss at chance (0.560 at best; the label frequencies alone give 0.562)"),
        ("sst2", DIFFERENT, [0.6, 0.9], 0.8, None),  # overfitted, yet better than the majority
        ("sst2", DIFFERENT, [0.5, 0.9], 0.4, None),
        ("stsb", [[2.0], [2.001]], [3.0, 0.5], 0.5, "one value for all inputs"),
        ("stsb", [[2.0], [3.0]], [2.7], 0.5, "loss at chance (2.700 at best; the label frequencies alone give 2.667)"),
        ("stsb", [[2.0], [3.0]], [3.0, 0.5], 0.5, None),
    ],
)  # fmt: skip
def test_reasons(
    tmp_path: Path, task: str, outputs: Any, losses: list[float], score: float, expected: str | None
) -> None:
    train, results = VALUES if task == "stsb" else TRAIN, Result(score=score, majority=0.5)
    lines = journal(tmp_path / "metrics.jsonl", losses)
    assert reason(find_task(task), np.array(outputs), labelled([0, 1, 1]), train, lines, results) == expected


@pytest.mark.parametrize("task", ["sst2", "stsb", "race"])
@pytest.mark.parametrize("labels", [[1], [1, 1, 1]])
def test_where_dev_has_one_label_one_answer_says_nothing(tmp_path: Path, task: str, labels: list[int]) -> None:
    outputs = np.array([[0.0] if task == "stsb" else [0.0, 1.0, 0.0, 0.0]] * len(labels))
    lines, results = journal(tmp_path / "metrics.jsonl", [0.1]), Result(score=1.0, majority=0.5)
    assert reason(find_task(task), outputs, labelled(labels), TRAIN, lines, results) is None
    other = reason(find_task(task), outputs.repeat(2, axis=0), labelled([*labels, 0]), TRAIN, lines, results)
    assert other is not None and "all" in other


@pytest.mark.parametrize(
    ("task", "null", "places", "expected"),
    [
        ("squad2", [0.1, 7.0], [0, 5], "no question answered"),
        ("squad2", [-0.1, 7.0], [0, 5], None),
        ("squad1", [0.1, 7.0], [0, 5], None),  # 1.1 always answers
        ("squad1", [0.1, 7.0], [5, 5], "the same span in every context"),
        ("squad2", [-1.0, 7.0], [5, 5], "the same span in every context"),
    ],
)
def test_answers_that_are_all_one(
    tmp_path: Path, tiny_vocabulary: Path, task: str, null: list[float], places: list[int], expected: str | None
) -> None:
    questions = [Question(str(i), "ba?", "bade figo", (Answer("bade", 0),) if i else ()) for i in (0, 1)]
    dev = encode_spans(questions, Vocabulary.load(tiny_vocabulary), 80, SpanSettings())
    start = np.array(places)
    said = AnswerSpans(np.arange(2), start, start + 4, np.ones(2), np.array(null))
    lines, results = journal(tmp_path / "metrics.jsonl", [0.1]), Result(score=0.5, majority=0.5)
    assert reason(find_task(task), said, dev, questions, lines, results) == expected


def run(seed: int, score: float, collapsed: str | None) -> dict[str, Any]:
    return {
        "kind": "run", "task": "rte", "title": "RTE", "metric": "accuracy", "score": score, "majority": 0.5,
        "scores": {"accuracy": score}, "seed": seed, "seconds": 1.0, "collapsed": collapsed,
    }  # fmt: skip


def test_collapsed_seeds_are_counted_and_the_median_of_the_others_said() -> None:
    why = "one class for all inputs"
    result = summarise([run(0, 0.5, why), run(1, 0.7, None), run(2, 0.5, why), run(3, 0.6, None)])
    assert result["collapsed"] == {"0": why, "2": why}
    assert result["median"] == pytest.approx(0.55) and result["median_without_collapsed"] == pytest.approx(0.65)
    said = as_text(result)
    assert "collapsed" in said.splitlines()[0] and "2 of 4" in said
    assert f"RTE collapsed: seed 0 ({why}), seed 2 ({why}); the median of the others is 65.0" in " ".join(said.split())
    assert "collapsed" not in as_text(summarise([run(0, 0.5, None)]))
    assert summarise([run(0, 0.5, why)])["median_without_collapsed"] is None
