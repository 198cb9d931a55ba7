"""SQuAD's own scores, by the rules of its published evaluation of versions 1.1 and 2.0."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from albert_cli.tasks.squad.data import Version

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
Float64 = NDArray[np.float64]


@lru_cache(maxsize=2**17)
def normalize_answer(answer: str) -> str:
    """Lower case, without ASCII punctuation and the articles a, an, the, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


class SpanScore(NamedTuple):
    """Exact match and F1 over words of one answer, both from 0 to 1."""

    em: float
    f1: float


def score_answer(prediction: str, golds: Sequence[str], version: Version = "2.0") -> SpanScore:
    """The best exact match and the best F1 of an answer over all gold answers; no golds, no answer.

    Version 2.0 leaves out gold answers of which normalisation leaves nothing, and counts two empty answers as equal
    in F1 too; in 1.1 an empty answer shares no word with anything.
    """
    if version == "2.0":
        golds = [gold for gold in golds if normalize_answer(gold)] or [""]
    found = normalize_answer(prediction)
    em = max(float(found == normalize_answer(gold)) for gold in golds)
    return SpanScore(em, max(_f1(found.split(), normalize_answer(gold).split(), version) for gold in golds))


def _f1(found: list[str], gold: list[str], version: Version) -> float:
    if version == "2.0" and not (found and gold):
        return float(found == gold)
    common = sum((Counter(found) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def find_best_threshold(
    scores: Float64, answered: ArrayLike, has_answer: ArrayLike, odds: Float64
) -> tuple[float, float]:
    """The threshold that maximises the mean score when questions with higher null odds stay unanswered, and that score.

    scores [N] of the predictions as they are, answered [N] whether those are answers, has_answer [N] whether the
    gold does, odds [N] of being unanswerable. As published, thresholds are those odds in ascending order (0 stands
    for none being answered), the first best one is taken, and equal odds are not treated together.
    """
    possible, answers = np.asarray(has_answer, dtype=bool), np.asarray(answered, dtype=bool)
    order = np.argsort(odds, kind="stable")
    gains = np.where(possible, scores, -answers.astype(np.float64))[order]
    # Added up one after the other from there, so that equal totals are equal as they are for the published loop.
    totals = np.cumsum(np.concatenate([[float(np.count_nonzero(~possible))], gains]))
    best = int(totals.argmax())
    return float(odds[order[best - 1]]) if best else 0.0, float(totals[best]) / len(scores)


def evaluate_answers(
    predictions: Sequence[str],
    golds: Sequence[Sequence[str]],
    version: Version,
    null_odds: Sequence[float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """`em` and `f1` from 0 to 1, averaged over the questions.

    For version 2.0 with `null_odds` [N]: a question with higher odds than the threshold counts as unanswered, in
    those two and in their parts over the questions with and without an answer (`has_answer_em` and so on);
    `best_em` and `best_f1` are those under the threshold that is best for each, `best_threshold` the one for F1.
    """
    raw = np.array([score_answer(p, g, version) for p, g in zip(predictions, golds, strict=True)], dtype=np.float64)
    if version == "1.1":
        return {"f1": _mean(raw[:, 1]), "em": _mean(raw[:, 0])}
    possible = np.array([len(gold) > 0 for gold in golds])
    odds = np.zeros(len(raw)) if null_odds is None else np.asarray(null_odds, dtype=np.float64)
    unanswered = odds > threshold
    final = np.where(unanswered[:, None], (~possible)[:, None].astype(np.float64), raw)
    result = {"f1": _mean(final[:, 1]), "em": _mean(final[:, 0])}
    for name, part in (("has_answer", possible), ("no_answer", ~possible)):
        if part.any():
            result |= {f"{name}_f1": _mean(final[part, 1]), f"{name}_em": _mean(final[part, 0])}
    if null_odds is not None:
        answered = [bool(p) for p in predictions]
        (_, best_em), (best_at, best_f1) = (find_best_threshold(raw[:, i], answered, possible, odds) for i in range(2))
        result |= {"best_f1": best_f1, "best_em": best_em, "best_threshold": best_at}
    return result


def _mean(scores: Float64) -> float:
    """Added up one after the other, as the published evaluation does: to its last digit."""
    return float(sum(scores.tolist()) / len(scores))
