"""Verdicts: what is asked, on which side of the limit the seeds lie, and that one seed never decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.experiments.claims import FAILS, HOLDS, NOISY, Values, check_claim, check_condition
from albert_cli.experiments.recipe import Condition, PaperClaim
from albert_cli.experiments.uncertainty import JackknifeEstimate, exact_value, jackknife_examples

ABOVE = Condition("a.mlm_accuracy", "above", 0.1, minus="b.mlm_accuracy")
BELOW = Condition("a.mlm_accuracy", "below", 0.1, minus="b.mlm_accuracy")


def values(**variants: list[float]) -> Values:
    """One metric of variants by seed, of which the examples tell nothing."""
    return {name: {"mlm_accuracy": dict(enumerate(map(exact_value, numbers)))} for name, numbers in variants.items()}


@pytest.mark.parametrize(
    ("a", "above", "below"),
    [
        ([0.5, 0.51, 0.49], HOLDS, FAILS),  # 0.2 more than b, with little spread
        ([0.31, 0.30, 0.29], FAILS, HOLDS),
        ([0.6, 0.3, 0.45], NOISY, NOISY),  # as far, but the seeds disagree
        ([0.9], NOISY, NOISY),  # one seed, however far
        ([], NOISY, NOISY),
    ],
)
def test_a_difference_is_decided_by_its_seeds(a: list[float], above: str, below: str) -> None:
    found = values(a=a, b=[0.3, 0.3, 0.3])
    assert check_condition(ABOVE, found).verdict == above
    assert check_condition(BELOW, found).verdict == below


def test_the_bounds_are_student_s() -> None:
    # Mean 0.2, deviation 0.01 over three seeds; the quantile of two degrees at 90 % is 1.886 in every table.
    finding = check_condition(ABOVE, values(a=[0.49, 0.50, 0.51], b=[0.3, 0.3, 0.3]))
    assert finding.mean == pytest.approx(0.2)
    assert finding.high == pytest.approx(0.2 + 1.8856 * 0.01 / math.sqrt(3), abs=1e-5)
    assert finding.low == pytest.approx(0.2 - 1.8856 * 0.01 / math.sqrt(3), abs=1e-5)


def answers(share: float, count: int, rng: np.random.Generator, change: float = 0.0, of: Any = None) -> Any:
    """Which of `count` examples are right: a share of them by chance, or those `of` another but for a few changes."""
    right = rng.random(count) < share if of is None else of
    return right | (rng.random(count) < change)


def accuracy(right: Any) -> JackknifeEstimate:
    return jackknife_examples(lambda kept: right[kept].mean(), len(right))


@pytest.mark.parametrize(("examples", "verdict"), [(100, NOISY), (20_000, HOLDS)])
def test_seeds_that_agree_by_chance_do_not_outweigh_few_examples(examples: int, verdict: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (accuracy(answers(share, examples, rng)) for share in (0.54, 0.4))
    found: Values = {"a": {"mlm_accuracy": {0: a, 1: a}}, "b": {"mlm_accuracy": {0: b, 1: b}}}
    assert check_condition(ABOVE, found).verdict == verdict


def test_only_the_examples_that_are_answered_differently_count() -> None:
    """Two models that answer as good as all alike differ surely; two that are as far apart by other examples do not."""
    rng, condition = np.random.default_rng(0), Condition("a.mlm_accuracy", "above", 0, minus="b.mlm_accuracy")
    right = answers(0.5, 1000, rng)
    better = answers(0, 1000, rng, change=0.03, of=right)
    other = rng.permutation(better)  # as many, elsewhere
    alike, unlike = (
        {"a": {"mlm_accuracy": dict.fromkeys((0, 1), accuracy(a))},
         "b": {"mlm_accuracy": dict.fromkeys((0, 1), accuracy(right))}}
        for a in (better, other)
    )  # fmt: skip
    assert check_condition(condition, alike).mean == pytest.approx(check_condition(condition, unlike).mean)
    assert check_condition(condition, alike).verdict == HOLDS
    assert check_condition(condition, unlike).verdict == NOISY


def test_only_seeds_that_both_have_are_compared() -> None:
    found = values(a=[0.5, 0.5, 9.0], b=[0.3, 0.3])
    assert check_condition(ABOVE, found).by_seed == {0: pytest.approx(0.2), 1: pytest.approx(0.2)}


def test_counts_need_no_second_seed_and_allow_no_error() -> None:
    ratio = Condition("a.block_parameters", "equal", "b.layers", over="b.block_parameters")
    found: dict[str, dict[str, dict[int, JackknifeEstimate]]] = {
        "a": {"block_parameters": {0: exact_value(1200)}},
        "b": {"block_parameters": {0: exact_value(100)}, "layers": {0: exact_value(12)}},
    }
    assert check_condition(ratio, found).verdict == HOLDS
    found["a"]["block_parameters"][0] = exact_value(1201)
    assert check_condition(ratio, found).verdict == FAILS
    assert check_condition(ratio, {"a": found["a"]}).verdict == NOISY, "what was not counted is not known"


def test_a_ratio_over_nothing_is_not_known() -> None:
    condition = Condition("a.l2_last", "above", 0.1, over="b.l2_mean")
    one, nothing = exact_value(1), exact_value(0)
    found: Values = {"a": {"l2_last": {0: one, 1: one}}, "b": {"l2_mean": {0: nothing, 1: one}}}
    assert check_condition(condition, found).verdict == NOISY


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [((0.5, 0.5), HOLDS), ((0.5, 0.3), FAILS), ((0.5, None), NOISY), ((0.3, None), FAILS)],
)
def test_a_claim_is_as_good_as_its_worst_condition(verdicts: tuple[float, float | None], together: str) -> None:
    names = ("x", "y")
    conditions = tuple(Condition(f"{name}.mlm_accuracy", "above", 0.4) for name in names)
    found = values(**{n: [v, v] for n, v in zip(names, verdicts, strict=True) if v is not None})
    assert check_claim(PaperClaim("", "", "", conditions), found).verdict == together


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(0, 1))
def test_never_both_above_and_below(numbers: list[float], bound: float) -> None:
    found = values(a=numbers)
    above = check_condition(Condition("a.mlm_accuracy", "above", bound), found).verdict
    below = check_condition(Condition("a.mlm_accuracy", "below", bound), found).verdict
    assert not (above == below == HOLDS)
    assert (above == NOISY) == (below == NOISY) or min(numbers) == max(numbers)
