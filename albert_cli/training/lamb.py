"""LAMB and AdamW as the reference code has them: one rule, with or without the layer-wise trust ratio.

You et al., 2019 (arXiv 1904.00962), in the form of ALBERT's `lamb_optimizer.py`: no bias correction, no
clamp on the ratio, and neither decay nor adaptation for LayerNorm parameters and biases. Other published
implementations differ in details, which are settings here (`[optimizer]`; all have clip_norm = 0 where they do not
clip, and eps and weight_decay as given):

    ALBERT's lamb_optimizer.py            the defaults
    apex FusedLAMB, timm Lamb             bias_correction (both have clip_norm = 1 inside)
    apex with use_nvlamb, timm with
      always_adapt                        bias_correction, adapt_all
    NVLAMB as described                   bias_correction, adapt_all, normalize_gradient
    timm with trust_clip                  bias_correction, trust_clip = [0, 1]
    DeepSpeed FusedLamb                   bias_correction, adapt_all, trust_clip = [0.01, 10], eps = 1e-8
    pytorch-lamb (cybertronai),
      torch_optimizer (jettify)           adapt_all, weight_norm_clip = [0, 10]
    torch.optim.AdamW                     name = "adamw", bias_correction

How it is computed: the fused AdamW kernel of torch advances both moments and adds m / (sqrt(v) + eps) to whatever it
is given. Given `decay * w` in a buffer, it leaves LAMB's update there; two norms and one addition follow. In bytes of
fp32 a parameter: 8 for the decay, 28 for the kernel, 8 for the norms, 12 for the addition: 56, where AdamW moves 28. No
form needs less than 40, as the ratio must be known before the first weight changes: 24 to advance the moments, and 16
to form the update again or to keep it and read it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

Range = tuple[float, float]


class Lamb:
    """The optimizer over a model's named parameters; moments are fp32 and belong to the names.

    For a parameter w with gradient g (already clipped):

        m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2
        u = m / (sqrt(v) + eps) + decay * w   (decay only for matrices and tables)
        w <- w - lr * ratio * u               ratio = ||w|| / ||u|| when `adapt` and both are positive, else 1

    `adapt=False` is the AdamW of the reference's fine-tuning. The variants: `bias_correction` divides m by
    1 - beta1^t and v by 1 - beta2^t in u; `weight_norm_clip` clamps ||w|| (the paper's phi) and `trust_clip` the ratio;
    `adapt_all` gives LayerNorms and biases a ratio too.
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
        adapt_all: bool = False,
        bias_correction: bool = False,
        trust_clip: Range | None = None,
        weight_norm_clip: Range | None = None,
    ) -> None:
        self.beta1, self.beta2, self.eps, self.weight_decay = beta1, beta2, eps, weight_decay
        self.bias_correction, self.trust_clip, self.weight_norm_clip = bias_correction, trust_clip, weight_norm_clip
        self.parameters = {name: p for name, p in named_parameters if p.requires_grad}
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.steps = 0
        decayed = [name for name in self.parameters if not is_excluded(name)]
        excluded = [name for name in self.parameters if is_excluded(name)]
        self._adapted = [decayed, excluded if adapt_all else []] if adapt else []
        self._plain = [names for names in (decayed, excluded) if names not in self._adapted]
        self._buffers: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter from its `.grad` at the learning rate `lr`."""
        self.steps += 1
        for names in self._plain:
            self._advance(names, [self.parameters[name] for name in names], lr, self._decay(names))
        for names in self._adapted:
            for part in self._parts(names):
                weights: list[Tensor] = [self.parameters[name] for name in part]
                updates = self._scaled(weights, self._decay(part))
                self._advance(part, updates, -1.0, 0.0)
                ratios = trust_ratios(weights, updates, self.trust_clip, self.weight_norm_clip)
                torch._foreach_addcmul_(weights, updates, ratios, value=-lr)

    def _decay(self, names: Sequence[str]) -> float:
        return 0.0 if not names or is_excluded(names[0]) else self.weight_decay

    def _parts(self, names: list[str]) -> list[list[str]]:
        """All at once, in few kernels; one by one on a CPU, where a parameter then stays in the cache."""
        if not names:
            return []
        return [[name] for name in names] if self.parameters[names[0]].device.type == "cpu" else [names]

    def _advance(self, names: Sequence[str], into: Sequence[Tensor], lr: float, decay: float) -> None:
        """Advance the moments, and take lr * (m / (sqrt(v) + eps) + decay * into) from `into`."""
        if not names:
            return
        parameters = [self.parameters[name] for name in names]
        # The kernel knows bias correction only; after infinitely many steps there is none.
        count = float(self.steps) if self.bias_correction else math.inf
        steps = torch.full((), count, dtype=torch.float32, device=parameters[0].device)
        torch._fused_adamw_(
            list(into),
            # It reads memory in order, whatever the strides.
            [torch.zeros_like(p) if p.grad is None else p.grad.contiguous() for p in parameters],
            [self.first[name] for name in names],
            [self.second[name] for name in names],
            [],
            [steps] * len(names),
            lr=lr, beta1=self.beta1, beta2=self.beta2, weight_decay=decay, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _scaled(self, weights: list[Tensor], factor: float) -> list[Tensor]:
        """`factor * w` for each weight; on a CPU in a buffer that is kept, since fresh pages cost time."""
        if weights[0].device.type != "cpu":
            return list(torch._foreach_mul(weights, factor))
        (weight,) = weights
        if weight.dtype not in self._buffers:
            largest = max(p.numel() for p in self.parameters.values())
            self._buffers[weight.dtype] = torch.empty(largest, dtype=weight.dtype)
        return [torch.mul(weight, factor, out=self._buffers[weight.dtype][: weight.numel()].view_as(weight))]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Both moments of every parameter, for `optimizer.safetensors`."""
        moments = {f"first.{name}": m for name, m in self.first.items()}
        return moments | {f"second.{name}": v for name, v in self.second.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Take the moments back, and how many steps made them; raises `KeyError` when one is missing."""
        for name in self.parameters:
            self.first[name].copy_(state[f"first.{name}"])
            self.second[name].copy_(state[f"second.{name}"])
        self.steps = steps


def trust_ratios(
    weights: Sequence[Tensor],
    updates: Sequence[Tensor],
    clip: Range | None = None,
    weight_norm_clip: Range | None = None,
) -> list[Tensor]:
    """||w|| / ||u|| for each pair, in at least fp32; 1 where a norm is zero."""
    weight_norms, update_norms = norms(weights), norms(updates)
    if weight_norm_clip is not None:
        weight_norms = weight_norms.clamp(*weight_norm_clip)
    both = (weight_norms > 0) & (update_norms > 0)
    ratios = torch.where(both, weight_norms / update_norms, 1.0)
    return list((ratios if clip is None else ratios.clamp(*clip)).unbind())


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor, [len(tensors)].

    On a CPU the norms of the rows come first, and their squares are added pairwise: torch's own norm adds everything
    up in a handful of sums there, whose rounding makes the norm of 23 M entries wrong by 1e-3.
    """
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(list(tensors)))
    rows = [torch.linalg.vector_norm(t, dim=-1) if t.dim() > 1 else t for t in tensors]
    return torch.stack([row.square().sum().sqrt() for row in rows])


def is_excluded(name: str) -> bool:
    """Whether a parameter is left out of decay and adaptation: LayerNorms and biases."""
    return name.endswith("bias") or ".norm." in f".{name}"
