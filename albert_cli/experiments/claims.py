"""What the paper says, held against result files: holds, does not hold at this scale, or too noisy to tell.

A claim's conditions compare values that were measured once a seed. Of each the mean over seeds is taken with a
one-sided confidence bound on either side; only where the bound too lies on one side of what the claim asks for is there
a verdict. The bound has two parts: the spread of the seeds (Student's t), and what the seeds share and so does not show
in their spread: of shares of right answers the sampling error of the examples, of seconds the clock's and the pace's
within a run. A single seed gives no spread, so that it never decides. Counts are exact.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from albert_cli.experiments.recipe import EXACT, Condition, PaperClaim
from albert_cli.experiments.uncertainty import JackknifeEstimate, jackknife_error

Verdict = Literal["holds", "does not hold at this scale", "too noisy to tell"]
HOLDS: Final[Verdict] = "holds"
FAILS: Final[Verdict] = "does not hold at this scale"
NOISY: Final[Verdict] = "too noisy to tell"

CONFIDENCE: Final = 0.9  # one-sided, of the mean over seeds
Values = Mapping[str, Mapping[str, Mapping[int, JackknifeEstimate]]]  # variant -> metric -> seed -> value


@dataclass(frozen=True)
class Finding:
    """What came out for one condition: the value of each seed, their mean, and the bounds of that mean."""

    condition: Condition
    by_seed: Mapping[int, float]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = NOISY

    def to_json(self) -> dict[str, object]:
        """For `results.json`."""
        return {**vars(self), "condition": str(self.condition)}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with its findings; it holds when all of them do."""

    claim: PaperClaim
    findings: Sequence[Finding]

    @property
    def verdict(self) -> Verdict:
        """The least favourable of the findings': one that fails decides, and one that is noisy leaves it open."""
        found = {finding.verdict for finding in self.findings}
        return next(v for v in (FAILS, NOISY, HOLDS) if v in found)

    def to_json(self) -> dict[str, object]:
        """For `results.json`."""
        findings = [finding.to_json() for finding in self.findings]
        return {"says": self.claim.says, "source": self.claim.source, "verdict": self.verdict, "findings": findings}


def check_claim(claim: PaperClaim, values: Values) -> CheckedClaim:
    """Hold a claim against the values that were measured."""
    return CheckedClaim(claim, [check_condition(condition, values) for condition in claim.all_conditions])


def check_condition(condition: Condition, values: Values) -> Finding:
    """Hold one condition against the values; runs of the same seed are compared with each other."""
    compared = _compared(condition, values)
    if not compared:
        return Finding(condition, {})
    by_seed = {seed: float(value[0]) for seed, value in compared.items()}
    numbers = list(by_seed.values())
    mean = statistics.fmean(numbers)
    bound = condition.bound
    if isinstance(bound, str):
        bound = statistics.fmean(float(value[0]) for value in _of(bound, values).values())
    if all(name.partition(".")[2] in EXACT for name in condition.references):
        return Finding(condition, by_seed, mean, mean, mean, _decided(condition, bound, mean, mean))
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        return Finding(condition, by_seed, mean)
    from scipy.stats import t

    of_seeds = float(t.ppf(CONFIDENCE, len(numbers) - 1)) * statistics.stdev(numbers) / math.sqrt(len(numbers))
    together = np.mean(list(compared.values()), axis=0)
    of_examples = statistics.NormalDist().inv_cdf(CONFIDENCE) * jackknife_error(together)
    reach = math.hypot(of_seeds, of_examples)
    low, high = mean - reach, mean + reach
    return Finding(condition, by_seed, mean, low, high, _decided(condition, bound, low, high))


def _decided(condition: Condition, bound: float, low: float, high: float) -> Verdict:
    """The verdict where the mean surely lies between `low` and `high`."""
    match condition.must:
        case "above":
            return HOLDS if low > bound else FAILS if high <= bound else NOISY
        case "below":
            return HOLDS if high < bound else FAILS if low >= bound else NOISY
        case "equal":
            near = math.isclose(low, bound, rel_tol=1e-9) and math.isclose(high, bound, rel_tol=1e-9)
            return HOLDS if near else FAILS if not low <= bound <= high else NOISY


def _compared(condition: Condition, values: Values) -> dict[int, JackknifeEstimate]:
    """The condition's left side for every seed that has all of its values."""
    of = {name: _of(name, values) for name in condition.references}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in of.values())))
    found = {}
    for seed in seeds:
        value = of[condition.value][seed]
        if condition.minus:
            value = value - of[condition.minus][seed]
        if condition.over:
            below = of[condition.over][seed]
            value = np.divide(value, below, out=np.full_like(value, math.nan), where=below != 0)
        found[seed] = value
    return found


def _of(reference: str, values: Values) -> Mapping[int, JackknifeEstimate]:
    variant, _, metric = reference.partition(".")
    return values.get(variant, {}).get(metric, {})
