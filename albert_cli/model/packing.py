"""Build the input of all models: `PackedTokens`, a batch whose sequences are concatenated without padding.

`pack` moves a batch from the host to the device. Linear layers compute on the packed tokens [T, …]. Only attention may
need padding: a `PaddedLayout` maps packed tokens to the slots of a padded rectangle [N, S] and back.

Shapes: N sequences, T tokens, S tokens of the longest sequence, R rows (tokens whose last state a pretraining or task
head reads), M masked positions, A attention heads of width d; for sparse attention C chunks of c tokens, K keys of a
chunk, G global tokens of a sequence.
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

from albert_cli.data.batches import PackedBatch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_KERNEL_TILE: Final = 128  # rows that the variable-length attention kernel processes at a time
_COPY_ALIGNMENT: Final = 64  # bytes; compiled kernels first copy an input whose address is not a multiple of this


# ---------------------------------------------------------------- layouts


@dataclass(frozen=True)
class Rectangle:
    """A padded rectangle of N = `sequences` by S = `width` slots, and the slot of each packed row.

    A row is an entry of the first dimension of a packed tensor, such as a token's hidden state.
    `slots` [rows] int64: n * S + s for the row at position s of sequence n; None if the rows fill the rectangle in
    order. `mask` [N, 1, 1, S] bool: True where a slot contains a row; None if every slot contains a row, or if another
    mask is used (`SparseAttentionLayout.mask`).
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
        if self.slots is None:
            return flat
        return flat.index_select(0, self.slots)


@dataclass(frozen=True)
class PaddedLayout(Rectangle):
    """The rectangle of a batch, whose packed rows are all tokens or a selection of the tokens of each sequence.

    `offsets` [N + 1] int32: the index of each sequence's first packed row, and at the end the number of rows.
    `kernel_width`: the width rounded up to a multiple of the attention kernel's tile, because each new value would be
    compiled. `sparse`: the tokens to which each row attends; None for all tokens of the row's sequence.
    """

    offsets: Tensor
    kernel_width: int = 0
    sparse: SparseAttentionLayout | BlockMask | None = None

    def flat_index(self, width: int) -> Tensor:
        """Return the slots [rows] that the rows would have in a rectangle of this width."""
        slots = self.slots
        if slots is None:
            slots = torch.arange(self.sequences * self.width, device=self.offsets.device)
        sequence = slots // self.width
        position = slots % self.width
        return sequence * width + position

    def rounded(self, rows: int) -> PaddedLayout:
        """Return a layout with filler after the rows: `round_up(rows)` rows, in a rectangle of rounded width.

        `rows` is the number of rows in this layout. All filler rows share one slot, which the mask excludes. The result
        has no `kernel_width`, because the variable-length kernel needs no filler.
        """
        filler = round_up(rows) - rows
        width = round_up(self.width)
        if filler and self.sequences * width == rows:
            width = round_up(width + 1)  # otherwise the rows would leave no slot for filler
        if not filler and width == self.width:
            return self
        slots = self.flat_index(width)
        is_used = torch.zeros(self.sequences * width, dtype=torch.uint8, device=slots.device).index_fill(0, slots, 1)
        mask = is_used.bool().view(self.sequences, 1, 1, width)
        free_slot = is_used.argmin()  # the first slot that contains no row
        slots = torch.cat([slots, free_slot.expand(filler)])
        return PaddedLayout(self.sequences, width, slots, mask, self.offsets)


@dataclass(frozen=True)
class ChunkedKeys:
    """The keys (and values) of sparse attention, for a batch of `tokens` tokens cut into C chunks of c tokens.

    `chunks` is the rectangle of all tokens, [C, c]: its "sequences" are the chunks. The queries of a chunk attend to K
    keys: the tokens of the chunk, those of `reach` chunks to either side, and G global tokens of its sequence.
    `global_index` are the indices of the global tokens in the batch, and `global_slots` is their rectangle [N, G].
    `sequence` [C] is the index of each chunk's sequence.
    """

    tokens: int
    chunks: Rectangle
    reach: int
    global_index: Tensor
    global_slots: Rectangle
    sequence: Tensor

    def gather_chunks(self, x_TAd: Tensor) -> Tensor:
        """Collect the keys (or values) to which each chunk attends: [T, A, d] to [C, A, K, d]."""
        reach = self.reach
        x_CAcd = self.chunks.pad(x_TAd[: self.tokens]).transpose(1, 2)
        # `reach` chunks of zeros before the first chunk and after the last, so that every chunk has neighbors.
        padded = F.pad(x_CAcd, (0, 0, 0, 0, 0, 0, reach, reach))
        neighbors = [padded[shift : shift + len(x_CAcd)] for shift in range(2 * reach + 1)]
        global_NAGd = self.global_slots.pad(x_TAd.index_select(0, self.global_index)).transpose(1, 2)
        return torch.cat([*neighbors, global_NAGd.index_select(0, self.sequence)], 2)


@dataclass(frozen=True)
class SparseAttentionLayout:
    """The query rows of sparse attention: local rows attend to a neighborhood, global rows to their whole sequence.

    There are R rows: all tokens, or those that the output heads read.
    `local_rows` are the indices of the local rows among the R rows, and `local_queries` is their rectangle [C, Q], for
    at most Q rows of a chunk. `mask` [C, 1, Q, K] is True where a local row attends to a key. `global_rows` are the
    indices of the global rows among the R rows, and `global_queries` is their rectangle [N, G].
    """

    keys: ChunkedKeys
    mask: Tensor
    local_rows: Tensor
    local_queries: Rectangle
    global_rows: Tensor
    global_queries: Rectangle


