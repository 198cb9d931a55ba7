"""SQuAD's scores by the rules of the published evaluation of versions 1.1 and 2.0."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from albert_cli.tasks.squad.settings import Version

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
Float64 = NDArray[np.float64]


@lru_cache(maxsize=2**17)
def normalize_answer(answer: str) -> str:
    """Lowercase, remove ASCII punctuation and the articles a, an, the, and leave single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


class SpanScore(NamedTuple):
    """Exact match and F1 over words of an answer, both from 0 to 1."""

    em: float
    f1: float


def score_answer(prediction: str, golds: Sequence[str], version: Version = "2.0") -> SpanScore:
    """Return the best exact match and the best F1 over all gold answers; without golds the correct answer is empty.

    Version 2.0 ignores gold answers that normalization leaves empty, and two empty answers have F1 1. In 1.1 an empty
    answer shares no word with anything.
    """
    if version == "2.0":
        golds = [gold for gold in golds if normalize_answer(gold)] or [""]
    answer = normalize_answer(prediction)
    normalized_golds = [normalize_answer(gold) for gold in golds]
    em = max(float(answer == gold) for gold in normalized_golds)
    f1 = max(_f1(answer.split(), gold.split(), version) for gold in normalized_golds)
    return SpanScore(em, f1)


def _f1(answer: list[str], gold: list[str], version: Version) -> float:
    if version == "2.0" and not (answer and gold):
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    if not common:
        return 0.0
    precision = common / len(answer)
    recall = common / len(gold)
    return 2 * precision * recall / (precision + recall)


def find_best_threshold(
    scores: Float64, answered: ArrayLike, has_answer: ArrayLike, odds: Float64
) -> tuple[float, float]:
    """Return the null-odds threshold above which questions stay unanswered with the best mean score, and that score.

    `scores` [N] are the scores of the predictions. `answered` [N] is true for a prediction that is not empty,
    `has_answer` [N] for a question with a gold answer. `odds` [N] are the odds that a question is unanswerable. As
    published, the candidate thresholds are these odds in ascending order (0 means that no question is answered), the
    first best one is returned, and equal odds are not treated together.
    """
    possible = np.asarray(has_answer, dtype=bool)
    is_answer = np.asarray(answered, dtype=bool)
    order = np.argsort(odds, kind="stable")
    gains = np.where(possible, scores, -is_answer.astype(np.float64))[order]
    # Summed one after the other, from the score of answering nothing: ties are resolved as in the published loop.
    totals = np.cumsum(np.concatenate([[float(np.count_nonzero(~possible))], gains]))
    best = int(totals.argmax())
    threshold = float(odds[order[best - 1]]) if best else 0.0
    return threshold, float(totals[best]) / len(scores)


def evaluate_answers(
    predictions: Sequence[str],
    golds: Sequence[Sequence[str]],
    version: Version,
    null_odds: Sequence[float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Return mean `em` and `f1` from 0 to 1.

    In version 2.0 a question whose odds in `null_odds` [N] exceed the threshold counts as unanswered, in these two
    and in their parts over the questions with and without an answer (`has_answer_em` and so on). `best_em` and
    `best_f1` are the scores at their best thresholds, `best_threshold` is the best threshold for F1.
    """
    raw = np.array([score_answer(p, g, version) for p, g in zip(predictions, golds, strict=True)], dtype=np.float64)
    if version == "1.1":
        return {"f1": _mean(raw[:, 1]), "em": _mean(raw[:, 0])}
    possible = np.array([len(gold) > 0 for gold in golds])
    odds = np.zeros(len(raw)) if null_odds is None else np.asarray(null_odds, dtype=np.float64)
    score_if_unanswered = (~possible)[:, None].astype(np.float64)
    final = np.where((odds > threshold)[:, None], score_if_unanswered, raw)
    result = {"f1": _mean(final[:, 1]), "em": _mean(final[:, 0])}
    for name, part in (("has_answer", possible), ("no_answer", ~possible)):
        if part.any():
            result[f"{name}_f1"] = _mean(final[part, 1])
            result[f"{name}_em"] = _mean(final[part, 0])
    if null_odds is not None:
        answered = [bool(prediction) for prediction in predictions]
        result["best_threshold"], result["best_f1"] = find_best_threshold(raw[:, 1], answered, possible, odds)
        _, result["best_em"] = find_best_threshold(raw[:, 0], answered, possible, odds)
    return result


def _mean(scores: Float64) -> float:
    """Return the mean, summed one after the other as in the published evaluation, so that it equals it to the bit."""
    return float(sum(scores.tolist()) / len(scores))
