"""Informed initialization: word vectors from co-occurrence, heads that attend to neighbors.

A small post-LayerNorm encoder spends most of its training on discovering that words which occur together are similar,
that its neighbors predict a masked word best, and that the masked-language head should invert the embedding. All of
this can be written into the initial weights; architecture and checkpoint format do not change. No part depends on the
language: words come from the corpus (`data.cooccurrence`), the rest is geometry. Each part has a switch.

Shapes: V vocabulary, E embedding, K of its dimensions for positions, W for words, H hidden, d head width, P positions,
F frequencies (K / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn

from albert_cli import console
from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Attention
from albert_cli.model.heads import PretrainingModel

_MAX_POSITION_DIMENSIONS: Final = 32  # of the embedding; words and segments are zero there
_POSITION_NORM: Final = 0.5  # norm of a position's vector relative to a word's
_FREQUENCY_RANGE: Final = (0.05, 2.6)  # radians a position: waves as long as a sequence to waves of two positions
_NEIGHBOR_SCORE: Final = 7.0  # before softmax, of the neighbor that a head attends to: two thirds of the attention
_RANDOM_SCALE: Final = 0.3  # of positions, segments and unseen tokens, so that words prevail
_NORM_EXPONENT: Final = 0.5  # evens out the norms of word vectors, so that frequent words do not dominate
_UNSEEN_NORM: Final = 1e-6  # a word vector below this norm belongs to a token that the corpus lacks

PositionGrowth = Literal["tile", "interpolate"]


@torch.no_grad()
def resize_positions(checkpoint: hub.Checkpoint, positions: int, method: PositionGrowth) -> hub.Checkpoint:
    """Return the checkpoint with this many positions, unchanged if it has as many.

    `tile` repeats the position vectors, so that neighbors differ as before (Longformer, arXiv 2004.05150, section 5);
    `interpolate` stretches them, so that early and late positions stay early and late. Raises `ConfigError` for fewer
    positions.
    """
    current = checkpoint.config.max_position_embeddings
    name = "encoder.embeddings.position.weight"
    if positions < current:
        raise ConfigError(
            f"{checkpoint.directory}: has {current:,} positions, model.max_position_embeddings is {positions:,}",
            f"set model.max_position_embeddings to at least {current}; shorter inputs need no fewer positions",
        )
    if positions == current or name not in checkpoint.tensors:
        return checkpoint
    table_PE = checkpoint.tensors[name].float()
    if method == "tile":
        table_PE = table_PE.repeat(-(-positions // current), 1)[:positions]
    else:
        table_PE = F.interpolate(table_PE.T[None], positions, mode="linear", align_corners=True)[0].T.contiguous()
    console.info(f"{checkpoint.directory}: {method}s {current:,} positions to {positions:,}")
    config = replace(checkpoint.config, max_position_embeddings=positions)
    return replace(checkpoint, config=config, tensors={**checkpoint.tensors, name: table_PE})


@dataclass(frozen=True)
class InformedInit:
    """`[init]` of a pretraining recipe: the initial weights that are not random. By default all weights are random.

    `words = "cooccurrence"`: word vectors from the corpus's co-occurrences (`data.cooccurrence`).
    `neighbors`, such as [-1, 1]: for each number one head of every block attends that many positions away; positions
    are sinusoids in dimensions of their own. `value_output_scale` (0: off): attention adds to a token the mean of the
    tokens that it attends to, times this factor, because the product of value and output matrices is near that multiple
    of the identity. The masked-language head then starts as the embedding's inverse (mimetic initialization: Trockman
    and Kolter, 2023, arXiv 2305.09828).
    """

    words: Literal["random", "cooccurrence"] = "random"
    neighbors: tuple[int, ...] = ()
    value_output_scale: Annotated[float, Ge(0), Le(10)] = 0.0

    def check(self, config: ModelConfig) -> None:
        """Raise `ConfigError` if a model of this shape lacks the heads or the dimensions."""
        if len(self.neighbors) > config.num_attention_heads:
            raise ConfigError(
                f"init.neighbors takes {len(self.neighbors)} attention heads, the model has "
                f"{config.num_attention_heads}",
                "use fewer neighbors, or a larger model.num_attention_heads",
            )
        sets_paths = bool(self.neighbors) or self.value_output_scale > 0
        if sets_paths and config.embedding_size > 2 * config.hidden_size:
            raise ConfigError(
                f"init.neighbors and init.value_output_scale need an embedding that fits into the hidden state; "
                f"model.embedding_size is {config.embedding_size}, model.hidden_size {config.hidden_size}",
                "use a smaller embedding_size, or init.neighbors = [] and init.value_output_scale = 0",
            )
        if self.neighbors and position_dimensions(config) < 4:
            raise ConfigError(
                f"init.neighbors needs heads of width 4 and 8 embedding dimensions; model.hidden_size "
                f"{config.hidden_size} over {config.num_attention_heads} heads and embedding_size "
                f"{config.embedding_size} are too narrow",
                "use fewer, wider heads, or init.neighbors = []",
            )


def position_dimensions(config: ModelConfig) -> int:
    """Return how many embedding dimensions `neighbors` reserves for positions: an even number that fits into a head."""
    return min(_MAX_POSITION_DIMENSIONS, config.head_size, config.embedding_size // 4) // 2 * 2


def word_dimensions(settings: InformedInit, config: ModelConfig) -> int:
    """Return how many embedding dimensions are left for words."""
    return config.embedding_size - (position_dimensions(config) if settings.neighbors else 0)


@torch.no_grad()
def apply_informed_init(model: PretrainingModel, settings: InformedInit, words_VE: Tensor | None, seed: int) -> None:
    """Write the initial weights into a newly initialized model; `words_VE` is None or [V, `word_dimensions`]."""
    if settings == InformedInit():
        return
    embeddings = model.encoder.embeddings
    generator = torch.Generator().manual_seed(seed)
    for table in (embeddings.position, embeddings.segment):
        table.weight.mul_(_RANDOM_SCALE)
    if words_VE is not None:
        _set_words(embeddings.word.weight[:, : words_VE.shape[1]], words_VE, model.config.initial_std)
    if settings.value_output_scale or settings.neighbors:
        _init_attention_paths(model, settings, generator)


def _set_words(weight_VW: Tensor, words_VW: Tensor, std: float) -> None:
    """Set word vectors with even norms and this standard deviation; unseen tokens stay random and small."""
    norm_V1 = words_VW.norm(dim=1, keepdim=True)
    is_seen_V1 = norm_V1 > _UNSEEN_NORM
    even_VW = words_VW * norm_V1.clamp(min=_UNSEEN_NORM) ** (_NORM_EXPONENT - 1)
    scale = std / float(even_VW[is_seen_V1[:, 0]].std())
    weight_VW.copy_(torch.where(is_seen_V1, even_VW * scale, _RANDOM_SCALE * weight_VW))


def _init_attention_paths(model: PretrainingModel, settings: InformedInit, generator: torch.Generator) -> None:
    """Set projection, masked-language head, positions, and the query, key, value and output matrices."""
    config = model.config
    encoder = model.encoder
    words = word_dimensions(settings, config)
    lift_HE = _init_projection(model, settings, generator)
    if settings.neighbors:
        encoder.embeddings.word.weight[:, words:] = 0
        encoder.embeddings.segment.weight[:, words:] = 0
        _set_position_waves(encoder.embeddings.position.weight, encoder.embeddings.word.weight, words)
    # Each head adds as many of the words' dimensions as it is wide.
    gain = settings.value_output_scale * words / (config.num_attention_heads * min(config.head_size, words))
    # One head stays free if there is one: fine-tuning may put an overlap head there (`model.overlap_heads`).
    first = min(1, config.num_attention_heads - len(settings.neighbors))
    for block in encoder.attention:
        assert isinstance(block, Attention)
        for head, offset in enumerate(settings.neighbors, start=first):
            _set_neighbor_head(block, head, offset, config, lift_HE[:, words:])
        if settings.value_output_scale:
            for head in range(config.num_attention_heads):
                _set_value_and_output(block, head, config.head_size, lift_HE[:, :words], gain, generator)


def _init_projection(model: PretrainingModel, settings: InformedInit, generator: torch.Generator) -> Tensor:
    """Set the map from E to H to orthonormal columns and return it [H, E]; its transpose maps back to E.

    With `value_output_scale` the masked-language head becomes that transpose.
    """
    hidden = model.config.hidden_size
    size = model.config.embedding_size
    lift_HE = torch.eye(size)
    projection = model.encoder.projection
    if projection is not None:
        square = nn.init.orthogonal_(torch.empty(max(hidden, size), max(hidden, size)), generator=generator)
        lift_HE = square[:hidden, :size]
        projection.weight.copy_(lift_HE)
    if settings.value_output_scale:
        model.masked.dense.weight.copy_(lift_HE.T)
    return lift_HE


def _set_position_waves(position_PE: Tensor, word_VE: Tensor, words: int) -> None:
    """Set positions to sinusoids in the dimensions after the first `words`."""
    reserved = position_PE.shape[1] - words
    angle_PF = torch.arange(len(position_PE))[:, None] * _frequencies(reserved)
    norm = _POSITION_NORM * word_VE.norm(dim=1).median() / math.sqrt(angle_PF.shape[1])
    position_PE[:, words:] = norm * torch.cat([angle_PF.cos(), angle_PF.sin()], 1)


def _set_neighbor_head(block: Attention, head: int, offset: int, config: ModelConfig, lift_HK: Tensor) -> None:
    """Set query and key of a head so that it attends `offset` positions away."""
    width = config.head_size
    rows = slice(head * width, (head + 1) * width)
    query_dK, key_dK = _relative_query_and_key(offset, lift_HK.shape[1], width, config.embedding_size)
    block.query.weight[rows] = query_dK @ lift_HK.T
    block.key.weight[rows] = key_dK @ lift_HK.T


def _set_value_and_output(
    block: Attention, head: int, width: int, lift_HW: Tensor, gain: float, generator: torch.Generator
) -> None:
    """Set value and output of a head to a random projection of the words' dimensions and its transpose times `gain`."""
    rows = slice(head * width, (head + 1) * width)
    projection_dW = nn.init.orthogonal_(torch.empty(width, lift_HW.shape[1]), generator=generator)
    value_dH = projection_dW @ lift_HW.T
    block.value.weight[rows] = value_dH
    block.output.weight[:, rows] = gain * value_dH.T


