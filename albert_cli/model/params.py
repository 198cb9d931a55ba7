"""Parameter counts by arithmetic: exact for every shape, without building a model or importing torch.

The formulas are checked against instantiated models in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from albert_cli.model.config import ModelConfig


@dataclass(frozen=True)
class Counts:
    """Parameters by part, in numbers of scalars; attention and feed-forward sum over the distinct blocks."""

    embeddings: int
    projection: int
    attention: int
    feed_forward: int
    pooler: int
    mlm_head: int
    sentence_order_head: int

    @property
    def blocks(self) -> int:
        """All distinct transformer blocks, LayerNorms included."""
        return self.attention + self.feed_forward

    @property
    def heads(self) -> int:
        """Both pretraining heads; the decoder is the word table again and counts as nothing."""
        return self.mlm_head + self.sentence_order_head

    @property
    def without_pooler(self) -> int:
        """Embeddings and encoder alone."""
        return self.embeddings + self.projection + self.blocks

    @property
    def with_pooler(self) -> int:
        """What Hugging Face's bare model holds."""
        return self.without_pooler + self.pooler

    @property
    def total(self) -> int:
        """Everything that pretraining trains."""
        return self.with_pooler + self.heads


def count(config: ModelConfig) -> Counts:
    """Count the parameters of a shape (§3.1: word table V·E and projection E·H in place of V·H)."""
    e, h, f = config.embedding_size, config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    return Counts(
        embeddings=rows * e + 2 * e,
        projection=e * h + h if config.has_projection else 0,
        attention=config.num_attention_blocks * (4 * (h * h + h) + 2 * h),
        feed_forward=config.num_feed_forward_blocks * (h * f + f + f * h + h + 2 * h),
        pooler=h * h + h,
        mlm_head=h * e + e + 2 * e + config.vocab_size,
        sentence_order_head=2 * h + 2,
    )
