"""The encoder's native input: sequences packed back to back, so that no padded position is ever computed.

Linear layers see the packed tokens [T, …]. Only attention needs padding: a `PaddedLayout` maps packed tokens to slots
of a padded rectangle. Shapes: N sequences, T tokens, S tokens of the longest sequence, R rows that a head reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from albert_cli.data.arrays import Flags
from albert_cli.data.batches import PackedBatch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_KERNEL_TILE: Final = 128  # rows that a kernel of variable-length attention processes at a time
_COPY_ALIGNMENT: Final = 64  # bytes; compiled kernels first copy an input whose address is no multiple of it


# ---------------------------------------------------------------- layouts


@dataclass(frozen=True)
class Rectangle:
    """Slots of packed rows in a padded [N, S] rectangle.

    `slots` [rows] int64 is n * S + s for each row, None if the rows fill the rectangle in order. `mask` [N, 1, 1, S]
    bool is True where a slot holds a row, None if no mask is needed.
    """

    sequences: int
    width: int
    slots: Tensor | None
    mask: Tensor | None

    def pad(self, rows: Tensor) -> Tensor:
        """Copy [rows, …] into [N, S, …]; empty slots are zero."""
        shape = (self.sequences, self.width, *rows.shape[1:])
        if self.slots is None:
            return rows.view(shape)
        padded = rows.new_zeros(self.sequences * self.width, *rows.shape[1:])
        return padded.index_copy(0, self.slots, rows).view(shape)

    def unpad(self, padded: Tensor) -> Tensor:
        """Copy [N, S, …] back to [rows, …]."""
        flat = padded.reshape(self.sequences * self.width, *padded.shape[2:])
        return flat if self.slots is None else flat.index_select(0, self.slots)


@dataclass(frozen=True)
class PaddedLayout(Rectangle):
    """The rectangle of a batch's sequences, one sequence per row of the rectangle.

    `offsets` [N + 1] int32: each sequence's first row. `kernel_width`: the padded width, rounded up to the attention
    kernel's tile so that it rarely triggers recompilation. `sparse`: what each row attends to, None for its whole
    sequence.
    """

    offsets: Tensor
    kernel_width: int = 0
    sparse: SparseAttentionLayout | BlockMask | None = None

    def flat_index(self, width: int) -> Tensor:
        """Return the rows' slots in a rectangle of another width."""
        slots = self.slots
        if slots is None:
            slots = torch.arange(self.sequences * self.width, device=self.offsets.device)
        return slots // self.width * width + slots % self.width

    def rounded(self, rows: int) -> PaddedLayout:
        """Return the layout of these `rows` plus filler: `round_up(rows)` rows in a rectangle of rounded width.

        All filler shares one slot, which the mask excludes.
        """
        filler = round_up(rows) - rows
        width = round_up(self.width)
        if filler and self.sequences * width == rows:
            width = round_up(width + 1)  # without this no slot would be free for filler
        if not filler and width == self.width:
            return self
        slots = self.flat_index(width)
        used = torch.zeros(self.sequences * width, dtype=torch.uint8, device=slots.device).index_fill(0, slots, 1)
        mask = used.bool().view(self.sequences, 1, 1, width)
        free_slot = used.argmin()  # the first unused one
        slots = torch.cat([slots, free_slot.expand(filler)])
        return PaddedLayout(self.sequences, width, slots, mask, self.offsets)


@dataclass(frozen=True)
class ChunkedKeys:
    """Keys and values of a batch of `tokens` tokens, cut into C chunks of c tokens; `chunks` is their rectangle [C, c].

    The keys of a chunk are its own tokens, the tokens of `reach` chunks to either side, and the global tokens of its
    sequence. `global_index` selects the global tokens, `global_slots` is their rectangle [N, G]. `sequence` [C] is each
    chunk's sequence.
    """

    tokens: int
    chunks: Rectangle
    reach: int
    global_index: Tensor
    global_slots: Rectangle
    sequence: Tensor

    def gather_chunks(self, x_TAd: Tensor) -> Tensor:
        """Collect the keys (or values) that each chunk attends to: [T, A, d] to [C, A, K, d]."""
        reach = self.reach
        x_CAcd = self.chunks.pad(x_TAd[: self.tokens]).transpose(1, 2)
        padded = F.pad(x_CAcd, (0, 0, 0, 0, 0, 0, reach, reach))  # empty chunks before the first and after the last
        local = [padded[shift : shift + len(x_CAcd)] for shift in range(2 * reach + 1)]
        global_NAGd = self.global_slots.pad(x_TAd.index_select(0, self.global_index)).transpose(1, 2)
        return torch.cat([*local, global_NAGd.index_select(0, self.sequence)], 2)


