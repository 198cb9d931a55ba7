"""The ALBERT encoder (§3.1): factorized embeddings, and a stack of blocks that share weights.

A packed batch (sequences concatenated without padding) goes in, hidden states come out. `ModelConfig.blocks()` lists
the weights that each block uses, so one loop serves every kind of sharing in Tables 3 and 4.

Shapes: T packed tokens, R rows (the tokens that a task or pretraining head reads), N sequences, E embedding size, H
hidden size, F feed-forward size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn

from albert_cli.matmul import MatmulBackend, linear, prepack_weight
from albert_cli.model.block import AttentionWeights, BlockSettings, FeedForwardWeights, block, has_varlen
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import HeadRows, PackedTokens, PaddedLayout, SparseAttentionLayout
from albert_cli.model.recomputation import recompute_in_backward
from albert_cli.model.sparse_attention import add_sparse_layout

MIN_PREPACKED_ROWS: Final = 256  # tokens of a batch; with fewer, prepacking a weight takes as long as it saves
_RECOMPILE_LIMIT: Final = 64  # compiled variants of one function; `Encoder.compile_block` exceeds torch's default of 8
# The weights of one of the two sub-layers of a block.
Weights = TypeVar("Weights", AttentionWeights, FeedForwardWeights)
# The signature of `block`.
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

    Query, key and value are separate parameters, because LAMB has a separate trust ratio for each matrix. `weights`
    concatenates the three for a single matmul, once per forward pass, however many layers share them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)

    def weights(self) -> AttentionWeights:
        """Return the weights as arguments of `block`."""
        projections = (self.query, self.key, self.value)
        return AttentionWeights(
            qkv=torch.cat([projection.weight for projection in projections]),
            qkv_bias=torch.cat([projection.bias for projection in projections]),
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
        """Return the weights as arguments of `block`."""
        return FeedForwardWeights(
            up=self.up.weight,
            up_bias=self.up.bias,
            down=self.down.weight,
            down_bias=self.down.bias,
            norm=self.norm.weight,
            norm_bias=self.norm.bias,
        )


class Encoder(nn.Module):
    """The encoder: embeddings, projection to H, blocks and, if built with `pooler`, the pooler of [CLS] states.

    `compile_block` replaces `block` by a compiled function. `checkpointing` turns on activation checkpointing: a block
    saves only its input for the backward pass, which computes the block again. `matmul` is the backend of linear
    layers. `prepacks_weights` lets oneDNN compute the blocks with prepacked weights; set it only on a CPU, and without
    gradients.
    """

    def __init__(self, config: ModelConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.projection = nn.Linear(config.embedding_size, config.hidden_size) if config.has_projection else None
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.num_attention_sublayers))
        self.feed_forward = nn.ModuleList(FeedForward(config) for _ in range(config.num_feed_forward_sublayers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        self.apply(partial(initialize, std=config.initial_std))
        self.block: BlockFunction = block
        self.checkpointing = False
        self.matmul: MatmulBackend = "torch"
        self.prepacks_weights = False

    def compile_block(self) -> None:
        """Compile the block, one function for all layers.

        torch compiles a separate variant for each combination of: all rows or head rows, training or evaluation, equal
        or different lengths, one sequence or several. These exceed torch's recompile limit, which is therefore raised.
        Blocks with sparse attention in chunks are not compiled.
        """
        from torch._dynamo import maybe_mark_dynamic  # imported late: the compiler takes as long to import as torch

        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _RECOMPILE_LIMIT)
        # Dropout uses torch's kernel, and so gets the same random numbers as in code that is not compiled. Compiled
        # kernels would call the random generator for each number, although a call returns four.
        options: Any = {"fallback_random": True}
        packed_block = torch.compile(block, options=options)
        # The width of a padded rectangle differs between batches, too, so no size may be compiled as a constant.
        padded_block = torch.compile(block, dynamic=True, options=options)

        def compiled_block(
            x_TH: Tensor,
            attention: AttentionWeights,
            feed_forward: FeedForwardWeights,
            layout: PaddedLayout,
            rows: HeadRows | None,
            settings: BlockSettings,
        ) -> Tensor:
            if isinstance(layout.sparse, SparseAttentionLayout):
                # The compiler needs more than five minutes for chunks of a variable number and size on a GPU.
                return block(x_TH, attention, feed_forward, layout, rows, settings)
            if layout.sparse is None and not settings.varlen:
                return padded_block(x_TH, attention, feed_forward, layout, rows, settings)
            # Packed tensors differ between batches in the first dimension only, the number of tokens or sequences. The
            # other dimensions are compiled as constants, because kernels for variable sizes would be slower.
            batch_tensors = [x_TH, layout.offsets]
            if rows is not None:
                batch_tensors += [rows.index, rows.layout.offsets]
            for tensor in batch_tensors:
                maybe_mark_dynamic(tensor, 0)
            return packed_block(x_TH, attention, feed_forward, layout, rows, settings)

        self.block = compiled_block

    def forward(self, tokens: PackedTokens, *, all_rows: bool = False, depth: int | None = None) -> Tensor:
        """Return the last layer's hidden states: [R, H] of the rows that heads read, or with `all_rows` [T, H] of all.

        Without `all_rows` the last layer computes only these rows. This is exact, because nothing depends on the other
        states of the last layer. `depth` is the number of blocks to run, by default all blocks of the stack; a larger
        number continues at the beginning of the stack.
        """
        for states in self.iterate_layers(tokens, all_rows=all_rows, depth=depth):
            last_states = states
        return last_states

    def iterate_layers(
        self, tokens: PackedTokens, *, all_rows: bool = True, depth: int | None = None
    ) -> Iterator[Tensor]:
        """Yield the projected embeddings and then each block's output, [T, H]; the last is [R, H] unless `all_rows`.

        `depth` has the same meaning as in `forward`. The states are not returned as a list, because the states of all
        layers of a deep model may not fit in memory.
        """
        device = tokens.ids.device
        token_count = len(tokens.ids)
        row_count = len(tokens.rows.index)
        dtype: torch.dtype | None = None  # of matmuls; None outside of autocast
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        settings = replace(self.block_settings(), varlen=has_varlen(device, dtype, self.config.head_size))
        if device.type == "cpu" and dtype == torch.bfloat16:
            # For every new shape of a matmul, oneDNN generates code, which takes longer than a small matmul. Filler
            # tokens limit the number of shapes.
            tokens = tokens.rounded()
        is_compiled = self.block is not block
        tokens = add_sparse_layout(tokens, self.config, settings.attention_dropout, is_compiled=is_compiled)
        x_TH: Tensor = self.embeddings(tokens)
        if self.projection is not None:
            x_TH = linear(x_TH, self.projection.weight, self.projection.bias, self.matmul)
        # For each distinct sub-layer, a function that the layers call to get its weights.
        get_attention = [make_weight_getter(cast(Attention, part).weights(), dtype) for part in self.attention]
        get_feed_forward = [make_weight_getter(cast(FeedForward, part).weights(), dtype) for part in self.feed_forward]
        get_prepacked_attention = get_attention
        if self.prepacks_weights and len(x_TH) >= MIN_PREPACKED_ROWS:
            get_prepacked_attention = [prepack_once(get, len(x_TH)) for get in get_attention]
            get_feed_forward = [prepack_once(get, len(x_TH)) for get in get_feed_forward]
        if dtype is not None:
            x_TH = x_TH.to(dtype)
        yield x_TH[:token_count]  # without filler
        stack = self.config.blocks()
        if depth is None:
            depth = len(stack)
        recompute = self.checkpointing and torch.is_grad_enabled()
        for number, (attention_index, ffn_index) in enumerate(islice(cycle(stack), depth), start=1):
            rows: HeadRows | None = None
            outputs = token_count
            get = get_prepacked_attention[attention_index]
            if number == depth and not all_rows:
                rows = tokens.rows
                outputs = row_count
                # With `rows`, a block multiplies by slices of the stacked weight. A prepacked one cannot be sliced.
                get = get_attention[attention_index]
            arguments = (get(), get_feed_forward[ffn_index](), tokens.layout, rows, settings)
            if recompute:
                x_TH = recompute_in_backward(device, self.block, x_TH, *arguments)
            else:
                x_TH = self.block(x_TH, *arguments)
            yield x_TH[:outputs]

    def block_settings(self) -> BlockSettings:
        """Return the settings of all blocks; the dropout rates are 0 unless the module is in training mode."""
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
        """Apply the pooler to the [CLS] states [N, H]: tanh(xW + b), [N, H]."""
        assert self.pooler is not None, "this encoder was built without a pooler"
        return torch.tanh(self.pooler(first_NH))


def initialize(module: nn.Module, std: float) -> None:
    """Initialize a module as Google's code does: normal weights truncated at two standard deviations, zero biases.

    Changes linear layers and embeddings only; used with `Module.apply`, which visits all submodules.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# ---------------------------------------------------------------- shared weights in the dtype of matmuls


