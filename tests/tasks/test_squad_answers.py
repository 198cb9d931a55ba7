"""The best spans of a question, of one model or of several, as answers and in the official files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from albert_cli.tasks.squad import Answer, Question
from albert_cli.tasks.squad_answers import (
    LOG_PROBABILITIES,
    LOGITS,
    Spans,
    answer_lines,
    average,
    best_answers,
    write_official,
)

CONTEXT = "Ada met Bo, then Bo left."
QUESTIONS = [Question("a", "Who met Bo?", CONTEXT, (Answer("Ada", 0),), "t"), Question("b", "Who sang?", CONTEXT)]


def spans(*rows: tuple[int, int, int, float], null: tuple[float, float] = (-1.0, 2.0)) -> Spans:
    question, start, end, probability = (np.array(column) for column in zip(*rows, strict=True))
    terms = np.log(probability)[:, None] * [0.25, 0.75]
    return Spans(question, start, end, probability.astype(np.float64), terms, np.array(null))


ONE = spans((0, 0, 3, 0.5), (0, 8, 10, 0.3), (0, 17, 19, 0.2), (1, 17, 19, 0.9), (1, 8, 10, 0.1))


def test_of_equal_texts_the_better_place_is_taken() -> None:
    found = [[(f.text, f.start, f.probability) for f in best] for best in best_answers(QUESTIONS, ONE, 3)]
    assert found == [[("Ada", 0, 0.5), ("Bo", 8, 0.3)], [("Bo", 17, 0.9)]]
    assert [len(best) for best in best_answers(QUESTIONS, ONE)] == [1, 1]


def test_a_question_without_any_span_is_answered_by_nothing() -> None:
    found = list(best_answers(QUESTIONS, spans((1, 0, 3, 1.0)), 5))
    assert [f.text for f in found[0]] == [""]
    assert [f.text for f in found[1]] == ["Ada"]


def test_an_ensemble_by_hand() -> None:
    other = spans((0, 8, 10, 0.8), (0, 4, 7, 0.2), (1, 0, 3, 1.0), null=(3.0, 0.0))
    found = average([ONE, other])
    assert np.stack([found.question, found.start, found.end], axis=1).tolist() == [
        [0, 8, 10], [0, 0, 3], [0, 4, 7], [0, 17, 19], [1, 0, 3], [1, 17, 19], [1, 8, 10],
    ]  # fmt: skip
    assert found.probability.tolist() == pytest.approx([0.55, 0.25, 0.1, 0.1, 0.5, 0.45, 0.05])
    assert found.null.tolist() == [1.0, 1.0]
    both, one = np.log([0.3, 0.8]).mean(), np.log(0.5)  # of the span that both have, and of one that only one has
    assert found.terms[:2].tolist() == [pytest.approx([both / 4, both * 3 / 4]), pytest.approx([one / 4, one * 3 / 4])]
    alone = average([ONE])
    assert (alone.start.tolist(), alone.null.tolist()) == (ONE.start.tolist(), ONE.null.tolist())


def test_an_ensemble_of_both_heads_has_probabilities_alone(tmp_path: Path) -> None:
    other = replace(ONE, names=LOG_PROBABILITIES)
    assert average([other, other]).names == LOG_PROBABILITIES and average([ONE, other]).names == ()
    write_official(tmp_path, QUESTIONS, average([ONE, other]), "1.1", threshold=0.0, n_best=1)
    n_best = json.loads((tmp_path / "nbest_predictions.json").read_text(encoding="utf-8"))
    assert n_best["a"] == [{"text": "Ada", "probability": 1.0}]


@pytest.mark.parametrize("names", [LOGITS, LOG_PROBABILITIES])
def test_the_official_files(tmp_path: Path, names: tuple[str, str]) -> None:
    def scored(text: str, probability: float, before: float) -> dict[str, object]:
        terms = [round(float(np.log(before)) * share, 6) for share in (0.25, 0.75)]
        return {"text": text, "probability": probability, **dict(zip(names, terms, strict=True))}

    write_official(tmp_path, QUESTIONS, replace(ONE, names=names), "2.0", threshold=1.5, n_best=2)
    read = {p.name: json.loads(p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()}
    assert read == {
        "predictions.json": {"a": "Ada", "b": ""},
        "nbest_predictions.json": {
            "a": [scored("Ada", 0.625, before=0.5), scored("Bo", 0.375, before=0.3)],  # of the two alone
            "b": [scored("Bo", 1.0, before=0.9)],
        },
        "null_odds.json": {"a": -1.0, "b": 2.0},
    }


def test_lines_with_and_without_scores() -> None:
    answered, unanswered = map(json.loads, answer_lines(QUESTIONS, ONE, "2.0", 0.0, is_scored=True))
    assert answered == {
        "id": "a", "title": "t", "question": "Who met Bo?", "answers": ["Ada"], "prediction": "Ada",
        "start": 0, "end": 3, "probability": 0.5, "null_odds": -1.0, "em": 1.0, "f1": 1.0,
    }  # fmt: skip
    assert (unanswered["prediction"], unanswered["start"], unanswered["end"], unanswered["f1"]) == ("", None, None, 1.0)
    first, second = map(json.loads, answer_lines(QUESTIONS, ONE, "1.1", 0.0, is_scored=False))
    assert set(first) == {"id", "title", "question", "prediction", "start", "end", "probability"}
    assert second["prediction"] == "Bo"  # 1.1 always answers
