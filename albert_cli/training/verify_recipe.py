"""Recipes for `albert eval verify/…`: a published checkpoint, its published scores, and how near is near enough."""

from __future__ import annotations

from dataclasses import dataclass, field

from albert_cli.errors import ConfigError


@dataclass(frozen=True)
class Expected:
    """A published score on dev, times 100, of a task's main metric; `tolerance` in points, 0 for the recipe's own."""

    score: float
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not -100 <= self.score <= 100 or self.tolerance < 0:
            raise ConfigError(f"score {self.score}, tolerance {self.tolerance}", "scores are times 100, tolerances ≥ 0")


@dataclass(frozen=True)
class VerifyRecipe:
    """What `albert eval verify/NAME` repeats: every task of `expected` from `checkpoint`, by its own recipe.

    `source` says where the scores were published, `runs` how many seeds are fine-tuned (the median counts),
    `overrides` are laid on every task's recipe. A task passes when its score is at most `tolerance` points below.
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
        if self.runs < 1 or self.tolerance < 0:
            raise ConfigError(f"runs = {self.runs}, tolerance = {self.tolerance}", "runs ≥ 1, tolerance ≥ 0")

    def tolerance_of(self, task: str) -> float:
        """How many points below its published score a task may end."""
        return self.expected[task].tolerance or self.tolerance


def is_verify(values: object) -> bool:
    """Whether a recipe's values are of this kind."""
    return isinstance(values, dict) and "expected" in values
