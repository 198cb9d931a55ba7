"""Estimate the bytes of activations, and the largest batch that fits into a device's memory.

The activations are the tensors that `encoder.py` and `heads.py` save for the backward pass; `ACTIVATION_TERMS` lists
them. Sharing weights does not reduce them, because a shared block saves them for each layer that uses it. The tests
compare the estimates with the tensors that autograd saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from albert_cli.counting.costs import (
    GPU_SETUP,
    ComputeSetup,
    count_parameters,
    head_rows,
    masked_positions,
    state_bytes,
)
from albert_cli.model.config import ModelConfig

USABLE_FRACTION: Final = 0.9  # of a device's memory; the rest is for its context, workspaces and fragmentation


@dataclass(frozen=True)
class _Sizes:
    """Arguments of the formulas below: a model, the length of a sequence in tokens, and the setup of training."""

    config: ModelConfig
    length: int
    setup: ComputeSetup

    @property
    def itemsize(self) -> int:
        """Bytes of a number in matmuls."""
        return self.setup.itemsize

    @property
    def norm_itemsize(self) -> int:
        """Bytes of a number that a block's LayerNorm saves."""
        return self.setup.norm_itemsize

    @property
    def mask_itemsize(self) -> int:
        """Bytes of a number in a block's dropout mask: CUDA saves bools, a CPU numbers in the dtype of the input."""
        return 1 if self.setup.device == "cuda" else self.itemsize

    @property
    def embedding_mask_itemsize(self) -> int:
        """Bytes of a number in the dropout mask of the embeddings, which are in fp32."""
        return 1 if self.setup.device == "cuda" else 4

    @property
    def probabilities(self) -> int:
        """Number of attention probabilities of a row, over all attention heads, that are saved if any are.

        It is 0 for sparse attention, whose probabilities the backward pass computes again.
        """
        if not self.config.covers_sequence(self.length):
            return 0
        return self.config.num_attention_heads * self.length

    @property
    def saves_probabilities(self) -> bool:
        """True if attention runs without a fused kernel, which is so in bf16 on a CPU."""
        return self.setup.device == "cpu" and self.setup.precision == "bf16"


@dataclass(frozen=True)
class ActivationTerm:
    """A kind of activation: the bytes that are saved for each unit, by a formula, and the reason.

    `scope` is the unit. `token`: a token in the embeddings. `input token` and `row`: in each block, a token of its
    input and a token whose output it computes. `masked position`: a position that the masked-language head reads.
    `sequence`: a sequence in the pooler.
    """

    scope: Literal["token", "input token", "row", "masked position", "sequence"]
    name: str
    formula: Callable[[_Sizes], int]
    reason: str


_STATISTICS: Final = 2 * 4  # bytes of LayerNorm's statistics of a row: mean and reciprocal deviation in fp32

ACTIVATION_TERMS: Final = (
    ActivationTerm("token", "ids", lambda s: 3 * 8, "token, segment and position id in int64"),
    ActivationTerm(
        "token",
        "LayerNorm of the embeddings",
        lambda s: 4 * s.config.embedding_size + _STATISTICS,
        "its input in fp32, because autocast does not cast the tables",
    ),
    ActivationTerm(
        "token",
        "projection to H",
        lambda s: s.config.embedding_size * s.itemsize if s.config.has_projection else 0,
        "the input of the matmul",
    ),
    ActivationTerm(
        "token",
        "dropout of the embeddings",
        lambda s: s.config.embedding_size * s.embedding_mask_itemsize if _drops_hidden(s) else 0,
        "its mask: bools on CUDA, fp32 on a CPU",
    ),
    ActivationTerm("input token", "block input", lambda s: s.config.hidden_size * s.itemsize, "input of three matmuls"),
    ActivationTerm("input token", "keys and values", lambda s: 2 * s.config.hidden_size * s.itemsize, "attention"),
    ActivationTerm("row", "queries", lambda s: s.config.hidden_size * s.itemsize, "attention"),
    ActivationTerm("row", "contexts", lambda s: s.config.hidden_size * s.itemsize, "input of the output projection"),
    ActivationTerm(
        "row",
        "attention softmax",
        lambda s: s.probabilities * s.itemsize if s.saves_probabilities else 4 * s.config.num_attention_heads,
        "without a fused kernel all probabilities; a fused kernel saves one fp32 number per attention head",
    ),
    ActivationTerm(
        "row",
        "attention dropout",
        lambda s: 3 * s.probabilities * s.itemsize if _drops_attention(s) and s.setup.device == "cpu" else 0,
        "on a CPU no fused kernel has dropout: probabilities, mask and their product",
    ),
    ActivationTerm(
        "row", "feed-forward input", lambda s: s.config.hidden_size * s.itemsize, "input of the first matmul"
    ),
    ActivationTerm(
        "row",
        "feed-forward activation",
        lambda s: (1 if s.config.hidden_act == "relu" else 2) * s.config.intermediate_size * s.itemsize,
        "its input and its output; ReLU needs its output alone",
    ),
    ActivationTerm(
        "row",
        "both LayerNorms",
        lambda s: 2 * (s.config.hidden_size * s.norm_itemsize + _STATISTICS),
        "input, mean and deviation",
    ),
    ActivationTerm(
        "row",
        "both hidden dropouts",
        lambda s: 2 * s.config.hidden_size * s.mask_itemsize if _drops_hidden(s) else 0,
        "their masks",
    ),
    ActivationTerm("masked position", "head input", lambda s: s.config.hidden_size * s.itemsize, "input of the matmul"),
    ActivationTerm(
        "masked position",
        "head activation",
        lambda s: 2 * s.config.embedding_size * s.itemsize,
        "its input and, after LayerNorm, the input of the decoder",
    ),
    ActivationTerm(
        "masked position",
        "head LayerNorm",
        lambda s: s.config.embedding_size * s.norm_itemsize + _STATISTICS,
        "input, mean and deviation",
    ),
    ActivationTerm(
        "masked position",
        "softmax over the vocabulary",
        lambda s: s.config.vocab_size * (s.itemsize if s.setup.is_compiled_for_cuda else 4),
        "log-probabilities in fp32; the compiled loss saves the logits instead, in the dtype of matmuls",
    ),
    ActivationTerm("sequence", "pooler", lambda s: 2 * s.config.hidden_size * s.itemsize, "its input and its output"),
)


