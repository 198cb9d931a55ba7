"""Tests of `ModelConfig`: the blocks that each layer uses, and shapes that are rejected."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model.config import PRESETS, ModelConfig


def test_config_sharing_selects_the_blocks_of_each_layer() -> None:
    assert ModelConfig(num_hidden_layers=3).blocks() == ((0, 0),) * 3
    assert ModelConfig(num_hidden_layers=3, sharing="none").blocks() == ((0, 0), (1, 1), (2, 2))
    assert ModelConfig(num_hidden_layers=3, sharing="attention").blocks() == ((0, 0), (0, 1), (0, 2))
    assert ModelConfig(num_hidden_layers=3, sharing="ffn").blocks() == ((0, 0), (1, 0), (2, 0))


def test_config_inner_groups_repeat_their_blocks() -> None:
    config = ModelConfig(num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)
    assert [attention for attention, _ in config.blocks()] == [0, 1, 0, 1, 2, 3, 2, 3]


@given(st.integers(1, 48), st.integers(1, 48), st.integers(1, 3))
def test_config_uses_all_groups_in_order(layers: int, groups: int, inner: int) -> None:
    if groups > layers:
        with pytest.raises(ConfigError):
            ModelConfig(num_hidden_layers=layers, num_hidden_groups=groups, inner_group_num=inner)
        return
    config = ModelConfig(num_hidden_layers=layers, num_hidden_groups=groups, inner_group_num=inner)
    blocks = config.blocks()
    assert len(blocks) == layers * inner
    assert {index for index, _ in blocks} == set(range(groups * inner))
    assert all(attention == feed_forward for attention, feed_forward in blocks)
    group_of_layer = [blocks[layer * inner][0] // inner for layer in range(layers)]
    assert group_of_layer == sorted(group_of_layer)
    assert config.num_attention_sublayers == config.num_feed_forward_sublayers == groups * inner


def test_config_group_sizes_count_the_layers_of_each_group() -> None:
    config = ModelConfig.from_values({"num_hidden_layers": 5, "group_sizes": [1, 3, 1]}, "it")
    assert config.blocks() == ((0, 0), (1, 1), (1, 1), (1, 1), (2, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 7}, "7 attention heads"),
        ({"num_hidden_layers": 2, "num_hidden_groups": 3}, "only 2 layers"),
        ({"num_hidden_groups": 2, "sharing": "attention"}, "one group"),
        ({"inner_group_num": 2, "sharing": "none"}, "one group"),
        ({"group_sizes": (5, 6)}, "must add up to 12 layers"),
        ({"group_sizes": (12, 0)}, "must add up to 12 layers"),
        ({"group_sizes": (6, 6), "num_hidden_groups": 2}, "replaces num_hidden_groups"),
        ({"group_sizes": (6, 6), "sharing": "none"}, "must add up"),
        ({"order_labels": 4}, "order_labels is 4"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"type_vocab_size": 1}, "type_vocab_size is 1"),
        ({"max_position_embeddings": 4}, "max_position_embeddings is 4"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
        ({"hidden_act": "swish"}, "hidden_act"),
        ({"sharing": "some"}, "sharing"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps"),
        ({"initializer_range": float("nan")}, "initializer_range"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers x inner_group_num is 2,147,483,647"),
        ({"num_hidden_layers": 101, "inner_group_num": 100}, "num_hidden_layers x inner_group_num is 10,100"),
    ],
)
def test_config_impossible_shape_raises_with_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        ModelConfig(**change)
    assert raised.value.hint


def test_config_equal_widths_have_no_projection() -> None:
    assert PRESETS["albert-base"].has_projection
    assert not PRESETS["bert-base"].has_projection
    wide = replace(PRESETS["albert-base"], embedding_size=768)
    assert not wide.has_projection
    assert replace(wide, always_project=True).has_projection


def test_presets_have_the_shapes_of_the_paper() -> None:
    heads = {name: config.num_attention_heads for name, config in PRESETS.items()}
    assert heads["albert-xlarge"] == 16 and heads["bert-xlarge"] == 32 and heads["albert-xxlarge"] == 64
    assert all(config.intermediate_size == 4 * config.hidden_size for config in PRESETS.values())
    assert PRESETS["albert-base-v1"].hidden_dropout_prob == 0.1
    assert PRESETS["albert-xxlarge-v1"].hidden_dropout_prob == 0.0
    assert PRESETS["albert-base"].hidden_dropout_prob == 0.0
    assert {config.sharing for name, config in PRESETS.items() if name.startswith("bert")} == {"none"}


def test_config_of_hugging_face_gives_the_shape() -> None:
    base = {"model_type": "albert", "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    assert ModelConfig.from_hf(base, "config.json") == ModelConfig()
    wide = ModelConfig.from_hf({**base, "embedding_size": 768}, "config.json")
    assert wide == ModelConfig(embedding_size=768, always_project=True)
    large = {"model_type": "bert", "hidden_size": 1024, "num_attention_heads": 16}
    bert = ModelConfig.from_hf(large, "config.json")
    assert (bert.embedding_size, bert.sharing, bert.vocab_size) == (1024, "none", 30522)
    assert bert.hidden_act == "gelu" and bert.classifier_dropout_prob == 0.1
    custom = ModelConfig.from_hf({"model_type": "albert_cli", "sharing": "ffn"}, "config.json")
    assert custom.sharing == "ffn"
    assert ModelConfig.from_hf({"hidden_act": "gelu_pytorch_tanh"}, "config.json").hidden_act == "gelu_new"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "roberta"}, "roberta"),
        (
            {"model_type": "bert", "position_embedding_type": "relative_key"},
            "position_embedding_type is 'rel",
        ),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder is True"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_attention_heads": 5}, "5 attention heads"),
        ({"hidden_act": "swish"}, "swish"),
    ],
)
def test_config_of_unsupported_checkpoint_raises(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^config.json: .*{message}"):
        ModelConfig.from_hf(values, "config.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(
    st.dictionaries(
        st.sampled_from(["model_type", "classifier_dropout", *(f.name for f in fields(ModelConfig))]),
        json_values | st.sampled_from(["albert", "bert", "albert_cli", 16, 10**30, 1e300]),
    )
)
def test_config_any_foreign_values_are_read_or_raise(values: dict[str, Any]) -> None:
    try:
        assert ModelConfig.from_hf(values, "config.json").hidden_size >= 1
    except CheckpointError as error:
        assert error.message


def test_config_wrong_type_in_recipe_raises() -> None:
    with pytest.raises(ConfigError, match="hidden_size is '768'"):
        ModelConfig.from_values({"hidden_size": "768"}, "recipe")
    with pytest.raises(ConfigError, match="num_hidden_layers is True"):
        ModelConfig.from_values({"num_hidden_layers": True}, "recipe")
    with pytest.raises(ConfigError, match=r"^recipe: model\.num_attention_heads is 0"):
        ModelConfig.from_values({"num_attention_heads": 0}, "recipe")
    assert ModelConfig.from_values({"hidden_dropout_prob": 0}, "recipe") == ModelConfig()
