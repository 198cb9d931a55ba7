"""Weights at step 0 that hold what is known beforehand, so that a small model need not find it out.

A small post-LayerNorm encoder spends most of its training on discovering that words which occur together are alike,
that a masked word's neighbours tell most about it, and that the masked-word head should undo the embedding. All of it
can be written into the first weights; architecture and checkpoint stay as they are. Nothing here knows a language:
words come from the corpus (`data.cooccurrence`), the rest is geometry. Each part has a switch.

Shapes: V vocabulary, E embedding, K of its dimensions for positions, H hidden, A heads of width d, P positions.
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

_POSITION_DIMENSIONS: Final = 32  # of the embedding, at most; words and segments are zero there
_POSITION_NORM: Final = 0.5  # of a position's vector, against a word's
_FREQUENCIES: Final = (0.05, 2.6)  # radians a position, of the sinusoids: from the whole sequence to neighbours
_NEIGHBOUR_SCORE: Final = 7.0  # before softmax, of the position that a head looks at: two thirds of the attention
_QUIET: Final = 0.3  # scale of the random part of positions, segments and unseen tokens: words prevail
_EVEN: Final = 0.5  # exponent of the norms of word vectors: frequent words would drown the others

PositionGrowth = Literal["tile", "interpolate"]


@torch.no_grad()
def resize_positions(found: hub.Checkpoint, positions: int, how: PositionGrowth) -> hub.Checkpoint:
    """The checkpoint with more positions than it was trained with; as it is where it has that many.

    `tile` repeats their vectors, so that neighbours differ as they did (Longformer, arXiv 2004.05150, section 5);
    `interpolate` stretches them, so that early and late stay what they were. Raises `ConfigError` for fewer positions.
    """
    has, name = found.config.max_position_embeddings, "encoder.embeddings.position.weight"
    if positions < has:
        raise ConfigError(
            f"{found.directory}: has {has:,} positions, model.max_position_embeddings is {positions:,}",
            "they can grow but not shrink: shorter inputs need no fewer positions",
        )
    if positions == has or name not in found.tensors:
        return found
    table_PE = found.tensors[name].float()
    if how == "tile":
        table_PE = table_PE.repeat(-(-positions // has), 1)[:positions]
    else:
        table_PE = F.interpolate(table_PE.T[None], positions, mode="linear", align_corners=True)[0].T.contiguous()
    console.info(f"{found.directory}: {how}s {has:,} positions to {positions:,}")
    config = replace(found.config, max_position_embeddings=positions)
    return replace(found, config=config, tensors={**found.tensors, name: table_PE})


@dataclass(frozen=True)
class InformedInit:
    """`[init]` of a pretraining recipe: which weights at step 0 are not drawn at random. Nothing is on by default.

    `words = "cooccurrence"`: word vectors from the corpus's own co-occurrences (`data.cooccurrence`).
    `neighbours`, such as [-1, 1]: for each number one head of every block looks that many positions away; positions are
    sinusoids in dimensions of their own. `copying` (0: off): the factor with which attention adds to a token the mean
    of those that it attends to, since value and output matrices are near that multiple of the identity. The masked-word
    head then starts as the embedding's inverse (mimetic initialisation: Trockman and Kolter, 2023, arXiv 2305.09828).
    """

    words: Literal["random", "cooccurrence"] = "random"
    neighbours: tuple[int, ...] = ()
    copying: Annotated[float, Ge(0), Le(10)] = 0.0

    def check(self, config: ModelConfig) -> None:
        """Raise `ConfigError` where a model of this shape lacks the heads or the room."""
        heads, has = len(self.neighbours), config.num_attention_heads
        if heads > has:
            raise ConfigError(
                f"init.neighbours takes {heads} attention heads, the model has {has}",
                "fewer neighbours, or a larger model.num_attention_heads",
            )
        if (self.neighbours or self.copying) and config.embedding_size > 2 * config.hidden_size:
            raise ConfigError(
                f"init.neighbours and init.copying need an embedding that fits into the hidden state; "
                f"model.embedding_size is {config.embedding_size}, model.hidden_size {config.hidden_size}",
                "a smaller embedding_size, or init.neighbours = [] and init.copying = 0",
            )
        if self.neighbours and position_dimensions(config) < 4:
            raise ConfigError(
                f"init.neighbours needs heads of width 4 and 8 embedding dimensions; model.hidden_size "
                f"{config.hidden_size} over {has} heads and embedding_size {config.embedding_size} are too narrow",
                "fewer, wider heads, or init.neighbours = []",
            )


def position_dimensions(config: ModelConfig) -> int:
    """How many embedding dimensions `neighbours` reserves for positions: an even number that a head can hold."""
    return min(_POSITION_DIMENSIONS, config.head_size, config.embedding_size // 4) // 2 * 2


@torch.no_grad()
def apply_informed_init(model: PretrainingModel, settings: InformedInit, words_VE: Tensor | None, seed: int) -> None:
    """Write the start's parts into a freshly initialised model; `words_VE` is None or [V, `word_dimensions`]."""
    if settings == InformedInit():
        return
    embeddings, generator = model.encoder.embeddings, torch.Generator().manual_seed(seed)
    for table in (embeddings.position, embeddings.segment):
        table.weight.mul_(_QUIET)
    if words_VE is not None:
        # Of the usual spread, their norms evened out; tokens that the corpus lacks are random and small.
        norm_V1, size, weight_VE = words_VE.norm(dim=1, keepdim=True), words_VE.shape[1], embeddings.word.weight
        is_seen_V1 = norm_V1 > 1e-6
        even_VE = words_VE * norm_V1.clamp(min=1e-6) ** (_EVEN - 1)
        scale = model.config.initial_std / float(even_VE[is_seen_V1[:, 0]].std())
        weight_VE[:, :size] = torch.where(is_seen_V1, even_VE * scale, _QUIET * weight_VE[:, :size])
    if settings.copying or settings.neighbours:
        _init_attention_paths(model, settings, generator)


