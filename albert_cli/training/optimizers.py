"""LAMB and AdamW as the reference code has them: one rule, with or without the layer-wise trust ratio.

You et al., 2019 (arXiv 1904.00962), in the form of ALBERT's `lamb_optimizer.py`: no bias correction, no clamp on the
ratio, and neither decay nor ratio for LayerNorm parameters and biases. `optimizer.bias_correction` makes it the LAMB of
apex and timm, and with it `optimizer.name = "nvlamb"` is apex's NVLAMB, where LayerNorms and biases have a ratio too.

How it is computed: the fused AdamW kernel of torch advances both moments and adds m / (sqrt(v) + eps) to whatever it
is given. Given `decay * w` in a buffer, it leaves LAMB's update there; two norms and one addition follow. In bytes of
fp32 a parameter: 8 for the decay, 28 for the kernel, 8 for the norms, 12 for the addition: 56, where AdamW moves 28. No
form needs less than 40, as the ratio must be known before the first weight changes: 24 to advance the moments, and 16
to form the update again or to keep it and read it back.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from albert_cli.training.settings import OptimizerSettings

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class Lamb(Optimizer):
    """The optimizer over a model's named parameters, with two moments in fp32.

    For a parameter w with gradient g (already clipped):

        m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2
        u = m / (sqrt(v) + eps) + decay * w   (decay only for matrices and tables)
        w <- w - lr * ratio * u               ratio = ||w|| / ||u|| when both are positive, else 1

    The ratio is 1 for LayerNorms and biases too unless `ratio_for_all`, and for everything without `trust_ratio`: the
    AdamW of the reference's fine-tuning. `bias_correction` divides m by 1 - beta1^t and v by 1 - beta2^t in u.
    """

    def __init__(
        self,
        named_parameters: NamedParameters,
        settings: OptimizerSettings,
        *,
        trust_ratio: bool = True,
        ratio_for_all: bool = False,
    ) -> None:
        named = [(name, p) for name, p in named_parameters if p.requires_grad]
        groups = [
            {"params": [(n, p) for n, p in named if not is_norm_or_bias(n)], "decay": settings.weight_decay,
             "trust_ratio": trust_ratio},
            {"params": [(n, p) for n, p in named if is_norm_or_bias(n)], "decay": 0.0,
             "trust_ratio": trust_ratio and ratio_for_all},
        ]  # fmt: skip
        self.settings = settings
        self._buffers: dict[torch.dtype, Tensor] = {}
        super().__init__([group for group in groups if group["params"]], {"lr": 0.0, "steps": 0})
        for _, p in named:
            self.state[p] = {"first": torch.zeros_like(p), "second": torch.zeros_like(p)}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch has it, without its decorator, which imports the compiler: a second and a half."""
        inspect.unwrap(Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter from its `.grad` at its group's `lr`."""
        for group in self.param_groups:
            group["steps"] += 1
            parameters: list[Tensor] = group["params"]
            if not group["trust_ratio"]:
                self._advance(parameters, parameters, group["steps"], group["lr"], group["decay"])
                continue
            # All at once, in few kernels; one by one on a CPU, where a parameter then stays in the cache.
            for part in [[p] for p in parameters] if parameters[0].device.type == "cpu" else [parameters]:
                # `updates` holds decay * w; the kernel at a rate of -1 adds m / (sqrt(v) + eps) to it: LAMB's u.
                updates = self._scaled(part, group["decay"])
                self._advance(part, updates, group["steps"], lr=-1.0, decay=0.0)
                torch._foreach_addcmul_(part, updates, trust_ratios(part, updates), value=-group["lr"])

    def _advance(
        self, parameters: Sequence[Tensor], into: Sequence[Tensor], steps: int, lr: float, decay: float
    ) -> None:
        """Advance the moments, and take lr * (m / (sqrt(v) + eps) + decay * into) from `into`."""
        s = self.settings
        # The kernel knows bias correction only; at an infinite count of steps there is none.
        count = torch.full((), steps if s.bias_correction else math.inf, dtype=torch.float32, device=into[0].device)
        torch._fused_adamw_(
            list(into),
            # It reads memory in order, whatever the strides.
            [torch.zeros_like(p) if p.grad is None else p.grad.contiguous() for p in parameters],
            [self.state[p]["first"] for p in parameters],
            [self.state[p]["second"] for p in parameters],
            [],
            [count] * len(parameters),
            lr=lr, beta1=s.beta1, beta2=s.beta2, weight_decay=decay, eps=s.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _scaled(self, weights: list[Tensor], factor: float) -> list[Tensor]:
        """`factor * w` for each weight; on a CPU in a buffer that is kept, since fresh pages cost time."""
        if weights[0].device.type != "cpu":
            return list(torch._foreach_mul(weights, factor))
        (weight,) = weights
        if weight.dtype not in self._buffers:
            largest = max(p.numel() for group in self.param_groups for p in group["params"])
            self._buffers[weight.dtype] = torch.empty(largest, dtype=weight.dtype)
        return [torch.mul(weight, factor, out=self._buffers[weight.dtype][: weight.numel()].view_as(weight))]


def is_norm_or_bias(name: str) -> bool:
    """Whether a parameter is left out of decay and adaptation: LayerNorms and biases."""
    return name.endswith("bias") or ".norm." in f".{name}"


def trust_ratios(weights: Sequence[Tensor], updates: Sequence[Tensor]) -> list[Tensor]:
    """||w|| / ||u|| for each pair, in at least fp32; 1 where a norm is zero."""
    weight_norms, update_norms = tensor_norms(weights), tensor_norms(updates)
    both = (weight_norms > 0) & (update_norms > 0)
    return list(torch.where(both, weight_norms / update_norms, 1.0).unbind())


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor, [len(tensors)].

    On a CPU the norms of the rows come first, and their squares are added pairwise: torch's own norm adds everything
    up in a handful of sums there, whose rounding makes the norm of 23 M entries wrong by 1e-3.
    """
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(list(tensors)))
    rows = [torch.linalg.vector_norm(t, dim=-1) if t.dim() > 1 else t for t in tensors]
    return torch.stack([row.square().sum().sqrt() for row in rows])


# ---------------------------------------------------------------- what the loop needs of any optimizer

# `optimizer.name` of a recipe to what makes it from (named parameters, settings); names stand in `OptimizerSettings`.
OPTIMIZERS: Final[Mapping[str, Callable[[NamedParameters, OptimizerSettings], Optimizer]]] = {
    "lamb": Lamb,
    "nvlamb": partial(Lamb, ratio_for_all=True),
    "adamw": partial(Lamb, trust_ratio=False),
}


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """The optimizer that a recipe names, over all of a model's parameters."""
    return OPTIMIZERS[settings.name](model.named_parameters(), settings)


def update_weights(optimizer: Optimizer, lr: float) -> None:
    """Update the weights from their gradients at this rate, and forget the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    for group in optimizer.param_groups:  # `zero_grad` would import the compiler
        for parameter in group["params"]:
            parameter.grad = None


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale all gradients so that their global norm is at most `limit` (0: never); return the norm before.

    Where the norm is not finite they stay as they are, so that what spoilt it can be found.
    """
    gradients = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(tensor_norms(gradients))
    if limit > 0:
        torch._foreach_mul_(gradients, limit / norm.nan_to_num(limit, limit).clamp(min=limit))
    return norm


def state_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """What the optimizer keeps of each parameter, as `optimizer.safetensors` has it: LAMB's moments are `first.NAME`
    and `second.NAME`.
    """  # fmt: skip
    kept = ((name, optimizer.state[p]) for name, p in _iter_parameters(optimizer))
    return {f"{key}.{name}": tensor for name, state in kept for key, tensor in state.items()}


@torch.no_grad()
def load_optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor], steps: int) -> None:
    """Load what `state_tensors` gave after this many steps.

    Raises `ValueError` that names the first tensor that is missing, has another shape than this optimizer's, or is one
    that it does not keep.
    """
    parts = {full.partition(".")[0] for full in tensors}
    for name, parameter in _iter_parameters(optimizer):
        state = optimizer.state[parameter]
        known = set(state) or parts  # torch's own optimizers make theirs in the first step
        for part in sorted(parts | known):
            tensor = tensors.get(f"{part}.{name}")
            if tensor is None:
                raise ValueError(f"no {part}.{name}")
            if part not in known:
                raise ValueError(f"{part}.{name} is not of this optimizer")
            if tensor.shape != state.get(part, parameter if tensor.dim() else tensor).shape:
                raise ValueError(f"{part}.{name} is {list(tensor.shape)}")
            if part in state:
                state[part].copy_(tensor)
            else:
                state[part] = tensor.to(parameter.device) if tensor.dim() else tensor
    for group in optimizer.param_groups:
        group["steps"] = steps


def _iter_parameters(optimizer: Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    for group in optimizer.param_groups:
        yield from zip(group["param_names"], group["params"], strict=True)
