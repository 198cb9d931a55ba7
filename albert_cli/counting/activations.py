"""Bytes of activations, from a table of terms, and the largest batch that fits into a memory.

Counted are the activations that `encoder.py` and `heads.py` save for the backward pass. Sharing does not make them
smaller: a shared block saves them as often as it is used. The tests compare the estimates with what autograd saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from albert_cli.counting.costs import GPU, ComputeSetup, count_parameters, head_rows, masked_positions, state_bytes
from albert_cli.model.config import ModelConfig

USABLE_FRACTION: Final = 0.9  # of a memory; the rest is for the device's context, workspace and fragments


@dataclass(frozen=True)
class _Sizes:
    """Arguments of the formulas below: a model, a sequence length, and the setup of training."""

    config: ModelConfig
    length: int
    setup: ComputeSetup

    @property
    def item(self) -> int:
        """Bytes of a number in matmuls."""
        return self.setup.item

    @property
    def norm_item(self) -> int:
        """Bytes of a number in a block's LayerNorm."""
        return self.setup.norm_item

    @property
    def mask_item(self) -> int:
        """Bytes of a number in a block's dropout mask: CUDA stores bools, a CPU the dtype of the numbers."""
        return 1 if self.setup.device == "cuda" else self.item

    @property
    def embedding_mask_item(self) -> int:
        """Bytes of a number in the dropout mask of the embeddings, which are in fp32."""
        return 1 if self.setup.device == "cuda" else 4

    @property
    def probabilities(self) -> int:
        """Attention probabilities of a row over all heads; sparse attention computes its own again."""
        return self.config.num_attention_heads * (self.length if self.config.covers_sequence(self.length) else 0)

    @property
    def saves_probabilities(self) -> bool:
        """True where attention runs without a fused kernel: in bf16 on a CPU."""
        return self.setup.device == "cpu" and self.setup.precision == "bf16"


@dataclass(frozen=True)
class ActivationTerm:
    """Bytes that the backward pass needs of each unit (`scope`): a formula, its name and the reason for it.

    Scopes: a `token` of the embeddings; a block's `input token` and `row` (a token whose output it computes); a
    `masked position` of the masked-language head; a `sequence`.
    """

    scope: Literal["token", "input token", "row", "masked position", "sequence"]
    name: str
    formula: Callable[[_Sizes], int]
    reason: str


_STATISTICS: Final = 2 * 4  # bytes: LayerNorm's mean and deviation of a row in fp32

ACTIVATION_TERMS: Final = (
    ActivationTerm("token", "ids", lambda s: 3 * 8, "token, segment and position id in int64"),
    ActivationTerm(
        "token",
        "LayerNorm of the embeddings",
        lambda s: 4 * s.config.embedding_size + _STATISTICS,
        "its input in fp32, since tables are not cast",
    ),
    ActivationTerm(
        "token",
        "projection to H",
        lambda s: s.config.embedding_size * s.item if s.config.has_projection else 0,
        "the input of the matmul",
    ),
    ActivationTerm(
        "token",
        "dropout of the embeddings",
        lambda s: s.config.embedding_size * s.embedding_mask_item if _drops_hidden(s) else 0,
        "its mask, on a CPU in the fp32 of the embeddings",
    ),
    ActivationTerm("input token", "block input", lambda s: s.config.hidden_size * s.item, "input of three matmuls"),
    ActivationTerm("input token", "keys and values", lambda s: 2 * s.config.hidden_size * s.item, "attention"),
    ActivationTerm("row", "queries", lambda s: s.config.hidden_size * s.item, "attention"),
    ActivationTerm("row", "contexts", lambda s: s.config.hidden_size * s.item, "input of the output projection"),
    ActivationTerm(
        "row",
        "attention softmax",
        lambda s: s.probabilities * s.item if s.saves_probabilities else 4 * s.config.num_attention_heads,
        "all probabilities without a fused kernel; with one a denominator for each head in fp32",
    ),
    ActivationTerm(
        "row",
        "attention dropout",
        lambda s: 3 * s.probabilities * s.item if _drops_attention(s) and s.setup.device == "cpu" else 0,
        "no fused kernel there: probabilities, mask and their product",
    ),
    ActivationTerm("row", "feed-forward input", lambda s: s.config.hidden_size * s.item, "input of the first matmul"),
    ActivationTerm(
        "row",
        "feed-forward activation",
        lambda s: (1 if s.config.hidden_act == "relu" else 2) * s.config.intermediate_size * s.item,
        "its input and its output; ReLU needs its output alone",
    ),
    ActivationTerm(
        "row",
        "both LayerNorms",
        lambda s: 2 * (s.config.hidden_size * s.norm_item + _STATISTICS),
        "input, mean and deviation",
    ),
    ActivationTerm(
        "row",
        "both hidden dropouts",
        lambda s: 2 * s.config.hidden_size * s.mask_item if _drops_hidden(s) else 0,
        "their masks",
    ),
    ActivationTerm("masked position", "head input", lambda s: s.config.hidden_size * s.item, "input of the matmul"),
    ActivationTerm(
        "masked position",
        "head activation",
        lambda s: 2 * s.config.embedding_size * s.item,
        "its input and, after LayerNorm, the input of the decoder",
    ),
    ActivationTerm(
        "masked position",
        "head LayerNorm",
        lambda s: s.config.embedding_size * s.norm_item + _STATISTICS,
        "input, mean and deviation",
    ),
    ActivationTerm(
        "masked position",
        "softmax over the vocabulary",
        lambda s: s.config.vocab_size * (s.item if s.setup.fused else 4),
        "log-probabilities in fp32; the compiled loss saves the logits as they are",
    ),
    ActivationTerm("sequence", "pooler", lambda s: 2 * s.config.hidden_size * s.item, "its input and its output"),
)


