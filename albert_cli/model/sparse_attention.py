"""Attention to a neighbourhood and a few global tokens: time and memory grow with the length, not with its square.

`window`: a token sees `attention_window` tokens to either side (Longformer: Beltagy et al., 2020, arXiv 2004.05150).
`block`: it sees its own block of `attention_block` tokens and the two beside it (Big Bird: Zaheer et al., 2020, arXiv
2007.14062, without its random blocks). Global tokens see their whole sequence and are seen by all of it; they have the
same weights as the others. Shapes: T packed tokens, R rows that a head reads, N sequences, A heads of width d; C chunks
of c tokens, which begin with their sequences; Q queries and K keys of a chunk, G global tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from albert_cli.data.arrays import Flags
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import HostLayout, PackedTokens, PaddedLayout, make_layout, round_up, to_device

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MAX_QUESTION_TOKENS: Final = 128  # tokens; a longer text of a pair is no question
_MAX_WINDOW_CHUNK: Final = (
    128  # tokens of a window's chunk at most: smaller ones waste less, larger ones make faster products
)
PaddedAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # queries, keys, values, mask to contexts


@dataclass(frozen=True)
class ChunkedKeys:
    """The `tokens` of a batch as chunks: `chunks` lays them out as [C, c].

    A chunk's keys are its own tokens, those of `reach` chunks to either side, and the global tokens of its sequence:
    `global_index` into the tokens, `globals` lays them out as [N, G], `sequence` [C].
    """

    tokens: int
    chunks: PaddedLayout
    reach: int
    global_index: Tensor
    globals: PaddedLayout
    sequence: Tensor

    def of_chunks(self, x_TAd: Tensor) -> Tensor:
        """The keys (or values) of each chunk: those of the chunks around it, and the global ones, [C, A, K, d]."""
        x_CAcd = self.chunks.spread(x_TAd[: self.tokens]).transpose(1, 2)
        padded, reach = F.pad(x_CAcd, (0, 0, 0, 0, 0, 0, self.reach, self.reach)), self.reach
        around = [padded[i : i + len(x_CAcd)] for i in range(2 * reach + 1)]
        of_all = self.globals.spread(x_TAd.index_select(0, self.global_index)).transpose(1, 2)
        return torch.cat([*around, of_all.index_select(0, self.sequence)], 2)


@dataclass(frozen=True)
class SparseAttentionLayout:
    """How the rows of a `Grid` attend sparsely to the tokens of theirs, laid out as `keys`.

    `local` rows are laid out by `queries` as [C, Q], with `mask` [C, 1, Q, K]; `broad` rows are global: `broad_grid`
    lays them out as [N, G].
    """

    keys: ChunkedKeys
    mask: Tensor
    local: Tensor
    queries: PaddedLayout
    broad: Tensor
    broad_grid: PaddedLayout


def add_sparse_layout(tokens: PackedTokens, config: ModelConfig, dropout: float) -> PackedTokens:
    """The same batch with sparse attention, unless every token of it sees its whole sequence anyway."""
    host = tokens.host
    if config.covers_sequence(int(np.diff(host.offsets).max())):
        return tokens
    device = tokens.ids.device
    is_flex = has_flex(device, dropout, config.head_size)
    how: Callable[..., Sequence[SparseAttentionLayout | BlockMask]] = make_flex_masks if is_flex else build_local_layout
    of_all, of_rows = how(host, (np.arange(host.offsets[-1]), host.rows), config, device)
    rows = replace(tokens.rows, grid=replace(tokens.rows.grid, near=of_rows))
    return replace(tokens, grid=replace(tokens.grid, near=of_all), rows=rows)


def global_tokens(host: HostLayout, config: ModelConfig) -> Flags:
    """Which tokens see all and are seen by all, bool [T], by `attention_global`, which names more and more of them.

    `cls`: the first of each sequence. `sep`: the last of each segment too. `question`: also all of a pair's shorter
    text, where it has at most `QUESTION` tokens: the question beside its passage.
    """
    starts, segment = host.offsets[:-1], host.segment_ids
    found = np.zeros(len(segment), bool)
    found[starts] = True
    if config.attention_global in ("sep", "question"):
        found[host.offsets[1:] - 1] = True
        found[:-1] |= segment[:-1] < segment[1:]
    if config.attention_global == "question":
        second = np.add.reduceat(segment, starts)
        first = np.diff(host.offsets) - second
        is_question = np.stack([(first <= second), (second < first)], 1) & (
            np.stack([first, second], 1) <= MAX_QUESTION_TOKENS
        )
        found |= (is_question & (second > 0)[:, None])[host.sequence, segment]
    return found


def is_visible(config: ModelConfig, query: Any, key: Any) -> Any:
    """Whether a token at one position of a sequence has one at another in its neighbourhood."""
    if config.attention == "window":
        return abs(query - key) <= config.attention_window
    return abs(query // config.attention_block - key // config.attention_block) <= 1


def build_local_layout(
    host: HostLayout, asked: Sequence[NDArray[np.int64]], config: ModelConfig, device: torch.device
) -> list[SparseAttentionLayout]:
    """How tokens of a batch attend to it, for each of several choices of them (ascending)."""
    is_global = global_tokens(host, config)
    keys, cell, seen_CcK = _build_chunked_keys(host, is_global, config, device)
    total, chunk = seen_CcK.shape[:2]
    found = []
    for rows in asked:
        local, broad = np.flatnonzero(~is_global[rows]), np.flatnonzero(is_global[rows])
        row_chunk, row_place = np.divmod(cell[rows[local]], chunk)
        rank = np.arange(len(local)) - np.searchsorted(row_chunk, row_chunk)
        width = round_up(int(rank.max(initial=0)) + 1)
        slots = row_chunk * width + rank
        place_CQ = np.full((total, width), -1)
        place_CQ.flat[slots] = row_place
        mask_CQK = seen_CcK[np.arange(total)[:, None], place_CQ]
        mask_CQK[place_CQ < 0] = True  # filler, which nothing reads; without a key its softmax would not be a number
        places, mask, of_local, of_broad = to_device([slots, mask_CQK[:, None], local, broad], device)
        queries = PaddedLayout(total, width, keys.chunks.offsets, places, None)
        found.append(
            SparseAttentionLayout(
                keys, mask, of_local, queries, of_broad, make_layout(rows[broad], host.offsets, device)
            )
        )
    return found


def _build_chunked_keys(
    host: HostLayout, is_global: Flags, config: ModelConfig, device: torch.device
) -> tuple[ChunkedKeys, NDArray[np.int64], Flags]:
    """A batch as chunks, the cell of each token among the chunks' [T], and which keys each cell sees [C, c, K]."""
    if config.attention == "window":
        chunk = min(_MAX_WINDOW_CHUNK, max(8, config.attention_window))
        reach = -(-config.attention_window // chunk)
    else:
        chunk, reach = config.attention_block, 1
    lengths, everything = np.diff(host.offsets), np.arange(host.offsets[-1])
    counts = -(-lengths // chunk)
    first_chunk = np.cumsum(counts) - counts
    total = round_up(int(counts.sum()))
    sequence = np.full(total, -1)
    sequence[: counts.sum()] = np.repeat(np.arange(len(lengths)), counts)
    cell = first_chunk[host.sequence] * chunk + everything - host.offsets[host.sequence]

    is_key = np.zeros(total * chunk, bool)
    is_key[cell] = ~is_global
    beside = np.arange(total)[:, None] + np.arange(-reach, reach + 1)  # the chunks that each one sees [C, 2 reach + 1]
    there = np.clip(beside, 0, total - 1)
    same = (there == beside) & (sequence[there] == sequence[:, None])
    near_CK = (same[..., None] & is_key.reshape(total, chunk)[there]).reshape(total, -1)
    key_place = np.arange((2 * reach + 1) * chunk) - reach * chunk  # from the first token of the queries' chunk
    inside_cK = is_visible(config, np.arange(chunk)[:, None], key_place)
    of_sequence = np.bincount(host.sequence[is_global])
    global_CG = np.arange(round_up(int(of_sequence.max()))) < of_sequence[sequence][:, None]
    of_globals = np.broadcast_to(global_CG[:, None], (total, chunk, global_CG.shape[1]))

    # No offsets here: what reads them is a kernel for whole sequences.
    global_index, of_chunk = np.flatnonzero(is_global), np.maximum(sequence, 0)
    cells, of_global, chunks_of, nothing = to_device([cell, global_index, of_chunk, lengths[:0]], device)
    globals_, width = make_layout(global_index, host.offsets, device), global_CG.shape[1]
    globals_ = replace(globals_, width=width, slots=globals_.flat_index(width), mask=None)
    keys = ChunkedKeys(
        len(everything), PaddedLayout(total, chunk, nothing, cells, None), reach, of_global, globals_, chunks_of
    )
    return keys, cell, np.concatenate([inside_cK & near_CK[:, None], of_globals], 2)


def attend_sparsely(
    near: SparseAttentionLayout,
    given: PaddedLayout,
    q_RAd: Tensor,
    k_TAd: Tensor,
    v_TAd: Tensor,
    product: PaddedAttention,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v over what each row sees, [R, A * d]; `given` is the grid of the keys.

    `product` is attention over rectangles: [n, A, Q, d], [n, A, K, d] twice and a mask to [n, A, Q, d]. Rows and tokens
    behind those of the batch are filler. What is laid out here is laid out again for the backward pass: kept, it would
    be several times what attention reads.
    """
    arguments = (near, given, product, q_RAd, k_TAd, v_TAd)
    if torch.is_grad_enabled() and k_TAd.requires_grad:
        again: Tensor = checkpoint(_attend, *arguments, use_reentrant=False)
        return again
    return _attend(*arguments)


def _attend(
    near: SparseAttentionLayout,
    given: PaddedLayout,
    product: PaddedAttention,
    q_RAd: Tensor,
    k_TAd: Tensor,
    v_TAd: Tensor,
) -> Tensor:
    found = q_RAd.new_zeros(len(q_RAd), q_RAd.shape[1] * q_RAd.shape[2])
    if len(near.local):
        q_CAQd = near.queries.spread(q_RAd.index_select(0, near.local)).transpose(1, 2)
        k_CAKd, v_CAKd = map(near.keys.of_chunks, (k_TAd, v_TAd))
        context = product(q_CAQd, k_CAKd, v_CAKd, near.mask)
        found = found.index_copy(0, near.local, near.queries.gather(context.transpose(1, 2).flatten(2)))
    if len(near.broad):
        q_NAGd = near.broad_grid.spread(q_RAd.index_select(0, near.broad)).transpose(1, 2)
        k_NASd, v_NASd = (given.spread(x).transpose(1, 2) for x in (k_TAd, v_TAd))
        context = product(q_NAGd, k_NASd, v_NASd, given.mask)
        found = found.index_copy(0, near.broad, near.broad_grid.gather(context.transpose(1, 2).flatten(2)))
    return found


# ---------------------------------------------------------------- CUDA


def has_flex(device: torch.device, dropout: float, head_size: int) -> bool:
    """Whether `flex_attention` applies: on CUDA with Triton, no dropout, and heads no narrower than its products."""
    return device.type == "cuda" and not dropout and head_size >= 16 and find_spec("triton") is not None


def make_flex_masks(
    host: HostLayout, asked: Sequence[NDArray[np.int64]], config: ModelConfig, device: torch.device
) -> list[BlockMask]:
    """What tokens see of a batch, for each of several choices: for `flex_attention`, which skips blocks unseen."""
    from torch.nn.attention.flex_attention import create_block_mask  # which imports the compiler

    position = np.arange(host.offsets[-1]) - host.offsets[host.sequence]
    arrays = [host.sequence, position, global_tokens(host, config), *asked]
    sequence_T, position_T, global_T, *rows = to_device(arrays, device)
    make: Any = create_block_mask if device.type == "cpu" else _compiled(create_block_mask)

    def mask_of(row_R: Tensor) -> BlockMask:
        def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
            token = row_R[row]
            near: Tensor = is_visible(config, position_T[token], position_T[key]) | global_T[token] | global_T[key]
            return near & (sequence_T[token] == sequence_T[key])

        mask: BlockMask = make(seen, None, None, len(row_R), len(position), device)
        return mask

    return list(map(mask_of, rows))


@cache
def _compiled(function: Any) -> Any:
    return torch.compile(function, dynamic=True)


def attend_flex(mask: BlockMask, q_RAd: Tensor, k_TAd: Tensor, v_TAd: Tensor) -> Tensor:
    """The same as `attend` by one kernel, [R, A * d]."""
    from torch.nn.attention.flex_attention import flex_attention

    is_plain = q_RAd.device.type == "cpu" or torch.compiler.is_compiling()  # the whole block is, which takes it in
    kernel: Any = flex_attention if is_plain else _compiled(flex_attention)
    context: Tensor = kernel(*(x.transpose(0, 1)[None] for x in (q_RAd, k_TAd, v_TAd)), block_mask=mask)
    return context[0].transpose(0, 1).flatten(1)