def _frequencies(dimensions: int) -> Tensor:
    """Return the frequencies [F] of sinusoids in this many dimensions, two for each."""
    return torch.linspace(*_FREQUENCY_RANGE, dimensions // 2)


def _relative_query_and_key(offset: int, dimensions: int, width: int, embedding_size: int) -> tuple[Tensor, Tensor]:
    """Return query and key [d, K], in the position dimensions, of a head that attends `offset` positions away.

    The query rotates each sinusoid by the angle of `offset` positions, so that it matches the key there best.
    """
    half = dimensions // 2
    angle_F = offset * _frequencies(dimensions)
    index = torch.arange(half)
    rotation_dK = torch.zeros(width, dimensions)
    rotation_dK[index, index] = angle_F.cos()
    rotation_dK[half + index, half + index] = angle_F.cos()
    rotation_dK[index, half + index] = -angle_F.sin()
    rotation_dK[half + index, index] = angle_F.sin()
    # LayerNorm makes an embedding's squared norm `embedding_size`; positions have this fraction of it.
    fraction = _POSITION_NORM**2 / (1 + _POSITION_NORM**2)
    gain = math.sqrt(_NEIGHBOR_SCORE * math.sqrt(width) / (fraction * embedding_size))
    return gain * rotation_dK, gain * torch.eye(width, dimensions)
