"""Figure 1: how far each layer moves its input, as Euclidean distance and as an angle.

The paper reads from it that sharing weights makes the steps from layer to layer smooth, and that they do not fall to
zero, so that the layers do not run into a fixed point (§4.5).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from albert_cli.model.encoder import Encoder
from albert_cli.model.packing import PackedTokens


@torch.inference_mode()
def layer_steps(encoder: Encoder, batches: Iterable[PackedTokens]) -> dict[str, list[float]]:
    """For every block application the mean over all tokens of the distance between its input and its output.

    `l2` is Euclidean, `cosine` their cosine similarity, `degrees` the angle that belongs to each token's cosine,
    averaged. The encoder's own forward pass runs, all rows of it, with its block listened to.
    """
    sums: list[Tensor] = []
    tokens, own = 0, encoder.block

    def listen(x_TH: Tensor, *rest: Any) -> Tensor:
        y_TH: Tensor = own(x_TH, *rest)
        steps.append(_step(x_TH.float(), y_TH.float()))
        return y_TH

    encoder.block = listen  # type: ignore[assignment]
    try:
        for batch in batches:
            steps: list[Tensor] = []
            encoder(batch, all_rows=True)
            tokens += len(batch.ids)
            sums = [a + b for a, b in zip(sums, steps, strict=True)] if sums else steps
    finally:
        encoder.block = own
    means = (torch.stack(sums).cpu() / max(tokens, 1)).T.tolist() if sums else [[], [], []]
    return dict(zip(("l2", "cosine", "degrees"), means, strict=True))


def _step(x_TH: Tensor, y_TH: Tensor) -> Tensor:
    """The sums over T tokens of distance, cosine and angle between rows: [3]."""
    cosine_T = torch.nn.functional.cosine_similarity(x_TH, y_TH, dim=-1).clamp(-1, 1)
    return torch.stack([(y_TH - x_TH).norm(dim=-1).sum(), cosine_T.sum(), torch.rad2deg(cosine_T.acos()).sum()])


def summary(steps: dict[str, list[float]]) -> dict[str, float]:
    """Numbers for claims: mean, last, and how much neighbouring layers differ on average, of distance and of angle."""
    found: dict[str, float] = {}
    for name in ("l2", "degrees"):
        values = steps[name]
        found |= {f"{name}_mean": statistics.fmean(values), f"{name}_last": values[-1]}
        found[f"{name}_variation"] = variation(values)
    return found


def variation(values: Sequence[float]) -> float:
    """The mean difference between neighbours; not a number where there is only one."""
    pairs = list(itertools.pairwise(values))
    return statistics.fmean(abs(b - a) for a, b in pairs) if pairs else math.nan
