"""SQuAD's scores against the published rules, written out plainly, and against values worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.tasks.squad.data import Question, Version, read_file
from albert_cli.tasks.squad.metrics import best_threshold, evaluate, normalized, score

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
def test_normalisation(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


@pytest.mark.parametrize(
    ("prediction", "golds", "version", "em", "f1"),
    [
        ("the cat", ["Cat!"], "1.1", 1.0, 1.0),
        ("black cat", ["a cat"], "1.1", 0.0, 2 / 3),  # precision 1/2, recall 1
        ("x x y", ["x y y z"], "1.1", 0.0, 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),  # x and y are shared once each
        ("cat", ["dog", "cat sat", "the cat"], "2.0", 1.0, 1.0),  # the best gold counts
        ("cat", ["dog"], "2.0", 0.0, 0.0),
        ("", [], "2.0", 1.0, 1.0),
        ("the", [], "2.0", 1.0, 1.0),  # normalisation leaves nothing
        ("cat", [], "2.0", 0.0, 0.0),
        ("", ["cat"], "2.0", 0.0, 0.0),
        ("", ["the"], "2.0", 1.0, 1.0),  # a gold answer of nothing is none
        ("", ["the"], "1.1", 1.0, 0.0),  # 1.1 has no rule for it: equal, but not a word in common
    ],
)
def test_scores_by_hand(prediction: str, golds: list[str], version: Version, em: float, f1: float) -> None:
    assert score(prediction, golds, version) == pytest.approx((em, f1))


def test_the_threshold_by_hand() -> None:
    # In the order of the odds: right (+1), wrong on an unanswerable one (-1), half right (+0.5), silent (0), right.
    odds = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    scores = np.array([1.0, 0.0, 0.5, 1.0, 0.2])
    found = best_threshold(scores, [True, True, True, False, True], [True, False, True, False, True], odds)
    # None answered: 2 of 5. Then 3, 2, 2.5, 2.5, 2.7.
    assert found == (0.1, 3 / 5)
    nothing_helps = best_threshold(np.zeros(5), [True] * 5, [False] * 5, odds)
    assert nothing_helps == (0.0, 1.0)


def test_a_question_beyond_the_threshold_is_unanswered() -> None:
    golds: list[list[str]] = [["x"], ["x"], [], []]
    found = evaluate(["x", "x", "x", "x"], golds, "2.0", [-1.0, 1.0, -1.0, 1.0], threshold=0.0)
    assert found["f1"] == found["em"] == 0.5  # the first by its answer, the last by its silence
    assert found["has_answer_f1"] == found["no_answer_f1"] == 0.5
    assert evaluate(["x", "x", "x", "x"], golds, "2.0", [1.0] * 4, threshold=1.0)["f1"] == 0.5  # not beyond


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(ValueError, match="0 predictions"):
        evaluate([], [], "1.1")


# ---------------------------------------------------------------- an independent reading of the rules


def plain_words(text: str) -> list[str]:
    kept = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return [w for w in re.sub(r"\b(?:a|an|the)\b", " ", kept).split() if w]


def plain_score(prediction: str, golds: Sequence[str], version: Version) -> tuple[float, float]:
    if version == "2.0":
        golds = [g for g in golds if plain_words(g)] or [""]
    said = plain_words(prediction)
    em = f1 = 0.0
    for gold in golds:
        wanted = plain_words(gold)
        em = max(em, 1.0 if said == wanted else 0.0)
        if version == "2.0" and (not said or not wanted):
            f1 = max(f1, 1.0 if said == wanted else 0.0)
            continue
        left, shared = list(wanted), 0
        for word in said:
            if word in left:
                left.remove(word)
                shared += 1
        if shared:
            f1 = max(f1, 2 * shared / (len(said) + len(wanted)))
    return em, f1


TEXTS = st.text(st.sampled_from("aanTHEthe .,-é x\t"), max_size=12)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from(["1.1", "2.0"]))
def test_any_answer_scores_as_by_the_plain_rules(prediction: str, golds: list[str], version: Version) -> None:
    assert score(prediction, golds, version) == pytest.approx(plain_score(prediction, golds, version))


def test_the_mean_is_added_up_as_published() -> None:
    """To the last digit: one question after the other."""
    said = ["x " * (1 + n % 7) for n in range(999)]
    golds = [["x y" + " z" * (n % 5)] for n in range(999)]
    for version in get_args(Version):
        f1 = [score(p, g, version).f1 for p, g in zip(said, golds, strict=True)]
        assert evaluate(said, golds, version)["f1"] == sum(f1) / 999 != float(np.mean(f1))


@given(st.data())
def test_the_threshold_is_the_first_best_of_all(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    scores = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size))
    answered, possible = (data.draw(st.lists(st.booleans(), min_size=size, max_size=size)) for _ in range(2))
    odds = data.draw(st.permutations([i / 10 for i in range(1, size + 1)]))
    best, mean = best_threshold(np.array(scores), answered, possible, np.array(odds))

    def total(threshold: float) -> float:
        kept = [o <= threshold for o in odds]
        said = [s if p else float(not a) for s, p, a in zip(scores, possible, answered, strict=True)]
        return sum(s if k else float(not p) for s, k, p in zip(said, kept, possible, strict=True))

    by_threshold = [total(t) for t in (0.0, *sorted(odds))]
    assert mean * size == pytest.approx(max(by_threshold))
    assert total(best) == pytest.approx(max(by_threshold))


# ---------------------------------------------------------------- the real dev sets, gold answers made worse


@cache
def dev_set(path: Path, version: Version) -> list[Question]:
    return read_file(path, version)


def shifted(question: Question, gold: str) -> str:
    """The words of the context one place further on than the answer's."""
    words, count = question.context.split(" "), len(gold.split(" "))
    place = next((a.start for a in question.answers if a.text == gold), 0)
    first = question.context[:place].count(" ") + 1
    return " ".join(words[first : first + count])


