"""Test the paper's claims against measured values.

The verdicts are: holds, does not hold at this scale, too noisy to tell, not learned at this scale, and not measured.
A condition of a claim compares a measured quantity, its left side, with a bound (`experiment.Condition`). The left side
has one value per seed. The one-sided confidence limits of the mean over seeds decide if the condition holds. They
combine two errors: the spread of the seeds (Student's t), and the jackknife error of the mean (`uncertainty`). A score
has a jackknife error because all seeds are scored on the same limited number of examples, and a time has one because
the speed of a run varies. A single seed has no spread, so it decides nothing. Counts have no error. A claim about what
models learn is decided only if its models have learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from albert_cli.experiments.experiment import Condition, PaperClaim, split_reference
from albert_cli.experiments.uncertainty import JackknifeEstimate, jackknife_error
from albert_cli.formatting import finite_or_none

Verdict = Literal[
    "holds", "does not hold at this scale", "too noisy to tell", "not learned at this scale", "not measured"
]
HOLDS: Final[Verdict] = "holds"
FAILS: Final[Verdict] = "does not hold at this scale"
NOISY: Final[Verdict] = "too noisy to tell"
NOT_LEARNED: Final[Verdict] = "not learned at this scale"
NOT_MEASURED: Final[Verdict] = "not measured"

CONFIDENCE: Final = 0.9  # of each of the two one-sided limits
Values = Mapping[str, Mapping[str, Mapping[int, JackknifeEstimate]]]  # variant -> metric -> seed -> estimate


@dataclass(frozen=True)
class Finding:
    """The verdict on a condition, with the left side of each seed, and the mean over seeds with its confidence limits.

    The left side is None after a division by zero. The mean and the limits are None if they are unknown.
    """

    condition: Condition
    by_seed: Mapping[int, float | None]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = NOISY

    def to_json(self) -> dict[str, object]:
        """Return the fields for `results.json`."""
        return {**vars(self), "condition": str(self.condition)}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with the findings on `claim.all_conditions`, in their order."""

    claim: PaperClaim
    findings: Sequence[Finding]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim.

        `NOT_LEARNED` if a value in `claim.learned` shows that its model has not learned, `NOT_MEASURED` or `NOISY` if
        this is unknown, and else the least favorable verdict of the other conditions.
        """
        verdicts = [finding.verdict for finding in self.findings]
        num_learned = len(self.claim.learned)  # the conditions for these values come first
        learned = _least_favorable(verdicts[:num_learned])
        if learned != HOLDS:
            return NOT_LEARNED if learned == FAILS else learned
        return _least_favorable(verdicts[num_learned:])

    def to_json(self) -> dict[str, object]:
        """Return the fields for `results.json`."""
        return {
            "statement": self.claim.statement,
            "source": self.claim.source,
            "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings],
        }


def _least_favorable(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the least favorable of the verdicts on conditions; `HOLDS` if there is none."""
    return next((verdict for verdict in (FAILS, NOT_MEASURED, NOISY) if verdict in verdicts), HOLDS)


def check_claim(claim: PaperClaim, values: Values) -> CheckedClaim:
    """Test a claim against the measured values."""
    return CheckedClaim(claim, [check_condition(condition, values) for condition in claim.all_conditions])


def check_condition(condition: Condition, values: Values) -> Finding:
    """Test a condition against the measured values; runs of the same seed are compared.

    The verdict is `NOT_MEASURED` without a seed that has measured all values. It is `NOISY` after a division by zero
    and, except for counts, with a single seed or an unknown error.
    """
    estimates = _compute_left_side(condition, values)
    if not estimates:
        return Finding(condition, {}, verdict=NOT_MEASURED)
    # The first element of an estimate is the value on all examples; each other one leaves out a jackknife group.
    numbers = np.array([estimate[0] for estimate in estimates.values()])
    by_seed = {seed: finite_or_none(float(estimate[0])) for seed, estimate in estimates.items()}
    if not np.isfinite(numbers).all():
        return Finding(condition, by_seed)
    mean = float(numbers.mean())
    bound = condition.bound
    if isinstance(bound, str):
        # The bound is a measured value. Its error is ignored, because in our recipes it is always a count.
        bound = float(np.mean([estimate[0] for estimate in _look_up(bound, values).values()]))
    if condition.is_exact:
        return Finding(condition, by_seed, mean, mean, mean, _decide(condition, bound, mean, mean))
    if len(numbers) < 2:
        return Finding(condition, by_seed, mean)
    from scipy.special import ndtri, stdtrit  # the quantiles of `scipy.stats`, thirty times faster

    standard_error = numbers.std(ddof=1) / math.sqrt(len(numbers))
    seed_margin = stdtrit(len(numbers) - 1, CONFIDENCE) * standard_error
    jackknife_margin = ndtri(CONFIDENCE) * jackknife_error(np.mean(list(estimates.values()), axis=0))
    margin = math.hypot(seed_margin, jackknife_margin)  # the two errors are independent
    if not math.isfinite(margin):  # a part of the values has no jackknife error
        return Finding(condition, by_seed, mean)
    low = mean - margin
    high = mean + margin
    verdict = _decide(condition, bound, low, high)
    if condition.value.endswith("_accuracy") and condition.references == (condition.value,):
        low = max(low, 0.0)  # the margin is symmetric, but an accuracy is a fraction
        high = min(high, 1.0)
    return Finding(condition, by_seed, mean, low, high, verdict)


def _compute_left_side(condition: Condition, values: Values) -> dict[int, JackknifeEstimate]:
    """Return the left side of a condition for every seed that has measured all of the condition's values."""
    measured = {name: _look_up(name, values) for name in condition.references}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in measured.values())))
    estimates = {}
    for seed in seeds:
        estimate = measured[condition.value][seed]
        for name in condition.minus:
            estimate = estimate - measured[name][seed]
        for name in condition.plus:
            estimate = estimate + measured[name][seed]
        if condition.over:
            divisor = measured[condition.over][seed]
            estimate = np.divide(estimate, divisor, out=np.full_like(estimate, math.nan), where=divisor != 0)
        estimates[seed] = estimate
    return estimates


def _look_up(reference: str, values: Values) -> Mapping[int, JackknifeEstimate]:
    """Return the measured value `VARIANT.METRIC` by seed; empty if it was not measured."""
    variant, metric = split_reference(reference)
    return values.get(variant, {}).get(metric, {})


def _decide(condition: Condition, bound: float, low: float, high: float) -> Verdict:
    """Return the verdict for a mean with the confidence interval from `low` to `high`.

    The condition "above" holds if the whole interval is above `bound`. Otherwise it fails if the interval ends at or
    below `bound` + `condition.smallest_difference`, and is undecided (`NOISY`) if not. For "below", the directions are
    reversed. "equal" holds if the interval is only `bound`, and fails if `bound` is outside of it.
    """
    match condition.must:
        case "above":
            holds = low > bound
            fails = high <= bound + condition.smallest_difference
        case "below":
            holds = high < bound
            fails = low >= bound - condition.smallest_difference
        case "equal":
            # Equal within rounding, because a ratio of counts is a float.
            holds = math.isclose(low, bound, rel_tol=1e-9) and math.isclose(high, bound, rel_tol=1e-9)
            fails = not low <= bound <= high
    if holds:
        return HOLDS
    return FAILS if fails else NOISY
