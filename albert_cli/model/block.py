"""One transformer block as a function of its weights, because layers share weights but never inputs (§3.1).

A function, so that one compiled form serves every layer whichever weights it is given. Post-LayerNorm as in BERT.
Shapes: T packed tokens, R rows that a head reads, N sequences, S the longest one, A heads of width d, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.varlen import varlen_attn

from albert_cli.model.packing import Grid, Rows
from albert_cli.model.sparse import attend as attend_near
from albert_cli.model.sparse import attend_flex

# The released weights were trained with the tanh approximation of GELU, which Hugging Face calls gelu_new.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
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


def block(
    x_TH: Tensor, a: AttentionWeights, f: FeedForwardWeights, grid: Grid, rows: Rows | None, settings: BlockSettings
) -> Tensor:
    """Self-attention and feed-forward network, each with residual connection and LayerNorm.

    [T, H] to [T, H]; with `rows` only their states are computed, [R, H], which is exact for a last layer.
    """
    context_RH = _attention(x_TH, a, grid, rows, settings)
    residual_RH = x_TH if rows is None else x_TH.index_select(0, rows.index)
    x_RH = _add_and_norm(residual_RH, F.linear(context_RH, a.output, a.output_bias), a.norm, a.norm_bias, settings)
    inner_RF = ACTIVATIONS[settings.activation](F.linear(x_RH, f.up, f.up_bias))
    return _add_and_norm(x_RH, F.linear(inner_RF, f.down, f.down_bias), f.norm, f.norm_bias, settings)


def _add_and_norm(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, settings: BlockSettings) -> Tensor:
    if settings.hidden_dropout:
        update = F.dropout(update, settings.hidden_dropout)
    return F.layer_norm(x + update, weight.shape, weight, bias, settings.layer_norm_eps)


def _attention(x_TH: Tensor, a: AttentionWeights, grid: Grid, rows: Rows | None, settings: BlockSettings) -> Tensor:
    """Self-attention before its output projection: [T, H], or [R, H] from `rows` only."""
    hidden = x_TH.shape[-1]
    if rows is None:
        parts = [(grid, F.linear(x_TH, a.qkv, a.qkv_bias))]
    else:
        q_RH = F.linear(x_TH.index_select(0, rows.index), a.qkv[:hidden], a.qkv_bias[:hidden])
        parts = [(rows.grid, q_RH), (grid, F.linear(x_TH, a.qkv[hidden:], a.qkv_bias[hidden:]))]
    split = [(g, x.view(x.shape[0], -1, settings.heads, hidden // settings.heads)) for g, x in parts]
    return attend(split, settings.attention_dropout)


def attend(parts: list[tuple[Grid, Tensor]], dropout: float) -> Tensor:
    """softmax(q k' / sqrt(d)) v over the tokens of each sequence, or over those near (`model.sparse`): [R, A * d].

    `parts`: queries, keys and values [T, 3, A, d] of one grid; or queries [R, 1, A, d] of theirs and keys and values
    [T, 2, A, d]. Variable-length on CUDA; elsewhere sequences are padded to a rectangle for this product alone.
    """
    asked, given = parts[0][0], parts[-1][0]
    if asked.near is not None:
        q_RAd, k_TAd, v_TAd = (x for _, part in parts for x in part.unbind(1))
        if isinstance(asked.near, BlockMask):
            return attend_flex(asked.near, q_RAd, k_TAd, v_TAd)
        return attend_near(asked.near, given, q_RAd, k_TAd, v_TAd, partial(_rectangle, dropout=dropout))
    if has_varlen(parts[0][1], dropout):
        q_RAd, k_TAd, v_TAd = (x for _, part in parts for x in part.unbind(1))
        context = varlen_attn(q_RAd, k_TAd, v_TAd, asked.offsets, given.offsets, asked.width, given.width)
        assert isinstance(context, Tensor)
        return context.flatten(1)
    q_NARd, k_NASd, v_NASd = (x.transpose(1, 2) for g, part in parts for x in g.spread(part).unbind(2))
    context = _rectangle(q_NARd, k_NASd, v_NASd, given.mask, dropout)
    return asked.gather(context.transpose(1, 2).flatten(2))


def _rectangle(q_NARd: Tensor, k_NASd: Tensor, v_NASd: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Attention over padded sequences, [N, A, R, d]; `mask` [N, 1, 1 or R, S] is True where a token is seen."""
    if q_NARd.device.type == "cpu" and q_NARd.dtype == torch.bfloat16:
        # torch's fused kernel has no use for the bf16 units of a CPU: its backward pass is seven times slower.
        scores = (q_NARd * q_NARd.shape[-1] ** -0.5) @ k_NASd.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        shares = torch.softmax(scores, -1)
        return (F.dropout(shares, dropout) if dropout else shares) @ v_NASd
    return F.scaled_dot_product_attention(q_NARd, k_NASd, v_NASd, attn_mask=mask, dropout_p=dropout)


def has_varlen(x: Tensor, dropout: float) -> bool:
    """Whether the variable-length kernel applies: half precision on CUDA, and no dropout, which it lacks."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return x.is_cuda and half and dropout == 0.0 and x.shape[-1] % 8 == 0 and x.shape[-1] <= 256