@dataclass(frozen=True)
class SparseAttentionLayout:
    """The query rows of sparse attention: local rows, which see a neighborhood, and global rows, which see all.

    `local_index` selects the local rows, `local_queries` is their rectangle [C, Q], `mask` [C, 1, Q, K] marks the keys
    they see. `global_index` selects the global rows, `global_queries` is their rectangle [N, G].
    """

    keys: ChunkedKeys
    mask: Tensor
    local_index: Tensor
    local_queries: Rectangle
    global_index: Tensor
    global_queries: Rectangle


# ---------------------------------------------------------------- batches


@dataclass(frozen=True)
class HeadRows:
    """The tokens whose last-layer state a head reads, in ascending order; always the first of each sequence."""

    index: Tensor  # [R] int64, into the packed tokens
    layout: PaddedLayout
    first: Tensor  # [N] int64, into the R rows: each sequence's [CLS]
    masked: Tensor  # [M] int64, into the R rows: the masked positions


@dataclass(frozen=True)
class HostLayout:
    """A batch's layout on the host: offsets [N + 1], segment ids [T] and the rows [R] that a head reads."""

    offsets: NDArray[np.int64]
    segment_ids: NDArray[np.int32]
    rows: NDArray[np.int64]

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Each token's sequence, int64 [T]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class PackedTokens:
    """A batch on the device: token, segment and position ids [T] int64, and their layout."""

    ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    layout: PaddedLayout
    rows: HeadRows
    host: HostLayout

    def rounded(self) -> PackedTokens:
        """Return the batch with filler after the tokens and after the rows, so that it has one of a few shapes.

        Results do not change: no token attends to filler, and `first` and `masked` select none of it.
        """
        tokens = len(self.ids)
        rows = len(self.rows.index)
        ids, segment_ids, position_ids = (
            F.pad(x, (0, round_up(tokens) - tokens)) for x in (self.ids, self.segment_ids, self.position_ids)
        )
        head_rows = replace(
            self.rows,
            index=F.pad(self.rows.index, (0, round_up(rows) - rows)),
            layout=self.rows.layout.rounded(rows),
        )
        return PackedTokens(ids, segment_ids, position_ids, self.layout.rounded(tokens), head_rows, self.host)