def make_weight_getter(weights: Weights, dtype: torch.dtype | None) -> Callable[[], Weights]:
    """Cast shared weights to `dtype` once, and return a function that each layer calls to get the cast weights.

    Each call creates a separate node in the autograd graph, so the gradients of all layers are summed in the dtype of
    the weights, fp32. Autocast would sum the gradients of twelve layers in bf16, which loses most of the gradients that
    are added last. LayerNorm's parameters are not cast, because LayerNorm computes in fp32. If `dtype` is None, nothing
    is cast.
    """
    copies: list[Tensor | None] = []
    for name, weight in zip(weights._fields, weights, strict=True):
        needs_cast = dtype not in (None, weight.dtype) and not name.startswith("norm")
        copies.append(weight.detach().to(dtype) if needs_cast else None)

    def layer_weights() -> Weights:
        tensors: list[Tensor] = []
        for weight, copy in zip(weights, copies, strict=True):
            tensors.append(weight if copy is None else _use_copy(weight, copy))
        return type(weights)(*tensors)

    return layer_weights


def prepack_once(get: Callable[[], Weights], rows: int) -> Callable[[], Weights]:
    """Return a function that each layer calls to get the weights that `get` returns, their matrices prepacked once.

    rows: the number of rows of the layers' input, for `prepack_weight`. Prepacked weights have no gradients.
    """

    @functools.cache
    def prepacked_weights() -> Weights:
        weights = get()
        tensors = [prepack_weight(weight, rows) if weight.dim() == 2 else weight for weight in weights]
        return type(weights)(*tensors)

    return prepacked_weights


class _UseCopy(torch.autograd.Function):
    """An operation that returns `copy`, the copy of a weight in another dtype; the gradient goes to the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.view_as(copy)  # a new tensor for this call, which the autograd graph connects with the weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


# `Function.apply` has no type annotations.
_use_copy = cast(Callable[[Tensor, Tensor], Tensor], _UseCopy.apply)