# ---------------------------------------------------------------- batches


@dataclass(frozen=True)
class HeadRows:
    """The tokens whose last state a head reads: the first token of each sequence ([CLS]) and the masked positions."""

    index: Tensor  # [R] int64, ascending: the index of each row among the packed tokens
    layout: PaddedLayout
    first: Tensor  # [N] int64: the index of each sequence's [CLS] among the R rows
    masked: Tensor  # [M] int64: the indices of the masked positions among the R rows


@dataclass(frozen=True)
class HostLayout:
    """A batch's layout in the host's memory: offsets [N + 1], segment ids [T], and `HeadRows.index` [R] as `rows`."""

    offsets: NDArray[np.int64]
    segment_ids: NDArray[np.int32]
    rows: NDArray[np.int64]

    @property
    def sequence(self) -> NDArray[np.int64]:
        """The index of each token's sequence, int64 [T]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class PackedTokens:
    """A batch on the device: token, segment and position ids [T] int64, the layout of the tokens, and the head rows.

    `host` is the same layout in the host's memory, for code that needs it without waiting for the device.
    """

    ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    layout: PaddedLayout
    rows: HeadRows
    host: HostLayout

    def rounded(self) -> PackedTokens:
        """Return the batch with filler after the tokens and after the head rows, so that few different shapes occur.

        Results do not change: no token attends to filler, and `first` and `masked` select no filler. `host` does not
        contain the filler.
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
    """Round a count up to one of few numbers, which is larger by less than 8 or by less than 1/16.

    The results are multiples of 8 and, above 256, multiples of 1/32 of the next power of two.
    """
    step = max(8, (1 << count.bit_length()) // 32)
    return -(-count // step) * step


def pack(batch: PackedBatch, device: torch.device, masked_index: NDArray[np.int32] | None = None) -> PackedTokens:
    """Move a batch from the host to the device, with the layouts of its tokens and of the rows that heads read.

    `masked_index` [M] are the indices of the tokens that the masked-language head reads, in ascending order. If it is
    None, this head reads nothing, even if the batch has masked tokens. The host computes the layouts, because it needs
    their shapes to start kernels.
    """
    offsets = batch.offsets.astype(np.int64)
    masked = np.zeros(0, np.int64) if masked_index is None else masked_index.astype(np.int64)
    rows = np.sort(np.concatenate([offsets[:-1], masked]))  # without duplicates, because [CLS] is never masked
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
    """Return the layout of a selection of tokens: `tokens` are ascending indices, `offsets` [N + 1] the sequences'."""
    width, arrays = _layout_arrays(tokens, offsets)
    return _layout_from_tensors(len(offsets) - 1, width, copy_together(arrays, device))


def _layout_from_tensors(sequences: int, width: int, tensors: Mapping[str, Tensor], prefix: str = "") -> PaddedLayout:
    """Build a layout from the arrays of `_layout_arrays` on the device, whose names begin with `prefix`."""
    return PaddedLayout(
        sequences=sequences,
        width=width,
        slots=tensors.get(f"{prefix}slots"),
        mask=tensors.get(f"{prefix}mask"),
        offsets=tensors[f"{prefix}offsets"],
        kernel_width=-(-width // _KERNEL_TILE) * _KERNEL_TILE,
    )


def _layout_arrays(tokens: NDArray[np.int64], offsets: NDArray[np.int64]) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the width and the arrays of a layout (`make_layout`), by the names of the fields of `PaddedLayout`.

    Slots and mask are left out if the tokens fill the rectangle.
    """
    sequence = np.searchsorted(offsets, tokens, side="right") - 1
    lengths = np.bincount(sequence, minlength=len(offsets) - 1)
    row_offsets = np.concatenate([[0], np.cumsum(lengths)])
    width = int(lengths.max())
    arrays: dict[str, NDArray[Any]] = {"offsets": row_offsets.astype(np.int32)}
    if bool((lengths < width).any()):
        position = np.arange(len(sequence)) - row_offsets[sequence]
        arrays["slots"] = sequence * width + position
        arrays["mask"] = (np.arange(width) < lengths[:, None])[:, None, None, :]
    return width, arrays


# ---------------------------------------------------------------- copies to the device


def copy_together(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Copy arrays to the device as `to_device` does, and return them under the same names."""
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
    """Copy arrays to the device in one transfer; the tensors are views of one buffer.

    `new_buffer(size)` allocates a uint8 tensor of `size` bytes in the host's memory.
    """
    ends = np.cumsum([-(-a.nbytes // _COPY_ALIGNMENT) * _COPY_ALIGNMENT for a in arrays])
    starts = [0, *ends[:-1].tolist()]
    buffer = new_buffer(int(ends[-1]))
    for start, array in zip(starts, arrays, strict=True):
        buffer.numpy()[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    on_device = buffer.to(device, non_blocking=True)
    # torch has no public function that maps NumPy's dtypes to its own.
    dtypes = [torch.from_numpy(np.empty(0, a.dtype)).dtype for a in arrays]
    return [
        on_device[start : start + a.nbytes].view(dtype).view(a.shape)
        for start, a, dtype in zip(starts, arrays, dtypes, strict=True)
    ]
