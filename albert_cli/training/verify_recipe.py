"""Recipes for `albert eval verify/…`: a published checkpoint, its published scores, and how near is near enough."""

from __future__ import annotations

from dataclasses import dataclass, field

from albert_cli.errors import ConfigError


@dataclass(frozen=True)
class Expected:
    """A score on dev as it was published, times 100; `tolerance` in points, 0 for the recipe's own.

    Of SQuAD `score` is F1 and `exact_match` may stand beside it, of 2.0 both at the best threshold.
    """

    score: float
    exact_match: float | None = None
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if any(not -100 <= score <= 100 for score in self.scores) or self.tolerance < 0:
            what = f"score {' / '.join(f'{score:g}' for score in self.scores)}, tolerance {self.tolerance:g}"
            raise ConfigError(what, "scores are times 100, tolerances ≥ 0")

    @property
    def scores(self) -> tuple[float, ...]:
        """The published numbers, one or two."""
        return (self.score,) if self.exact_match is None else (self.score, self.exact_match)


@dataclass(frozen=True)
class VerifyRecipe:
    """What `albert eval verify/NAME` repeats: every task of `expected` from `checkpoint`, by its own recipe.

    `source` says where the scores were published, `runs` how many seeds are fine-tuned (the median counts),
    `overrides` are laid on every task's recipe. A task passes when none of its scores is more than
    `tolerance` points below.
    """

    checkpoint: str
    source: str
    expected: dict[str, Expected] = field(default_factory=dict)
    tolerance: float = 1.0
    runs: int = 1
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.expected:
            raise ConfigError("a recipe to verify names no task", "[expected.sst2] with score = 92.9")
        for task, expected in self.expected.items():
            if expected.exact_match is not None and not task.startswith("squad"):
                raise ConfigError(f"expected.{task}.exact_match: only SQuAD is published with it")
        if self.runs < 1 or self.tolerance < 0:
            raise ConfigError(f"runs = {self.runs}, tolerance = {self.tolerance}", "runs ≥ 1, tolerance ≥ 0")

    def tolerance_of(self, task: str) -> float:
        """How many points below its published score a task may end."""
        return self.expected[task].tolerance or self.tolerance


def is_verify(values: object) -> bool:
    """Whether a recipe's values are of this kind."""
    return isinstance(values, dict) and "expected" in values
