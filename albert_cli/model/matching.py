"""Attention heads that start by comparing words, so that a small encoder sees at once which words two texts share.

From random weights attention is nearly uniform, and a small encoder needs some ten thousand updates before a token
finds its other occurrences; until then tasks on pairs of texts stay at the majority class. A head whose query and key
are one and the same projection lets every token look at the tokens most like itself from the first step on. Starting
Wq Wk' near the identity is due to Trockman and Kolter (2023, arXiv 2305.09828); here a few heads only, and in the
directions in which words differ.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Attention, Encoder

SCORE: Final = 6.0  # before softmax, of a word with itself elsewhere; others lie around 0: e^6 is some 400 of them
_FRESH: Final = 0.3  # of a new encoder's positions and segments, which weigh as much as words, so that words prevail
_SAMPLE: Final = 4096  # words to measure the word table by
_NEGLIGIBLE: Final = 1e-3  # a direction's spread, against the widest, below which words do not differ in it


def check_heads(name: str, heads: int, config: ModelConfig) -> None:
    """Raise `ConfigError` unless a model of this shape has that many heads."""
    if not 0 <= heads <= config.num_attention_heads:
        hint = f"the model has {config.num_attention_heads} attention heads; 0 leaves them as they are"
        raise ConfigError(f"{name} is {heads}", hint)


@torch.no_grad()
def compare_words(encoder: Encoder, heads: int, *, seed: int, is_fresh: bool) -> None:
    """Have the first `heads` heads of every attention block compare words; all other weights stay as they are.

    Query and key become the same random projection, H to d, of the word vectors whitened, with a bias that takes off
    their mean, scaled so that a word scores `SCORE` with itself at another place. In an encoder that `is_fresh`, one
    without training, positions and segments are scaled down too.
    """
    if not heads:
        return
    if is_fresh:
        encoder.embeddings.position.weight.mul_(_FRESH)
        encoder.embeddings.segment.weight.mul_(_FRESH)
    generator = torch.Generator().manual_seed(seed)
    here_nH, there_nH = _word_vectors(encoder, generator)
    mean_H = here_nH.mean(0)
    _, spread_r, directions_rH = torch.linalg.svd(here_nH - mean_H, full_matrices=False)
    kept = spread_r > _NEGLIGIBLE * spread_r[0]
    whitening_rH = directions_rH[kept] / spread_r[kept, None] * math.sqrt(len(here_nH))
    size = encoder.config.hidden_size // encoder.config.num_attention_heads
    for block in encoder.attention:
        assert isinstance(block, Attention)
        for head in range(heads):
            projection_dr = nn.init.orthogonal_(torch.empty(size, len(whitening_rH)), generator=generator)
            weight_dH = projection_dr @ whitening_rH
            here_nd, there_nd = ((x_nH - mean_H) @ weight_dH.T for x_nH in (here_nH, there_nH))
            score = float((here_nd * there_nd).sum(-1).mean()) / math.sqrt(size)
            weight_dH *= math.sqrt(SCORE / score)
            rows = slice(head * size, (head + 1) * size)
            for linear in (block.query, block.key):
                linear.weight[rows] = weight_dH.to(linear.weight)
                linear.bias[rows] = -(weight_dH @ mean_H).to(linear.bias)


def _word_vectors(encoder: Encoder, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the first block sees of the same words at two sets of places, [n, H] in fp32 on the CPU."""
    embeddings, config = encoder.embeddings, encoder.config
    words = torch.randperm(config.vocab_size, generator=generator)[:_SAMPLE]

    def at_random_places() -> Tensor:
        places = torch.randint(config.max_position_embeddings, (len(words),), generator=generator)
        device = embeddings.word.weight.device
        x_nE = embeddings.word(words.to(device)) + embeddings.position(places.to(device)) + embeddings.segment.weight[0]
        x_nE = embeddings.norm(x_nE)
        x_nH: Tensor = x_nE if encoder.projection is None else encoder.projection(x_nE)
        return x_nH.float().cpu()

    return at_random_places(), at_random_places()
