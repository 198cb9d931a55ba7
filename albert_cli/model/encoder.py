"""The ALBERT encoder (§3.1): factorized embeddings, and blocks whose weights layers share.

`ModelConfig.blocks()` says which weights a layer uses, so one loop serves every kind of sharing in Tables 3 and 4.
Shapes: T packed tokens, R rows that a head reads, N sequences, H hidden, E embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from albert_cli.matmul import MatmulBackend, linear
from albert_cli.model.block import AttentionWeights, BlockSettings, FeedForwardWeights, block, has_varlen
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import HeadRows, PackedTokens, PaddedLayout, SparseAttentionLayout
from albert_cli.model.sparse_attention import add_sparse_layout

_RECOMPILE_LIMIT: Final = 64
Weights = TypeVar("Weights", AttentionWeights, FeedForwardWeights)
BlockFunction = Callable[
    [Tensor, AttentionWeights, FeedForwardWeights, PaddedLayout, HeadRows | None, BlockSettings], Tensor
]


class Embeddings(nn.Module):
    """Word, position and segment tables, all E wide (§3.1, factorized embedding), then LayerNorm and dropout."""

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

    Query, key and value are separate parameters, because LAMB adapts each matrix on its own. The forward pass
    multiplies with the three stacked, which are built once per pass however many layers share them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)

    def weights(self) -> AttentionWeights:
        """Return the weights in the form that the block takes."""
        parts = (self.query, self.key, self.value)
        return AttentionWeights(
            qkv=torch.cat([part.weight for part in parts]),
            qkv_bias=torch.cat([part.bias for part in parts]),
            output=self.output.weight,
            output_bias=self.output.bias,
            norm=self.norm.weight,
            norm_bias=self.norm.bias,
        )


class FeedForward(nn.Module):
    """The weights of one position-wise network H -> F -> H, its LayerNorm included."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def weights(self) -> FeedForwardWeights:
        """Return the weights in the form that the block takes."""
        return FeedForwardWeights(
            up=self.up.weight,
            up_bias=self.up.bias,
            down=self.down.weight,
            down_bias=self.down.bias,
            norm=self.norm.weight,
            norm_bias=self.norm.bias,
        )


