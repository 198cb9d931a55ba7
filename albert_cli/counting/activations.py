"""Estimate the bytes of activations, and the largest batch that fits into a device's memory.

Activations are the tensors that `encoder.py` and `heads.py` save for the backward pass. Sharing weights does not reduce
them, because a shared block saves them for each layer that uses it. The tests compare the estimates with the tensors
that autograd saves.
"""

from __future__ import annotations

from typing import Final

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
_STATISTICS: Final = 2 * 4  # bytes that LayerNorm saves for a row: mean and reciprocal deviation in fp32


def activation_bytes(
    config: ModelConfig, length: int, setup: ComputeSetup = GPU_SETUP, *, checkpointed: bool = False
) -> int:
    """Return the bytes that a pretraining step saves for the backward pass of a sequence of `length` tokens.

    With `checkpointed` (activation checkpointing), each block saves only its input, and the backward pass computes one
    block at a time again.
    """
    blocks = len(config.blocks())
    full_block = _block_bytes(config, length, length, setup)
    last_block = _block_bytes(config, length, head_rows(length), setup)
    outside_blocks = _embedding_bytes(config, length, setup) + _head_bytes(config, length, setup)
    if not checkpointed:
        return outside_blocks + (blocks - 1) * full_block + last_block
    block_inputs = blocks * length * config.hidden_size * setup.itemsize
    recomputed_block = full_block if blocks > 1 else last_block
    return outside_blocks + block_inputs + recomputed_block


def _embedding_bytes(config: ModelConfig, length: int, setup: ComputeSetup) -> int:
    """Return the bytes that the embeddings and their projection to H save for a sequence."""
    size = config.embedding_size
    per_token = 3 * 8  # token, segment and position id in int64
    per_token += 4 * size + _STATISTICS  # LayerNorm's input is in fp32, because autocast does not cast the tables
    if config.has_projection:
        per_token += size * setup.itemsize  # the input of the matmul
    if config.hidden_dropout_prob:
        per_token += size * _mask_itemsize(setup, 4)
    return length * per_token


def _block_bytes(config: ModelConfig, length: int, rows: int, setup: ComputeSetup) -> int:
    """Return the bytes that one block saves for a sequence of which it computes `rows` tokens."""
    hidden = config.hidden_size * setup.itemsize  # of one hidden state
    inner = config.intermediate_size * setup.itemsize  # of one state inside the feed-forward network
    per_token = 3 * hidden  # the block's input, the key and the value
    per_row = 3 * hidden  # the query, the context, and the input of the feed-forward network
    per_row += _probability_bytes(config, length, setup)
    per_row += inner  # the activation's output, the input of the second matmul
    if config.hidden_act != "relu":
        per_row += inner  # the activation's input; ReLU's gradient needs only the output
    per_row += 2 * (config.hidden_size * setup.norm_itemsize + _STATISTICS)  # both LayerNorms
    if config.hidden_dropout_prob:
        # The masks of the dropout after attention and of the one after the feed-forward network.
        per_row += 2 * config.hidden_size * _mask_itemsize(setup, setup.itemsize)
    if rows < length:
        per_row += hidden  # a copy of the block's input at the rows
    return length * per_token + rows * per_row


def _probability_bytes(config: ModelConfig, length: int, setup: ComputeSetup) -> int:
    """Return the bytes that softmax and dropout of attention save for a row."""
    heads = config.num_attention_heads
    fused_kernel = 4 * heads  # a fused kernel saves one fp32 number for each attention head
    if setup.device != "cpu":
        return fused_kernel
    probabilities = heads * length * setup.itemsize
    if not config.covers_sequence(length):
        probabilities = 0  # the backward pass of sparse attention computes them again
    # In bf16 on a CPU, `block.py` uses no fused kernel.
    saved = probabilities if setup.precision == "bf16" else fused_kernel
    if config.attention_probs_dropout_prob:
        saved += 3 * probabilities  # no fused kernel has dropout on a CPU: probabilities, mask, and their product
    return saved


def _head_bytes(config: ModelConfig, length: int, setup: ComputeSetup) -> int:
    """Return the bytes that the masked-language head and the pooler save for a sequence."""
    per_masked = config.hidden_size * setup.itemsize  # the input of the head's linear layer
    # The activation's input, and the decoder's input, which LayerNorm returns.
    per_masked += 2 * config.embedding_size * setup.itemsize
    per_masked += config.embedding_size * setup.norm_itemsize + _STATISTICS
    if setup.is_compiled_for_cuda:
        per_masked += config.vocab_size * setup.itemsize  # the compiled loss saves the logits
    else:
        per_masked += config.vocab_size * 4  # the loss saves log-probabilities in fp32
    pooler = 2 * config.hidden_size * setup.itemsize  # its input and its output
    return masked_positions(length) * per_masked + pooler


def _mask_itemsize(setup: ComputeSetup, input_itemsize: int) -> int:
    """Return the bytes of a number in a dropout mask: CUDA saves bools, a CPU numbers in the dtype of the input."""
    return 1 if setup.device == "cuda" else input_itemsize


def working_bytes(config: ModelConfig, length: int, setup: ComputeSetup = GPU_SETUP) -> int:
    """Return the bytes per sequence that the peak of the backward pass needs in addition to the saved activations.

    The peak is at one of two moments. It may be at the beginning, where the gradients of the output and of the input of
    the softmax over the vocabulary exist at the same time, in fp32. Or it is in the second-to-last block: its gradients
    are then in memory, but the activations of the heads and of the last block were freed.
    """
    hidden = config.hidden_size
    bytes_per_logit = 2 * 4  # the gradients of output and input of the softmax, in fp32
    if setup.is_compiled_for_cuda:
        bytes_per_logit = setup.itemsize  # the compiled loss writes only the gradient of the input, the logits
    peak_at_logits = masked_positions(length) * config.vocab_size * bytes_per_logit
    # In a block two gradients exist at the same time: those of the output and of the input of the second LayerNorm; or
    # that of the activation's input, and LayerNorm's gradient cast for the matmul.
    norm_gradients = 2 * hidden * setup.norm_itemsize
    cast_gradient = hidden * setup.itemsize if setup.itemsize != setup.norm_itemsize else 0
    activation_gradients = config.intermediate_size * setup.itemsize + cast_gradient
    block_gradients = length * max(norm_gradients, activation_gradients)
    freed = _head_bytes(config, length, setup) + _block_bytes(config, length, head_rows(length), setup)
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
