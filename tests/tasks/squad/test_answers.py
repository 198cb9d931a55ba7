"""The best spans of a question, of one model or of several, as answers and in the official files."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.tasks.squad.data import Answer, Question
from albert_cli.tasks.squad.metrics import evaluate_answers, score_answer
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.task import SQUAD, SpanAnswering
from albert_cli.tasks.squad.windows import AnswerSpans, iter_best_answers

CONTEXT = "Ada met Bo, then Bo left."
QUESTIONS = [Question("a", "Who met Bo?", CONTEXT, (Answer("Ada", 0),), "t"), Question("b", "Who sang?", CONTEXT)]


def spans(*rows: tuple[int, int, int, float], null: tuple[float, float] = (-1.0, 2.0)) -> AnswerSpans:
    question, start, end, probability = (np.array(column) for column in zip(*rows, strict=True))
    return AnswerSpans(question, start, end, probability.astype(np.float64), np.array(null))


ONE = spans((0, 0, 3, 0.5), (0, 8, 10, 0.3), (0, 17, 19, 0.2), (1, 17, 19, 0.9), (1, 8, 10, 0.1))


def squad2(threshold: float, n_best: int) -> SpanAnswering:
    return replace(SQUAD["squad2"], settings=SpanSettings(threshold=threshold, n_best=n_best))


def test_best_answers_equal_texts_keep_the_best_span() -> None:
    result = [[(f.text, f.start, f.probability) for f in best] for best in iter_best_answers(QUESTIONS, ONE, 3)]
    assert result == [[("Ada", 0, 0.5), ("Bo", 8, 0.3)], [("Bo", 17, 0.9)]]
    assert [len(best) for best in iter_best_answers(QUESTIONS, ONE)] == [1, 1]


def test_best_answers_without_span_is_empty() -> None:
    result = list(iter_best_answers(QUESTIONS, spans((1, 0, 3, 1.0)), 5))
    assert [f.text for f in result[0]] == [""]
    assert [f.text for f in result[1]] == ["Ada"]


def test_average_equals_hand_computed() -> None:
    other = spans((0, 8, 10, 0.8), (0, 4, 7, 0.2), (1, 0, 3, 1.0), null=(3.0, 0.0))
    result = SQUAD["squad2"].average([ONE, other])
    assert np.stack([result.question, result.start, result.end], axis=1).tolist() == [
        [0, 8, 10], [0, 0, 3], [0, 4, 7], [0, 17, 19], [1, 0, 3], [1, 17, 19], [1, 8, 10],
    ]  # fmt: skip
    assert result.probability.tolist() == pytest.approx([0.55, 0.25, 0.1, 0.1, 0.5, 0.45, 0.05])
    assert result.null_score.tolist() == [1.0, 1.0]
    alone = SQUAD["squad2"].average([ONE])
    assert (alone.start.tolist(), alone.null_score.tolist()) == (ONE.start.tolist(), ONE.null_score.tolist())


def test_write_predictions_official_files(tmp_path: Path) -> None:
    squad2(threshold=1.5, n_best=2).write_predictions(tmp_path, QUESTIONS, ONE)
    read = {p.name: json.loads(p.read_text(encoding="utf-8")) for p in tmp_path.glob("*.json")}
    assert read == {
        "predictions.json": {"a": "Ada", "b": "Bo"},
        "predictions_at_threshold.json": {"a": "Ada", "b": ""},
        "nbest_predictions.json": {
            "a": [{"text": "Ada", "probability": 0.625}, {"text": "Bo", "probability": 0.375}],  # of the two alone
            "b": [{"text": "Bo", "probability": 1.0}],
        },
        "null_odds.json": {"a": -1.0, "b": 2.0},
    }


def published_evaluation(golds: dict[str, list[str]], folder: Path, threshold: float) -> dict[str, float]:
    """Return what the published 2.0 evaluation prints for our files (`--na-prob-file`, `--na-prob-thresh`).

    A question beyond the threshold counts as unanswered. For the best one, questions are answered one after the other
    in the order of their odds, and the first of the best totals is taken.
    """
    predictions: dict[str, str] = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    odds: dict[str, float] = json.loads((folder / "null_odds.json").read_text(encoding="utf-8"))
    result = {}
    for name in ("em", "f1"):
        raw = {key: getattr(score_answer(predictions[key], answers, "2.0"), name) for key, answers in golds.items()}
        retained = {key: float(not golds[key]) if odds[key] > threshold else value for key, value in raw.items()}
        result[name] = sum(retained.values()) / len(retained)
        total = best = float(sum(not answers for answers in golds.values()))
        result[f"threshold_{name}"] = 0.0
        for key in sorted(odds, key=lambda key: odds[key]):
            total += raw[key] if golds[key] else -1.0 if predictions[key] else 0.0
            if total > best:
                best, result[f"threshold_{name}"] = total, odds[key]
        result[f"best_{name}"] = best / len(raw)
    return result


@given(st.data())
def test_write_predictions_published_evaluation_agrees(data: st.DataObject) -> None:
    """Check random answers, with ties of the odds and questions without a span, at several thresholds."""
    count = data.draw(st.integers(1, 9))
    texts = st.sampled_from(((), ((0, 3),), ((0, 10), (0, 3)), ((8, 10), (0, 10))))  # none, or by their characters
    spans_value = [(n, *position) for n in range(count) for position in data.draw(texts)]
    null = data.draw(st.lists(st.sampled_from((-2.0, 0.0, 1e-7, 2e-7, 1.0, 3.0, 1e9)), min_size=count, max_size=count))
    answers = st.sampled_from((("Ada",), ("Ada met",), ("Bo", "Ada met Bo,"), ("the",), ()))
    golds = {str(n): list(data.draw(answers)) for n in range(count)}
    questions_asked = [Question(n, "?", CONTEXT, tuple(Answer(a, 0) for a in texts)) for n, texts in golds.items()]
    owner, begin, end = np.array(spans_value, dtype=np.int64).reshape(-1, 3).T
    result = AnswerSpans(owner, begin, end, np.full(len(owner), 0.5), np.array(null))
    threshold = data.draw(st.sampled_from((-1.0, 0.0, 1.0, 2.0)))
    with tempfile.TemporaryDirectory() as folder:
        squad2(threshold, n_best=3).write_predictions(Path(folder), questions_asked, result)
        theirs = published_evaluation(golds, Path(folder), threshold)
        retained = json.loads((Path(folder) / "predictions_at_threshold.json").read_text(encoding="utf-8"))
    raw = [best[0].text for best in iter_best_answers(questions_asked, result)]
    ours = evaluate_answers(raw, list(golds.values()), "2.0", null, threshold)
    assert {name: ours[name] for name in ("f1", "em", "best_f1", "best_em")} == pytest.approx(
        {name: theirs[name] for name in ("f1", "em", "best_f1", "best_em")}, abs=1e-15
    )
    assert ours["best_threshold"] == theirs["threshold_f1"]
    if ["the"] not in golds.values():  # of which normalization leaves nothing: silence is right, yet counts as wrong
        plain = evaluate_answers(list(retained.values()), list(golds.values()), "2.0")
        assert {name: plain[name] for name in ("f1", "em")} == {name: ours[name] for name in ("f1", "em")}


def test_format_predictions_with_and_without_scores() -> None:
    answered, unanswered = map(json.loads, SQUAD["squad2"].format_predictions(QUESTIONS, ONE, with_details=True))
    assert answered == {
        "id": "a", "title": "t", "question": "Who met Bo?", "answers": ["Ada"], "prediction": "Ada",
        "start": 0, "end": 3, "probability": 0.5, "null_odds": -1.0, "em": 1.0, "f1": 1.0,
    }  # fmt: skip
    assert (unanswered["prediction"], unanswered["start"], unanswered["end"], unanswered["f1"]) == ("", None, None, 1.0)
    first, second = map(json.loads, SQUAD["squad1"].format_predictions(QUESTIONS, ONE, with_details=False))
    assert set(first) == {"id", "title", "question", "prediction", "start", "end", "probability"}
    assert second["prediction"] == "Bo"  # 1.1 always answers
