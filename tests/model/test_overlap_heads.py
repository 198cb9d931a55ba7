"""Tests of overlap heads: what they attend to, and which weights they leave unchanged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Attention, Encoder
from albert_cli.model.overlap_heads import check_overlap_heads, init_overlap_heads
from albert_cli.model.packing import pack

CPU = torch.device("cpu")
SMALL = ModelConfig(
    vocab_size=500,
    embedding_size=32,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=32,
    initializer_range="auto",
)
WIDE = replace(SMALL, embedding_size=128, hidden_size=128, intermediate_size=256)


def _batch(ids: NDArray[np.integer], second_from: int) -> PackedBatch:
    """Return sequences [N, S] whose tokens from `second_from` on are the second segment."""
    count, length = ids.shape
    empty = np.zeros(0, np.int32)
    segments = np.tile((np.arange(length) >= second_from).astype(np.int32), count)
    positions = np.tile(np.arange(length, dtype=np.int32), count)
    offsets = np.arange(count + 1, dtype=np.int32) * length
    return PackedBatch(ids.reshape(-1).astype(np.int32), segments, positions, offsets, empty, empty, empty)


def _scores(encoder: Encoder, block: int, head: int, ids: NDArray[np.integer], second_from: int) -> Tensor:
    """Return the scores before softmax of a head of the first layer for the tokens [S] of one sequence: [S, S]."""
    attention = encoder.attention[block]
    assert isinstance(attention, Attention)
    x_SH = encoder.embeddings(pack(_batch(ids[None], second_from), CPU))
    if encoder.projection is not None:
        x_SH = encoder.projection(x_SH)
    size = encoder.config.hidden_size // encoder.config.num_attention_heads
    rows = slice(head * size, (head + 1) * size)
    q_Sd, k_Sd = (linear(x_SH)[:, rows] for linear in (attention.query, attention.key))
    scores_SS: Tensor = (q_Sd @ k_Sd.T / math.sqrt(size)).detach()
    return scores_SS


def _overlapping(rng: np.random.Generator, count: int) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
    """Return ids [N, 21] of [CLS] and two texts of ten words, and the fraction of words in both texts [N]."""
    words = 1 + np.argsort(rng.random((count, 499)), axis=1)[:, :20]
    shared = rng.integers(0, 11, count)
    words[:, 10:] = np.where(np.arange(10) < shared[:, None], words[:, :10], words[:, 10:])
    words[:, 10:] = rng.permuted(words[:, 10:], axis=1)
    return np.concatenate([np.zeros((count, 1), np.int64), words], axis=1), shared / 10


def _separates_disjoint_from_equal_texts(encoder: Encoder) -> bool:
    """Return True if a linear map of [CLS] predicts more overlap for all equal texts than for all disjoint texts.

    The map predicts the fraction of common words, and is fitted to other pairs.
    """
    rng = np.random.default_rng(0)
    states, fractions = [], []
    for count in (600, 400):
        ids, fraction = _overlapping(rng, count)
        with torch.no_grad():
            cls_NH = encoder.eval()(pack(_batch(ids, 11), CPU)).double().numpy()
        states.append(np.concatenate([cls_NH, np.ones((count, 1))], 1))
        fractions.append(fraction)
    weights = np.linalg.lstsq(states[0], fractions[0], rcond=1e-6)[0]
    predicted = states[1] @ weights
    return bool(predicted[fractions[1] == 0].max() < predicted[fractions[1] == 1].min())


@pytest.mark.parametrize("changes", [{}, {"embedding_size": 96}, {"sharing": "none"}, {"always_project": True}])
def test_overlap_heads_untrained_cls_predicts_the_overlap(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    encoder = Encoder(replace(WIDE, **changes))
    assert not _separates_disjoint_from_equal_texts(encoder)
    init_overlap_heads(encoder, 1, seed=0, cls_id=0, word_ids=torch.arange(1, 500))
    assert _separates_disjoint_from_equal_texts(encoder)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_overlap_head_prefers_the_same_word_then_cls(seed: int) -> None:
    """On average a token scores its own word in the other text highest, and words of its own text lowest."""
    torch.manual_seed(seed)
    encoder = Encoder(WIDE)
    init_overlap_heads(encoder, 1, seed=0, cls_id=0, word_ids=torch.arange(1, 500))
    words = 1 + np.random.default_rng(seed).permutation(499)[:15]
    ids = np.concatenate([[0], words[:10], words[5:]])  # five words are in both texts
    scores_SS = _scores(encoder, 0, 0, ids, 11).numpy()[1:]
    between_words = scores_SS[:, 1:]
    is_same_word = ids[1:, None] == ids[None, 1:]
    is_other_text = (np.arange(20) >= 10)[:, None] != (np.arange(20) >= 10)[None]
    same_word = between_words[is_same_word & is_other_text].mean()
    other_text = between_words[~is_same_word & is_other_text].mean()
    same_text = between_words[~is_other_text].mean()
    assert same_word > scores_SS[:, 0].mean() > other_text > same_text


def test_context_head_attends_less_to_farther_tokens() -> None:
    torch.manual_seed(0)
    encoder = Encoder(replace(WIDE, max_position_embeddings=64))
    init_overlap_heads(encoder, 1, seed=0, cls_id=0, word_ids=torch.arange(1, 500), positions=51, context_heads=1)
    ids = np.concatenate([[0], 1 + np.random.default_rng(0).permutation(499)[:50]])
    attention_SS = torch.softmax(_scores(encoder, 0, WIDE.num_attention_heads - 1, ids, 11), -1).numpy()
    distance_SS = np.abs(np.arange(51) - np.arange(51)[:, None])
    by_distance = [float(attention_SS[distance_SS == distance].mean()) for distance in range(6)]
    assert by_distance == sorted(by_distance, reverse=True)
    assert by_distance[-1] < 1 / 51 < by_distance[1]  # 1 / 51: evenly over all tokens


def test_context_heads_leave_the_heads_between_unchanged() -> None:
    torch.manual_seed(0)
    without_context = Encoder(WIDE)
    encoder = Encoder(WIDE)
    encoder.load_state_dict(without_context.state_dict())
    init_overlap_heads(without_context, 1, seed=0, cls_id=0, word_ids=torch.arange(1, 500))
    init_overlap_heads(encoder, 1, seed=0, cls_id=0, word_ids=torch.arange(1, 500), context_heads=1)
    last_row = (WIDE.num_attention_heads - 1) * WIDE.head_size
    for part in ("key", "value"):
        expected, actual = (getattr(e.attention[0], part).weight for e in (without_context, encoder))
        assert torch.equal(actual[WIDE.head_size : last_row], expected[WIDE.head_size : last_row])
        assert not torch.equal(actual[last_row:], expected[last_row:])


def test_overlap_heads_change_only_the_cls_query_of_other_heads() -> None:
    torch.manual_seed(0)
    encoder = Encoder(SMALL)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    init_overlap_heads(encoder, 0, seed=0, cls_id=0, word_ids=torch.arange(1, 500))
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    init_overlap_heads(encoder, 2, seed=0, cls_id=0, word_ids=torch.arange(1, 500))
    after = encoder.state_dict()
    for part in ("key", "value"):
        assert torch.equal(after[f"attention.0.{part}.weight"][32:], before[f"attention.0.{part}.weight"][32:])
    assert torch.equal(after["attention.0.output.weight"][:, 32:], before["attention.0.output.weight"][:, 32:])
    words = np.arange(1, 25)
    attention_of_cls = torch.softmax(_scores(encoder, 0, 3, np.concatenate([[0], words]), 12), -1)[0]
    assert torch.allclose(attention_of_cls, torch.full((25,), 1 / 25), atol=1e-3)
    query = after["attention.0.query.weight"].clone()
    encoder.load_state_dict(before)
    init_overlap_heads(encoder, 2, seed=0, cls_id=0, word_ids=torch.arange(1, 500))
    assert torch.equal(encoder.state_dict()["attention.0.query.weight"], query)


@pytest.mark.parametrize("width", [4, 16])
def test_narrow_random_embeddings_leave_directions_of_words(width: int) -> None:
    # Each direction of these embeddings depends on the position. Without all of them, only rounding errors remain.
    torch.manual_seed(0)
    encoder = Encoder(replace(SMALL, embedding_size=width, hidden_size=16, intermediate_size=32))
    name = "attention.0.query.weight"
    largest = encoder.state_dict()[name].abs().max().item()
    init_overlap_heads(encoder, 1, seed=0, cls_id=0, word_ids=torch.arange(1, 500))
    rows_dH = encoder.state_dict()[name][:2]  # the first two of a head's four rows compare words
    assert largest < rows_dH.abs().max().item() < 1000


@pytest.mark.parametrize(
    ("heads", "context_heads", "message"),
    [
        (-1, 0, "overlap_heads is -1"),
        (5, 0, "overlap_heads is 5"),
        (0, 5, "overlap_context_heads is 5"),
        (2, 3, r"overlap_heads \+ model\.overlap_context_heads is 5"),
    ],
)
def test_check_overlap_heads_too_many_raise(heads: int, context_heads: int, message: str) -> None:
    check_overlap_heads(2, 2, SMALL)
    with pytest.raises(ConfigError, match=rf"model\.{message}"):
        check_overlap_heads(heads, context_heads, SMALL)


def test_check_overlap_heads_too_narrow_embeddings_raise() -> None:
    with pytest.raises(ConfigError, match="embeddings of size 4 or more; the model's have 3"):
        check_overlap_heads(1, 0, replace(SMALL, embedding_size=3))
