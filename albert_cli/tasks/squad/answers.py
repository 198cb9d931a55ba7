"""From the scored spans of windows to those of questions, and to answers: the best ones of each, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import offsets_of
from albert_cli.tasks.features import Int64
from albert_cli.tasks.squad.data import Question
from albert_cli.tasks.squad.metrics import Float64
from albert_cli.tasks.squad.windows import SpanFeatures

NOTHING_THERE = 1e9  # null odds where there is no span at all: beyond any threshold, yet a number in JSON


class WindowSpans(NamedTuple):
    """A head's output for B windows, K spans of each.

    window [B]: places in the features. first, last [B, K]: tokens, counted from [CLS]. score [B, K] may be compared
    between the windows of a question, and is -inf where there is no span. null [B] grows with the odds that a window
    holds no answer.
    """

    window: Int64
    first: Int64
    last: Int64
    score: Float64
    null: Float64


@dataclass(frozen=True)
class Spans:
    """M scored spans of Q questions, those of a question together and the best first.

    question int64 [M]; start and end int64 [M], characters of the context as written; probability [M] among the
    question's own spans; null [Q] grows with the odds that there is no answer.
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

    Several tokens may stand for the same characters (½ is 1, ⁄ and 2), or for none at all (a space): of equal spans
    the best is taken, and none without a character.
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
    order = np.lexsort((-scores, end, start, question))
    places = np.stack([question, start, end])[:, order]
    is_new = (np.diff(places, prepend=-1) != 0).any(axis=0)
    order = order[is_new & (places[1] < places[2])]
    order = order[np.lexsort((end[order], start[order], -scores[order], question[order]))]
    question, start, end, scores = (column[order] for column in (question, start, end, scores))
    best = np.full(len(null), -np.inf)
    np.maximum.at(best, question, scores)
    weights = np.exp(scores - best[question])
    total = np.bincount(question, weights, minlength=len(null))
    if relative_null:
        null = np.where(np.isfinite(best), null - best, NOTHING_THERE)
    return Spans(question, start, end, weights / total[question], null)


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
