"""Tests of `model.block`: attention equals its formula, and half precision is close to full precision."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.model.block import block, self_attention
from albert_cli.model.encoder import Encoder, make_weight_getter
from albert_cli.model.packing import PackedTokens, pack
from tests.helpers.shapes import TINY, assert_bf16_is_close, random_batch

CPU = torch.device("cpu")
HEADS, SIZE = 2, 8


def attention_formula(qkv: Tensor, tokens: PackedTokens) -> Tensor:
    """Compute softmax(q k' / sqrt(d)) v, one sequence at a time: [T, 3, A, d] to [T, A * d]."""
    parts = []
    for start, stop in pairwise(tokens.layout.offsets.tolist()):
        q, k, v = qkv[start:stop].permute(1, 2, 0, 3)
        weights = torch.softmax(q @ k.transpose(-1, -2) / SIZE**0.5, -1)
        parts.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(parts)


@pytest.mark.parametrize("lengths", [(20, 3, 11), (7, 7)], ids=["ragged", "equal"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 4e-2)]
)
def test_attention_packed_sequences_follow_the_formula(
    lengths: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    tokens = pack(random_batch(lengths), CPU)
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, HEADS, SIZE, dtype=dtype, requires_grad=True)
    qkv_fp64 = qkv.detach().double().requires_grad_()
    actual = self_attention(qkv, tokens.layout, 0.0)
    expected = attention_formula(qkv_fp64, tokens)
    assert actual.dtype == dtype
    assert torch.allclose(actual.double(), expected, atol=tolerance, rtol=tolerance)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (actual.double() * weights).sum().backward()
    (expected * weights).sum().backward()
    assert qkv.grad is not None and qkv_fp64.grad is not None
    assert torch.allclose(qkv.grad.double(), qkv_fp64.grad, atol=3 * tolerance, rtol=3 * tolerance)


def test_attention_dropout_keeps_the_mean_in_any_precision() -> None:
    tokens = pack(random_batch((20, 3)), CPU)
    for dtype in (torch.float32, torch.bfloat16):
        qkv = torch.randn(23, 3, HEADS, SIZE, dtype=dtype)
        expected = self_attention(qkv, tokens.layout, 0.0)
        dropped = self_attention(qkv, tokens.layout, 0.5)
        assert not torch.allclose(expected, dropped)
        mean = torch.stack([self_attention(qkv, tokens.layout, 0.5).float() for _ in range(800)]).mean(0)
        assert (mean - expected.float()).abs().mean() < 0.1


# ---------------------------------------------------------------- half precision


def test_shared_weight_in_bf16_adds_gradients_in_fp32() -> None:
    """The first use adds a gradient of 1, 256 others add 1/256: in bf16, the sum would stay 1."""
    attention = Encoder(TINY).attention[0]
    cast_weights = make_weight_getter(attention.weights(), torch.bfloat16)  # type: ignore[operator]
    uses = [cast_weights() for _ in range(257)]
    assert uses[0].output.dtype == torch.bfloat16 and uses[0].norm.dtype == torch.float32
    total = sum((use.output.float() * (1.0 if n == 0 else 1 / 256)).sum() for n, use in enumerate(uses))
    assert isinstance(total, Tensor)
    total.backward()
    gradient = attention.output.weight.grad  # type: ignore[union-attr]
    assert isinstance(gradient, Tensor)
    assert gradient.dtype == torch.float32 and torch.allclose(gradient, torch.full_like(gradient, 2.0))
    assert torch.tensor(1.0, dtype=torch.bfloat16) + 1 / 256 == 1.0  # in bf16, the sum does not grow


@pytest.mark.parametrize("only_required_rows", [False, True], ids=["all tokens", "required rows"])
@pytest.mark.parametrize("norm_in_fp32", [True, False], ids=["fp32 from LayerNorm, as on CUDA", "bf16, as on a CPU"])
def test_block_in_any_precision_returns_its_dtype(
    only_required_rows: bool, norm_in_fp32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the dtype of LayerNorm under autocast, the output has the dtype of the input."""
    if norm_in_fp32:
        # `norm` is the original function, saved before the patch.
        monkeypatch.setattr(F, "layer_norm", lambda x, *rest, norm=F.layer_norm: norm(x.float(), *rest))
    encoder = Encoder(TINY)
    results = []
    tokens = pack(random_batch((20, 3, 11)), CPU)
    x_TH = torch.randn(34, TINY.hidden_size).bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
        attention = make_weight_getter(encoder.attention[0].weights(), dtype)()  # type: ignore[operator]
        feed_forward = make_weight_getter(encoder.feed_forward[0].weights(), dtype)()  # type: ignore[operator]
        x = x_TH.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            required = tokens.rows if only_required_rows else None
            out = block(x, attention, feed_forward, tokens.layout, required, encoder.block_settings())
        assert out.dtype == dtype
        out.float().pow(3).sum().backward()
        assert x.grad is not None
        results.append((out.detach().float(), x.grad.float()))
    for exact, half in zip(*results, strict=True):
        assert (exact - half).norm() < 0.02 * exact.norm()


def test_block_half_precision_is_close_to_fp32() -> None:
    encoder = Encoder(replace(TINY, num_hidden_layers=6, initializer_range=0.1))
    assert_bf16_is_close(encoder, random_batch((20, 3, 11)))