def round_up(count: int) -> int:
    """Round up to a multiple of 8 with at most five significant bits: 16 values from one power of two to the next."""
    step = max(8, 1 << count.bit_length() >> 5)
    return -(-count // step) * step


def pack(batch: PackedBatch, device: torch.device, masked_index: NDArray[np.int32] | None = None) -> PackedTokens:
    """Move a host batch to the device, with the layout of its tokens and of the rows that heads read.

    `masked_index` [M], ascending, are the positions that the masked-language head reads; None: none, even if the batch
    has some. The host computes the layout,
    because it must know the shapes anyway.
    """
    offsets = batch.offsets.astype(np.int64)
    masked = np.zeros(0, np.int64) if masked_index is None else masked_index.astype(np.int64)
    rows = np.sort(np.concatenate([offsets[:-1], masked]))  # [CLS] is never masked, so there are no duplicates
    token_width, token_layout = _layout_arrays(np.arange(offsets[-1]), offsets)
    row_width, row_layout = _layout_arrays(rows, offsets)
    tensors = copy_together(
        {
            "ids": batch.ids.astype(np.int64),
            "segment_ids": batch.segment_ids.astype(np.int64),
            "position_ids": batch.position_ids.astype(np.int64),
            "rows": rows,
            "first": np.searchsorted(rows, offsets[:-1]),
            "masked": np.searchsorted(rows, masked),
            **{f"tokens.{name}": array for name, array in token_layout.items()},
            **{f"rows.{name}": array for name, array in row_layout.items()},
        },
        device,
    )
    sequences = len(offsets) - 1
    return PackedTokens(
        ids=tensors["ids"],
        segment_ids=tensors["segment_ids"],
        position_ids=tensors["position_ids"],
        layout=_layout_from_tensors(sequences, token_width, tensors, "tokens."),
        rows=HeadRows(
            index=tensors["rows"],
            layout=_layout_from_tensors(sequences, row_width, tensors, "rows."),
            first=tensors["first"],
            masked=tensors["masked"],
        ),
        host=HostLayout(offsets, batch.segment_ids, rows),
    )


def make_layout(tokens: NDArray[np.int64], offsets: NDArray[np.int64], device: torch.device) -> PaddedLayout:
    """Return the layout of these tokens (ascending) of sequences that begin at `offsets`."""
    width, arrays = _layout_arrays(tokens, offsets)
    return _layout_from_tensors(len(offsets) - 1, width, copy_together(arrays, device))


def _layout_from_tensors(sequences: int, width: int, tensors: Mapping[str, Tensor], prefix: str = "") -> PaddedLayout:
    """Build a layout from the arrays of `_layout_arrays`, which are on the device by now."""
    return PaddedLayout(
        sequences=sequences,
        width=width,
        slots=tensors.get(f"{prefix}slots"),
        mask=tensors.get(f"{prefix}mask"),
        offsets=tensors[f"{prefix}offsets"],
        kernel_width=-(-width // _KERNEL_TILE) * _KERNEL_TILE,
    )


def _layout_arrays(
    tokens: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[int, dict[str, NDArray[np.int32] | NDArray[np.int64] | Flags]]:
    """Return the width and the arrays of a layout; without slots and mask if the tokens fill the rectangle.

    `tokens` are ascending, of sequences that begin at `offsets`.
    """
    sequence = np.searchsorted(offsets, tokens, side="right") - 1
    lengths = np.bincount(sequence, minlength=len(offsets) - 1)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    width = int(lengths.max())
    if bool((lengths == width).all()):
        return width, {"offsets": starts.astype(np.int32)}
    return width, {
        "offsets": starts.astype(np.int32),
        "slots": sequence * width + np.arange(len(sequence)) - starts[sequence],
        "mask": (np.arange(width) < lengths[:, None])[:, None, None, :],
    }


# ---------------------------------------------------------------- copies to the device


def copy_together(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Copy named arrays to the device in one transfer."""
    return dict(zip(arrays, to_device(list(arrays.values()), device), strict=True))


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Copy arrays to the device; on CUDA in one asynchronous transfer from pinned memory."""
    if device.type != "cuda":
        return [torch.from_numpy(a).to(device) for a in arrays]
    with torch.cuda.device(device):
        return copy_as_one_buffer(arrays, lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True), device)


def copy_as_one_buffer(
    arrays: Sequence[NDArray[Any]], new_buffer: Callable[[int], Tensor], device: torch.device
) -> list[Tensor]:
    """Copy arrays to the device as views of one buffer; `new_buffer(bytes)` allocates the host's side."""
    ends = np.cumsum([-(-a.nbytes // _COPY_ALIGNMENT) * _COPY_ALIGNMENT for a in arrays])
    starts = [0, *ends[:-1].tolist()]
    buffer = new_buffer(int(ends[-1]))
    for start, array in zip(starts, arrays, strict=True):
        buffer.numpy()[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    on_device = buffer.to(device, non_blocking=True)
    dtypes = [torch.from_numpy(np.empty(0, a.dtype)).dtype for a in arrays]
    return [
        on_device[start : start + a.nbytes].view(dtype).view(a.shape)
        for start, a, dtype in zip(starts, arrays, dtypes, strict=True)
    ]
