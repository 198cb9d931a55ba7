"""From scored spans to answers: the best ones of each question, as text, and in the files that SQuAD's tools read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_cli import store
from albert_cli.data.arrays import offsets_of
from albert_cli.tasks.features import Int64
from albert_cli.tasks.squad.data import Question, Version
from albert_cli.tasks.squad.metrics import Float64, score
from albert_cli.tasks.squad.windows import SpanFeatures

NOTHING_THERE = 1e9  # null odds where there is no span at all: beyond any threshold, yet a number in JSON
PREDICTIONS, NBEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"
AT_THRESHOLD = "predictions_at_threshold.json"
OFFICIAL = (PREDICTIONS, NBEST, NULL_ODDS, AT_THRESHOLD)


# A head's output for some windows: their places in the features [B]; K spans of each by their first and last token,
# counted from [CLS], [B, K]; the spans' scores [B, K], which may be compared between the windows of a question, -inf
# where there is no span; and a number for each window [B] that grows with the odds that it holds no answer.
WindowSpans = tuple[Int64, Int64, Int64, Float64, Float64]


@dataclass(frozen=True)
class Spans:
    """M scored spans of Q questions, those of a question together and the best first.

    question int64 [M]; start and end int64 [M], characters of the context as written; probability [M] among the
    question's own spans; null [Q] grows with the odds that there is no answer. Offsets [Q + 1] are where each
    question's spans begin.
    """

    question: Int64
    start: Int64
    end: Int64
    probability: Float64
    null: Float64

    @property
    def offsets(self) -> Int64:
        """Where each question's spans begin and end, int64 [Q + 1]."""
        return offsets_of(np.bincount(self.question, minlength=len(self.null)))


def collect(features: SpanFeatures, parts: Iterable[WindowSpans], *, relative_null: bool) -> Spans:
    """The spans of all windows by question.

    A question's null odds are the least of its windows', since one that holds the answer is enough; under
    `relative_null` the score of its best span is taken off, as both are sums of logits (and not of log-probabilities);
    without one they are `NOTHING_THERE`.
    """
    columns: list[tuple[NDArray[Any], ...]] = []
    null = np.full(len(features.context), np.inf)
    for index, first, last, score_of, null_of in parts:
        of = features.question[index]
        np.minimum.at(null, of, null_of)
        shift = features.start[index] - features.context_start(index)
        window, kept = np.nonzero(np.isfinite(score_of))
        base = features.contexts.offsets[:-1][features.context[of]] + shift
        start = features.contexts.starts[first[window, kept] + base[window]].astype(np.int64)
        end = features.contexts.ends[last[window, kept] + base[window]].astype(np.int64)
        columns.append((of[window], start, end, score_of[window, kept]))
    question, start, end, scores = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    spans, best = _ranked(question, start, end, scores, null)
    if relative_null:
        null = np.where(np.isfinite(best), null - best, NOTHING_THERE)
    return Spans(*spans, null)


def _ranked(
    question: Int64, start: Int64, end: Int64, scores: Float64, null: Float64
) -> tuple[tuple[Int64, Int64, Int64, Float64], Float64]:
    """Spans sorted by question and score, each once, with probabilities; and each question's best score [Q].

    Several tokens may stand for the same characters (½ is 1, ⁄ and 2), or for none at all (a space): of equal spans
    the best is taken, and none without a character.
    """
    order = np.lexsort((-scores, end, start, question))
    columns = np.stack([question, start, end])[:, order]
    is_new = np.concatenate([np.ones(1, dtype=bool), (np.diff(columns) != 0).any(axis=0)])[: len(order)]
    order = order[is_new & (columns[1] < columns[2])]
    order = order[np.lexsort((end[order], start[order], -scores[order], question[order]))]
    question, start, end, scores = question[order], start[order], end[order], scores[order]
    best = np.full(len(null), -np.inf)
    np.maximum.at(best, question, scores)
    weights = np.exp(scores - best[question])
    total = np.bincount(question, weights, minlength=len(null))
    return (question, start, end, weights / total[question]), best