def _drops_hidden(sizes: _Sizes) -> bool:
    """Return True if the model has dropout on embeddings and hidden states."""
    return sizes.config.hidden_dropout_prob > 0


def _drops_attention(sizes: _Sizes) -> bool:
    """Return True if the model has dropout on attention probabilities."""
    return sizes.config.attention_probs_dropout_prob > 0


def _bytes_per(scope: str, sizes: _Sizes) -> int:
    """Return the bytes of all terms of a scope, for one unit of it."""
    return sum(term.formula(sizes) for term in ACTIVATION_TERMS if term.scope == scope)


def activation_bytes(
    config: ModelConfig, length: int, setup: ComputeSetup = GPU_SETUP, *, checkpointed: bool = False
) -> int:
    """Return the bytes that a pretraining step saves for the backward pass of a sequence of `length` tokens.

    With `checkpointed` (activation checkpointing), each block saves its input only, and the backward pass computes one
    block at a time again.
    """
    sizes = _Sizes(config, length, setup)
    blocks = len(config.blocks())
    full_block = _block_bytes(sizes, length)
    last_block = _block_bytes(sizes, head_rows(length))
    outside_blocks = length * _bytes_per("token", sizes) + _head_bytes(sizes)
    if not checkpointed:
        return outside_blocks + (blocks - 1) * full_block + last_block
    block_inputs = blocks * length * config.hidden_size * setup.itemsize
    recomputed_block = full_block if blocks > 1 else last_block
    return outside_blocks + block_inputs + recomputed_block


def _block_bytes(sizes: _Sizes, rows: int) -> int:
    """Return the bytes that one block saves for a sequence of which it computes `rows` tokens."""
    saved = sizes.length * _bytes_per("input token", sizes) + rows * _bytes_per("row", sizes)
    if rows < sizes.length:
        saved += rows * sizes.config.hidden_size * sizes.itemsize  # the block's input at the rows, which is a copy
    return saved


def _head_bytes(sizes: _Sizes) -> int:
    """Return the bytes of the masked-language head and the pooler for a sequence."""
    masked = masked_positions(sizes.length)
    return masked * _bytes_per("masked position", sizes) + _bytes_per("sequence", sizes)


def working_bytes(config: ModelConfig, length: int, setup: ComputeSetup = GPU_SETUP) -> int:
    """Return the bytes per sequence that the backward pass needs at its peak in addition to the saved activations.

    The peak is in one of two places. It may be at the beginning, where the gradients of the output and of the input of
    the softmax over the vocabulary exist at the same time, in fp32. Or it is in the block before the last, after the
    activations of the heads and of the last block were freed.
    """
    sizes = _Sizes(config, length, setup)
    hidden = config.hidden_size
    # The compiled loss writes only the gradient of the logits.
    gradient_itemsize = setup.itemsize if setup.is_compiled_for_cuda else 2 * 4
    peak_at_logits = masked_positions(length) * config.vocab_size * gradient_itemsize
    # In a block two gradients exist at the same time: those of the output and of the input of the second LayerNorm; or
    # that of the activation's input, and LayerNorm's gradient cast for the matmul.
    norm_gradients = 2 * hidden * setup.norm_itemsize
    cast_gradient = hidden * setup.itemsize if setup.itemsize != setup.norm_itemsize else 0
    activation_gradients = config.intermediate_size * setup.itemsize + cast_gradient
    block_gradients = length * max(norm_gradients, activation_gradients)
    freed = _head_bytes(sizes) + _block_bytes(sizes, head_rows(length))
    return max(peak_at_logits, block_gradients - freed)


def inference_bytes(config: ModelConfig, tokens: int) -> int:
    """Return the bytes of inference in fp32 on a batch of `tokens` tokens: the weights, and buffers for one block.

    The factors of the buffers' sizes, 1.2 F and 7 H numbers per token, were measured on a CPU in batches of width 512.
    """
    buffer_bytes_per_token = 4 * (1.2 * config.intermediate_size + 7 * config.hidden_size)
    return 4 * count_parameters(config).total + round(tokens * buffer_bytes_per_token)


# ---------------------------------------------------------------- largest batch


def largest_batch(
    config: ModelConfig, length: int, memory: int, setup: ComputeSetup = GPU_SETUP, *, checkpointed: bool = False
) -> int:
    """Return how many sequences of `length` tokens fit into `memory` bytes next to the state of training.

    Uses `USABLE_FRACTION` of the memory. Returns 0 if it is too small for the state and the optimizer's step.
    """
    state = state_bytes(config, setup)
    usable = int(USABLE_FRACTION * memory)
    if state.total + state.update > usable:
        return 0
    per_sequence = activation_bytes(config, length, setup, checkpointed=checkpointed)
    return (usable - state.total) // (per_sequence + working_bytes(config, length, setup))
