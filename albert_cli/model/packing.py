"""The encoder's native input: sequences back to back, so that no padded position is ever computed.

Linear layers see the packed tokens [T, …]. Attention alone needs a rectangle: a `Grid` says where each
token lies in it. Shapes: N sequences, T tokens, S the longest sequence, R the rows that a head reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from albert_cli.data.batches import PackedBatch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from albert_cli.model.sparse_attention import SparseAttentionLayout

_TILE: Final = 128  # rows that a kernel of variable-length attention takes at a time


@dataclass(frozen=True)
class PaddedLayout:
    """Where rows of N sequences lie in a padded [N, S] rectangle.

    `offsets` [N + 1] int32 is where each sequence begins among the rows; `slots` [rows] int64 is n * S + s of each
    row, None when the rows fill the rectangle in order. `reach` is the width rounded up to what attention's kernel
    takes at a time: a number that hardly ever changes, so that nothing is compiled again for it. `near` says how the
    rows attend sparsely; None: to all of theirs.
    """

    sequences: int
    width: int
    offsets: Tensor
    slots: Tensor | None
    mask: Tensor | None  # [N, 1, 1, S] bool, True where a row lies; None when all are full
    reach: int = 0
    near: SparseAttentionLayout | BlockMask | None = None

    def spread(self, rows: Tensor) -> Tensor:
        """[rows, …] to [N, S, …], zeros where no row lies."""
        shape = (self.sequences, self.width, *rows.shape[1:])
        if self.slots is None:
            return rows.view(shape)
        grid = rows.new_zeros(self.sequences * self.width, *rows.shape[1:])
        return grid.index_copy(0, self.slots, rows).view(shape)

    def gather(self, grid: Tensor) -> Tensor:
        """[N, S, …] back to [rows, …]."""
        flat = grid.reshape(self.sequences * self.width, *grid.shape[2:])
        return flat if self.slots is None else flat.index_select(0, self.slots)

    def flat_index(self, width: int) -> Tensor:
        """The slots of the same rows in a rectangle of another width."""
        count, device = self.sequences * self.width, self.offsets.device
        slots = torch.arange(count, device=device) if self.slots is None else self.slots
        return slots // self.width * width + slots % self.width

    def rounded(self, rows: int) -> PaddedLayout:
        """The grid of these `rows` and filler, `round_up(rows)` in all, in a rectangle whose width is rounded up too.

        All filler lies in one cell that the mask leaves out.
        """
        filler, width = round_up(rows) - rows, round_up(self.width)
        if filler and self.sequences * width == rows:
            width = round_up(width + 1)  # there was no such cell
        if not filler and width == self.width:
            return self
        slots = self.flat_index(width)
        taken = torch.zeros(self.sequences * width, dtype=torch.uint8, device=slots.device).index_fill(0, slots, 1)
        mask = taken.bool().view(self.sequences, 1, 1, width)
        return PaddedLayout(
            self.sequences, width, self.offsets, torch.cat([slots, taken.argmin().expand(filler)]), mask
        )


@dataclass(frozen=True)
class HeadRows:
    """The tokens whose last-layer output a head reads, in ascending order; always the first of each sequence."""

    index: Tensor  # [R] int64, into the packed tokens
    grid: PaddedLayout
    first: Tensor  # [N] int64, into the R rows: each sequence's [CLS]
    masked: Tensor  # [M] int64, into the R rows: the masked positions


@dataclass(frozen=True)
class HostLayout:
    """What the host knows of a batch's layout: offsets [N + 1], segment ids [T] and the rows [R] that a head reads."""

    offsets: NDArray[np.int64]
    segment_ids: NDArray[np.int32]
    rows: NDArray[np.int64]

    @property
    def sequence(self) -> NDArray[np.int64]:
        """The sequence that each token is in, int64 [T]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class PackedTokens:
    """A batch on the device: token, segment and position ids [T] int64, and how attention lays them out."""

    ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    grid: PaddedLayout
    rows: HeadRows
    host: HostLayout

    def rounded(self) -> PackedTokens:
        """The same batch in one of a few shapes, with filler behind the tokens and behind the rows that are read.

        No token sees filler, and filler that nothing reads has a gradient of zero.
        """
        tokens, index = len(self.ids), self.rows.index
        ids, segment_ids, position_ids = (
            F.pad(x, (0, round_up(tokens) - tokens)) for x in (self.ids, self.segment_ids, self.position_ids)
        )
        rows = replace(
            self.rows,
            index=F.pad(index, (0, round_up(len(index)) - len(index))),
            grid=self.rows.grid.rounded(len(index)),
        )
        return PackedTokens(ids, segment_ids, position_ids, self.grid.rounded(tokens), rows, self.host)


def round_up(count: int) -> int:
    """The next number that is a multiple of 8 and has at most five significant bits: sixteen of them to a doubling."""
    step = max(8, 1 << count.bit_length() >> 5)
    return -(-count // step) * step


def pack(batch: PackedBatch, device: torch.device, masked_index: NDArray[np.int32] | None = None) -> PackedTokens:
    """Move a host batch to the device, with the rows that the heads will read.

    `masked_index` [M], ascending, are the masked positions (none for a classifier). The layout is worked
    out here, on the host, because shapes must be known there anyway.
    """
    offsets = batch.offsets.astype(np.int64)
    masked = np.zeros(0, np.int64) if masked_index is None else masked_index.astype(np.int64)
    # [CLS] is never masked, so the union has no duplicates.
    wanted = np.sort(np.concatenate([offsets[:-1], masked]))
    arrays: list[NDArray[Any]] = [a.astype(np.int64) for a in (batch.ids, batch.segment_ids, batch.position_ids)]
    arrays += [wanted, np.searchsorted(wanted, offsets[:-1]), np.searchsorted(wanted, masked)]
    cells = [_layout_arrays(np.arange(offsets[-1]), offsets), _layout_arrays(wanted, offsets)]
    moved = iter(to_device([*arrays, *(a for _, parts in cells for a in parts)], device))
    ids, segment_ids, position_ids, index, first, masked_rows = (next(moved) for _ in arrays)
    grid, of_rows = (
        _layout_from_tensors(len(offsets) - 1, width, [next(moved) for _ in parts]) for width, parts in cells
    )
    host = HostLayout(offsets, batch.segment_ids, wanted)
    return PackedTokens(ids, segment_ids, position_ids, grid, HeadRows(index, of_rows, first, masked_rows), host)


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Arrays of the host on the device; on CUDA by one copy out of pinned memory, for which nothing waits."""
    if device.type != "cuda":
        return [torch.from_numpy(a).to(device) for a in arrays]
    with torch.cuda.device(device):
        return copy_as_one_buffer(arrays, lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True), device)


