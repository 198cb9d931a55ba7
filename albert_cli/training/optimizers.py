"""LAMB and AdamW as in ALBERT's released code: one rule, with or without the layer-wise trust ratio.

You et al., 2019 (arXiv 1904.00962), in the form of ALBERT's `lamb_optimizer.py`: no bias correction, no clamp on the
ratio, and neither decay nor ratio for LayerNorms and biases. `optimizer.bias_correction` gives the LAMB of apex and
timm. With it, `optimizer.name = "nvlamb"` is apex's NVLAMB, where LayerNorms and biases have a ratio too.

A step of LAMB uses torch's fused AdamW kernel, which advances both moments and adds m / (sqrt(v) + eps) to a tensor.
The tensor holds `decay * w` before, and LAMB's update after it. Two norms and one addition to the weights follow.

A step of LAMB moves 56 bytes of fp32 per parameter: 8 for the decay, 28 for the kernel, 8 for the norms and 12 for the
addition. AdamW moves 28. No implementation of LAMB needs less than 40, because no weight can change before the ratio is
known: it needs 24 to advance the moments and to compute the ratio (reading w, g, m and v, and writing m and v), and 16
to change w (reading m, v and w again, or storing u and reading u and w; and writing w).
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
    """LAMB over a model's named parameters, with two moments for each parameter.

    For a parameter w with its clipped gradient g:

        m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2
        u = m / (sqrt(v) + eps) + decay * w   (decay only for matrices and embeddings)
        w <- w - lr * ratio * u               ratio = ||w|| / ||u|| when both are positive, else 1

    The ratio is also 1 for LayerNorms and biases, unless `ratio_for_all`. Without `trust_ratio` it is 1 everywhere, and
    the rule is the AdamW with which ALBERT's released code fine-tunes. `settings.bias_correction` divides m by
    1 - beta1^t and v by 1 - beta2^t in the formula of u, in step t.
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
        matrices = [(name, p) for name, p in named if not is_norm_or_bias(name)]
        norms_and_biases = [(name, p) for name, p in named if is_norm_or_bias(name)]
        groups: list[dict[str, object]] = [
            {"params": matrices, "decay": settings.weight_decay, "trust_ratio": trust_ratio},
            {"params": norms_and_biases, "decay": 0.0, "trust_ratio": trust_ratio and ratio_for_all},
        ]
        self.settings = settings
        self._buffers: dict[torch.dtype, Tensor] = {}  # for `_scaled` on a CPU
        super().__init__([group for group in groups if group["params"]], {"lr": 0.0, "steps": 0})
        for _, p in named:
            self.state[p] = {"first": torch.zeros_like(p), "second": torch.zeros_like(p)}

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add a group like torch's method, but without the method's decorator, which imports the compiler in 1.5 s."""
        inspect.unwrap(Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter from its `.grad`, at the learning rate `lr` of its group; `closure` is not used.

        A parameter without a gradient does not change, nor do its moments. No loss trains it, and weight decay alone
        would shrink it to zero: LAMB's ratio makes the length of an update independent of the factor of the decay.
        """
        for group in self.param_groups:
            group["steps"] += 1
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            if not group["trust_ratio"]:
                self._advance(parameters, parameters, group["steps"], group["lr"], group["decay"])
                continue
            chunks = [parameters]  # all at once on a GPU, in few kernels
            if parameters[0].device.type == "cpu":
                chunks = [[parameter] for parameter in parameters]  # one by one, so that each stays in the cache
            for chunk in chunks:
                # `updates` first holds decay * w. The kernel, at a rate of -1, adds m / (sqrt(v) + eps) to it. Then it
                # holds u.
                updates = self._scaled(chunk, group["decay"])
                self._advance(chunk, updates, group["steps"], lr=-1.0, decay=0.0)
                torch._foreach_addcmul_(chunk, updates, trust_ratios(chunk, updates), value=-group["lr"])

    def _advance(
        self, parameters: Sequence[Tensor], target: Sequence[Tensor], steps: int, lr: float, decay: float
    ) -> None:
        """Advance the moments, and subtract lr * (m / (sqrt(v) + eps) + decay * target) from `target`.

        Every one of `parameters` has a gradient.
        """
        settings = self.settings
        # The kernel always corrects the bias: it divides by 1 - beta^steps, which is 1 for an infinite number of steps.
        steps_for_correction = steps if settings.bias_correction else math.inf
        count = torch.full((), steps_for_correction, dtype=torch.float32, device=target[0].device)
        torch._fused_adamw_(
            list(target),
            # The kernel ignores strides, so gradients must be contiguous.
            [p.grad.contiguous() for p in parameters if p.grad is not None],
            [self.state[p]["first"] for p in parameters],
            [self.state[p]["second"] for p in parameters],
            [],
            [count] * len(parameters),
            lr=lr, beta1=settings.beta1, beta2=settings.beta2, weight_decay=decay, eps=settings.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def _scaled(self, weights: list[Tensor], factor: float) -> list[Tensor]:
        """Return `factor * w` for each weight.

        On a CPU there is one weight, and its result is in a reused buffer, because allocating new memory costs time.
        """
        if weights[0].device.type != "cpu":
            return list(torch._foreach_mul(weights, factor))
        (weight,) = weights
        if weight.dtype not in self._buffers:
            largest = max(p.numel() for group in self.param_groups for p in group["params"])
            self._buffers[weight.dtype] = torch.empty(largest, dtype=weight.dtype)
        return [torch.mul(weight, factor, out=self._buffers[weight.dtype][: weight.numel()].view_as(weight))]


def is_norm_or_bias(name: str) -> bool:
    """Return True if a parameter of this name is a bias, or the weight of a LayerNorm.

    Such parameters have no weight decay and, except under "nvlamb", no trust ratio.
    """
    return name.endswith("bias") or ".norm." in f".{name}"  # the first dot is for a name that begins with `norm`


def trust_ratios(weights: Sequence[Tensor], updates: Sequence[Tensor]) -> list[Tensor]:
    """Return ||w|| / ||u|| for each pair of a weight and its update, as scalars; 1 where a norm is zero."""
    weight_norms = tensor_norms(weights)
    update_norms = tensor_norms(updates)
    are_positive = (weight_norms > 0) & (update_norms > 0)
    return list(torch.where(are_positive, weight_norms / update_norms, 1.0).unbind())


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each tensor, [len(tensors)].

    On a CPU the norms of the rows are computed first, and then their squares are added, which torch does pairwise. A
    single norm over the tensor has only a handful of running sums on a CPU; their rounding makes the norm of 23 M
    entries wrong by 1e-3.
    """
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(list(tensors)))
    rows = [torch.linalg.vector_norm(t, dim=-1) if t.dim() > 1 else t for t in tensors]
    return torch.stack([row.square().sum().sqrt() for row in rows])


# ---------------------------------------------------------------- functions for any optimizer

# The optimizers by `optimizer.name` of a recipe. Any optimizer of torch can be added (docs/development.md).
OPTIMIZERS: Final[Mapping[str, Callable[[NamedParameters, OptimizerSettings], Optimizer]]] = {
    "lamb": Lamb,
    "nvlamb": partial(Lamb, ratio_for_all=True),
    "adamw": partial(Lamb, trust_ratio=False),
}


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Create the optimizer that `settings` name, over all of a model's parameters."""
    return OPTIMIZERS[settings.name](model.named_parameters(), settings)


def update_weights(optimizer: Optimizer, lr: float) -> None:
    """Update the weights from their gradients at this learning rate, and drop the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    for group in optimizer.param_groups:  # torch's `zero_grad` would import the compiler, in 1.5 s
        for parameter in group["params"]:
            parameter.grad = None


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale all gradients so that their global norm is at most `limit` (0: no limit); return the norm before scaling.

    If the norm is not finite, the gradients stay unchanged, so that the cause can be found.
    """
    gradients = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(tensor_norms(gradients))
    if limit > 0:
        finite_norm = norm.nan_to_num(nan=limit, posinf=limit)  # the scale is then 1
        torch._foreach_mul_(gradients, limit / finite_norm.clamp(min=limit))
    return norm


def state_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state tensors by `KEY.PARAMETER`; LAMB's moments have the keys `first` and `second`."""
    tensors = {}
    for name, parameter in _iter_parameters(optimizer):
        for key, tensor in optimizer.state[parameter].items():
            tensors[f"{key}.{name}"] = tensor
    return tensors


@torch.no_grad()
def load_optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor], steps: int) -> None:
    """Load copies of the tensors that `state_tensors` returned after `steps` steps.

    Raises `ValueError`, naming the first tensor that is missing, has another shape, or is not of this optimizer.
    """
    saved_keys = {full_name.partition(".")[0] for full_name in tensors}
    for name, parameter in _iter_parameters(optimizer):
        state = optimizer.state[parameter]
        # Torch's optimizers have no state before their first step. Every saved key is then accepted.
        expected_keys = set(state) or saved_keys
        for key in sorted(saved_keys | expected_keys):
            tensor = tensors.get(f"{key}.{name}")
            if tensor is None:
                raise ValueError(f"no {key}.{name}")
            if key not in expected_keys:
                raise ValueError(f"{key}.{name} is not of this optimizer")
            if key not in state and tensor.dim() == 0:  # a step counter, which torch's optimizers keep on the CPU
                state[key] = tensor.clone()
                continue
            expected_shape = state[key].shape if key in state else parameter.shape
            if tensor.shape != expected_shape:
                raise ValueError(f"{key}.{name} is {list(tensor.shape)}")
            if key in state:
                state[key].copy_(tensor)
            else:
                state[key] = tensor.to(parameter.device, copy=True)
    for group in optimizer.param_groups:
        group["steps"] = steps


def _iter_parameters(optimizer: Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the name and the tensor of every parameter of the optimizer."""
    for group in optimizer.param_groups:
        yield from zip(group["param_names"], group["params"], strict=True)
