"""Compute SQuAD's exact match and F1, by the rules of the published evaluation scripts of versions 1.1 and 2.0.

Shapes: Q questions. A question's null score is a number that grows with the odds that it has no answer.
"""

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
    """Lowercase an answer, remove ASCII punctuation and the articles "a", "an" and "the", and join words by a space."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


class SpanScore(NamedTuple):
    """The exact match (0 or 1) of an answer, and its F1 over words (from 0 to 1)."""

    em: float
    f1: float


def score_answer(prediction: str, golds: Sequence[str], version: Version = "2.0") -> SpanScore:
    """Return the best exact match and the best F1 over all gold answers.

    In version 2.0, `golds` may be empty: an empty answer then scores 1 in both. Gold answers that are empty after
    normalization are ignored. In version 1.1 the F1 of an empty answer is always 0.
    """
    if version == "2.0":
        golds = [gold for gold in golds if normalize_answer(gold)] or [""]
    answer = normalize_answer(prediction)
    normalized_golds = [normalize_answer(gold) for gold in golds]
    em = max(float(answer == gold) for gold in normalized_golds)
    f1 = max(_f1(answer.split(), gold.split(), version) for gold in normalized_golds)
    return SpanScore(em, f1)


def _f1(answer: list[str], gold: list[str], version: Version) -> float:
    """Return F1 over the words of an answer and a gold answer; a repeated word counts as often as it is in both."""
    if version == "2.0" and not (answer and gold):
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    if not common:
        return 0.0
    precision = common / len(answer)
    recall = common / len(gold)
    return 2 * precision * recall / (precision + recall)


def find_best_threshold(
    scores: Float64, is_answered: ArrayLike, has_answer: ArrayLike, null_scores: Float64
) -> tuple[float, float]:
    """Return the threshold on the null scores that gives the best mean score, and this mean score.

    Questions with null scores above the threshold are left unanswered. `scores` [Q] are EM or F1 of the predictions.
    `is_answered` [Q] is true for a prediction that is not empty, `has_answer` [Q] for a question with a gold answer.

    As in the published script, the questions are answered one by one, in ascending order of their null scores. The mean
    score changes with each answer. The threshold is the null score of the question at which the mean score first
    reaches its maximum, or 0 if the mean score is best without any answer.

    The maximum may lie between two questions with equal null scores. No threshold separates these questions, so the
    returned score may then be higher than the score at the threshold.
    """
    answerable = np.asarray(has_answer, dtype=bool)
    score_if_unanswered = float(np.count_nonzero(~answerable))
    # An answer to an answerable question adds its score. An answer to an unanswerable question loses the point that the
    # question has while it is unanswered.
    gains = np.where(answerable, scores, -np.asarray(is_answered, dtype=np.float64))
    order = np.argsort(null_scores, kind="stable")
    # A running sum in this order has the same rounding errors as in the published script, so the maximum is the same.
    totals = np.cumsum(np.concatenate([[score_if_unanswered], gains[order]]))
    best = int(totals.argmax())  # the number of questions that are answered
    threshold = float(null_scores[order[best - 1]]) if best else 0.0
    return threshold, float(totals[best]) / len(scores)


def evaluate_answers(
    predictions: Sequence[str],
    golds: Sequence[Sequence[str]],
    version: Version,
    null_scores: Sequence[float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Return the mean `em` and `f1` of all questions, from 0 to 1.

    In version 2.0 a question counts as unanswered if its null score exceeds the threshold. Further results are:

    * `has_answer_em`, `has_answer_f1`, `no_answer_em` and `no_answer_f1`, the means over the questions with and without
      a gold answer;
    * with `null_scores`, `best_em` and `best_f1`, each at its best threshold, and `best_threshold`, which is F1's.
    """
    scores = [score_answer(answer, gold, version) for answer, gold in zip(predictions, golds, strict=True)]
    em = np.array([score.em for score in scores], dtype=np.float64)
    f1 = np.array([score.f1 for score in scores], dtype=np.float64)
    if version == "1.1":
        return {"f1": _mean(f1), "em": _mean(em)}
    has_answer = np.array([len(gold) > 0 for gold in golds])
    null_score = np.zeros(len(scores)) if null_scores is None else np.asarray(null_scores, dtype=np.float64)
    # A question that is left unanswered scores 1 if it has no gold answer, else 0.
    is_unanswered = null_score > threshold
    em_at_threshold = np.where(is_unanswered, ~has_answer, em)
    f1_at_threshold = np.where(is_unanswered, ~has_answer, f1)
    result = {"f1": _mean(f1_at_threshold), "em": _mean(em_at_threshold)}
    for name, subset in (("has_answer", has_answer), ("no_answer", ~has_answer)):
        if subset.any():
            result[f"{name}_f1"] = _mean(f1_at_threshold[subset])
            result[f"{name}_em"] = _mean(em_at_threshold[subset])
    if null_scores is not None:
        is_answered = [bool(prediction) for prediction in predictions]
        result["best_threshold"], result["best_f1"] = find_best_threshold(f1, is_answered, has_answer, null_score)
        _, result["best_em"] = find_best_threshold(em, is_answered, has_answer, null_score)
    return result


def _mean(scores: Float64) -> float:
    """Return the mean of scores, summed in their order: to the last bit the result of the published script."""
    return float(sum(scores.tolist()) / len(scores))
