"""One transformer block as a function of its input and its weights, so that layers can share weights (§3.1).

The weights are arguments, so one compiled function serves all layers. LayerNorm follows each residual connection, as in
BERT.

Shapes: T packed tokens (sequences concatenated without padding), R rows (the tokens whose output is needed), N
sequences, S tokens of the longest sequence, Q rows of the sequence that has the most rows, A attention heads of width
d, H hidden size, F feed-forward size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.matmul import MatmulBackend, linear, onednn_linear
from albert_cli.model.packing import HeadRows, PaddedLayout, SparseAttentionLayout
from albert_cli.model.sparse_attention import attend_flex, attend_sparsely


def gelu_new(x: Tensor) -> Tensor:
    """Return GELU in its tanh approximation, with which the released weights were trained.

    It is x (1 + tanh z) / 2 with z = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016, arXiv 1606.08415). A
    kernel compiled for CUDA uses sigmoid(2 z), which equals (1 + tanh z) / 2, because computing tanh there takes longer
    than reading and writing the tensor.
    """
    if x.is_cuda and torch.compiler.is_compiling():
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
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
    """Settings of a block, which all layers have in common; the dropout rates are 0 outside of training."""

    heads: int
    activation: str
    layer_norm_eps: float
    hidden_dropout: float
    attention_dropout: float
    matmul: MatmulBackend = "torch"
    varlen: bool = False  # use the variable-length attention kernel (see `has_varlen`) instead of padding


def block(
    x_TH: Tensor,
    attention: AttentionWeights,
    feed_forward: FeedForwardWeights,
    layout: PaddedLayout,
    rows: HeadRows | None,
    settings: BlockSettings,
) -> Tensor:
    """Apply self-attention and the feed-forward network, each with residual connection and LayerNorm.

    Maps [T, H] to [T, H] in the dtype of `x_TH`. With `rows`, only the outputs of these rows are computed, [R, H]. In
    the last layer this changes no result, because no later layer attends to the other tokens.
    """
    hidden = x_TH.shape[-1]
    head_shape = (settings.heads, hidden // settings.heads)
    weight = attention.qkv
    bias = attention.qkv_bias
    if rows is None:  # every token is a row: R = T
        x_RH = x_TH
        qkv_T3Ad = linear(x_TH, weight, bias, settings.matmul).view(-1, 3, *head_shape)
        context_RH = self_attention(qkv_T3Ad, layout, settings.attention_dropout, varlen=settings.varlen)
    else:  # the stacked weight begins with the H rows of the query
        x_RH = x_TH.index_select(0, rows.index)
        q_RAd = linear(x_RH, weight[:hidden], bias[:hidden], settings.matmul).view(-1, *head_shape)
        kv_T2Ad = linear(x_TH, weight[hidden:], bias[hidden:], settings.matmul).view(-1, 2, *head_shape)
        context_RH = row_attention(
            q_RAd, kv_T2Ad, rows.layout, layout, settings.attention_dropout, varlen=settings.varlen
        )
    attended_RH = linear(context_RH, attention.output, attention.output_bias, settings.matmul)
    x_RH = _add_and_norm(x_RH, attended_RH, attention.norm, attention.norm_bias, settings)
    if feed_forward.up.is_mkldnn:  # a weight that is packed for inference; its matmul applies the activation, too
        inner_RF = onednn_linear(x_RH, feed_forward.up, feed_forward.up_bias, settings.activation)
    else:
        up_RF = linear(x_RH, feed_forward.up, feed_forward.up_bias, settings.matmul)
        inner_RF = ACTIVATIONS[settings.activation](up_RF)
    down_RH = linear(inner_RF, feed_forward.down, feed_forward.down_bias, settings.matmul)
    return _add_and_norm(x_RH, down_RH, feed_forward.norm, feed_forward.norm_bias, settings)


def _add_and_norm(x_RH: Tensor, update_RH: Tensor, weight: Tensor, bias: Tensor, settings: BlockSettings) -> Tensor:
    """Return LayerNorm(x + dropout(update)), [R, H], in the dtype of the update: the next matmul computes in it."""
    if settings.hidden_dropout:
        update_RH = F.dropout(update_RH, settings.hidden_dropout)
    # CUDA's autocast computes LayerNorm in fp32 and returns fp32. Casting the result here lets the compiler fuse cast
    # and LayerNorm, so that only the 2-byte result is written to memory.
    normalized_RH = F.layer_norm(x_RH + update_RH, weight.shape, weight, bias, settings.layer_norm_eps)
    return normalized_RH.to(update_RH.dtype)


def self_attention(qkv_T3Ad: Tensor, layout: PaddedLayout, dropout: float, *, varlen: bool = False) -> Tensor:
    """Attend from every token to its sequence: queries, keys and values [T, 3, A, d] to contexts [T, A * d].

    With `varlen`, one kernel attends within the packed sequences, whose offsets it reads. Without `varlen`, attention
    pads the sequences. A sparse layout (`model.sparse_attention`) limits the tokens to which a token attends.
    """
    if layout.sparse is None and not varlen:
        q_NSAd, k_NSAd, v_NSAd = layout.pad(qkv_T3Ad).unbind(2)
        return _attend_padded(q_NSAd, k_NSAd, v_NSAd, layout, layout, dropout)
    q_TAd, k_TAd, v_TAd = qkv_T3Ad.unbind(1)
    return _attend_packed(q_TAd, k_TAd, v_TAd, layout, layout, dropout)


def row_attention(
    q_RAd: Tensor,
    kv_T2Ad: Tensor,
    query_layout: PaddedLayout,
    key_layout: PaddedLayout,
    dropout: float,
    *,
    varlen: bool = False,
) -> Tensor:
    """Attend from some rows to their sequences: queries [R, A, d], keys and values [T, 2, A, d] to [R, A * d].

    `varlen` and sparse layouts have the same effect as in `self_attention`.
    """
    if query_layout.sparse is None and not varlen:
        q_NQAd = query_layout.pad(q_RAd)
        k_NSAd, v_NSAd = key_layout.pad(kv_T2Ad).unbind(2)
        return _attend_padded(q_NQAd, k_NSAd, v_NSAd, query_layout, key_layout, dropout)
    k_TAd, v_TAd = kv_T2Ad.unbind(1)
    return _attend_packed(q_RAd, k_TAd, v_TAd, query_layout, key_layout, dropout)


def _attend_padded(
    q_NQAd: Tensor,
    k_NSAd: Tensor,
    v_NSAd: Tensor,
    query_layout: PaddedLayout,
    key_layout: PaddedLayout,
    dropout: float,
) -> Tensor:
    """Attend within padded sequences: queries [N, Q, A, d], keys and values [N, S, A, d] to contexts [R, A * d]."""
    q_NAQd, k_NASd, v_NASd = (x.transpose(1, 2) for x in (q_NQAd, k_NSAd, v_NSAd))
    context_NAQd = _dot_product_attention(q_NAQd, k_NASd, v_NASd, key_layout.mask, dropout)
    return query_layout.unpad(context_NAQd.transpose(1, 2).flatten(2))


def _attend_packed(
    q_RAd: Tensor, k_TAd: Tensor, v_TAd: Tensor, query_layout: PaddedLayout, key_layout: PaddedLayout, dropout: float
) -> Tensor:
    """Attend from packed inputs: queries [R, A, d], keys and values [T, A, d] to contexts [R, A * d].

    Uses the sparse layout of the queries if they have one, otherwise the variable-length kernel.
    """
    sparse = query_layout.sparse
    if isinstance(sparse, SparseAttentionLayout):
        padded_attention = partial(_dot_product_attention, dropout=dropout)
        return attend_sparsely(sparse, key_layout, q_RAd, k_TAd, v_TAd, padded_attention)
    if sparse is not None:
        return attend_flex(sparse, q_RAd, k_TAd, v_TAd)
    # `torch.nn.attention.varlen.varlen_attn` calls this operator too, but has no argument for dropout.
    outputs = torch.ops.aten._flash_attention_forward(
        q_RAd,
        k_TAd,
        v_TAd,
        query_layout.offsets,
        key_layout.offsets,
        query_layout.kernel_width,
        key_layout.kernel_width,
        dropout,
        False,  # is_causal
        False,  # return_debug_mask
    )
    context_RAd: Tensor = outputs[0]
    return context_RAd.flatten(1)


def _dot_product_attention(
    q_NAQd: Tensor, k_NASd: Tensor, v_NASd: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v, [N, A, Q, d]; `mask` [N, 1, 1 or Q, S] is True where a query sees a key."""
    if q_NAQd.device.type == "cpu" and q_NAQd.dtype == torch.bfloat16:
        # On a CPU, torch's fused kernel does not use the bf16 instructions: its backward pass is seven times slower
        # than these matmuls.
        scores = (q_NAQd * q_NAQd.shape[-1] ** -0.5) @ k_NASd.transpose(-1, -2)
        if mask is not None:
            # Adding 0 or -inf is equal to `masked_fill`, which makes three more passes over the scores.
            bias = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)
            scores = scores.add_(bias)
        probabilities = torch.softmax(scores, -1)
        if dropout:
            probabilities = F.dropout(probabilities, dropout)
        return probabilities @ v_NASd
    return F.scaled_dot_product_attention(q_NAQd, k_NASd, v_NASd, attn_mask=mask, dropout_p=dropout)


def has_varlen(device: torch.device, dtype: torch.dtype | None, head_size: int) -> bool:
    """Return True if FlashAttention's variable-length kernel supports this device, dtype and head size.

    It needs CUDA on Ampere or later, half precision, and a head size that is a multiple of 8 and at most 256.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    is_ampere_or_later = torch.cuda.get_device_capability(device) >= (8, 0)
    return is_ampere_or_later and head_size % 8 == 0 and head_size <= 256
