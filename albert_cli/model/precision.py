"""Shared weights in the precision of the products: cast once, lent to every layer, gradients summed in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Weights = TypeVar("Weights", bound="tuple[Tensor, ...]")  # one of the named tuples in `block`


def work_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast wants products to have on this device; None outside of autocast."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def lender(masters: Weights, dtype: torch.dtype | None) -> Callable[[], Weights]:
    """A function that gives one layer the weights in `dtype` (None: as they are); they are cast here, once.

    Left to autocast, twelve layers' gradients of a shared matrix would be summed in bf16, where the last of them
    hardly count. LayerNorm's own parameters stay as they are, because it computes in fp32.
    """
    named: Any = masters
    copies = [
        None if name.startswith("norm") or dtype in (None, master.dtype) else master.detach().to(dtype)
        for name, master in named._asdict().items()
    ]

    def lend() -> Weights:
        pairs = zip(masters, copies, strict=True)
        lent = (m if c is None else _Lent.apply(m, c) for m, c in pairs)  # type: ignore[no-untyped-call]
        return cast(Weights, named._make(lent))

    return lend


class _Lent(torch.autograd.Function):
    """A copy of a master in another precision, which hands its gradient on to the master in the master's own."""

    @staticmethod
    def forward(ctx: Any, master: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = master.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None
