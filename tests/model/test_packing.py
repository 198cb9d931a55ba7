"""Tests of packing: it changes no output, and neither do required rows and filler tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from albert_cli.data.batches import PackedBatch
from albert_cli.model.encoder import Encoder
from albert_cli.model.heads import PretrainingModel, SequenceClassifier
from albert_cli.model.packing import pack, round_up
from tests.helpers.shapes import ALL_SHAPES, TINY, random_batch, shake

CPU = torch.device("cpu")
LENGTHS = (20, 3, 11, 2, 7)


def split_sequences(batch: PackedBatch) -> list[PackedBatch]:
    """Return a batch for each sequence."""
    parts = []
    for number, (start, stop) in enumerate(zip(batch.offsets, batch.offsets[1:], strict=False)):
        inside = (batch.masked_index >= start) & (batch.masked_index < stop)
        part = PackedBatch(
            batch.ids[start:stop],
            batch.segment_ids[start:stop],
            batch.position_ids[start:stop],
            np.array([0, stop - start], np.int32),
            batch.masked_index[inside] - start,
            batch.masked_labels[inside],
            batch.order_labels[number : number + 1],
        )
        parts.append(part)
    return parts


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return actual.shape == expected.shape and bool(torch.allclose(actual, expected, rtol=tolerance, atol=tolerance))


@pytest.mark.parametrize("name", ALL_SHAPES)
def test_packing_each_shape_equals_one_by_one(name: str) -> None:
    model = PretrainingModel(ALL_SHAPES[name]).eval()
    shake(model)
    batch = random_batch(LENGTHS)
    packed = model(pack(batch, CPU, batch.masked_index))
    single = [model(pack(part, CPU, part.masked_index)) for part in split_sequences(batch)]
    assert packed.masked.shape == (len(batch.masked_index), TINY.vocab_size)
    assert close(packed.masked, torch.cat([a.masked for a in single]))
    assert close(packed.sentence_order, torch.cat([a.sentence_order for a in single]))


@settings(max_examples=20)
@given(st.lists(st.integers(2, 20), min_size=1, max_size=6), st.integers(0, 99))
def test_packing_any_lengths_equal_one_by_one(lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    model = SequenceClassifier(TINY, 3).eval()
    batch = random_batch(lengths, seed=seed)
    single = [model(pack(part, CPU)) for part in split_sequences(batch)]
    assert close(model(pack(batch, CPU)), torch.cat(single))


@pytest.mark.parametrize("name", ALL_SHAPES)
@pytest.mark.parametrize("lengths", [LENGTHS, (9, 9, 9)], ids=["ragged", "equal"])
def test_packing_required_rows_equal_all_rows(name: str, lengths: tuple[int, ...]) -> None:
    encoder = Encoder(ALL_SHAPES[name]).double()
    shake(encoder)
    batch = random_batch(lengths)
    tokens = pack(batch, CPU, batch.masked_index)
    required = encoder(tokens)
    everything = encoder(tokens, all_rows=True)
    assert everything.shape[0] == len(batch.ids)
    assert_same_states_and_gradients(encoder, required, everything.index_select(0, tokens.rows.index))


def assert_same_states_and_gradients(encoder: Encoder, actual: Tensor, expected: Tensor) -> None:
    """Compare two outputs in fp64, and the gradients of all weights."""
    gradients: list[dict[str, Tensor]] = []
    for x in (actual, expected):
        encoder.zero_grad()
        (x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None})
    assert close(actual, expected, tolerance=1e-12)
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        assert close(gradient, gradients[1][key], tolerance=1e-11), key


def test_packing_rows_are_first_and_masked_tokens() -> None:
    batch = random_batch(LENGTHS)
    rows = pack(batch, CPU, batch.masked_index).rows
    assert rows.index[rows.first].tolist() == batch.offsets[:-1].tolist()
    assert rows.index[rows.masked].tolist() == batch.masked_index.tolist()
    assert rows.index.tolist() == sorted({*batch.offsets[:-1].tolist(), *batch.masked_index.tolist()})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_packing_unpad_of_pad_returns_the_rows(lengths: list[int]) -> None:
    batch = random_batch([n + 1 for n in lengths])
    layout = pack(batch, CPU).layout
    rows = torch.arange(len(batch.ids) * 2, dtype=torch.float32).view(-1, 2) + 1
    padded = layout.pad(rows)
    assert padded.shape == (len(lengths), max(lengths) + 1, 2)
    assert torch.equal(layout.unpad(padded), rows)
    filled = (padded != 0).all(-1)
    assert filled.sum(1).tolist() == [n + 1 for n in lengths]
    assert (layout.mask is None) == (len(set(lengths)) == 1)
    if layout.mask is not None:
        assert torch.equal(layout.mask[:, 0, 0], filled)


# ---------------------------------------------------------------- few shapes of matmuls


@given(st.integers(1, 20_000))
def test_packing_rounding_adds_little_and_gives_few_counts(count: int) -> None:
    assert count <= round_up(count) < count + max(8, count / 16)
    assert round_up(count) % 8 == 0 and round_up(round_up(count)) == round_up(count)
    assert len({round_up(n) for n in range(count + 1, 2 * count + 1)}) <= 17


# The lengths decide the layout, and the shapes decide what a block computes, so one shape is enough for other lengths.
@pytest.mark.parametrize("all_rows", [False, True], ids=["rows", "tokens"])
@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        *((name, LENGTHS) for name in ALL_SHAPES),
        ("three groups of two layers", (9, 9, 9)),
        ("three groups of two layers", (8, 8, 8, 8)),
        ("three groups of two layers", (8,) * 65),  # no padded position is free for filler tokens
    ],
)
def test_packing_filler_leaves_outputs_equal(name: str, all_rows: bool, lengths: tuple[int, ...]) -> None:
    encoder = Encoder(ALL_SHAPES[name]).double()
    shake(encoder)
    batch = random_batch(lengths)
    tokens = pack(batch, CPU, batch.masked_index)
    unfilled = encoder(tokens, all_rows=all_rows)
    filled = encoder(tokens.rounded(), all_rows=all_rows)
    assert len(filled) == round_up(len(unfilled))
    assert_same_states_and_gradients(encoder, unfilled, filled[: len(unfilled)])


def test_packing_filler_values_affect_no_output_or_gradient() -> None:
    encoder = Encoder(TINY)
    filler_id = TINY.vocab_size - 1
    batch = random_batch(LENGTHS)
    batch.ids[batch.ids == filler_id] = 0
    tokens = pack(batch, CPU, batch.masked_index).rounded()
    assert len(tokens.ids) > len(batch.ids)
    count = len(batch.masked_index) + len(LENGTHS)
    before = encoder(tokens)
    tokens.ids[len(batch.ids) :] = filler_id
    tokens.position_ids[len(batch.ids) :] = 5
    after = encoder(tokens)
    assert torch.equal(before[:count], after[:count])
    after[:count].square().sum().backward()
    gradient = encoder.embeddings.word.weight.grad
    assert gradient is not None
    assert gradient[batch.ids].abs().sum() > 0
    assert not gradient[filler_id].any()


class MatmulShapes(TorchDispatchMode):
    """A recorder of the shapes of all matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[torch.Size, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "linear"):
            self.shapes.add(tuple(x.shape for x in args))
        return func(*args, **(kwargs or {}))


def test_packing_bf16_on_cpu_has_few_matmul_shapes() -> None:
    encoder = Encoder(replace(TINY, num_hidden_layers=2))
    rng = np.random.default_rng(0)
    batches = [random_batch(rng.integers(10, 21, 8).tolist(), seed=n) for n in range(40)]
    matmuls = {}
    for enabled in (False, True):
        with MatmulShapes() as matmuls[enabled]:
            for batch in batches:
                tokens = pack(batch, CPU, batch.masked_index)
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    x = encoder(tokens)
                assert x.shape == (len(tokens.rows.index), TINY.hidden_size) and x.isfinite().all()
                x.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())
    # A batch has about twelve matmuls, whose shapes depend on the numbers of tokens and rows and on padding.
    few, many = (len(matmuls[enabled].shapes) for enabled in (True, False))
    assert few < 180 and many > 3 * few, (few, many)
