"""A step whose loss or gradient is not finite: where it lies, in the error's line and in `diverged.json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

DIVERGED: Final = "diverged.json"
RECENT: Final = 20  # last steps in it


def not_finite(model: torch.nn.Module) -> set[str]:
    """Names of the parameters whose gradient is not finite."""
    with_gradient = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    return {name for name, gradient in with_gradient if not bool(torch.isfinite(gradient).all())}


def record(step: int, causes: Mapping[int, Sequence[str]], recent: Iterable[Mapping[str, float]]) -> dict[str, object]:
    """The content of `diverged.json`.

    `causes`: by rank, the losses or else the gradients that were not finite when the step was computed once more.
    `recent`: losses, rate and gradient norm of the last steps with this one.
    """
    return {
        "step": step,
        "not_finite": [{"rank": rank, "names": list(names)} for rank, names in causes.items() if names],
        "found_again": any(causes.values()),
        # JSON has no NaN
        "last_steps": [{k: v if math.isfinite(v) else str(v) for k, v in step.items()} for step in recent],
    }


def where(causes: Mapping[int, Sequence[str]]) -> str:
    """On which ranks it lies, and in what, for the error's one line."""
    ranks = [rank for rank, names in causes.items() if names]
    if not ranks:
        return "; computed again it was finite: suspect the hardware"
    first = causes[ranks[0]]
    named = f"{first[0]} and {len(first) - 1} more" if len(first) > 1 else first[0]
    return f"; on rank {', '.join(map(str, ranks))}: {named}"