def copy_as_one_buffer(
    arrays: Sequence[NDArray[Any]], new: Callable[[int], Tensor], device: torch.device
) -> list[Tensor]:
    """Arrays on the device as parts of one buffer; `new(bytes)` makes the host's."""
    ends = np.cumsum([-(-a.nbytes // 64) * 64 for a in arrays])  # 64: compiled kernels copy what begins elsewhere
    starts = [0, *ends[:-1].tolist()]
    buffer = new(int(ends[-1]))
    for start, array in zip(starts, arrays, strict=True):
        buffer.numpy()[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    moved = buffer.to(device, non_blocking=True)
    types = [torch.from_numpy(np.empty(0, a.dtype)).dtype for a in arrays]
    return [
        moved[start : start + a.nbytes].view(dtype).view(a.shape)
        for start, a, dtype in zip(starts, arrays, types, strict=True)
    ]


def make_layout(tokens: NDArray[np.int64], offsets: NDArray[np.int64], device: torch.device) -> PaddedLayout:
    """The grid of these tokens (ascending) of sequences that begin at `offsets`."""
    width, parts = _layout_arrays(tokens, offsets)
    return _layout_from_tensors(len(offsets) - 1, width, to_device(parts, device))


def _layout_from_tensors(sequences: int, width: int, parts: Sequence[Tensor]) -> PaddedLayout:
    """The grid of what `_cells` found, once that is on the device."""
    begins, slots, mask = parts if len(parts) > 1 else (parts[0], None, None)
    return PaddedLayout(sequences, width, begins, slots, mask, reach=-(-width // _TILE) * _TILE)


def _layout_arrays(tokens: NDArray[np.int64], offsets: NDArray[np.int64]) -> tuple[int, list[NDArray[Any]]]:
    """Width, and offsets, slots and mask, of the grid of these tokens (ascending) of sequences that begin at `offsets`.

    Offsets alone where the tokens fill it.
    """
    sequence, count = np.searchsorted(offsets, tokens, side="right") - 1, len(offsets) - 1
    lengths = np.bincount(sequence, minlength=count)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    width, begins = int(lengths.max()), starts.astype(np.int32)
    if bool((lengths == width).all()):
        return width, [begins]
    slots = sequence * width + np.arange(len(sequence)) - starts[sequence]
    mask = (np.arange(width) < lengths[:, None])[:, None, None, :]
    return width, [begins, slots, mask]
