"""The ALBERT encoder (§3.1): factorised embeddings, and blocks whose weights layers share.

Which weights a layer uses is `ModelConfig.blocks()`, so every kind of sharing in the paper's Tables 3 and 4 runs
through the same lines. Shapes: T packed tokens, R rows that a head reads, N sequences, H hidden, E embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from albert_cli.model.block import AttentionWeights, BlockSettings, FeedForwardWeights, block, has_varlen
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import PackedTokens
from albert_cli.model.sparse_attention import SparseAttentionLayout, add_sparse_layout

_RECOMPILE_LIMIT: Final = 64  # of the compiled block
Weights = TypeVar("Weights", AttentionWeights, FeedForwardWeights)


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
    """The weights of one attention sub-layer, its LayerNorm included.

    Query, key and value stay separate parameters, because LAMB adapts each matrix on its own; the forward
    pass multiplies with the three stacked, made once a pass however many layers share them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)

    def weights(self) -> AttentionWeights:
        """The weights as the block takes them."""
        parts = (self.query, self.key, self.value)
        stacked = torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])
        return AttentionWeights(*stacked, self.output.weight, self.output.bias, self.norm.weight, self.norm.bias)


class FeedForward(nn.Module):
    """The weights of one position-wise network H -> F -> H, its LayerNorm included."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def weights(self) -> FeedForwardWeights:
        """The weights as the block takes them."""
        up, down, norm = self.up, self.down, self.norm
        return FeedForwardWeights(up.weight, up.bias, down.weight, down.bias, norm.weight, norm.bias)


class Encoder(nn.Module):
    """Token ids to hidden states and, unless made without `pooler`, the pooled [CLS] vector of sentence-level heads."""

    def __init__(self, config: ModelConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.projection = nn.Linear(config.embedding_size, config.hidden_size) if config.has_projection else None
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.num_attention_blocks))
        self.feed_forward = nn.ModuleList(FeedForward(config) for _ in range(config.num_feed_forward_blocks))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        self.apply(partial(initialize, std=config.initial_std))
        self.block: Callable[..., Tensor] = block
        self.checkpointing = False

    def compile(self) -> None:
        """Run the block as one kernel-fusing program: one compilation for all layers, since it is one function.

        It is compiled anew for all tokens or a head's rows, for training or evaluation, for lengths that differ or are
        the same, for one sequence or several. By itself torch gives up after fewer forms, so its limit is raised.
        """
        from torch._dynamo import maybe_mark_dynamic  # the compiler: it takes as long to import as torch

        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _RECOMPILE_LIMIT)
        by_offsets, padded = torch.compile(block), torch.compile(block, dynamic=True)

        def compiled(*given: Any) -> Tensor:
            x, _, _, grid, rows, settings = given  # as `block` takes them
            if isinstance(grid.near, SparseAttentionLayout) or (grid.near is None and not settings.varlen):
                return padded(*given)
            # Lengths differ from batch to batch, widths never do: kernels for any width would be slower.
            for tensor in (x, grid.offsets, *((rows.index, rows.grid.offsets) if rows else ())):
                maybe_mark_dynamic(tensor, 0)
            return by_offsets(*given)

        self.block = compiled

    def forward(self, tokens: PackedTokens, *, all_rows: bool = False) -> Tensor:
        """Hidden states of the last layer at the rows that the heads read: [R, H].

        The last layer is computed at those rows only, which is exact: nothing else depends on the others.
        `all_rows` computes every token, [T, H]. With `checkpointing` a block keeps its input alone for the backward
        pass and is computed again there: less memory, one more forward pass.
        """
        device, count = tokens.ids.device, len(tokens.ids if all_rows else tokens.rows.index)
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None  # of products
        settings = replace(self.settings(), varlen=has_varlen(device, dtype, self.config.head_size))
        if device.type == "cpu" and dtype == torch.bfloat16:
            # oneDNN generates code for every new shape of a product, which takes longer than a small product itself.
            tokens = tokens.rounded()
        tokens = add_sparse_layout(tokens, self.config, settings.attention_dropout)
        x_TH: Tensor = self.embeddings(tokens)
        if self.projection is not None:
            x_TH = self.projection(x_TH)
        attention = [cast_shared_weights(a.weights(), dtype) for a in self.attention]  # type: ignore[operator]
        feed_forward = [cast_shared_weights(f.weights(), dtype) for f in self.feed_forward]  # type: ignore[operator]
        again = self.checkpointing and torch.is_grad_enabled()
        x_TH = x_TH if dtype is None else x_TH.to(dtype)
        plan = self.config.blocks()
        for depth, (attention_index, ffn_index) in enumerate(plan, start=1):
            rows = tokens.rows if depth == len(plan) and not all_rows else None
            given = (attention[attention_index](), feed_forward[ffn_index](), tokens.grid, rows, settings)
            x_TH = checkpoint(self.block, x_TH, *given, use_reentrant=False) if again else self.block(x_TH, *given)
        return x_TH[:count]  # without filler

    def settings(self) -> BlockSettings:
        """What every block computes with, in the mode (training or not) that the module is in."""
        c, rate = self.config, 1.0 if self.training else 0.0
        return BlockSettings(
            heads=c.num_attention_heads,
            activation=c.hidden_act,
            layer_norm_eps=c.layer_norm_eps,
            hidden_dropout=rate * c.hidden_dropout_prob,
            attention_dropout=rate * c.attention_probs_dropout_prob,
        )

    def pooled(self, first_NH: Tensor) -> Tensor:
        """The [CLS] states [N, H] through the pooler: tanh(xW + b), [N, H]."""
        assert self.pooler is not None, "this encoder was made without a pooler"
        return torch.tanh(self.pooler(first_NH))


def initialize(module: nn.Module, std: float) -> None:
    """Normal weights cut at two standard deviations, zero biases, as the reference code draws them."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# ---------------------------------------------------------------- shared weights in the precision of the products


def cast_shared_weights(weights: Weights, dtype: torch.dtype | None) -> Callable[[], Weights]:
    """A function that gives one layer the weights in `dtype` (None: as they are); they are cast here, once.

    Left to autocast, twelve layers' gradients of a shared matrix would be summed in bf16, which loses most of the
    last ones. LayerNorm's own parameters stay as they are, because it computes in fp32.
    """
    named: Any = weights
    copies = [
        None if name.startswith("norm") or dtype in (None, weight.dtype) else weight.detach().to(dtype)
        for name, weight in named._asdict().items()
    ]

    def for_one() -> Weights:
        pairs = zip(weights, copies, strict=True)
        given = (w if c is None else _CastOnce.apply(w, c) for w, c in pairs)  # type: ignore[no-untyped-call]
        return cast(Weights, named._make(given))

    return for_one


class _CastOnce(torch.autograd.Function):
    """A weight's copy in another precision, which hands its gradient on to the weight in the weight's own."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None
