"""The block's arithmetic: attention in every form, and shared weights in half precision."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.model.block import block, self_attention
from albert_cli.model.encoder import Encoder, cast_shared_weights
from albert_cli.model.packing import PackedTokens, pack
from tests.helpers.shapes import TINY, assert_half_is_close, random_batch

CPU = torch.device("cpu")
HEADS, SIZE = 2, 8


def by_the_formula(qkv: Tensor, tokens: PackedTokens) -> Tensor:
    """softmax(q k' / sqrt(d)) v, a sequence at a time: [T, 3, A, d] to [T, A * d]."""
    parts = []
    for start, stop in pairwise(tokens.layout.offsets.tolist()):
        q, k, v = qkv[start:stop].permute(1, 2, 0, 3)
        shares = torch.softmax(q @ k.transpose(-1, -2) / SIZE**0.5, -1)
        parts.append((shares @ v).transpose(0, 1).flatten(1))
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
    expected_of = qkv.detach().double().requires_grad_()
    actual, expected = self_attention(qkv, tokens.layout, 0.0), by_the_formula(expected_of, tokens)
    assert actual.dtype == dtype and torch.allclose(actual.double(), expected, atol=tolerance, rtol=tolerance)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (actual.double() * weights).sum().backward()
    (expected * weights).sum().backward()
    assert qkv.grad is not None and expected_of.grad is not None
    assert torch.allclose(qkv.grad.double(), expected_of.grad, atol=3 * tolerance, rtol=3 * tolerance)


def test_attention_any_precision_drops_weights() -> None:
    tokens = pack(random_batch((20, 3)), CPU)
    for dtype in (torch.float32, torch.bfloat16):
        qkv = torch.randn(23, 3, HEADS, SIZE, dtype=dtype)
        plain, dropped = self_attention(qkv, tokens.layout, 0.0), self_attention(qkv, tokens.layout, 0.5)
        assert not torch.allclose(plain, dropped)
        many = torch.stack([self_attention(qkv, tokens.layout, 0.5).float() for _ in range(800)]).mean(0)
        assert (many - plain.float()).abs().mean() < 0.1


# ---------------------------------------------------------------- half precision


def test_shared_weight_in_bf16_adds_gradients_in_fp32() -> None:
    """256 layers that each add 1/256 of the first one's gradient: in bf16 the sum would stop growing."""
    attention = Encoder(TINY).attention[0]
    lend = cast_shared_weights(attention.weights(), torch.bfloat16)  # type: ignore[operator]
    uses = [lend() for _ in range(257)]
    assert uses[0].output.dtype == torch.bfloat16 and uses[0].norm.dtype == torch.float32
    total = sum((use.output.float() * (1.0 if n == 0 else 1 / 256)).sum() for n, use in enumerate(uses))
    assert isinstance(total, Tensor)
    total.backward()
    gradient = attention.output.weight.grad  # type: ignore[union-attr]
    assert isinstance(gradient, Tensor)
    assert gradient.dtype == torch.float32 and torch.allclose(gradient, torch.full_like(gradient, 2.0))
    assert torch.tensor(1.0, dtype=torch.bfloat16) + 1 / 256 == 1.0  # what would have happened


@pytest.mark.parametrize("rows", [False, True], ids=["all tokens", "rows that are read"])
@pytest.mark.parametrize("wide", [True, False], ids=["fp32 from LayerNorm, as on CUDA", "bf16, as on a CPU"])
def test_block_in_any_precision_returns_its_dtype(rows: bool, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision between blocks, whatever precision autocast normalizes in; near the block in full precision."""
    if wide:
        monkeypatch.setattr(F, "layer_norm", lambda x, *rest, norm=F.layer_norm: norm(x.float(), *rest))
    encoder, results = Encoder(TINY), []
    tokens = pack(random_batch((20, 3, 11)), CPU)
    x_TH = torch.randn(34, TINY.hidden_size).bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
        a, f = (cast_shared_weights(part[0].weights(), dtype)() for part in (encoder.attention, encoder.feed_forward))  # type: ignore[operator]
        x = x_TH.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = block(x, a, f, tokens.layout, tokens.rows if rows else None, encoder.block_settings())
        assert out.dtype == dtype
        out.float().pow(3).sum().backward()
        assert x.grad is not None
        results.append((out.detach().float(), x.grad.float()))
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() < 0.02 * one.norm()


def test_block_half_precision_is_close_to_fp32() -> None:
    encoder = Encoder(replace(TINY, num_hidden_layers=6, initializer_range=0.1))
    assert_half_is_close(encoder, random_batch((20, 3, 11)))
