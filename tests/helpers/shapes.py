"""Tiny shapes of every kind, and batches of random sequences for their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from albert_cli.data.batches import PackedBatch
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import pack

TINY = ModelConfig(
    vocab_size=60,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=20,
    initializer_range=0.3,  # large, so that every part of the model matters to the logits
)

# Shapes that Hugging Face can express.
HF_SHAPES: dict[str, ModelConfig] = {
    "one group": TINY,
    "three groups of two layers": replace(TINY, num_hidden_layers=6, num_hidden_groups=3),
    "as many groups as layers": replace(TINY, num_hidden_groups=3),
    "two inner blocks": replace(TINY, num_hidden_groups=3, inner_group_num=2),
    "not shared": replace(TINY, sharing="none"),
    "exact GELU": replace(TINY, hidden_act="gelu"),
    "ReLU": replace(TINY, hidden_act="relu"),
    "E = H with a projection": replace(TINY, embedding_size=16, always_project=True),
    "not shared at E = H with a projection": replace(TINY, embedding_size=16, always_project=True, sharing="none"),
    "BERT": replace(TINY, embedding_size=16, sharing="none"),
}
# Shapes that Hugging Face cannot express, among them those of the paper's Table 4.
ALBERT_ONLY_SHAPES: dict[str, ModelConfig] = {
    "attention shared": replace(TINY, sharing="attention"),
    "feed-forward shared": replace(TINY, sharing="ffn"),
    "all shared at E = H": replace(TINY, embedding_size=16),
    "attention shared at E = H": replace(TINY, embedding_size=16, sharing="attention"),
    "feed-forward shared at E = H with a projection": replace(
        TINY, embedding_size=16, sharing="ffn", always_project=True
    ),
    "groups of one, three and one": replace(TINY, num_hidden_layers=5, group_sizes=(1, 3, 1)),
}
ALL_SHAPES = HF_SHAPES | ALBERT_ONLY_SHAPES


def random_batch(lengths: Sequence[int], config: ModelConfig = TINY, seed: int = 0) -> PackedBatch:
    """Return a batch of sequences of these lengths, with random ids and segments; a third of the tokens is masked."""
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    total = int(offsets[-1])
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    segments = [(np.arange(n) > rng.integers(1, n)).astype(np.int32) for n in lengths]
    masked = np.flatnonzero((positions > 0) & (rng.random(total) < 0.35)).astype(np.int32)

    def ids(count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return rng.integers(1, config.vocab_size, count).astype(np.int32)

    orders = rng.integers(0, 2, len(lengths)).astype(np.int32)
    return PackedBatch(ids(total), np.concatenate(segments), positions, offsets, masked, ids(masked.size), orders)


def shake(model: nn.Module, seed: int = 0) -> None:
    """Add random values to biases and LayerNorms, which start at 0 and 1, so that a test notices if two are swapped."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def assert_bf16_is_close(encoder: nn.Module, batch: PackedBatch) -> None:
    """Assert that an encoder's states have nearly the same direction in bf16 and fp32, and its gradients too.

    The gradients are those of the states' sum of squares.
    """
    tokens = pack(batch, torch.device("cpu"), batch.masked_index)
    outputs, gradients = [], []
    for enabled in (False, True):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            x = encoder(tokens)
        x.float().square().sum().backward()
        outputs.append(x.float().flatten())
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]))
    assert torch.cosine_similarity(outputs[0], outputs[1], dim=0) > 0.9995
    assert torch.cosine_similarity(gradients[0], gradients[1], dim=0) > 0.995