def word_dimensions(settings: InformedInit, config: ModelConfig) -> int:
    """How many embedding dimensions are left for words."""
    return config.embedding_size - (position_dimensions(config) if settings.neighbours else 0)


def _init_attention_paths(model: PretrainingModel, settings: InformedInit, generator: torch.Generator) -> None:
    """Set the embedding's projection and its inverse, positions and the heads that look at neighbours, and copying."""
    config, encoder = model.config, model.encoder
    hidden, size, width = config.hidden_size, config.embedding_size, config.head_size
    reserved = position_dimensions(config) if settings.neighbours else 0
    word_dims = size - reserved
    lift_HE = torch.eye(size)  # from E to H by orthonormal columns; its transpose takes them back
    if encoder.projection is not None:
        square = nn.init.orthogonal_(torch.empty(max(hidden, size), max(hidden, size)), generator=generator)
        lift_HE = square[:hidden, :size]
        encoder.projection.weight.copy_(lift_HE)
    if settings.copying:
        model.masked.dense.weight.copy_(lift_HE.T)
    if settings.neighbours:  # sinusoids, in dimensions where words and segments become zero
        position_PE, word_VE = encoder.embeddings.position.weight, encoder.embeddings.word.weight
        word_VE[:, word_dims:] = 0
        encoder.embeddings.segment.weight[:, word_dims:] = 0
        angle_PF = torch.arange(len(position_PE))[:, None] * _frequencies(reserved)
        norm = _POSITION_NORM * word_VE.norm(dim=1).median() / math.sqrt(angle_PF.shape[1])
        position_PE[:, word_dims:] = norm * torch.cat([angle_PF.cos(), angle_PF.sin()], 1)
    # Each head adds as many of the words' dimensions as it is wide.
    gain = settings.copying * word_dims / (config.num_attention_heads * min(width, word_dims))
    # One head stays free if there is one: fine-tuning may put a head that counts there (`model.matching`).
    first = min(1, config.num_attention_heads - len(settings.neighbours))
    for block in encoder.attention:
        assert isinstance(block, Attention)
        for head, offset in enumerate(settings.neighbours, start=first):
            rows = slice(head * width, (head + 1) * width)
            query_dK, key_dK = _relative_query_and_key(offset, reserved, width, size)
            block.query.weight[rows] = query_dK @ lift_HE[:, word_dims:].T
            block.key.weight[rows] = key_dK @ lift_HE[:, word_dims:].T
        for head in range(config.num_attention_heads if settings.copying else 0):
            rows = slice(head * width, (head + 1) * width)
            kept_dW = nn.init.orthogonal_(torch.empty(width, word_dims), generator=generator)
            value_dH = kept_dW @ lift_HE[:, :word_dims].T
            block.value.weight[rows], block.output.weight[:, rows] = value_dH, gain * value_dH.T


def _frequencies(dimensions: int) -> Tensor:
    return torch.linspace(*_FREQUENCIES, dimensions // 2)


def _relative_query_and_key(offset: int, reserved: int, width: int, size: int) -> tuple[Tensor, Tensor]:
    """Query and key [d, K], in the position dimensions, of a head that looks `offset` positions away from its own.

    The query turns each sinusoid by the angle of `offset` positions, so that it agrees best with the key there.
    """
    half, angle_F = reserved // 2, offset * _frequencies(reserved)
    turn_dK, index = torch.zeros(width, reserved), torch.arange(half)
    turn_dK[index, index] = turn_dK[half + index, half + index] = angle_F.cos()
    turn_dK[index, half + index], turn_dK[half + index, index] = -angle_F.sin(), angle_F.sin()
    # LayerNorm makes an embedding's squared norm `size`, of which positions have this share.
    share = _POSITION_NORM**2 / (1 + _POSITION_NORM**2)
    gain = math.sqrt(_NEIGHBOUR_SCORE * math.sqrt(width) / (share * size))
    return gain * turn_dK, gain * torch.eye(width, reserved)
