"""Tests of `experiments.claims`: verdicts with several seeds, sampling errors, exact counts, and single seeds."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.experiments.claims import (
    FAILS,
    HOLDS,
    NOISY,
    NOT_LEARNED,
    NOT_MEASURED,
    Values,
    check_claim,
    check_condition,
)
from albert_cli.experiments.experiment import Condition, PaperClaim
from albert_cli.experiments.uncertainty import (
    JackknifeEstimate,
    exact_value,
    jackknife_examples,
    value_of_unknown_error,
)

ABOVE = Condition("a.mlm_accuracy", "above", 0.1, minus=("b.mlm_accuracy",))
BELOW = Condition("a.mlm_accuracy", "below", 0.1, minus=("b.mlm_accuracy",))


def values(**variants: list[float]) -> Values:
    """Return one metric of variants by seed, without sampling error."""
    return {name: {"mlm_accuracy": dict(enumerate(map(exact_value, numbers)))} for name, numbers in variants.items()}


@pytest.mark.parametrize(
    ("a", "above", "below"),
    [
        ([0.5, 0.51, 0.49], HOLDS, FAILS),  # 0.2 more than b, with little spread
        ([0.31, 0.30, 0.29], FAILS, HOLDS),
        ([0.6, 0.3, 0.45], NOISY, NOISY),  # a difference of 0.15, but the seeds disagree
        ([0.9], NOISY, NOISY),  # one seed never decides
        ([], NOT_MEASURED, NOT_MEASURED),
    ],
)
def test_difference_is_decided_by_its_seeds(a: list[float], above: str, below: str) -> None:
    measured = values(a=a, b=[0.3, 0.3, 0.3])
    assert check_condition(ABOVE, measured).verdict == above
    assert check_condition(BELOW, measured).verdict == below


def test_bounds_of_few_seeds_are_from_students_t() -> None:
    # Mean 0.2, deviation 0.01 over three seeds; the quantile of two degrees at 90 % is 1.886 in every table.
    finding = check_condition(ABOVE, values(a=[0.49, 0.50, 0.51], b=[0.3, 0.3, 0.3]))
    assert finding.mean == pytest.approx(0.2)
    assert finding.high == pytest.approx(0.2 + 1.8856 * 0.01 / math.sqrt(3), abs=1e-5)
    assert finding.low == pytest.approx(0.2 - 1.8856 * 0.01 / math.sqrt(3), abs=1e-5)


def answers(probability: float, count: int, rng: np.random.Generator, change: float = 0.0, base: Any = None) -> Any:
    """Return which of `count` examples are correct: at random, or those of `base` and a few more."""
    correct = rng.random(count) < probability if base is None else base
    return correct | (rng.random(count) < change)


def accuracy(correct: Any) -> JackknifeEstimate:
    return jackknife_examples(lambda left: correct[left].mean(), len(correct))


@pytest.mark.parametrize(("examples", "verdict"), [(100, NOISY), (20_000, HOLDS)])
def test_agreeing_seeds_with_few_examples_are_noisy(examples: int, verdict: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (accuracy(answers(probability, examples, rng)) for probability in (0.54, 0.4))
    measured: Values = {"a": {"mlm_accuracy": {0: a, 1: a}}, "b": {"mlm_accuracy": {0: b, 1: b}}}
    assert check_condition(ABOVE, measured).verdict == verdict


def test_difference_error_is_from_differing_examples() -> None:
    """Models that agree on almost all examples differ with certainty; models that disagree on many do not."""
    rng = np.random.default_rng(0)
    condition = Condition("a.mlm_accuracy", "above", 0, minus=("b.mlm_accuracy",))
    correct = answers(0.5, 1000, rng)
    better = answers(0, 1000, rng, change=0.03, base=correct)
    other = rng.permutation(better)  # the same number of correct examples, but different ones
    alike, unlike = (
        {"a": {"mlm_accuracy": dict.fromkeys((0, 1), accuracy(a))},
         "b": {"mlm_accuracy": dict.fromkeys((0, 1), accuracy(correct))}}
        for a in (better, other)
    )  # fmt: skip
    assert check_condition(condition, alike).mean == pytest.approx(check_condition(condition, unlike).mean)
    assert check_condition(condition, alike).verdict == HOLDS
    assert check_condition(condition, unlike).verdict == NOISY


def test_difference_of_differences_is_one_condition() -> None:
    condition = Condition(
        "a.mlm_accuracy", "above", 0, minus=("b.mlm_accuracy", "c.mlm_accuracy"), plus=("d.mlm_accuracy",)
    )
    measured = values(a=[0.9, 0.9], b=[0.5, 0.5], c=[0.6, 0.6], d=[0.4, 0.4])
    finding = check_condition(condition, measured)
    assert finding.mean == pytest.approx(0.2) and finding.verdict == HOLDS


def test_bounds_of_an_accuracy_are_fractions() -> None:
    finding = check_condition(Condition("a.mlm_accuracy", "above", 0.5), values(a=[0.0, 1.0]))
    assert (finding.low, finding.high) == (0.0, 1.0)
    difference = check_condition(ABOVE, values(a=[0.0, 1.0], b=[0.5, 0.5]))
    assert difference.low is not None and difference.low < 0


def test_only_common_seeds_are_compared() -> None:
    measured = values(a=[0.5, 0.5, 9.0], b=[0.3, 0.3])
    assert check_condition(ABOVE, measured).by_seed == {0: pytest.approx(0.2), 1: pytest.approx(0.2)}


def test_counts_of_one_seed_are_decided_exactly() -> None:
    ratio = Condition("a.block_parameters", "equal", "b.layers", over="b.block_parameters")
    measured: dict[str, dict[str, dict[int, JackknifeEstimate]]] = {
        "a": {"block_parameters": {0: exact_value(1200)}},
        "b": {"block_parameters": {0: exact_value(100)}, "layers": {0: exact_value(12)}},
    }
    assert check_condition(ratio, measured).verdict == HOLDS
    measured["a"]["block_parameters"][0] = exact_value(1201)
    assert check_condition(ratio, measured).verdict == FAILS
    assert check_condition(ratio, {"a": measured["a"]}).verdict == NOT_MEASURED


def test_ratio_over_zero_is_noisy() -> None:
    condition = Condition("a.l2_last", "above", 0.1, over="b.l2_mean")
    one = exact_value(1)
    nothing = exact_value(0)
    measured: Values = {"a": {"l2_last": {0: one, 1: one}}, "b": {"l2_mean": {0: nothing, 1: one}}}
    assert check_condition(condition, measured).verdict == NOISY


def test_unknown_error_has_no_bounds_and_is_valid_json() -> None:
    unknown = {"mlm_accuracy": {0: value_of_unknown_error(0.5), 1: value_of_unknown_error(0.6)}}
    finding = check_condition(ABOVE, {**values(b=[0.3, 0.3]), "a": unknown})
    assert (finding.low, finding.high, finding.verdict) == (None, None, NOISY)
    ratio = check_condition(Condition("a.mlm_accuracy", "above", 1, over="b.mlm_accuracy"), values(a=[1, 1], b=[0, 1]))
    assert (ratio.by_seed, ratio.mean) == ({0: None, 1: 1.0}, None)
    for one in (finding, ratio):
        json.dumps(one.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [((0.5, 0.5), HOLDS), ((0.5, 0.3), FAILS), ((0.5, None), NOT_MEASURED), ((0.3, None), FAILS)],
)
def test_claim_has_the_verdict_of_its_worst_condition(verdicts: tuple[float, float | None], together: str) -> None:
    names = ("x", "y")
    conditions = tuple(Condition(f"{name}.mlm_accuracy", "above", 0.4) for name in names)
    measured = values(**{n: [v, v] for n, v in zip(names, verdicts, strict=True) if v is not None})
    assert check_claim(PaperClaim("", "", "", conditions), measured).verdict == together


@pytest.mark.parametrize(
    ("scores", "bound", "verdict"),
    [
        ((0.5010, 0.5012), 0, HOLDS),  # certainly better, by however little
        ((0.5000, 0.5020), 0, FAILS),  # between -0.3 and 0.5 points
        ((0.4990, 0.5070), 0, NOISY),  # between -1 and 1.6 points
        ((0.5000, 0.5020), 0.001, NOISY),  # a margin is taken as it is
    ],
)
def test_uncertain_difference_below_half_a_point_fails(scores: tuple[float, float], bound: float, verdict: str) -> None:
    condition = Condition("a.mlm_accuracy", "above", bound, minus=("b.mlm_accuracy",))
    assert check_condition(condition, values(a=list(scores), b=[0.5, 0.5])).verdict == verdict
    reversed_condition = Condition("b.mlm_accuracy", "below", -bound, minus=("a.mlm_accuracy",))
    assert check_condition(reversed_condition, values(a=list(scores), b=[0.5, 0.5])).verdict == verdict


@pytest.mark.parametrize(
    ("nats", "accuracy", "verdict"),
    [
        ((1.2, 1.3), (0.5, 0.5), HOLDS),
        ((1.2, 1.3), (0.3, 0.3), FAILS),
        ((0.2, 0.2), (0.5, 0.5), NOT_LEARNED),
        ((0.2, 0.2), (0.3, 0.3), NOT_LEARNED),
        ((0.2, 1.9), (0.3, 0.3), NOISY),  # one seed has learned, the other has not
    ],
)
def test_claim_is_decided_only_by_models_that_have_learned(
    nats: tuple[float, float], accuracy: tuple[float, float], verdict: str
) -> None:
    measured = {
        "a": {
            "below_unigram_entropy": {seed: exact_value(value) for seed, value in enumerate(nats)},
            "mlm_accuracy": {seed: exact_value(value) for seed, value in enumerate(accuracy)},
        }
    }
    condition = Condition("a.mlm_accuracy", "above", 0.4)
    claim = PaperClaim("", "", "", (condition,), learned=("a.below_unigram_entropy",))
    assert check_claim(claim, measured).verdict == verdict
    del measured["a"]["below_unigram_entropy"]
    assert check_claim(claim, measured).verdict == NOT_MEASURED


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(0, 1))
def test_value_is_never_both_above_and_below(numbers: list[float], bound: float) -> None:
    measured = values(a=numbers)
    above = check_condition(Condition("a.mlm_accuracy", "above", bound), measured).verdict
    below = check_condition(Condition("a.mlm_accuracy", "below", bound), measured).verdict
    assert not (above == below == HOLDS)
    assert (above == NOISY) == (below == NOISY) or min(numbers) == max(numbers)
