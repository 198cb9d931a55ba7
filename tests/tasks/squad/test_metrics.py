"""SQuAD's scores against the published rules, written out plainly, and against values worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.tasks.squad.metrics import evaluate_answers, find_best_threshold, normalize_answer, score_answer
from albert_cli.tasks.squad.settings import Version

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Cat.", "cat"),
        ("a/b", "ab"),  # punctuation goes before articles are looked for
        ("An apple, a pear AND the rest", "apple pear and rest"),
        ("theatre", "theatre"),
        ("the-", ""),
        ("“quoted”", "“quoted”"),  # ASCII punctuation alone
        ("U.S.", "us"),
        ("Straße\u00a0A", "straße"),
        ("", ""),
    ],
)
def test_normalize_answer_cases(answer: str, expected: str) -> None:
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("prediction", "golds", "version", "em", "f1"),
    [
        ("the cat", ["Cat!"], "1.1", 1.0, 1.0),
        ("black cat", ["a cat"], "1.1", 0.0, 2 / 3),  # precision 1/2, recall 1
        ("x x y", ["x y y z"], "1.1", 0.0, 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),  # x and y are shared once each
        ("cat", ["dog", "cat sat", "the cat"], "2.0", 1.0, 1.0),  # the best gold counts
        ("cat", ["dog"], "2.0", 0.0, 0.0),
        ("", [], "2.0", 1.0, 1.0),
        ("the", [], "2.0", 1.0, 1.0),  # normalization leaves nothing
        ("cat", [], "2.0", 0.0, 0.0),
        ("", ["cat"], "2.0", 0.0, 0.0),
        ("", ["the"], "2.0", 1.0, 1.0),  # a gold answer of nothing is none
        ("", ["the"], "1.1", 1.0, 0.0),  # 1.1 has no rule for it: equal, but not a word in common
    ],
)
def test_score_answer_equals_hand_computed(
    prediction: str, golds: list[str], version: Version, em: float, f1: float
) -> None:
    assert score_answer(prediction, golds, version) == pytest.approx((em, f1))


def test_find_best_threshold_equals_hand_computed() -> None:
    # In the order of the odds: right (+1), wrong on an unanswerable one (-1), half right (+0.5), silent (0), right.
    odds = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    scores = np.array([1.0, 0.0, 0.5, 1.0, 0.2])
    result = find_best_threshold(scores, [True, True, True, False, True], [True, False, True, False, True], odds)
    # None answered: 2 of 5. Then 3, 2, 2.5, 2.5, 2.7.
    assert result == (0.1, 3 / 5)
    nothing_helps = find_best_threshold(np.zeros(5), [True] * 5, [False] * 5, odds)
    assert nothing_helps == (0.0, 1.0)


def test_evaluate_answers_above_threshold_is_unanswered() -> None:
    golds: list[list[str]] = [["x"], ["x"], [], []]
    result = evaluate_answers(["x", "x", "x", "x"], golds, "2.0", [-1.0, 1.0, -1.0, 1.0], threshold=0.0)
    assert result["f1"] == result["em"] == 0.5  # the first by its answer, the last by its silence
    assert result["has_answer_f1"] == result["no_answer_f1"] == 0.5
    assert evaluate_answers(["x", "x", "x", "x"], golds, "2.0", [1.0] * 4, threshold=1.0)["f1"] == 0.5  # not beyond


# ---------------------------------------------------------------- an independent reading of the rules


def plain_words(text: str) -> list[str]:
    retained = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return [w for w in re.sub(r"\b(?:a|an|the)\b", " ", retained).split() if w]


def plain_score(prediction: str, golds: Sequence[str], version: Version) -> tuple[float, float]:
    if version == "2.0":
        golds = [g for g in golds if plain_words(g)] or [""]
    answered = plain_words(prediction)
    em = f1 = 0.0
    for gold in golds:
        wanted = plain_words(gold)
        em = max(em, 1.0 if answered == wanted else 0.0)
        if version == "2.0" and (not answered or not wanted):
            f1 = max(f1, 1.0 if answered == wanted else 0.0)
            continue
        left, shared = list(wanted), 0
        for word in answered:
            if word in left:
                left.remove(word)
                shared += 1
        if shared:
            f1 = max(f1, 2 * shared / (len(answered) + len(wanted)))
    return em, f1


TEXTS = st.text(st.sampled_from("aanTHEthe .,-é x\tßİ“ﬁ"), max_size=12)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from(["1.1", "2.0"]))
def test_score_answer_equals_plain_rules(prediction: str, golds: list[str], version: Version) -> None:
    assert score_answer(prediction, golds, version) == pytest.approx(plain_score(prediction, golds, version))


def test_evaluate_answers_mean_is_summed_as_published() -> None:
    """To the last digit, by Python's `sum`, which rounds less from Python 3.12 on."""
    predictions = ["x " * (1 + n % 7) for n in range(999)]
    golds = [["x y" + " z" * (n % 5)] for n in range(999)]
    for version in get_args(Version):
        f1 = [score_answer(p, g, version).f1 for p, g in zip(predictions, golds, strict=True)]
        assert evaluate_answers(predictions, golds, version)["f1"] == sum(f1) / 999