def average(outputs: Sequence[Spans]) -> Spans:
    """The ensemble of several checkpoints' spans of the same questions: mean probabilities, and mean null odds (§4.9).

    A span that a checkpoint does not have counts there as 0, which is close to the truth: each keeps the likeliest 25
    to 40 of every window. A mean over those that have it would prefer what one is sure of to what all find likely.
    Spans are compared as places in the text, so that vocabularies may differ.
    """
    joined = [np.concatenate([getattr(o, name) for o in outputs]) for name in ("question", "start", "end")]
    weights = np.concatenate([o.probability for o in outputs]) / len(outputs)
    keys, same = np.unique(np.stack(joined, axis=1), axis=0, return_inverse=True)
    mean = np.bincount(same.ravel(), weights, minlength=len(keys)).astype(np.float64)
    null = np.mean([o.null for o in outputs], axis=0)
    order = np.lexsort((keys[:, 2], keys[:, 1], -mean, keys[:, 0]))
    question, start, end = keys[order].T
    return Spans(question, start, end, mean[order], null)


# ---------------------------------------------------------------- answers


@dataclass(frozen=True)
class Found:
    """An answer: its text as the context has it, the place of its first character and of the one after its last."""

    text: str
    start: int
    end: int
    probability: float


def best_answers(questions: Sequence[Question], spans: Spans, n_best: int = 1) -> Iterator[list[Found]]:
    """The best answers of each question, at most `n_best`, of equal texts only the first; never none."""
    offsets = spans.offsets.tolist()
    for number, question in enumerate(questions):
        found: dict[str, Found] = {}
        for i in range(offsets[number], offsets[number + 1]):
            start, end = int(spans.start[i]), int(spans.end[i])
            text = question.context[start:end]
            if text.strip() and text not in found:
                found[text] = Found(text, start, end, float(spans.probability[i]))
                if len(found) == n_best:
                    break
        # A context without a single token has none.
        yield list(found.values()) or [Found("", 0, 0, 0.0)]


def is_unanswered(version: Version, null: float, threshold: float) -> bool:
    """Whether a question counts as unanswerable: in 2.0 alone, by its null odds."""
    return version == "2.0" and null > threshold


def write_official(
    directory: Path, questions: Sequence[Question], spans: Spans, version: Version, threshold: float, n_best: int
) -> None:
    """The files of SQuAD's own tools: an answer per question, its n best, and in 2.0 its null odds.

    `predictions.json` always answers, as ALBERT's reference does: with the null odds the published evaluation finds the
    best threshold by itself, which needs the answers on either side of it. In 2.0 `predictions_at_threshold.json`
    leaves questions beyond the threshold unanswered (""). `nbest_predictions.json` has probabilities that add up to 1
    over the n best.
    """
    predictions: dict[str, str] = {}
    n_bests: dict[str, list[dict[str, Any]]] = {}
    odds = {question.id: float(null) for question, null in zip(questions, spans.null, strict=True)}
    for question, found in zip(questions, best_answers(questions, spans, n_best), strict=True):
        predictions[question.id] = found[0].text
        total = sum(f.probability for f in found) or 1.0
        n_bests[question.id] = [{"text": f.text, "probability": round(f.probability / total, 6)} for f in found]
    _write(directory / PREDICTIONS, predictions)
    _write(directory / NBEST, n_bests)
    if version == "2.0":
        _write(directory / NULL_ODDS, odds)  # in full: rounded, different odds would tie
        kept = {id_: "" if is_unanswered(version, odds[id_], threshold) else text for id_, text in predictions.items()}
        _write(directory / AT_THRESHOLD, kept)


def _write(path: Path, by_id: dict[str, Any]) -> None:
    """One JSON object, one question per line."""
    lines = (f"{json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for k, v in by_id.items())
    store.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def answer_lines(
    questions: Sequence[Question], spans: Spans, version: Version, threshold: float, *, is_scored: bool
) -> list[str]:
    """One JSON line per question: id, title, question, prediction with its place and probability, null odds in 2.0.

    Where it `is_scored`, also the gold answers, and the exact match and F1 against them.
    """
    lines = []
    for question, (best, *_), null in zip(questions, best_answers(questions, spans), spans.null, strict=True):
        unanswered = is_unanswered(version, null, threshold)
        text = "" if unanswered else best.text
        line: dict[str, Any] = {"id": question.id, "title": question.title, "question": question.question}
        golds = [answer.text for answer in question.answers]
        if is_scored:
            line["answers"] = golds
        line |= {"prediction": text, "start": best.start, "end": best.end, "probability": round(best.probability, 5)}
        if unanswered:
            line |= {"start": None, "end": None}
        if version == "2.0":
            line["null_odds"] = round(float(null), 5)
        if is_scored:
            line |= {name: round(value, 5) for name, value in score(text, golds, version)._asdict().items()}
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return lines