WORSE: dict[str, Callable[[Question, str], str]] = {
    "perfect": lambda q, gold: gold,
    "empty": lambda q, gold: "",
    "no_articles": lambda q, gold: " ".join(w for w in gold.split(" ") if w.lower() not in ("a", "an", "the")),
    "wrong_case": lambda q, gold: gold.swapcase(),
    "shifted": shifted,
}


@pytest.mark.parametrize(("name", "version"), [("dev-v1.1.json", "1.1"), ("dev-v2.0.json", "2.0")])
@pytest.mark.parametrize("how", WORSE)
def test_dev_sets_with_gold_answers_made_worse(shared_data: Path, name: str, version: Version, how: str) -> None:
    questions = dev_set(shared_data / "squad" / name, version)
    golds = [[answer.text for answer in q.answers] for q in questions]
    made = [WORSE[how](q, g[0]) if g else "" for q, g in zip(questions, golds, strict=True)]
    found = evaluate(made, golds, version)
    plain = [plain_score(p, g, version) for p, g in zip(made, golds, strict=True)]
    assert found["em"] == pytest.approx(sum(em for em, _ in plain) / len(plain), abs=1e-12)
    assert found["f1"] == pytest.approx(sum(f1 for _, f1 in plain) / len(plain), abs=1e-12)
    if how in ("perfect", "no_articles"):
        assert found["em"] == found["f1"] == 1.0
    elif how == "wrong_case":
        # "Fußach", the answer to two questions, has no capital ß: FUSSACH is another word.
        assert found["em"] == found["f1"] == pytest.approx(1 - 2 / len(questions), abs=1e-12)
    elif how == "empty" and version == "1.1":
        # Three questions have "." among their answers, of which nothing is left: equal, without a word in common.
        assert found["em"] == pytest.approx(3 / 10_570, abs=1e-12)
        assert found["f1"] == 0.0
    elif how == "empty":
        assert found["em"] == found["f1"] == pytest.approx(5945 / 11_873, abs=1e-12)
    else:
        assert sum(not gold for gold in golds) / len(golds) <= found["em"] < found["f1"] < 1.0
