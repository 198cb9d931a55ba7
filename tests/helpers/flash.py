"""A CPU kernel for the variable-length attention that CUDA has, a sequence at a time, with its dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from albert_cli.model import encoder

_ATEN = torch.library.Library("aten", "IMPL")
calls: list[float] = []  # the dropout of each call


def _shares(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    return torch.softmax((q @ k.transpose(-1, -2)) * (scale or q.shape[-1] ** -0.5), -1)


def _parts(*tensors: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """The rows [A, rows, d] of each sequence, of tensors [rows, A, d] with their offsets."""
    bounds = [list(pairwise(offsets.tolist())) for _, offsets in tensors]
    for ends in zip(*bounds, strict=True):
        yield tuple(x[a:b].transpose(0, 1) for (x, _), (a, b) in zip(tensors, ends, strict=True))


def _kept(shape: torch.Size, dropout: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator) >= dropout) / (1 - dropout)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, most_q: int, most_k: int, dropout: float,
    causal: bool, debug: bool, *, scale: float | None = None, **other: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert q_offsets.dtype == k_offsets.dtype == torch.int32 and not causal and q.stride(-1) == 1
    assert most_q >= int(q_offsets.diff().max()) and most_k >= int(k_offsets.diff().max())
    calls.append(dropout)
    state = torch.randint(2**31, (2,), dtype=torch.uint64)
    generator = torch.Generator().manual_seed(int(state[0]))
    out = []
    for q_ARd, k_ASd, v_ASd in _parts((q, q_offsets), (k, k_offsets), (v, k_offsets)):
        shares = _shares(q_ARd, k_ASd, scale)
        out.append(((shares * _kept(shares.shape, dropout, generator)) @ v_ASd).transpose(0, 1))
    none = torch.empty(0)
    return torch.cat(out).contiguous(), torch.zeros(q.shape[1], q.shape[0]), state, none, none


def _backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    most_q: int, most_k: int, dropout: float, causal: bool, state: Tensor, unused: Tensor,
    *, scale: float | None = None, **other: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    generator = torch.Generator().manual_seed(int(state[0]))
    gradients: list[list[Tensor]] = []
    scale = scale or q.shape[-1] ** -0.5
    for g_ARd, q_ARd, k_ASd, v_ASd in _parts((gradient, q_offsets), (q, q_offsets), (k, k_offsets), (v, k_offsets)):
        shares = _shares(q_ARd, k_ASd, scale)
        dropout_mask = _kept(shares.shape, dropout, generator)
        by_share = g_ARd @ v_ASd.transpose(-1, -2) * dropout_mask
        by_score = shares * (by_share - (by_share * shares).sum(-1, keepdim=True)) * scale
        v_grad = (shares * dropout_mask).transpose(-1, -2) @ g_ARd
        gradients.append([by_score @ k_ASd, by_score.transpose(-1, -2) @ q_ARd, v_grad])
    of_q, of_k, of_v = (torch.cat([x.transpose(0, 1) for x in part]) for part in zip(*gradients, strict=True))
    return of_q, of_k, of_v


_ATEN.impl("_flash_attention_forward", _forward, "CPU")
_ATEN.impl("_flash_attention_backward", _backward, "CPU")


@contextmanager
def taken() -> Iterator[list[float]]:
    """While it is open, the encoder attends by offsets; gives the dropout of each call of the kernel."""
    calls.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "has_varlen", lambda device, dtype, head_size: True)
        yield calls
