"""Attention to a neighborhood and a few global tokens: time and memory grow linearly with the length.

`window`: a token sees `attention_window` tokens to either side (Longformer: Beltagy et al., 2020, arXiv 2004.05150).
`block`: a token sees its own block of `attention_block` tokens and the two adjacent blocks (Big Bird: Zaheer et al.,
2020, arXiv 2007.14062, without its random blocks). Global tokens see their whole sequence and are seen by all of it;
they have the same weights as the other tokens.

Shapes: T packed tokens, R rows that a head reads, N sequences, A heads of width d; C chunks of c tokens of one
sequence; Q queries and K keys of a chunk; G global tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from albert_cli.data.arrays import Flags
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import (
    ChunkedKeys,
    HostLayout,
    PackedTokens,
    PaddedLayout,
    Rectangle,
    SparseAttentionLayout,
    copy_together,
    make_layout,
    round_up,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MAX_QUESTION_TOKENS: Final = 128  # a longer text of a pair is not treated as a question
_MAX_WINDOW_CHUNK: Final = 128  # tokens; smaller chunks waste fewer keys, larger ones make faster matmuls
_MIN_WINDOW_CHUNK: Final = 8
# Queries, keys, values and mask to contexts.
PaddedAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
Positions = TypeVar("Positions", int, NDArray[np.int64], Tensor)


def add_sparse_layout(tokens: PackedTokens, config: ModelConfig, dropout: float) -> PackedTokens:
    """Return the batch with its sparse attention layout, or unchanged if every token sees its whole sequence."""
    host = tokens.host
    if config.covers_sequence(int(np.diff(host.offsets).max())):
        return tokens
    device = tokens.ids.device
    queries = (np.arange(host.offsets[-1]), host.rows)
    build: Callable[..., Sequence[SparseAttentionLayout | BlockMask]] = build_local_layouts
    if has_flex(device, dropout, config.head_size):
        build = make_flex_masks
    token_layout, row_layout = build(host, queries, config, device)
    return replace(
        tokens,
        layout=replace(tokens.layout, sparse=token_layout),
        rows=replace(tokens.rows, layout=replace(tokens.rows.layout, sparse=row_layout)),
    )


def global_tokens(host: HostLayout, config: ModelConfig) -> Flags:
    """Mark the global tokens, bool [T], by `attention_global`.

    `cls`: the first token of each sequence. `sep`: also the last token of each segment. `question`: also the shorter
    text of a pair if it has at most `MAX_QUESTION_TOKENS` tokens, which is the question of a question and passage.
    """
    starts = host.offsets[:-1]
    segment = host.segment_ids
    is_global = np.zeros(len(segment), bool)
    is_global[starts] = True
    if config.attention_global in ("sep", "question"):
        is_global[host.offsets[1:] - 1] = True
        is_global[:-1] |= segment[:-1] < segment[1:]
    if config.attention_global == "question":
        second_length = np.add.reduceat(segment, starts)
        first_length = np.diff(host.offsets) - second_length
        is_shorter = np.stack([first_length <= second_length, second_length < first_length], 1)
        is_short = np.stack([first_length, second_length], 1) <= MAX_QUESTION_TOKENS
        is_pair = (second_length > 0)[:, None]
        is_global |= (is_shorter & is_short & is_pair)[host.sequence, segment]
    return is_global


def is_visible(config: ModelConfig, query: Positions, key: Positions) -> Any:
    """Compare positions within a sequence: True where `key` lies in the neighborhood of `query`."""
    if config.attention == "window":
        return abs(query - key) <= config.attention_window
    return abs(query // config.attention_block - key // config.attention_block) <= 1


# ---------------------------------------------------------------- layouts


@dataclass(frozen=True)
class _Chunks:
    """A batch's tokens cut into `total` chunks of `size` tokens, each within one sequence.

    A chunk sees `reach` chunks to either side. `sequence` [total] is each chunk's sequence, -1 for the filler that
    rounds their number up. `cell` [T] is chunk * size + position for each token.
    """

    size: int
    reach: int
    total: int
    sequence: NDArray[np.int64]
    cell: NDArray[np.int64]


def build_local_layouts(
    host: HostLayout, queries: Sequence[NDArray[np.int64]], config: ModelConfig, device: torch.device
) -> list[SparseAttentionLayout]:
    """Return a layout for each selection of query tokens (ascending indices into the batch)."""
    is_global = global_tokens(host, config)
    chunks = _cut_chunks(host, config)
    globals_per_sequence = np.bincount(host.sequence[is_global])
    visible_CcK = _visible_keys(chunks, is_global, globals_per_sequence, config)
    keys = _build_chunked_keys(host, chunks, is_global, round_up(int(globals_per_sequence.max())), device)
    return [_build_query_layout(rows, host, chunks, is_global, visible_CcK, keys, device) for rows in queries]


def _cut_chunks(host: HostLayout, config: ModelConfig) -> _Chunks:
    """Cut every sequence of a batch into chunks."""
    if config.attention == "window":
        size = min(_MAX_WINDOW_CHUNK, max(_MIN_WINDOW_CHUNK, config.attention_window))
        reach = -(-config.attention_window // size)
    else:
        size = config.attention_block
        reach = 1
    lengths = np.diff(host.offsets)
    chunks_per_sequence = -(-lengths // size)
    used = int(chunks_per_sequence.sum())
    total = round_up(used)
    sequence = np.full(total, -1)
    sequence[:used] = np.repeat(np.arange(len(lengths)), chunks_per_sequence)
    first_chunk = np.cumsum(chunks_per_sequence) - chunks_per_sequence
    position = np.arange(host.offsets[-1]) - host.offsets[host.sequence]
    return _Chunks(size, reach, total, sequence, cell=first_chunk[host.sequence] * size + position)


def _visible_keys(
    chunks: _Chunks, is_global: Flags, globals_per_sequence: NDArray[np.int64], config: ModelConfig
) -> Flags:
    """Mark the keys that each token of a chunk sees, bool [C, c, K]: local keys first, then global ones.

    Global tokens are no local keys, so that no token sees one twice.
    """
    is_local_key = np.zeros(chunks.total * chunks.size, bool)
    is_local_key[chunks.cell] = ~is_global
    # The chunks that each chunk sees, [C, 2 reach + 1]; some lie outside of the batch or in another sequence.
    neighbor = np.arange(chunks.total)[:, None] + np.arange(-chunks.reach, chunks.reach + 1)
    clipped = np.clip(neighbor, 0, chunks.total - 1)
    is_same_sequence = (clipped == neighbor) & (chunks.sequence[clipped] == chunks.sequence[:, None])
    exists_CK = is_same_sequence[..., None] & is_local_key.reshape(chunks.total, chunks.size)[clipped]
    exists_CK = exists_CK.reshape(chunks.total, -1)
    # Positions from the first token of the queries' chunk on.
    query_position = np.arange(chunks.size)[:, None]
    key_position = np.arange((2 * chunks.reach + 1) * chunks.size) - chunks.reach * chunks.size
    local_CcK = is_visible(config, query_position, key_position) & exists_CK[:, None]
    global_CG = np.arange(round_up(int(globals_per_sequence.max()))) < globals_per_sequence[chunks.sequence][:, None]
    global_CcG = np.broadcast_to(global_CG[:, None], (chunks.total, chunks.size, global_CG.shape[1]))
    return np.concatenate([local_CcK, global_CcG], 2)


def _build_chunked_keys(
    host: HostLayout, chunks: _Chunks, is_global: Flags, global_width: int, device: torch.device
) -> ChunkedKeys:
    """Move the layout of keys and values to the device."""
    global_index = np.flatnonzero(is_global)
    tensors = copy_together(
        {"cell": chunks.cell, "global_index": global_index, "sequence": np.maximum(chunks.sequence, 0)}, device
    )
    layout = make_layout(global_index, host.offsets, device)
    return ChunkedKeys(
        tokens=int(host.offsets[-1]),
        chunks=Rectangle(chunks.total, chunks.size, tensors["cell"], None),
        reach=chunks.reach,
        global_index=tensors["global_index"],
        global_slots=Rectangle(layout.sequences, global_width, layout.flat_index(global_width), None),
        sequence=tensors["sequence"],
    )


def _build_query_layout(
    rows: NDArray[np.int64],
    host: HostLayout,
    chunks: _Chunks,
    is_global: Flags,
    visible_CcK: Flags,
    keys: ChunkedKeys,
    device: torch.device,
) -> SparseAttentionLayout:
    """Lay out the query tokens `rows` [R], ascending indices into the batch."""
    local = np.flatnonzero(~is_global[rows])
    global_rows = np.flatnonzero(is_global[rows])
    # Each local query's chunk, its position in the chunk, and its rank among the chunk's queries.
    chunk, position = np.divmod(chunks.cell[rows[local]], chunks.size)
    rank = np.arange(len(local)) - np.searchsorted(chunk, chunk)
    width = round_up(int(rank.max(initial=0)) + 1)
    slots = chunk * width + rank
    position_CQ = np.full((chunks.total, width), -1)
    position_CQ.flat[slots] = position
    mask_CQK = visible_CcK[np.arange(chunks.total)[:, None], position_CQ]
    mask_CQK[position_CQ < 0] = True  # filler queries, which nothing reads: the softmax of no key at all is NaN
    tensors = copy_together({"slots": slots, "mask": mask_CQK[:, None], "local": local, "global": global_rows}, device)
    return SparseAttentionLayout(
        keys=keys,
        mask=tensors["mask"],
        local_index=tensors["local"],
        local_queries=Rectangle(chunks.total, width, tensors["slots"], None),
        global_index=tensors["global"],
        global_queries=make_layout(rows[global_rows], host.offsets, device),
    )


# ---------------------------------------------------------------- attention


def attend_sparsely(
    sparse: SparseAttentionLayout,
    key_layout: PaddedLayout,
    q_RAd: Tensor,
    k_TAd: Tensor,
    v_TAd: Tensor,
    padded_attention: PaddedAttention,
) -> Tensor:
    """Return softmax(q k' / sqrt(d)) v over the keys that each row sees, [R, A * d].

    `padded_attention` maps [n, A, Q, d], [n, A, K, d] twice and a mask to [n, A, Q, d]. Rows and tokens behind the last
    of the batch are filler. The padded copies are computed again for the backward pass: saved, they would take several
    times the memory of the queries, keys and values.
    """
    arguments = (sparse, key_layout, padded_attention, q_RAd, k_TAd, v_TAd)
    if torch.is_grad_enabled() and k_TAd.requires_grad:
        context: Tensor = checkpoint(_attend_chunks, *arguments, use_reentrant=False)
        return context
    return _attend_chunks(*arguments)


def _attend_chunks(
    sparse: SparseAttentionLayout,
    key_layout: PaddedLayout,
    padded_attention: PaddedAttention,
    q_RAd: Tensor,
    k_TAd: Tensor,
    v_TAd: Tensor,
) -> Tensor:
    """Attend from local rows chunk by chunk, and from global rows to their whole sequence."""
    context_RX = q_RAd.new_zeros(len(q_RAd), q_RAd.shape[1] * q_RAd.shape[2])
    if len(sparse.local_index):
        q_CAQd = sparse.local_queries.pad(q_RAd.index_select(0, sparse.local_index)).transpose(1, 2)
        k_CAKd = sparse.keys.gather_chunks(k_TAd)
        v_CAKd = sparse.keys.gather_chunks(v_TAd)
        local_CAQd = padded_attention(q_CAQd, k_CAKd, v_CAKd, sparse.mask)
        local_RX = sparse.local_queries.unpad(local_CAQd.transpose(1, 2).flatten(2))
        context_RX = context_RX.index_copy(0, sparse.local_index, local_RX)
    if len(sparse.global_index):
        q_NAGd = sparse.global_queries.pad(q_RAd.index_select(0, sparse.global_index)).transpose(1, 2)
        k_NASd = key_layout.pad(k_TAd).transpose(1, 2)
        v_NASd = key_layout.pad(v_TAd).transpose(1, 2)
        global_NAGd = padded_attention(q_NAGd, k_NASd, v_NASd, key_layout.mask)
        global_RX = sparse.global_queries.unpad(global_NAGd.transpose(1, 2).flatten(2))
        context_RX = context_RX.index_copy(0, sparse.global_index, global_RX)
    return context_RX


# ---------------------------------------------------------------- CUDA


def has_flex(device: torch.device, dropout: float, head_size: int) -> bool:
    """Return True if `flex_attention` applies: CUDA with Triton, no dropout, and heads as wide as its smallest tile."""
    return device.type == "cuda" and not dropout and head_size >= 16 and find_spec("triton") is not None


def make_flex_masks(
    host: HostLayout, queries: Sequence[NDArray[np.int64]], config: ModelConfig, device: torch.device
) -> list[BlockMask]:
    """Return a block mask for each selection of query tokens; `flex_attention` skips blocks that nothing sees."""
    from torch.nn.attention.flex_attention import create_block_mask  # imports the compiler

    arrays = {
        "sequence": host.sequence,
        "position": np.arange(host.offsets[-1]) - host.offsets[host.sequence],
        "is_global": global_tokens(host, config),
        **{f"queries.{number}": rows for number, rows in enumerate(queries)},
    }
    tensors = copy_together(arrays, device)
    sequence_T = tensors["sequence"]
    position_T = tensors["position"]
    global_T = tensors["is_global"]
    make: Any = create_block_mask if device.type == "cpu" else _compiled(create_block_mask)

    def make_mask(row_R: Tensor) -> BlockMask:
        def is_seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
            token = row_R[row]
            seen: Tensor = is_visible(config, position_T[token], position_T[key]) | global_T[token] | global_T[key]
            return seen & (sequence_T[token] == sequence_T[key])

        mask: BlockMask = make(is_seen, None, None, len(row_R), len(position_T), device)
        return mask

    return [make_mask(tensors[f"queries.{number}"]) for number in range(len(queries))]


@cache
def _compiled(function: Any) -> Any:
    """Compile a function once for all shapes."""
    return torch.compile(function, dynamic=True)


def attend_flex(mask: BlockMask, q_RAd: Tensor, k_TAd: Tensor, v_TAd: Tensor) -> Tensor:
    """Compute `attend_sparsely` with one kernel: [R, A * d]."""
    from torch.nn.attention.flex_attention import flex_attention

    # Within a compiled block the kernel is compiled as a part of it.
    is_plain = q_RAd.device.type == "cpu" or torch.compiler.is_compiling()
    kernel: Any = flex_attention if is_plain else _compiled(flex_attention)
    context: Tensor = kernel(*(x.transpose(0, 1)[None] for x in (q_RAd, k_TAd, v_TAd)), block_mask=mask)
    return context[0].transpose(0, 1).flatten(1)
