"""Compute sparse attention, to a neighborhood and a few global tokens: its cost grows linearly with the length.

`window`: a token attends to `attention_window` tokens to either side (Longformer: Beltagy et al., 2020, arXiv
2004.05150). `block`: a token attends to its block of `attention_block` tokens and the two adjacent blocks (Big Bird:
Zaheer et al., 2020, arXiv 2007.14062, without its random blocks). Global tokens attend to their whole sequence, and
their whole sequence attends to them, with the same query, key and value projections as other tokens (Longformer has
separate projections).

`add_sparse_layout` computes on the host which tokens attend to which. Each attention layer of the encoder then calls
`attend_flex`, in compiled blocks on CUDA, or `attend_sparsely`, which works on every device: it cuts the sequences into
chunks.

Shapes: T packed tokens (sequences concatenated without padding), R rows (query tokens), N sequences, S tokens of the
longest sequence, A attention heads of width d, X = A d; C chunks of c tokens, each within one sequence; G slots for
the global tokens of a sequence; Q queries and K = L + G keys of a chunk, L of them in the chunk and its neighbors.
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
from albert_cli.model.recomputation import recompute_in_backward

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MAX_QUESTION_TOKENS: Final = 128  # a longer text of a pair is not treated as a question
# Tokens of a chunk. Smaller chunks compute fewer scores that the mask excludes; larger chunks make faster matmuls.
_MIN_WINDOW_CHUNK: Final = 8
_MAX_WINDOW_CHUNK: Final = 128
# Maps queries [n, A, Q, d], keys and values [n, A, K, d], and a mask (True: attend) to contexts [n, A, Q, d]. n: N
# sequences or C chunks.
PaddedAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
Positions = TypeVar("Positions", int, NDArray[np.int64], Tensor)


def add_sparse_layout(tokens: PackedTokens, config: ModelConfig, dropout: float, *, is_compiled: bool) -> PackedTokens:
    """Return the batch with two sparse attention layouts; unchanged if every token attends to its whole sequence.

    The queries of one layout are all tokens; those of the other layout are the rows that the output heads read.
    `dropout` is the rate of the attention's dropout, and `is_compiled` is True if the encoder's block is compiled.
    """
    host = tokens.host
    if config.covers_sequence(int(np.diff(host.offsets).max())):
        return tokens
    device = tokens.ids.device
    all_tokens = np.arange(host.offsets[-1])
    layouts: Sequence[SparseAttentionLayout | BlockMask]
    # `flex_attention` is slow unless it is compiled. Compilation takes minutes and needs a C compiler, so it is used
    # only in compiled blocks.
    if is_compiled and has_flex(device, dropout, config.head_size):
        layouts = make_flex_masks(host, (all_tokens, host.rows), config, device)
    else:
        layouts = build_local_layouts(host, (all_tokens, host.rows), config, device)
    token_layout, row_layout = layouts
    return replace(
        tokens,
        layout=replace(tokens.layout, sparse=token_layout),
        rows=replace(tokens.rows, layout=replace(tokens.rows.layout, sparse=row_layout)),
    )


def global_tokens(host: HostLayout, config: ModelConfig) -> Flags:
    """Return which tokens are global by `attention_global`, bool [T].

    `cls`: the first token of each sequence. `sep`: also the last token of each segment. `question`: also the shorter
    text of a pair if it has at most `MAX_QUESTION_TOKENS`: of a question and a passage, it is the question.
    """
    starts = host.offsets[:-1]
    segment = host.segment_ids
    is_global = np.zeros(len(segment), bool)
    is_global[starts] = True
    if config.attention_global in ("sep", "question"):
        is_global[host.offsets[1:] - 1] = True  # the last token of each sequence
        is_global[:-1] |= segment[:-1] < segment[1:]  # the last token of segment 0 in a pair
    if config.attention_global == "question":
        second_length_N = np.add.reduceat(segment, starts)  # segment ids are 0 and 1, so their sum counts segment 1
        first_length_N = np.diff(host.offsets) - second_length_N
        is_shorter_N2 = np.stack([first_length_N <= second_length_N, second_length_N < first_length_N], 1)
        is_short_N2 = np.stack([first_length_N, second_length_N], 1) <= MAX_QUESTION_TOKENS
        is_pair_N1 = (second_length_N > 0)[:, None]
        is_question_N2 = is_shorter_N2 & is_short_N2 & is_pair_N1
        is_global |= is_question_N2[host.sequence, segment]
    return is_global


def is_neighbor(config: ModelConfig, query: Positions, key: Positions) -> Any:
    """Return True where the position `key` is in the neighborhood of the position `query` in the same sequence.

    The positions are numbers, arrays or tensors that broadcast; the result has their broadcast shape.
    """
    if config.attention == "window":
        return abs(query - key) <= config.attention_window
    return abs(query // config.attention_block - key // config.attention_block) <= 1


# ---------------------------------------------------------------- layouts


@dataclass(frozen=True)
class _Chunks:
    """A batch's tokens cut into C = `total` chunks of c = `size` tokens, each within one sequence.

    The tokens of a chunk attend to `reach` chunks to either side. `sequence` [C] is the index of each chunk's sequence.
    Filler chunks, which round the number of chunks up, count as chunks of the last sequence, but contain no token.
    `slots` [T] is the slot of each token in a rectangle [C, c]: chunk * size + position in the chunk. `is_global` [T]
    marks the global tokens.
    """

    size: int
    reach: int
    total: int
    sequence: NDArray[np.int64]
    slots: NDArray[np.int64]
    is_global: Flags


def build_local_layouts(
    host: HostLayout, queries: Sequence[NDArray[np.int64]], config: ModelConfig, device: torch.device
) -> list[SparseAttentionLayout]:
    """Return a layout for each selection of query tokens; a selection consists of ascending indices into the batch."""
    chunks = _cut_chunks(host, config)
    global_count_N = np.bincount(host.sequence[chunks.is_global])
    # Sequences with fewer than G global tokens leave slots empty.
    is_filled_slot_NG = np.arange(round_up(int(global_count_N.max()))) < global_count_N[:, None]
    visible_CcK = _visible_keys(chunks, is_filled_slot_NG, config)
    keys = _build_chunked_keys(host, chunks, is_filled_slot_NG.shape[1], device)
    return [_build_query_layout(rows, host, chunks, visible_CcK, keys, device) for rows in queries]


def _cut_chunks(host: HostLayout, config: ModelConfig) -> _Chunks:
    """Cut every sequence of a batch into chunks; the last chunk of a sequence may be shorter."""
    if config.attention == "window":
        size = min(_MAX_WINDOW_CHUNK, max(_MIN_WINDOW_CHUNK, config.attention_window))
        reach = -(-config.attention_window // size)
    else:
        size = config.attention_block
        reach = 1
    lengths = np.diff(host.offsets)
    chunks_per_sequence = -(-lengths // size)
    sequence = np.repeat(np.arange(len(lengths)), chunks_per_sequence)
    total = round_up(len(sequence))
    sequence = np.pad(sequence, (0, total - len(sequence)), mode="edge")  # filler chunks
    first_chunk = np.cumsum(chunks_per_sequence) - chunks_per_sequence
    position = np.arange(host.offsets[-1]) - host.offsets[host.sequence]
    slots = first_chunk[host.sequence] * size + position
    return _Chunks(size, reach, total, sequence, slots, global_tokens(host, config))


def _visible_keys(chunks: _Chunks, is_filled_slot_NG: Flags, config: ModelConfig) -> Flags:
    """Return the keys to which each token of a chunk attends, bool [C, c, K]: L local keys, then G global keys.

    The local keys are the slots of the 2 reach + 1 chunks around a chunk. Global tokens are not counted as local keys,
    because no token may attend to a global token twice.
    """
    is_local_key_Cc = np.zeros((chunks.total, chunks.size), bool)
    is_local_key_Cc.flat[chunks.slots] = ~chunks.is_global
    # The chunks around each chunk, [C, 2 reach + 1]; some are outside of the batch or in another sequence.
    chunk = np.arange(chunks.total)[:, None] + np.arange(-chunks.reach, chunks.reach + 1)
    clipped_chunk = np.clip(chunk, 0, chunks.total - 1)
    is_same_sequence = (clipped_chunk == chunk) & (chunks.sequence[clipped_chunk] == chunks.sequence[:, None])
    is_key = is_same_sequence[..., None] & is_local_key_Cc[clipped_chunk]
    is_key_CL = is_key.reshape(chunks.total, -1)
    # Positions are relative to the first token of the query's chunk.
    query_position = np.arange(chunks.size)[:, None]
    key_position = np.arange((2 * chunks.reach + 1) * chunks.size) - chunks.reach * chunks.size
    local_CcL = is_neighbor(config, query_position, key_position) & is_key_CL[:, None]
    global_CG = is_filled_slot_NG[chunks.sequence]
    global_CcG = np.broadcast_to(global_CG[:, None], (chunks.total, chunks.size, global_CG.shape[1]))
    return np.concatenate([local_CcL, global_CcG], 2)


def _build_chunked_keys(host: HostLayout, chunks: _Chunks, global_width: int, device: torch.device) -> ChunkedKeys:
    """Build the layout of keys and values on the device; `global_width` is G, the width of the global rectangle."""
    global_index = np.flatnonzero(chunks.is_global)
    arrays = {"slots": chunks.slots, "global_index": global_index, "sequence": chunks.sequence}
    tensors = copy_together(arrays, device)
    global_layout = make_layout(global_index, host.offsets, device)
    global_slots = global_layout.flat_index(global_width)
    return ChunkedKeys(
        tokens=int(host.offsets[-1]),
        chunks=Rectangle(chunks.total, chunks.size, tensors["slots"], mask=None),
        reach=chunks.reach,
        global_index=tensors["global_index"],
        global_slots=Rectangle(global_layout.sequences, global_width, global_slots, mask=None),
        sequence=tensors["sequence"],
    )


def _build_query_layout(
    rows: NDArray[np.int64],
    host: HostLayout,
    chunks: _Chunks,
    visible_CcK: Flags,
    keys: ChunkedKeys,
    device: torch.device,
) -> SparseAttentionLayout:
    """Build the layout of the query tokens `rows` [R], which are ascending indices into the batch."""
    is_global_row = chunks.is_global[rows]
    local_rows = np.flatnonzero(~is_global_row)
    global_rows = np.flatnonzero(is_global_row)
    # Each local query's chunk, its position in the chunk, and its rank among the queries of the chunk.
    chunk, position = np.divmod(chunks.slots[rows[local_rows]], chunks.size)
    rank = np.arange(len(local_rows)) - np.searchsorted(chunk, chunk)
    width = round_up(int(rank.max(initial=0)) + 1)
    slots = chunk * width + rank
    position_CQ = np.full((chunks.total, width), -1)  # -1: an empty slot
    position_CQ.flat[slots] = position
    mask_CQK = visible_CcK[np.arange(chunks.total)[:, None], position_CQ]
    # Nothing reads the contexts of empty slots, but the softmax over no keys would be NaN.
    mask_CQK[position_CQ < 0] = True
    arrays = {"slots": slots, "mask": mask_CQK[:, None], "local_rows": local_rows, "global_rows": global_rows}
    tensors = copy_together(arrays, device)
    return SparseAttentionLayout(
        keys=keys,
        mask=tensors["mask"],
        local_rows=tensors["local_rows"],
        local_queries=Rectangle(chunks.total, width, tensors["slots"], mask=None),
        global_rows=tensors["global_rows"],
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
    """Return softmax(q k^T / sqrt(d)) v over the keys to which each row attends, [R, A * d].

    `key_layout` is the layout of all tokens, and `padded_attention` computes attention within a rectangle. The inputs
    may end with filler rows and filler tokens; the contexts of filler rows are zero. The backward pass computes the
    padded copies of queries, keys and values again, because saved copies would take several times the memory of the
    packed tensors.
    """
    arguments = (sparse, key_layout, q_RAd, k_TAd, v_TAd, padded_attention)
    if torch.is_grad_enabled() and k_TAd.requires_grad:
        return recompute_in_backward(k_TAd.device, _attend_chunks, *arguments)
    return _attend_chunks(*arguments)


def _attend_chunks(
    sparse: SparseAttentionLayout,
    key_layout: PaddedLayout,
    q_RAd: Tensor,
    k_TAd: Tensor,
    v_TAd: Tensor,
    padded_attention: PaddedAttention,
) -> Tensor:
    """Attend from local rows chunk by chunk, and from global rows to their whole sequence; return contexts [R, X]."""
    context_RX = q_RAd.new_zeros(len(q_RAd), q_RAd.shape[1] * q_RAd.shape[2])
    if len(sparse.local_rows):
        q_CAQd = sparse.local_queries.pad(q_RAd.index_select(0, sparse.local_rows)).transpose(1, 2)
        k_CAKd = sparse.keys.gather_chunks(k_TAd)
        v_CAKd = sparse.keys.gather_chunks(v_TAd)
        local_CAQd = padded_attention(q_CAQd, k_CAKd, v_CAKd, sparse.mask)
        local_RX = sparse.local_queries.unpad(local_CAQd.transpose(1, 2).flatten(2))
        context_RX = context_RX.index_copy(0, sparse.local_rows, local_RX)
    if len(sparse.global_rows):
        q_NAGd = sparse.global_queries.pad(q_RAd.index_select(0, sparse.global_rows)).transpose(1, 2)
        k_NASd = key_layout.pad(k_TAd).transpose(1, 2)
        v_NASd = key_layout.pad(v_TAd).transpose(1, 2)
        global_NAGd = padded_attention(q_NAGd, k_NASd, v_NASd, key_layout.mask)
        global_RX = sparse.global_queries.unpad(global_NAGd.transpose(1, 2).flatten(2))
        context_RX = context_RX.index_copy(0, sparse.global_rows, global_RX)
    return context_RX


# ---------------------------------------------------------------- CUDA


def has_flex(device: torch.device, dropout: float, head_size: int) -> bool:
    """Return True if `flex_attention` can be used: with CUDA, Triton, no dropout, and heads of width 16 or more."""
    return device.type == "cuda" and not dropout and head_size >= 16 and find_spec("triton") is not None


def make_flex_masks(
    host: HostLayout, queries: Sequence[NDArray[np.int64]], config: ModelConfig, device: torch.device
) -> list[BlockMask]:
    """Return a block mask for each selection of query tokens; a selection consists of ascending indices into the batch.

    `flex_attention` skips the blocks in which no query attends to any key.
    """
    from torch.nn.attention.flex_attention import create_block_mask  # imported late, because it imports the compiler

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
    create_mask: Any = create_block_mask  # `Any`, because it is either torch's function or its compiled form
    if device.type != "cpu":
        create_mask = _compiled(create_block_mask)

    def make_mask(query_R: Tensor) -> BlockMask:
        def is_visible(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
            query = query_R[row]
            near: Tensor = is_neighbor(config, position_T[query], position_T[key])
            return (near | global_T[query] | global_T[key]) & (sequence_T[query] == sequence_T[key])

        # None: the mask is the same for all batches and attention heads.
        mask: BlockMask = create_mask(is_visible, None, None, len(query_R), len(position_T), device)
        return mask

    return [make_mask(tensors[f"queries.{number}"]) for number in range(len(queries))]


@cache
def _compiled(function: Any) -> Any:
    """Return the compiled form of a function, compiled once for all shapes."""
    return torch.compile(function, dynamic=True)


def attend_flex(mask: BlockMask, q_RAd: Tensor, k_TAd: Tensor, v_TAd: Tensor) -> Tensor:
    """Return the same contexts as `attend_sparsely`, [R, A * d], with one kernel if it is compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    attend: Any = flex_attention  # `Any`, because torch annotates a union of results, which depends on the arguments
    q_1ARd, k_1ATd, v_1ATd = (x.transpose(0, 1)[None] for x in (q_RAd, k_TAd, v_TAd))
    context_1ARd: Tensor = attend(q_1ARd, k_1ATd, v_1ATd, block_mask=mask)
    return context_1ARd[0].transpose(0, 1).flatten(1)
