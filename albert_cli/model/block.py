"""One transformer block as a function of its weights, so that layers can share them (§3.1).

One compiled function serves every layer, whichever weights it receives. LayerNorm follows each residual connection, as
in BERT.

Shapes: T packed tokens, R rows that a head reads, N sequences, S their largest length, A heads of width d, H hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.matmul import MatmulBackend, linear
from albert_cli.model.packing import HeadRows, PaddedLayout, SparseAttentionLayout
from albert_cli.model.sparse_attention import attend_flex, attend_sparsely

_GELU_SIGMOID_SCALE: Final = 2 * math.sqrt(2 / math.pi)


def gelu_new(x: Tensor) -> Tensor:
    """Compute the tanh approximation of GELU, with which the released weights were trained.

    Compiled for CUDA it uses the equivalent sigmoid form: there tanh takes longer than the memory traffic.
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
    """Weights of an attention sub-layer: stacked query, key, value [3H, H]; output [H, H]; biases; LayerNorm [H]."""

    qkv: Tensor
    qkv_bias: Tensor
    output: Tensor
    output_bias: Tensor
    norm: Tensor
    norm_bias: Tensor


class FeedForwardWeights(NamedTuple):
    """Weights of a feed-forward network: up [F, H], down [H, F], their biases, LayerNorm [H]."""

    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    norm: Tensor
    norm_bias: Tensor


@dataclass(frozen=True)
class BlockSettings:
    """A block's settings apart from its weights; the dropout rates are 0 outside of training."""

    heads: int
    activation: str
    layer_norm_eps: float
    hidden_dropout: float
    attention_dropout: float
    matmul: MatmulBackend = "torch"
    varlen: bool = False  # attention by sequence offsets (`has_varlen`) instead of padding


