"""Tests of `model.informed_init`: initial weights of attention, values and embeddings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from albert_cli import config
from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Attention
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.informed_init import InformedInit, apply_informed_init, position_dimensions, word_dimensions

SHAPE = ModelConfig(
    vocab_size=200,
    embedding_size=64,
    hidden_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=40,
    initializer_range="auto",
)
FULL = InformedInit(words="cooccurrence", neighbors=(-1, 1), value_output_scale=0.7)


def make_model(settings: InformedInit, config: ModelConfig = SHAPE, seed: int = 0) -> PretrainingModel:
    torch.manual_seed(0)
    model = PretrainingModel(config)
    words = torch.randn(
        config.vocab_size, word_dimensions(settings, config), generator=torch.Generator().manual_seed(1)
    )
    words[:5] = 0
    apply_informed_init(model, settings, words if settings.words == "cooccurrence" else None, seed)
    return model


def attention(model: PretrainingModel, ids: Tensor, head: int, block: int = 0) -> Tensor:
    """Return the attention weights of a head of the first layer in one sequence [S]: [S, S]."""
    embeddings, encoder = model.encoder.embeddings, model.encoder
    x_SE = embeddings.norm(
        embeddings.word.weight[ids] + embeddings.position.weight[: len(ids)] + embeddings.segment.weight[0]
    )
    x_SH = x_SE if encoder.projection is None else encoder.projection(x_SE)
    layer = encoder.attention[block]
    assert isinstance(layer, Attention)
    size = model.config.head_size
    q_Sd, k_Sd = (linear(x_SH)[:, head * size : (head + 1) * size] for linear in (layer.query, layer.key))
    return torch.softmax(q_Sd @ k_Sd.T / size**0.5, -1).detach()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_size": 64},
        {"sharing": "none"},
        {"hidden_size": 64, "always_project": True},
        {"num_attention_heads": 8},
        {"embedding_size": 128, "hidden_size": 96},
    ],
)
def test_neighbor_heads_attend_to_their_neighbors(changes: dict[str, object]) -> None:
    config = replace(SHAPE, **changes)  # type: ignore[arg-type]
    model = make_model(FULL, config)
    ids = 5 + torch.randperm(195)[:30]
    for block in range(config.num_attention_sublayers):
        for head, offset in ((1, -1), (2, 1)):
            attention_SS = attention(model, ids, head, block)
            neighbor_weights = attention_SS.diagonal(offset)
            assert float(neighbor_weights.mean()) > 0.4
            is_highest = attention_SS.argmax(1)[1:-1] == torch.arange(1, 29) + offset
            assert float(is_highest.float().mean()) > 0.6


def test_masked_head_inverts_the_embedding() -> None:
    """Without any layer, the MLM head predicts the word of each embedding; with random weights it does not."""
    accuracy = {}
    for name, settings in (("informed", FULL), ("random", InformedInit())):
        model = make_model(settings)
        ids = torch.arange(5, 200)
        x_nE = model.encoder.embeddings.norm(model.encoder.embeddings.word.weight[ids])
        assert model.encoder.projection is not None
        logits = model.masked(model.encoder.projection(x_nE), model.encoder.embeddings.word.weight)
        accuracy[name] = float((logits.argmax(1) == ids).float().mean())
    assert accuracy["informed"] > 0.9
    assert accuracy["random"] < 0.2


@pytest.mark.parametrize("changes", [{}, {"hidden_size": 256}, {"hidden_size": 64, "num_attention_heads": 8}])
@pytest.mark.parametrize("neighbors", [(), (-1, 1)])
def test_value_and_output_add_the_set_fraction_of_attended(changes: dict[str, int], neighbors: tuple[int, ...]) -> None:
    settings = replace(FULL, neighbors=neighbors, value_output_scale=0.8)
    config = replace(SHAPE, **changes)  # type: ignore[arg-type]
    model = make_model(settings, config)
    block, words = model.encoder.attention[0], word_dimensions(settings, config)
    assert isinstance(block, Attention)
    x_nE = torch.cat([torch.randn(200, words), torch.zeros(200, 64 - words)], 1)
    x_nH = x_nE if model.encoder.projection is None else model.encoder.projection(x_nE)
    added_nH = block.output(block.value(x_nH))
    gain = ((added_nH * x_nH).sum(1) / (x_nH * x_nH).sum(1)).mean().item()
    assert abs(gain - 0.8) < 0.1
    assert torch.cosine_similarity(x_nH, added_nH, dim=1).mean().item() > 0.65


def test_words_and_positions_have_separate_directions() -> None:
    model, words = make_model(FULL), word_dimensions(FULL, SHAPE)
    table = model.encoder.embeddings
    assert words == 64 - position_dimensions(SHAPE) == 48
    assert not table.word.weight[:, words:].any() and not table.segment.weight[:, words:].any()
    vectors = torch.randn(200, words, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(
        torch.cosine_similarity(table.word.weight[5:, :words], vectors[5:]), torch.ones(195), atol=1e-5
    )
    assert abs(table.word.weight[5:, :words].std().item() / SHAPE.initial_std - 1) < 0.1
    norms = table.word.weight.detach().norm(dim=1)
    assert 0 < float(norms[:5].max()) < float(norms[5:].min())


def test_informed_init_settings_change_only_their_weights() -> None:
    random_state = make_model(InformedInit()).state_dict()
    torch.manual_seed(0)
    assert all(torch.equal(tensor, random_state[name]) for name, tensor in PretrainingModel(SHAPE).state_dict().items())
    tables = {"encoder.embeddings.position.weight", "encoder.embeddings.segment.weight"}
    word, projection = "encoder.embeddings.word.weight", "encoder.projection.weight"
    query_key = {f"encoder.attention.0.{part}.weight" for part in ("query", "key")}
    value_output = {f"encoder.attention.0.{part}.weight" for part in ("value", "output")}
    for settings, changed in (
        (InformedInit(words="cooccurrence"), {word}),
        (InformedInit(neighbors=(1,)), {word, projection, *query_key}),
        (InformedInit(value_output_scale=0.5), {projection, "masked.dense.weight", *value_output}),
    ):
        state = make_model(settings).state_dict()
        assert {
            name for name, tensor in state.items() if not torch.equal(tensor, random_state[name])
        } == tables | changed


@pytest.mark.filterwarnings("error")
def test_informed_init_without_word_vectors_leaves_words_random() -> None:
    """Data without a token have only zero vectors, which have no standard deviation to scale by."""
    torch.manual_seed(0)
    model = PretrainingModel(SHAPE)
    before = model.encoder.embeddings.word.weight.clone()
    settings = InformedInit(words="cooccurrence")
    apply_informed_init(model, settings, torch.zeros(SHAPE.vocab_size, SHAPE.embedding_size), 0)
    assert torch.equal(model.encoder.embeddings.word.weight, before)


def test_informed_init_equal_seeds_give_equal_weights() -> None:
    first, same, other = (make_model(FULL, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
    assert not torch.equal(first["encoder.projection.weight"], other["encoder.projection.weight"])


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        (replace(FULL, neighbors=(-2, -1, 0, 1, 2)), {}, "takes 5 attention heads, the model has 4"),
        (FULL, {"num_attention_heads": 48}, "too narrow"),
        (FULL, {"embedding_size": 256}, "at most twice as wide"),
        (FULL, {"embedding_size": 15}, "heads of width 4 or more, and an embedding_size of 16 or more"),
    ],
)
def test_informed_init_shape_without_room_raises(settings: InformedInit, changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.check(replace(SHAPE, **changes))  # type: ignore[arg-type]


def test_informed_init_negative_value_output_scale_raises() -> None:
    with pytest.raises(ConfigError, match=r"value_output_scale is -1\.0: it should be greater than or equal to 0"):
        config.validate_recipe(InformedInit, {"value_output_scale": -1.0}, "recipe")
