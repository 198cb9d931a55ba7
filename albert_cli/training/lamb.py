"""LAMB and AdamW as the reference code has them: one rule, with or without the layer-wise trust ratio.

You et al., 2019 (arXiv 1904.00962), in the form of ALBERT's `lamb_optimizer.py`: no bias correction, no
clamp on the ratio, and neither decay nor adaptation for LayerNorm parameters and biases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class Lamb:
    """The optimizer over a model's named parameters; moments are fp32 and belong to the names.

    For a parameter w with gradient g (already clipped):

        m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2
        u = m / (sqrt(v) + eps) + decay * w   (decay only for matrices and tables)
        w <- w - lr * ratio * u               ratio = ||w|| / ||u|| when `adapt` and both are positive, else 1

    `adapt=False` is the AdamW of the reference's fine-tuning.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adapt: bool = True,
    ) -> None:
        self.beta1, self.beta2, self.eps, self.weight_decay, self.adapt = beta1, beta2, eps, weight_decay, adapt
        self.parameters = {name: p for name, p in named_parameters if p.requires_grad}
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        excluded = [name for name in self.parameters if is_excluded(name)]
        adapted = [name for name in self.parameters if not is_excluded(name)]
        self._groups = [(adapted, True), (excluded, False)]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter from its `.grad` at the learning rate `lr`."""
        for names, is_adapted in self._groups:
            if not names:
                continue
            weights: list[Tensor] = [self.parameters[name] for name in names]
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in weights]
            updates = self._directions(names, gradients)
            if is_adapted:
                torch._foreach_add_(updates, weights, alpha=self.weight_decay)
            if is_adapted and self.adapt:
                torch._foreach_mul_(updates, trust_ratios(weights, updates))
            torch._foreach_add_(weights, updates, alpha=-lr)

    def _directions(self, names: list[str], gradients: list[Tensor]) -> list[Tensor]:
        """Advance the moments and return m / (sqrt(v) + eps) for each parameter."""
        first, second = [self.first[n] for n in names], [self.second[n] for n in names]
        torch._foreach_lerp_(first, gradients, 1 - self.beta1)
        torch._foreach_mul_(second, self.beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - self.beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_add_(scale, self.eps)
        return list(torch._foreach_div(first, scale))

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Both moments of every parameter, for `optimizer.safetensors`."""
        moments = {f"first.{name}": m for name, m in self.first.items()}
        return moments | {f"second.{name}": v for name, v in self.second.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the moments back; raises `KeyError` when one is missing."""
        for name in self.parameters:
            self.first[name].copy_(state[f"first.{name}"])
            self.second[name].copy_(state[f"second.{name}"])


def trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """||w|| / ||u|| for each pair, in at least fp32; 1 where a norm is zero."""
    weight_norms = torch.stack(torch._foreach_norm(weights))
    update_norms = torch.stack(torch._foreach_norm(updates))
    both = (weight_norms > 0) & (update_norms > 0)
    return list(torch.where(both, weight_norms / update_norms, 1.0).unbind())


def is_excluded(name: str) -> bool:
    """Whether a parameter is left out of decay and adaptation: LayerNorms and biases."""
    return name.endswith("bias") or ".norm." in f".{name}"
