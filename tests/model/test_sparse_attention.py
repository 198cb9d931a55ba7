"""Tests of sparse attention: it equals full attention with a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from albert_cli.data.batches import PackedBatch
from albert_cli.model import sparse_attention
from albert_cli.model.block import row_attention, self_attention
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import PackedTokens, PaddedLayout, pack
from albert_cli.model.sparse_attention import MAX_QUESTION_TOKENS, attend_flex, build_local_layouts, make_flex_masks
from tests.helpers.shapes import TINY, assert_bf16_is_close, random_batch, shake

CPU = torch.device("cpu")
HEADS, SIZE = 2, 4
LONG = replace(TINY, max_position_embeddings=400)
FORMS = st.one_of(
    st.builds(lambda w, g: replace(LONG, attention="window", attention_window=w, attention_global=g),
              st.integers(1, 200), st.sampled_from(["cls", "sep", "question"])),
    st.builds(lambda b, g: replace(LONG, attention="block", attention_block=b, attention_global=g),
              st.integers(1, 80), st.sampled_from(["cls", "sep", "question"])),
)  # fmt: skip
LENGTHS = st.lists(st.integers(2, 250), min_size=1, max_size=3)
WINDOW = replace(LONG, attention="window", attention_window=5)
BLOCK = replace(LONG, attention="block", attention_block=4)
BOTH = pytest.mark.parametrize("config", [WINDOW, BLOCK], ids=["window", "block"])


def plain_mask(batch: PackedBatch, config: ModelConfig) -> NDArray[np.bool_]:
    """Return the attention mask [T, T] from the definitions: True if token i sees token j."""
    total, size, block = len(batch.ids), config.attention_window, config.attention_block
    sequence = np.searchsorted(batch.offsets, np.arange(total), side="right") - 1
    ends = set(batch.offsets[1:].tolist())
    is_global = np.zeros(total, bool)
    sizes = [np.bincount(batch.segment_ids[sequence == s], minlength=2) for s in range(len(batch.offsets) - 1)]
    for token, (position, segment) in enumerate(zip(batch.position_ids, batch.segment_ids, strict=True)):
        is_last = token + 1 in ends or batch.segment_ids[token + 1] != segment
        segment_sizes = sizes[sequence[token]]
        shorter = 0 if segment_sizes[0] <= segment_sizes[1] else 1
        in_question = min(segment_sizes) > 0 and segment == shorter and segment_sizes[shorter] <= MAX_QUESTION_TOKENS
        is_global[token] = (
            position == 0
            or (config.attention_global != "cls" and is_last)
            or (config.attention_global == "question" and in_question)
        )
    i, j = batch.position_ids[:, None].astype(int), batch.position_ids[None, :].astype(int)
    is_near: NDArray[np.bool_] = {
        "window": np.abs(i - j) <= size,
        "block": np.abs(i // block - j // block) <= 1,
        "full": np.ones((total, total), bool),
    }[config.attention]
    is_visible: NDArray[np.bool_] = (is_near | is_global[:, None] | is_global) & (sequence[:, None] == sequence)
    return is_visible


def masked_attention(qkv: Tensor, mask: NDArray[np.bool_]) -> Tensor:
    """Compute softmax(q k' / sqrt(d)) v where the mask is True: [T, 3, A, d] to [T, A * d]."""
    q, k, v = qkv.permute(1, 2, 0, 3)
    scores = (q @ k.transpose(-1, -2) / SIZE**0.5).masked_fill(~torch.from_numpy(mask), -torch.inf)
    context: Tensor = (torch.softmax(scores, -1) @ v).transpose(0, 1).flatten(1)
    return context


def sparse_layouts(tokens: PackedTokens, config: ModelConfig) -> tuple[PaddedLayout, PaddedLayout]:
    """Return the layouts of tokens and rows with sparse attention, even if each token sees all others."""
    of_tokens, of_rows = build_local_layouts(tokens.host, [np.arange(len(tokens.ids)), tokens.host.rows], config, CPU)
    return replace(tokens.layout, sparse=of_tokens), replace(tokens.rows.layout, sparse=of_rows)


@settings(max_examples=25)
@given(FORMS, LENGTHS, st.integers(0, 99))
def test_sparse_attention_equals_full_with_mask(config: ModelConfig, lengths: Sequence[int], seed: int) -> None:
    """Compare all tokens and the rows that a head reads: in fp32, values to 1e-6 and gradients to 1e-5."""
    batch = random_batch(lengths, config, seed)
    tokens = pack(batch, CPU, batch.masked_index)
    mask = plain_mask(batch, config)
    torch.manual_seed(seed)
    qkv = torch.randn(len(batch.ids), 3, HEADS, SIZE)
    layout, rows_layout = sparse_layouts(tokens, config)
    index = tokens.rows.index
    ours, theirs = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    actual_rows = row_attention(ours.index_select(0, index)[:, 0], ours[:, 1:], rows_layout, layout, 0.0)
    actual = torch.cat([self_attention(ours, layout, 0.0), actual_rows])
    expected = masked_attention(theirs, mask)
    expected = torch.cat([expected, expected.index_select(0, index)])
    assert torch.allclose(actual, expected, atol=1e-6, rtol=1e-6)
    weights = torch.randn(expected.shape)
    for x in (actual, expected):
        (x * weights).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(st.lists(st.integers(4, 300), min_size=1, max_size=4), st.integers(0, 99))
def test_sparse_attention_wide_window_equals_full(lengths: Sequence[int], seed: int) -> None:
    config = replace(LONG, attention="window", attention_window=max(lengths) - 1)
    tokens = pack(random_batch(lengths, config, seed), CPU)
    torch.manual_seed(seed)
    qkv = torch.randn(len(tokens.ids), 3, HEADS, SIZE)
    actual = self_attention(qkv, sparse_layouts(tokens, config)[0], 0.0)
    expected = self_attention(qkv, tokens.layout, 0.0)
    assert torch.allclose(actual, expected, atol=1e-6)


@BOTH
def test_sparse_model_wide_window_equals_full_model(config: ModelConfig) -> None:
    torch.manual_seed(0)
    model = PretrainingModel(replace(config, attention="full"))
    batch = random_batch((20, 3, 30, 8))
    wide = replace(config, attention_window=29, attention_block=15)
    outputs, gradients = [], []
    for shape in (model.config, wide, config):
        model.encoder.config = shape
        model.zero_grad()
        logits = model(pack(batch, CPU, batch.masked_index))
        (logits.masked.square().mean() + logits.sentence_order.sum()).backward()
        outputs.append(logits.masked)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.allclose(outputs[0], outputs[2], atol=1e-3)


@BOTH
def test_sparse_model_packed_equals_one_by_one(config: ModelConfig) -> None:
    encoder = Encoder(config).double()
    shake(encoder)
    lengths = (40, 3, 130, 17, 40)
    batch = random_batch(lengths, config)
    tokens = pack(batch, CPU, batch.masked_index)
    everything = encoder(tokens, all_rows=True)
    assert torch.allclose(encoder(tokens), everything.index_select(0, tokens.rows.index), atol=1e-12)
    assert torch.allclose(encoder(tokens.rounded(), all_rows=True)[: sum(lengths)], everything, atol=1e-12)
    single = []
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids, segments, positions = (x[start:stop] for x in (batch.ids, batch.segment_ids, batch.position_ids))
        offsets, empty = np.array([0, stop - start], np.int32), np.zeros(0, np.int32)
        part = pack(PackedBatch(ids, segments, positions, offsets, empty, empty, empty), CPU)
        single.append(encoder(part, all_rows=True))
    assert torch.allclose(torch.cat(single), everything, atol=1e-12)


@BOTH
def test_sparse_attention_half_precision_is_close_to_fp32(config: ModelConfig) -> None:
    assert_bf16_is_close(Encoder(replace(config, initializer_range=0.1)), random_batch((120, 3, 211)))


@BOTH
def test_sparse_attention_dropout_keeps_the_mean(config: ModelConfig) -> None:
    tokens = pack(random_batch((40, 30), config), CPU)
    layout = sparse_layouts(tokens, config)[0]
    qkv = torch.randn(70, 3, HEADS, SIZE)
    mean = torch.stack([self_attention(qkv, layout, 0.5) for _ in range(250)]).mean(0)
    expected = self_attention(qkv, layout, 0.0)
    assert not torch.allclose(expected, self_attention(qkv, layout, 0.5))
    assert (mean - expected).abs().mean() < 0.1


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sparse_attention_memory_grows_linearly_with_length(config: ModelConfig, dtype: torch.dtype) -> None:
    def saved_bytes(length: int, shape: ModelConfig) -> int:
        tokens = pack(random_batch((length,), shape), CPU)
        layout = tokens.layout if shape.attention == "full" else sparse_layouts(tokens, shape)[0]
        sizes: dict[int, int] = {}

        def record_size(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        qkv = torch.randn(length, 3, HEADS, SIZE, dtype=dtype, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
            self_attention(qkv, layout, 0.0)
        return sum(sizes.values())

    assert saved_bytes(4096, config) < 2.2 * saved_bytes(2048, config)
    if dtype == torch.bfloat16:
        full = replace(config, attention="full")
        assert saved_bytes(4096, full) > 3.5 * saved_bytes(2048, full)


@settings(max_examples=25)
@given(FORMS, st.lists(st.integers(2, 60), min_size=1, max_size=3), st.integers(0, 99))
def test_flex_mask_equals_the_plain_mask(config: ModelConfig, lengths: Sequence[int], seed: int) -> None:
    """Only the predicate is tested, on all pairs: the kernel needs a GPU."""
    batch = random_batch(lengths, config, seed)
    tokens = pack(batch, CPU, batch.masked_index)
    mask = plain_mask(batch, config)
    (flex_mask,) = make_flex_masks(tokens.host, [tokens.host.rows], config, CPU)
    row, key = torch.arange(len(tokens.host.rows))[:, None], torch.arange(len(batch.ids))[None]
    assert torch.equal(flex_mask.mask_mod(row, row, row, key), torch.from_numpy(mask[tokens.host.rows]))


@pytest.mark.parametrize(
    ("device", "dropout", "head_size", "expected"),
    [("cuda", 0.0, 16, True), ("cuda", 0.0, 8, False), ("cuda", 0.1, 64, False), ("cpu", 0.0, 64, False)],
)
def test_flex_attention_unsupported_case_uses_chunks(
    device: str, dropout: float, head_size: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_attention, "find_spec", lambda name: object())
    assert sparse_attention.has_flex(torch.device(device), dropout, head_size) == expected
    monkeypatch.setattr(sparse_attention, "find_spec", lambda name: None)
    assert not sparse_attention.has_flex(torch.device(device), dropout, head_size)


@BOTH
def test_flex_attention_equals_chunks(config: ModelConfig) -> None:
    tokens = pack(random_batch((100, 3, 140), config), CPU)
    layout = sparse_layouts(tokens, config)[0]
    qkv = torch.randn(243, 3, HEADS, SIZE)
    (flex_mask,) = make_flex_masks(tokens.host, [np.arange(243)], config, CPU)
    assert torch.allclose(attend_flex(flex_mask, *qkv.unbind(1)), self_attention(qkv, layout, 0.0), atol=1e-5)