def block(
    x_TH: Tensor,
    attention: AttentionWeights,
    feed_forward: FeedForwardWeights,
    layout: PaddedLayout,
    rows: HeadRows | None,
    settings: BlockSettings,
) -> Tensor:
    """Apply self-attention and the feed-forward network, each with residual connection and LayerNorm.

    [T, H] to [T, H] in the dtype of `x_TH`. With `rows` only the states of these rows are computed, [R, H], which is
    exact for a last layer.
    """
    hidden = x_TH.shape[-1]
    heads = (settings.heads, hidden // settings.heads)
    weight = attention.qkv
    bias = attention.qkv_bias
    if rows is None:
        qkv_T3Ad = linear(x_TH, weight, bias, settings.matmul).view(-1, 3, *heads)
        context_RH = self_attention(qkv_T3Ad, layout, settings.attention_dropout, varlen=settings.varlen)
        residual_RH = x_TH
    else:
        row_states_RH = x_TH.index_select(0, rows.index)
        q_RAd = linear(row_states_RH, weight[:hidden], bias[:hidden], settings.matmul).view(-1, *heads)
        kv_T2Ad = linear(x_TH, weight[hidden:], bias[hidden:], settings.matmul).view(-1, 2, *heads)
        context_RH = cross_attention(
            q_RAd, kv_T2Ad, rows.layout, layout, settings.attention_dropout, varlen=settings.varlen
        )
        residual_RH = row_states_RH
    output_RH = linear(context_RH, attention.output, attention.output_bias, settings.matmul)
    x_RH = _add_and_norm(residual_RH, output_RH, attention.norm, attention.norm_bias, settings)
    up_RF = linear(x_RH, feed_forward.up, feed_forward.up_bias, settings.matmul)
    inner_RF = ACTIVATIONS[settings.activation](up_RF)
    output_RH = linear(inner_RF, feed_forward.down, feed_forward.down_bias, settings.matmul)
    return _add_and_norm(x_RH, output_RH, feed_forward.norm, feed_forward.norm_bias, settings)


def _add_and_norm(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, settings: BlockSettings) -> Tensor:
    """Return LayerNorm(x + dropout(update)) in the dtype of `update`, which the next matmul takes."""
    if settings.hidden_dropout:
        update = F.dropout(update, settings.hidden_dropout)
    # CUDA's autocast normalizes in fp32; a compiled kernel does so in registers, and reads and writes half the bytes.
    return F.layer_norm(x + update, weight.shape, weight, bias, settings.layer_norm_eps).to(update.dtype)


def self_attention(qkv_T3Ad: Tensor, layout: PaddedLayout, dropout: float, *, varlen: bool = False) -> Tensor:
    """Attend from every token to its sequence: queries, keys and values [T, 3, A, d] to contexts [T, A * d].

    `varlen` uses one kernel that reads sequence offsets; otherwise the sequences are padded for this step alone. A
    sparse layout (`model.sparse_attention`) restricts what tokens attend to.
    """
    if layout.sparse is None and not varlen:
        return _attend_padded(layout.pad(qkv_T3Ad).unbind(2), layout, layout, dropout)
    return _attend_packed(qkv_T3Ad.unbind(1), layout, layout, dropout)


def cross_attention(
    q_RAd: Tensor,
    kv_T2Ad: Tensor,
    query_layout: PaddedLayout,
    key_layout: PaddedLayout,
    dropout: float,
    *,
    varlen: bool = False,
) -> Tensor:
    """Attend from some rows to their sequences: queries [R, A, d], keys and values [T, 2, A, d] to [R, A * d].

    Otherwise as `self_attention`.
    """
    if query_layout.sparse is None and not varlen:
        padded = (query_layout.pad(q_RAd), *key_layout.pad(kv_T2Ad).unbind(2))
        return _attend_padded(padded, query_layout, key_layout, dropout)
    return _attend_packed((q_RAd, *kv_T2Ad.unbind(1)), query_layout, key_layout, dropout)


def _attend_padded(
    qkv: Sequence[Tensor], query_layout: PaddedLayout, key_layout: PaddedLayout, dropout: float
) -> Tensor:
    """Attend over padded sequences: [N, R, A, d] and twice [N, S, A, d] to packed contexts [R, A * d]."""
    q_NARd, k_NASd, v_NASd = (x.transpose(1, 2) for x in qkv)
    context_NARd = _dot_product_attention(q_NARd, k_NASd, v_NASd, key_layout.mask, dropout)
    return query_layout.unpad(context_NARd.transpose(1, 2).flatten(2))


def _attend_packed(
    qkv: Sequence[Tensor], query_layout: PaddedLayout, key_layout: PaddedLayout, dropout: float
) -> Tensor:
    """Attend without padding, sparsely or with the variable-length kernel: [R, A, d] and [T, A, d] to [R, A * d]."""
    q_RAd, k_TAd, v_TAd = qkv
    sparse = query_layout.sparse
    if isinstance(sparse, SparseAttentionLayout):
        padded_attention = partial(_dot_product_attention, dropout=dropout)
        return attend_sparsely(sparse, key_layout, q_RAd, k_TAd, v_TAd, padded_attention)
    if sparse is not None:
        return attend_flex(sparse, q_RAd, k_TAd, v_TAd)
    # The operator under `torch.nn.attention.varlen`, whose Python function does not expose dropout.
    outputs = torch.ops.aten._flash_attention_forward(
        q_RAd,
        k_TAd,
        v_TAd,
        query_layout.offsets,
        key_layout.offsets,
        query_layout.kernel_width,
        key_layout.kernel_width,
        dropout,
        False,  # not causal
        False,  # no debug mask
    )
    context_RAd: Tensor = outputs[0]
    return context_RAd.flatten(1)


def _dot_product_attention(
    q_NARd: Tensor, k_NASd: Tensor, v_NASd: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """Attend over padded sequences, [N, A, R, d]; `mask` [N, 1, 1 or R, S] is True where a key is visible."""
    if q_NARd.device.type == "cpu" and q_NARd.dtype == torch.bfloat16:
        # torch's fused kernel ignores a CPU's bf16 units: its backward pass is seven times slower.
        scores = (q_NARd * q_NARd.shape[-1] ** -0.5) @ k_NASd.transpose(-1, -2)
        if mask is not None:
            # Adding 0 or -inf equals `masked_fill`, which takes three more passes over the scores.
            bias = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)
            scores = scores.add_(bias)
        probabilities = torch.softmax(scores, -1)
        if dropout:
            probabilities = F.dropout(probabilities, dropout)
        return probabilities @ v_NASd
    return F.scaled_dot_product_attention(q_NARd, k_NASd, v_NASd, attn_mask=mask, dropout_p=dropout)


def has_varlen(device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
    """Return True if the variable-length kernel applies: half precision, CUDA from Ampere on, a supported head size."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return head_size % 8 == 0 and head_size <= 256 and torch.cuda.get_device_capability(device) >= (8, 0)