def _drops_hidden(sizes: _Sizes) -> bool:
    return sizes.config.hidden_dropout_prob > 0


def _drops_attention(sizes: _Sizes) -> bool:
    return sizes.config.attention_probs_dropout_prob > 0


def _bytes_per(scope: str, sizes: _Sizes) -> int:
    """Sum the terms of a scope."""
    return sum(term.formula(sizes) for term in ACTIVATION_TERMS if term.scope == scope)


def activation_bytes(config: ModelConfig, length: int, setup: ComputeSetup = GPU, *, checkpointed: bool = False) -> int:
    """Return the bytes that a pretraining step saves for the backward pass of a sequence of `length` tokens.

    `checkpointed`: only the input of every block is saved, and one block at a time is computed again.
    """
    sizes = _Sizes(config, length, setup)
    blocks = len(config.blocks())
    full_block = _block_bytes(sizes, length)
    last_block = _block_bytes(sizes, head_rows(length))
    outside = length * _bytes_per("token", sizes) + _head_bytes(sizes)
    if not checkpointed:
        return outside + (blocks - 1) * full_block + last_block
    block_inputs = blocks * length * config.hidden_size * setup.item
    return outside + block_inputs + (full_block if blocks > 1 else last_block)


def _block_bytes(sizes: _Sizes, rows: int) -> int:
    """Return the bytes of one block that computes `rows` of a sequence's tokens."""
    saved = sizes.length * _bytes_per("input token", sizes) + rows * _bytes_per("row", sizes)
    if rows < sizes.length:
        saved += rows * sizes.config.hidden_size * sizes.item  # a copy of the block's input at the rows
    return saved


def _head_bytes(sizes: _Sizes) -> int:
    """Return the bytes of the masked-language head and the pooler for a sequence."""
    masked = masked_positions(sizes.length)
    return masked * _bytes_per("masked position", sizes) + _bytes_per("sequence", sizes)


def working_bytes(config: ModelConfig, length: int, setup: ComputeSetup = GPU) -> int:
    """Return the bytes per sequence that the backward pass needs at its peak in addition to what was saved.

    The peak is either at its beginning, where the gradients of softmax's output and input exist side by side in fp32,
    or in the block before the last, when the activations of the heads and of the last block are free again.
    """
    sizes = _Sizes(config, length, setup)
    hidden = config.hidden_size
    gradient = setup.item if setup.fused else 8  # compiled, a single gradient is written
    logits = masked_positions(length) * config.vocab_size * gradient
    # In a block: the gradients of the second LayerNorm's output and input; or the gradient before the activation, and
    # the LayerNorm's gradient cast for the matmul.
    norm_gradients = 2 * hidden * setup.norm_item
    cast_gradient = hidden * setup.item if setup.item != setup.norm_item else 0
    block = length * max(norm_gradients, config.intermediate_size * setup.item + cast_gradient)
    freed = _head_bytes(sizes) + _block_bytes(sizes, head_rows(length))
    return max(logits, block - freed)


def inference_bytes(config: ModelConfig, tokens: int) -> int:
    """Return the bytes of inference on `tokens` at a time in fp32: the weights and the widest layer's buffers.

    The buffers were measured on a CPU at widths of 512: the widest layer of the block, and attention.
    """
    buffers = 4 * (1.2 * config.intermediate_size + 7 * config.hidden_size)
    return 4 * count_parameters(config).total + round(tokens * buffers)


# ---------------------------------------------------------------- what fits


def largest_batch(
    config: ModelConfig, length: int, memory: int, setup: ComputeSetup = GPU, *, checkpointed: bool = False
) -> int:
    """Return how many sequences of `length` tokens fit into 90 % of `memory` bytes together with the state."""
    state = state_bytes(config, setup)
    usable = int(USABLE_FRACTION * memory)
    if state.total + state.update > usable:
        return 0
    per_sequence = activation_bytes(config, length, setup, checkpointed=checkpointed)
    return (usable - state.total) // (per_sequence + working_bytes(config, length, setup))
