"""Informed initialization: word vectors from co-occurrence, and heads that attend to neighboring tokens.

A small post-LayerNorm encoder spends most of its training on learning three things: words that occur together are
similar; a masked word is best predicted from its neighbors; the masked-language head should invert the embedding.
`apply_informed_init` writes all three into the initial weights of a model, without changing the architecture or the
checkpoint format. The recipe's [init] section (`InformedInit`) turns each part on or off.

Nothing depends on the language: word vectors are computed from the corpus (`data.cooccurrence`). The other weights are
sinusoids of the positions and random orthogonal maps.

`resize_positions` is for models that start from another checkpoint, and adds positions to its table.

Shapes: V vocabulary size; E embedding size, of which W dimensions are for words and K for positions; H hidden size; d
width of an attention head; P positions; F frequencies (K / 2).
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

_MAX_POSITION_DIMENSIONS: Final = 32  # embedding dimensions for positions; words and segments are zero there
_POSITION_NORM: Final = 0.5  # norm of a position's vector relative to a word's
_FREQUENCY_RANGE: Final = (0.05, 2.6)  # radians per position: wavelengths from about 126 down to 2.4 positions
# The score, before softmax, of the position to which a neighbor head attends. With it, two thirds of the head's
# attention go to this position.
_NEIGHBOR_SCORE: Final = 7.0
_RANDOM_SCALE: Final = 0.3  # factor of random vectors (positions, segments, unseen tokens), so that words outweigh them
_NORM_EXPONENT: Final = 0.5  # the norms of word vectors are raised to this power: frequent words dominate less
_UNSEEN_NORM: Final = 1e-6  # a word vector with a smaller norm belongs to a token that does not occur in the corpus

PositionGrowth = Literal["tile", "interpolate"]


@dataclass(frozen=True)
class InformedInit:
    """`[init]` of a pretraining recipe: the initial weights that are not random; by default there are none.

    `words = "cooccurrence"`: word vectors from the corpus's co-occurrences (`data.cooccurrence`).
    `neighbors`, such as [-1, 1]: for each number, one head of every block attends that many positions away. Position
    vectors are then sinusoids in embedding dimensions that only positions use.
    `value_output_scale` (0: off): the product of value and output matrices is near this multiple of the identity
    (mimetic initialization: Trockman and Kolter, 2023, arXiv 2305.09828). Attention then adds to a token this multiple
    of the mean of the tokens to which it attends. The masked-language head starts as the inverse of the embedding's
    projection.
    """

    words: Literal["random", "cooccurrence"] = "random"
    neighbors: tuple[int, ...] = ()
    value_output_scale: Annotated[float, Ge(0), Le(10)] = 0.0

    def check(self, config: ModelConfig) -> None:
        """Raise `ConfigError` if a model of this shape has too few attention heads or too few dimensions."""
        if len(self.neighbors) > config.num_attention_heads:
            raise ConfigError(
                f"init.neighbors takes {len(self.neighbors)} attention heads, the model has "
                f"{config.num_attention_heads}",
                "use fewer neighbors, or a larger model.num_attention_heads",
            )
        sets_attention = bool(self.neighbors) or self.value_output_scale > 0
        # On average, a projection from E to a smaller H preserves H / E of an embedding's squared norm: at this limit
        # one half.
        if sets_attention and config.embedding_size > 2 * config.hidden_size:
            raise ConfigError(
                "init.neighbors and init.value_output_scale need an embedding at most twice as wide as the hidden "
                f"state; model.embedding_size is {config.embedding_size}, model.hidden_size {config.hidden_size}",
                "use a smaller embedding_size, or init.neighbors = [] and init.value_output_scale = 0",
            )
        if self.neighbors and position_dimensions(config) < 4:
            raise ConfigError(
                "init.neighbors needs heads of width 4 or more, and an embedding_size of 16 or more; "
                f"model.hidden_size {config.hidden_size} over {config.num_attention_heads} heads and embedding_size "
                f"{config.embedding_size} are too narrow",
                "use fewer, wider heads or a larger embedding_size, or init.neighbors = []",
            )


def position_dimensions(config: ModelConfig) -> int:
    """Return K, the number of embedding dimensions that `neighbors` reserves for positions.

    K is even, because the dimensions are pairs of sine and cosine. It is at most the width of a head, because a head
    compares all of them.
    """
    return min(_MAX_POSITION_DIMENSIONS, config.head_size, config.embedding_size // 4) // 2 * 2


def word_dimensions(settings: InformedInit, config: ModelConfig) -> int:
    """Return W, the number of embedding dimensions for words: all that `neighbors` does not reserve."""
    if not settings.neighbors:
        return config.embedding_size
    return config.embedding_size - position_dimensions(config)


@torch.no_grad()
def apply_informed_init(model: PretrainingModel, settings: InformedInit, words_VW: Tensor | None, seed: int) -> None:
    """Overwrite random weights of a newly initialized model with the weights that `settings` requests.

    `words_VW` are word vectors of the width `word_dimensions`, or None without `words = "cooccurrence"`. `seed` is for
    the random orthogonal maps.
    """
    if settings == InformedInit():
        return
    embeddings = model.encoder.embeddings
    generator = torch.Generator().manual_seed(seed)
    for table in (embeddings.position, embeddings.segment):
        table.weight.mul_(_RANDOM_SCALE)
    if words_VW is not None:
        _set_words(embeddings.word.weight[:, : words_VW.shape[1]], words_VW, model.config.initial_std)
    if settings.value_output_scale or settings.neighbors:
        _init_projection_and_attention(model, settings, generator)


def _set_words(weight_VW: Tensor, words_VW: Tensor, std: float) -> None:
    """Overwrite word embeddings with word vectors, which get more even norms and the standard deviation `std`.

    The embeddings of unseen tokens, whose word vectors are zero, stay random but are scaled down.
    """
    norm_V1 = words_VW.norm(dim=1, keepdim=True)
    is_seen_V1 = norm_V1 > _UNSEEN_NORM
    if not is_seen_V1.any():
        return  # the corpus has no tokens, so there are no word vectors: all embeddings stay random
    rescaled_VW = words_VW * norm_V1.clamp(min=_UNSEEN_NORM) ** (_NORM_EXPONENT - 1)
    scale = std / float(rescaled_VW[is_seen_V1[:, 0]].std())
    weight_VW.copy_(torch.where(is_seen_V1, rescaled_VW * scale, _RANDOM_SCALE * weight_VW))


def _init_projection_and_attention(model: PretrainingModel, settings: InformedInit, generator: torch.Generator) -> None:
    """Initialize the projection, the masked-language head, the positions and the attention matrices of all blocks."""
    config = model.config
    encoder = model.encoder
    word_dims = word_dimensions(settings, config)
    projection_HE = _init_projection(model, settings, generator)
    if settings.neighbors:
        encoder.embeddings.word.weight[:, word_dims:] = 0
        encoder.embeddings.segment.weight[:, word_dims:] = 0
        _set_position_waves(encoder.embeddings.position.weight, encoder.embeddings.word.weight, word_dims)
    # Value and output of a head copy min(d, W) random directions of the W word dimensions, times `gain`. Each direction
    # is thus copied by heads * min(d, W) / W heads on average. This gain makes the sum of their copies
    # `value_output_scale` times the words.
    heads = config.num_attention_heads
    gain = settings.value_output_scale * word_dims / (heads * min(config.head_size, word_dims))
    # If there are more heads than neighbors, the neighbor heads begin at head 1. Fine-tuning may then initialize head 0
    # to attend to the same word in the other text (`model.overlap_heads`).
    first_head = min(1, heads - len(settings.neighbors))
    for attention in encoder.attention:
        assert isinstance(attention, Attention)
        for head, offset in enumerate(settings.neighbors, start=first_head):
            _set_neighbor_head(attention, head, offset, config, projection_HE[:, word_dims:])
        if settings.value_output_scale:
            for head in range(heads):
                _set_value_and_output(attention, head, config.head_size, projection_HE[:, :word_dims], gain, generator)


def _init_projection(model: PretrainingModel, settings: InformedInit, generator: torch.Generator) -> Tensor:
    """Initialize the projection from E to H and return its matrix [H, E]; at E = H without a projection, the identity.

    The matrix has orthonormal columns (rows if E > H), so its transpose maps from H back to E. With
    `value_output_scale`, the linear layer of the masked-language head starts as this transpose.
    """
    hidden = model.config.hidden_size
    size = model.config.embedding_size
    matrix_HE = torch.eye(size)
    projection = model.encoder.projection
    if projection is not None:
        square = nn.init.orthogonal_(torch.empty(max(hidden, size), max(hidden, size)), generator=generator)
        matrix_HE = square[:hidden, :size]
        projection.weight.copy_(matrix_HE)
    if settings.value_output_scale:
        model.masked.dense.weight.copy_(matrix_HE.T)
    return matrix_HE


def _set_position_waves(position_PE: Tensor, word_VE: Tensor, word_dims: int) -> None:
    """Set the position vectors to sinusoids in the dimensions after the first `word_dims`.

    Their norm is `_POSITION_NORM` times the median norm of a word.
    """
    position_dims = position_PE.shape[1] - word_dims
    angle_PF = torch.arange(len(position_PE))[:, None] * _frequencies(position_dims)
    # A vector of F cosines and F sines has the norm sqrt(F).
    amplitude = _POSITION_NORM * word_VE.norm(dim=1).median() / math.sqrt(angle_PF.shape[1])
    position_PE[:, word_dims:] = amplitude * torch.cat([angle_PF.cos(), angle_PF.sin()], 1)


def _set_neighbor_head(
    attention: Attention, head: int, offset: int, config: ModelConfig, projection_HK: Tensor
) -> None:
    """Set query and key of a head so that each position attends to the position `offset` away.

    `projection_HK` maps the K position dimensions of the embedding to H. The query rotates each sinusoid by the angle
    of `offset` positions, so its product with a key is largest for the key that is `offset` positions away.
    """
    width = config.head_size
    dimensions = projection_HK.shape[1]
    angle_F = offset * _frequencies(dimensions)
    cosine_dims = torch.arange(dimensions // 2)
    sine_dims = cosine_dims + dimensions // 2
    rotation_dK = torch.zeros(width, dimensions)
    rotation_dK[cosine_dims, cosine_dims] = angle_F.cos()
    rotation_dK[sine_dims, sine_dims] = angle_F.cos()
    rotation_dK[cosine_dims, sine_dims] = -angle_F.sin()
    rotation_dK[sine_dims, cosine_dims] = angle_F.sin()
    # After LayerNorm an embedding has the squared norm E. Its position dimensions have `fraction` of it. So the key
    # to which the head attends has the score gain^2 * fraction * E / sqrt(d). This gain makes the score
    # `_NEIGHBOR_SCORE`.
    fraction = _POSITION_NORM**2 / (1 + _POSITION_NORM**2)
    gain = math.sqrt(_NEIGHBOR_SCORE * math.sqrt(width) / (fraction * config.embedding_size))
    rows = slice(head * width, (head + 1) * width)
    attention.query.weight[rows] = gain * rotation_dK @ projection_HK.T
    attention.key.weight[rows] = gain * torch.eye(width, dimensions) @ projection_HK.T


def _set_value_and_output(
    attention: Attention, head: int, width: int, projection_HW: Tensor, gain: float, generator: torch.Generator
) -> None:
    """Set a head's value to a random orthogonal map of the word dimensions, and its output to the scaled transpose.

    Together they copy min(d, W) random directions of the word dimensions, times `gain`. `width` is d.
    """
    rows = slice(head * width, (head + 1) * width)
    random_dW = nn.init.orthogonal_(torch.empty(width, projection_HW.shape[1]), generator=generator)
    value_dH = random_dW @ projection_HW.T
    attention.value.weight[rows] = value_dH
    attention.output.weight[:, rows] = gain * value_dH.T


def _frequencies(dimensions: int) -> Tensor:
    """Return the frequencies [F] of sinusoids in this many dimensions; each frequency has a cosine and a sine."""
    return torch.linspace(*_FREQUENCY_RANGE, dimensions // 2)


# ---------------------------------------------------------------- more positions


@torch.no_grad()
def resize_positions(
    checkpoint: hub.Checkpoint, positions: int, method: PositionGrowth, *, quiet: bool = False
) -> hub.Checkpoint:
    """Return a checkpoint whose position embeddings are extended to `positions`.

    `tile` repeats the position vectors, which preserves the differences between neighbors (Longformer, arXiv
    2004.05150, section 5). `interpolate` stretches them linearly, which preserves the difference between the beginning
    and the end of a text. Prints what it does, unless `quiet`. Raises `ConfigError` if the checkpoint has more
    positions.
    """
    current = checkpoint.config.max_position_embeddings
    table_name = "encoder.embeddings.position.weight"
    if positions < current:
        raise ConfigError(
            f"{checkpoint.directory}: has {current:,} positions, model.max_position_embeddings is {positions:,}",
            f"set model.max_position_embeddings to at least {current}; shorter inputs need no fewer positions",
        )
    if positions == current or table_name not in checkpoint.tensors:
        return checkpoint
    table_PE = checkpoint.tensors[table_name].float()
    if method == "tile":
        table_PE = table_PE.repeat(math.ceil(positions / current), 1)[:positions]
    else:
        table_1EP = F.interpolate(table_PE.T[None], positions, mode="linear", align_corners=True)
        table_PE = table_1EP[0].T.contiguous()
    if not quiet:
        console.info(f"{checkpoint.directory}: {method}s {current:,} positions to {positions:,}")
    config = replace(checkpoint.config, max_position_embeddings=positions)
    return replace(checkpoint, config=config, tensors={**checkpoint.tensors, table_name: table_PE})
