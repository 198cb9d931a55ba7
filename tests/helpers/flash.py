"""CPU kernels of torch's variable-length attention, which is otherwise only on CUDA, for tests without a GPU.

The kernels compute one sequence at a time, with dropout, forward and backward. Letters in the names of tensors are
dimensions: A attention heads, R query positions and S key positions of a sequence, d the size of a head.
"""

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
calls: list[float] = []  # the dropout probability of each call of `_forward`


def _attention_weights(q_ARd: Tensor, k_ASd: Tensor, scale: float | None) -> Tensor:
    return torch.softmax((q_ARd @ k_ASd.transpose(-1, -2)) * (scale or q_ARd.shape[-1] ** -0.5), -1)


def _iter_sequences(*tensors: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the rows of each sequence [A, rows, d]; tensors: pairs of a tensor [all rows, A, d] and its offsets."""
    bounds_by_tensor = [list(pairwise(offsets.tolist())) for _, offsets in tensors]
    for bounds in zip(*bounds_by_tensor, strict=True):
        yield tuple(x[start:stop].transpose(0, 1) for (x, _), (start, stop) in zip(tensors, bounds, strict=True))


def _sample_dropout_mask(shape: torch.Size, dropout: float, generator: torch.Generator) -> Tensor:
    """Return 0 with the probability `dropout`, else 1 / (1 - dropout)."""
    return (torch.rand(shape, generator=generator) >= dropout) / (1 - dropout)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, max_q: int, max_k: int, dropout: float,
    causal: bool, debug: bool, *, scale: float | None = None, **other: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert q_offsets.dtype == k_offsets.dtype == torch.int32 and not causal and q.stride(-1) == 1
    assert max_q >= int(q_offsets.diff().max()) and max_k >= int(k_offsets.diff().max())
    calls.append(dropout)
    state = torch.randint(2**31, (2,), dtype=torch.uint64)  # the seed with which `_backward` samples the same mask
    generator = torch.Generator().manual_seed(int(state[0]))
    out = []
    for q_ARd, k_ASd, v_ASd in _iter_sequences((q, q_offsets), (k, k_offsets), (v, k_offsets)):
        weights_ARS = _attention_weights(q_ARd, k_ASd, scale)
        dropout_mask = _sample_dropout_mask(weights_ARS.shape, dropout, generator)
        out.append(((weights_ARS * dropout_mask) @ v_ASd).transpose(0, 1))
    none = torch.empty(0)
    return torch.cat(out).contiguous(), torch.zeros(q.shape[1], q.shape[0]), state, none, none


def _backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    max_q: int, max_k: int, dropout: float, causal: bool, state: Tensor, unused: Tensor,
    *, scale: float | None = None, **other: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    generator = torch.Generator().manual_seed(int(state[0]))
    gradients: list[list[Tensor]] = []
    scale = scale or q.shape[-1] ** -0.5
    sequences = _iter_sequences((gradient, q_offsets), (q, q_offsets), (k, k_offsets), (v, k_offsets))
    for gradient_ARd, q_ARd, k_ASd, v_ASd in sequences:
        weights_ARS = _attention_weights(q_ARd, k_ASd, scale)
        dropout_mask = _sample_dropout_mask(weights_ARS.shape, dropout, generator)
        weights_grad = gradient_ARd @ v_ASd.transpose(-1, -2) * dropout_mask
        scores_grad = weights_ARS * (weights_grad - (weights_grad * weights_ARS).sum(-1, keepdim=True)) * scale
        v_grad = (weights_ARS * dropout_mask).transpose(-1, -2) @ gradient_ARd
        gradients.append([scores_grad @ k_ASd, scores_grad.transpose(-1, -2) @ q_ARd, v_grad])
    q_grad, k_grad, v_grad = (torch.cat([x.transpose(0, 1) for x in part]) for part in zip(*gradients, strict=True))
    return q_grad, k_grad, v_grad


_ATEN.impl("_flash_attention_forward", _forward, "CPU")
_ATEN.impl("_flash_attention_backward", _backward, "CPU")


@contextmanager
def use_cpu_kernels() -> Iterator[list[float]]:
    """Make the encoder use these kernels while the context is open; yield the list of each call's dropout."""
    calls.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "has_varlen", lambda device, dtype, head_size: True)
        yield calls
