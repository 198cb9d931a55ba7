"""The ALBERT encoder (§3.1): factorised embeddings, and blocks whose weights layers share.

Post-LayerNorm transformer blocks as in BERT; which weights a layer uses is `ModelConfig.blocks()`, so every
kind of sharing in the paper's Tables 3 and 4 runs through the same lines. Shapes: T packed tokens,
R rows that a head reads, N sequences, S the longest one, A heads of width d, H hidden, E embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import Grid, PackedTokens, Rows

# The released weights were trained with the tanh approximation of GELU, which Hugging Face calls gelu_new.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}


class Embeddings(nn.Module):
    """Word, position and segment tables, all E wide (§3.1, factorised embedding), then LayerNorm and dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.word = nn.Embedding(config.vocab_size, size)
        self.position = nn.Embedding(config.max_position_embeddings, size)
        self.segment = nn.Embedding(config.type_vocab_size, size)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Embed packed tokens: [T] ids to [T, E]."""
        x_TE = self.word(tokens.ids) + self.position(tokens.position_ids) + self.segment(tokens.segment_ids)
        embedded: Tensor = self.dropout(self.norm(x_TE))
        return embedded


class Attention(nn.Module):
    """Multi-head self-attention with its residual connection and LayerNorm.

    Query, key and value stay separate parameters, because LAMB adapts each matrix on its own; the forward
    pass multiplies with the three stacked, which `fused` makes once a pass however many layers share them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads, self.head_size = config.num_attention_heads, config.head_size
        self.dropout_rate = config.attention_probs_dropout_prob
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def fused(self) -> tuple[Tensor, Tensor]:
        """The stacked weight [3H, H] and bias [3H] of query, key and value."""
        parts = (self.query, self.key, self.value)
        return torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])

    def forward(self, x_TH: Tensor, fused: tuple[Tensor, Tensor], grid: Grid, rows: Rows | None) -> Tensor:
        """Attend over the sequences of `grid`; [T, H] to [T, H], or to [R, H] at `rows` only."""
        weight, bias = fused
        hidden = x_TH.shape[-1]
        if rows is None:
            q_RH, kv_TH = torch.split(F.linear(x_TH, weight, bias), [hidden, 2 * hidden], dim=-1)
            asked = grid
        else:
            x_RH = x_TH.index_select(0, rows.index)
            q_RH = F.linear(x_RH, weight[:hidden], bias[:hidden])
            kv_TH = F.linear(x_TH, weight[hidden:], bias[hidden:])
            x_TH, asked = x_RH, rows.grid
        context_RH = self._attend(q_RH, kv_TH, asked, grid)
        normed: Tensor = self.norm(x_TH + self.dropout(self.output(context_RH)))
        return normed

    def _attend(self, q_RH: Tensor, kv_TH: Tensor, asked: Grid, grid: Grid) -> Tensor:
        """Scaled dot-product attention of the asked rows over all tokens of their sequence."""
        q_NASd = self._split_heads(asked.spread(q_RH), 1)[0]
        k_NASd, v_NASd = self._split_heads(grid.spread(kv_TH), 2)
        context = F.scaled_dot_product_attention(
            q_NASd, k_NASd, v_NASd, attn_mask=grid.mask, dropout_p=self.dropout_rate if self.training else 0.0
        )
        return asked.gather(context.transpose(1, 2).flatten(2))

    def _split_heads(self, x_NSH: Tensor, parts: int) -> tuple[Tensor, ...]:
        """[N, S, parts * H] to `parts` tensors [N, A, S, d]."""
        split = x_NSH.view(*x_NSH.shape[:2], parts, self.heads, self.head_size)
        return torch.unbind(split.permute(2, 0, 3, 1, 4))


class FeedForward(nn.Module):
    """The position-wise network H -> F -> H with its residual connection and LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x_TH: Tensor) -> Tensor:
        """[T, H] to [T, H]."""
        normed: Tensor = self.norm(x_TH + self.dropout(self.down(self.activation(self.up(x_TH)))))
        return normed


class Encoder(nn.Module):
    """Token ids to hidden states, and the pooled [CLS] vector that sentence-level heads read.

    Heads that read tokens alone take it without the pooler.
    """

    def __init__(self, config: ModelConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.projection = nn.Linear(config.embedding_size, config.hidden_size) if config.has_projection else None
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.num_attention_blocks))
        self.feed_forward = nn.ModuleList(FeedForward(config) for _ in range(config.num_feed_forward_blocks))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        self.apply(partial(initialize, std=config.initializer_range))

    def forward(self, tokens: PackedTokens, *, all_rows: bool = False) -> Tensor:
        """Hidden states of the last layer at the rows that the heads read: [R, H].

        The last layer is computed at those rows only, which is exact: nothing else depends on the others.
        `all_rows` computes every token, [T, H].
        """
        x_TH: Tensor = self.embeddings(tokens)
        if self.projection is not None:
            x_TH = self.projection(x_TH)
        fused = [attention.fused() for attention in self.attention]  # type: ignore[operator]
        plan = self.config.blocks()
        for depth, (a, f) in enumerate(plan, start=1):
            rows = tokens.rows if depth == len(plan) and not all_rows else None
            x_TH = self.attention[a](x_TH, fused[a], tokens.grid, rows)
            x_TH = self.feed_forward[f](x_TH)
        return x_TH

    def pooled(self, first_NH: Tensor) -> Tensor:
        """The [CLS] states [N, H] through the pooler: tanh(xW + b), [N, H]."""
        assert self.pooler is not None, "this encoder was made without a pooler"
        return torch.tanh(self.pooler(first_NH))


def initialize(module: nn.Module, std: float) -> None:
    """Normal weights cut at two standard deviations, zero biases, as the reference code draws them."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
