"""Shared weights in the precision of the products: cast once for all layers, gradients summed in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Weights = TypeVar("Weights", bound="tuple[Tensor, ...]")  # one of the named tuples in `block`


def work_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast wants products to have on this device; None outside of autocast."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def cast_once(weights: Weights, dtype: torch.dtype | None) -> Callable[[], Weights]:
    """A function that gives one layer the weights in `dtype` (None: as they are); they are cast here, once.

    Left to autocast, twelve layers' gradients of a shared matrix would be summed in bf16, where the last of them
    hardly count. LayerNorm's own parameters stay as they are, because it computes in fp32.
    """
    named: Any = weights
    copies = [
        None if name.startswith("norm") or dtype in (None, weight.dtype) else weight.detach().to(dtype)
        for name, weight in named._asdict().items()
    ]

    def for_a_layer() -> Weights:
        pairs = zip(weights, copies, strict=True)
        given = (w if c is None else _Copy.apply(w, c) for w, c in pairs)  # type: ignore[no-untyped-call]
        return cast(Weights, named._make(given))

    return for_a_layer


class _Copy(torch.autograd.Function):
    """A weight's copy in another precision, which hands its gradient on to the weight in the weight's own."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None