class Encoder(nn.Module):
    """Token ids to hidden states and, if built with `pooler`, the pooled [CLS] vector of sentence-level heads."""

    def __init__(self, config: ModelConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.projection = nn.Linear(config.embedding_size, config.hidden_size) if config.has_projection else None
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.num_attention_blocks))
        self.feed_forward = nn.ModuleList(FeedForward(config) for _ in range(config.num_feed_forward_blocks))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        self.apply(partial(initialize, std=config.initial_std))
        self.block: BlockFunction = block
        self.checkpointing = False
        self.matmul: MatmulBackend = "torch"

    def compile(self) -> None:
        """Compile the block for all layers at once, since it is one function.

        It is compiled again for each combination of all rows or head rows, training or evaluation, equal or different
        lengths, one sequence or several. That exceeds torch's default recompile limit, so the limit is raised.
        """
        from torch._dynamo import maybe_mark_dynamic  # importing the compiler takes as long as importing torch

        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _RECOMPILE_LIMIT)
        packed_block = torch.compile(block)
        padded_block = torch.compile(block, dynamic=True)

        def compiled_block(
            x_TH: Tensor,
            attention: AttentionWeights,
            feed_forward: FeedForwardWeights,
            layout: PaddedLayout,
            rows: HeadRows | None,
            settings: BlockSettings,
        ) -> Tensor:
            if isinstance(layout.sparse, SparseAttentionLayout) or (layout.sparse is None and not settings.varlen):
                return padded_block(x_TH, attention, feed_forward, layout, rows, settings)
            # Lengths change from batch to batch, widths never: kernels for any width would be slower.
            lengths = [x_TH, layout.offsets]
            if rows is not None:
                lengths += [rows.index, rows.layout.offsets]
            for tensor in lengths:
                maybe_mark_dynamic(tensor, 0)
            return packed_block(x_TH, attention, feed_forward, layout, rows, settings)

        self.block = compiled_block

    def forward(self, tokens: PackedTokens, *, all_rows: bool = False, depth: int | None = None) -> Tensor:
        """Return the last layer's hidden states at the rows that heads read, [R, H], or with `all_rows` all, [T, H].

        The last layer is computed at these rows only, which is exact: no other state depends on the rest. `depth` runs
        that many blocks instead of the whole stack; beyond its end the stack repeats. With `checkpointing` a block
        saves only its input for the backward pass and is computed again there.
        """
        for states in self.iterate_layers(tokens, all_rows=all_rows, depth=depth):
            last = states
        return last

    def iterate_layers(
        self, tokens: PackedTokens, *, all_rows: bool = True, depth: int | None = None
    ) -> Iterator[Tensor]:
        """Yield the embeddings and then each block's output, [T, H]; the last is [R, H] unless `all_rows`.

        An iterator, because a deep model's states together may not fit in memory.
        """
        device = tokens.ids.device
        count = len(tokens.ids)
        last_count = count if all_rows else len(tokens.rows.index)
        # The dtype of matmuls; None outside of autocast.
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        settings = replace(self.block_settings(), varlen=has_varlen(device, dtype, self.config.head_size))
        if device.type == "cpu" and dtype == torch.bfloat16:
            # oneDNN generates code for every new matmul shape, which takes longer than a small matmul itself.
            tokens = tokens.rounded()
        tokens = add_sparse_layout(tokens, self.config, settings.attention_dropout)
        x_TH: Tensor = self.embeddings(tokens)
        if self.projection is not None:
            x_TH = linear(x_TH, self.projection.weight, self.projection.bias, self.matmul)
        attention = [cast_shared_weights(cast(Attention, part).weights(), dtype) for part in self.attention]
        feed_forward = [cast_shared_weights(cast(FeedForward, part).weights(), dtype) for part in self.feed_forward]
        if dtype is not None:
            x_TH = x_TH.to(dtype)
        plan = list(islice(cycle(self.config.blocks()), depth or len(self.config.blocks())))
        recompute = self.checkpointing and torch.is_grad_enabled()
        yield x_TH[:count]  # without filler
        for number, (attention_index, ffn_index) in enumerate(plan, start=1):
            is_last = number == len(plan)
            rows = tokens.rows if is_last and not all_rows else None
            arguments = (attention[attention_index](), feed_forward[ffn_index](), tokens.layout, rows, settings)
            if recompute:
                x_TH = checkpoint(self.block, x_TH, *arguments, use_reentrant=False)
            else:
                x_TH = self.block(x_TH, *arguments)
            yield x_TH[: last_count if is_last else count]

    def block_settings(self) -> BlockSettings:
        """Return the block's settings; without dropout unless the module is in training mode."""
        config = self.config
        return BlockSettings(
            heads=config.num_attention_heads,
            activation=config.hidden_act,
            layer_norm_eps=config.layer_norm_eps,
            hidden_dropout=config.hidden_dropout_prob if self.training else 0.0,
            attention_dropout=config.attention_probs_dropout_prob if self.training else 0.0,
            matmul=self.matmul,
        )

    def pooled(self, first_NH: Tensor) -> Tensor:
        """Return the [CLS] states [N, H] through the pooler: tanh(xW + b), [N, H]."""
        assert self.pooler is not None, "this encoder was built without a pooler"
        return torch.tanh(self.pooler(first_NH))


def initialize(module: nn.Module, std: float) -> None:
    """Initialize as the reference code: normal weights truncated at two standard deviations, zero biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# ---------------------------------------------------------------- shared weights in the dtype of matmuls


def cast_shared_weights(weights: Weights, dtype: torch.dtype | None) -> Callable[[], Weights]:
    """Cast shared weights once and return a function that gives each layer a view of them; None casts nothing.

    The gradients of all layers add up in the weights' own dtype. Under autocast, the gradients of twelve layers would
    be summed in bf16, which loses most of the last ones. LayerNorm's parameters stay unchanged, because it computes in
    fp32.
    """
    names = weights._fields
    copies = [
        None if name.startswith("norm") or dtype in (None, weight.dtype) else weight.detach().to(dtype)
        for name, weight in zip(names, weights, strict=True)
    ]

    def layer_view() -> Weights:
        views: list[Tensor] = []
        for weight, copy in zip(weights, copies, strict=True):
            views.append(weight if copy is None else _use_copy(weight, copy))
        return type(weights)(*views)

    return layer_view


class _CastOnce(torch.autograd.Function):
    """A weight's copy in another dtype, which passes its gradient on to the weight in the weight's dtype."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


# `Function.apply` is untyped.
_use_copy = cast(Callable[[Tensor, Tensor], Tensor], _CastOnce.apply)
