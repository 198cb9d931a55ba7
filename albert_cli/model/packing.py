"""The encoder's native input: sequences back to back, so that no padded position is ever computed.

Linear layers see the packed tokens [T, …]. Attention alone needs a rectangle: a `Grid` says where each
token lies in it. Shapes: N sequences, T tokens, S the longest sequence, R the rows that a head reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from albert_cli.data.batches import PackedBatch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from albert_cli.model.sparse import Near


@dataclass(frozen=True)
class Grid:
    """Where rows of N sequences lie in a padded [N, S] rectangle.

    `offsets` [N + 1] int32 is where each sequence begins among the rows; `slots` [rows] int64 is n * S + s of each
    row, None when the rows fill the rectangle in order. `near` says how they attend sparsely; None: to all of theirs.
    """

    sequences: int
    width: int
    offsets: Tensor
    slots: Tensor | None
    mask: Tensor | None  # [N, 1, 1, S] bool, True where a row lies; None when all are full
    near: Near | BlockMask | None = None

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

    def rounded(self, rows: int) -> Grid:
        """The grid of these `rows` and filler, `round_up(rows)` in all, in a rectangle whose width is rounded up too.

        All filler lies in one cell that the mask leaves out.
        """
        filler, width = round_up(rows) - rows, round_up(self.width)
        if filler and self.sequences * width == rows:
            width = round_up(width + 1)  # there was no such cell
        if not filler and width == self.width:
            return self
        slots = torch.arange(rows, device=self.offsets.device) if self.slots is None else self.slots
        slots = slots // self.width * width + slots % self.width
        taken = torch.zeros(self.sequences * width, dtype=torch.uint8, device=slots.device).index_fill(0, slots, 1)
        mask = taken.bool().view(self.sequences, 1, 1, width)
        return Grid(self.sequences, width, self.offsets, torch.cat([slots, taken.argmin().expand(filler)]), mask)


@dataclass(frozen=True)
class Rows:
    """The tokens whose last-layer output a head reads, in ascending order; always the first of each sequence."""

    index: Tensor  # [R] int64, into the packed tokens
    grid: Grid
    first: Tensor  # [N] int64, into the R rows: each sequence's [CLS]
    masked: Tensor  # [M] int64, into the R rows: the masked positions


@dataclass(frozen=True)
class HostTokens:
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
    grid: Grid
    rows: Rows
    host: HostTokens

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
    put = put_on(device)
    rows = Rows(
        put(wanted),
        grid_of(wanted, offsets, put),
        put(np.searchsorted(wanted, offsets[:-1])),
        put(np.searchsorted(wanted, masked)),
    )
    ids, segment_ids, position_ids = (
        put(a.astype(np.int64)) for a in (batch.ids, batch.segment_ids, batch.position_ids)
    )
    host = HostTokens(offsets, batch.segment_ids, wanted)
    return PackedTokens(ids, segment_ids, position_ids, grid_of(np.arange(offsets[-1]), offsets, put), rows, host)


def put_on(device: torch.device) -> Callable[[NDArray[Any]], Tensor]:
    """A function that moves an array to the device."""
    return lambda array: torch.from_numpy(array).to(device, non_blocking=True)


def grid_of(tokens: NDArray[np.int64], offsets: NDArray[np.int64], put: Callable[[NDArray[Any]], Tensor]) -> Grid:
    """The grid of these tokens (ascending) of sequences that begin at `offsets`."""
    sequence, count = np.searchsorted(offsets, tokens, side="right") - 1, len(offsets) - 1
    lengths = np.bincount(sequence, minlength=count)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    width, begins = int(lengths.max()), put(starts.astype(np.int32))
    if bool((lengths == width).all()):
        return Grid(count, width, begins, None, None)
    slots = sequence * width + np.arange(len(sequence)) - starts[sequence]
    mask = (np.arange(width) < lengths[:, None])[:, None, None, :]
    return Grid(count, width, begins, put(slots), put(mask))
