"""One transformer block as a function of its weights, so that layers can share them (§3.1).

A function, so that one compiled form serves every layer whichever weights it is given. Post-LayerNorm as in BERT.
Shapes: T packed tokens, R rows that a head reads, N sequences, S the longest one, A heads of width d, H hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.model.packing import HeadRows, PaddedLayout
from albert_cli.model.sparse_attention import SparseAttentionLayout, attend_flex
from albert_cli.model.sparse_attention import attend_sparsely as attend_near

_GELU_SIGMOID_SCALE: Final = 2 * math.sqrt(2 / math.pi)


def gelu_new(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, with which the released weights were trained; Hugging Face calls it so.

    Compiled for CUDA it is written with a sigmoid, the same function: tanh takes longer there than the memory traffic.
    """
    if x.is_cuda and torch.compiler.is_compiling():
        return x * torch.sigmoid(_GELU_SIGMOID_SCALE * (x + 0.044715 * x * x * x))
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": gelu_new,
    "gelu": F.gelu,
    "relu": F.relu,
}


class AttentionWeights(NamedTuple):
    """The attention sub-layer: query, key and value stacked [3H, H], output [H, H], their biases, LayerNorm [H]."""

    qkv: Tensor
    qkv_bias: Tensor
    output: Tensor
    output_bias: Tensor
    norm: Tensor
    norm_bias: Tensor


class FeedForwardWeights(NamedTuple):
    """The position-wise network: up [F, H], down [H, F], their biases, LayerNorm [H]."""

    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    norm: Tensor
    norm_bias: Tensor


@dataclass(frozen=True)
class BlockSettings:
    """What a block needs beside weights; the dropout rates are 0 outside of training."""

    heads: int
    activation: str
    layer_norm_eps: float
    hidden_dropout: float
    attention_dropout: float
    varlen: bool = False  # attention by offsets (`has_varlen`), not over a padded rectangle


def block(
    x_TH: Tensor,
    a: AttentionWeights,
    f: FeedForwardWeights,
    grid: PaddedLayout,
    rows: HeadRows | None,
    settings: BlockSettings,
) -> Tensor:
    """Self-attention and feed-forward network, each with residual connection and LayerNorm.

    [T, H] to [T, H] in the precision of `x_TH`; with `rows` only their states are computed,
    [R, H], which is exact for a last layer.
    """
    hidden = x_TH.shape[-1]
    if rows is None:
        parts = [(grid, F.linear(x_TH, a.qkv, a.qkv_bias))]
    else:
        q_RH = F.linear(x_TH.index_select(0, rows.index), a.qkv[:hidden], a.qkv_bias[:hidden])
        parts = [(rows.grid, q_RH), (grid, F.linear(x_TH, a.qkv[hidden:], a.qkv_bias[hidden:]))]
    split = [(g, x.view(x.shape[0], -1, settings.heads, hidden // settings.heads)) for g, x in parts]
    context_RH = attend(split, settings.attention_dropout, varlen=settings.varlen)
    residual_RH = x_TH if rows is None else x_TH.index_select(0, rows.index)
    x_RH = _add_and_norm(residual_RH, F.linear(context_RH, a.output, a.output_bias), a.norm, a.norm_bias, settings)
    inner_RF = ACTIVATIONS[settings.activation](F.linear(x_RH, f.up, f.up_bias))
    return _add_and_norm(x_RH, F.linear(inner_RF, f.down, f.down_bias), f.norm, f.norm_bias, settings)


def _add_and_norm(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, settings: BlockSettings) -> Tensor:
    """LayerNorm(x + update), rounded to what the next product takes: post-norm, so that nothing adds up over layers."""
    if settings.hidden_dropout:
        update = F.dropout(update, settings.hidden_dropout)
    # CUDA's autocast normalises in fp32; compiled, that is in registers, and half the bytes are read and written.
    return F.layer_norm(x + update, weight.shape, weight, bias, settings.layer_norm_eps).to(update.dtype)


def attend(parts: list[tuple[PaddedLayout, Tensor]], dropout: float, *, varlen: bool = False) -> Tensor:
    """softmax(q k' / sqrt(d)) v over the tokens of each sequence, or over those near (`model.sparse`): [R, A * d].

    `parts`: queries, keys and values [T, 3, A, d] of one grid; or queries [R, 1, A, d] of theirs and keys and values
    [T, 2, A, d]. `varlen`: by one kernel that knows where sequences begin; else they are padded to a rectangle for this
    product alone.
    """
    asked, given = parts[0][0], parts[-1][0]
    near = asked.near
    if near is not None or varlen:
        q_RAd, k_TAd, v_TAd = (x for _, part in parts for x in part.unbind(1))
        if isinstance(near, SparseAttentionLayout):
            return attend_near(near, given, q_RAd, k_TAd, v_TAd, partial(_padded_attention, dropout=dropout))
        if near is not None:
            return attend_flex(near, q_RAd, k_TAd, v_TAd)
        # What `torch.nn.attention.varlen` calls, which leaves out the kernel's dropout.
        found = torch.ops.aten._flash_attention_forward(
            q_RAd, k_TAd, v_TAd, asked.offsets, given.offsets, asked.reach, given.reach, dropout, False, False
        )
        context_RAd: Tensor = found[0]
        return context_RAd.flatten(1)
    q_NARd, k_NASd, v_NASd = (x.transpose(1, 2) for g, part in parts for x in g.spread(part).unbind(2))
    context = _padded_attention(q_NARd, k_NASd, v_NASd, given.mask, dropout)
    return asked.gather(context.transpose(1, 2).flatten(2))


def _padded_attention(q_NARd: Tensor, k_NASd: Tensor, v_NASd: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Attention over padded sequences, [N, A, R, d]; `mask` [N, 1, 1 or R, S] is True where a token is seen."""
    if q_NARd.device.type == "cpu" and q_NARd.dtype == torch.bfloat16:
        # torch's fused kernel has no use for the bf16 units of a CPU: its backward pass is seven times slower.
        scores = (q_NARd * q_NARd.shape[-1] ** -0.5) @ k_NASd.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        shares = torch.softmax(scores, -1)
        return (F.dropout(shares, dropout) if dropout else shares) @ v_NASd
    return F.scaled_dot_product_attention(q_NARd, k_NASd, v_NASd, attn_mask=mask, dropout_p=dropout)


def has_varlen(device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
    """Whether the variable-length kernel applies: half precision on CUDA from Ampere on, and heads that it knows."""
    half = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    return half and head_size % 8 == 0 and head_size <= 256 and torch.cuda.get_device_capability(device) >= (8, 0)
