"""The counts are exact: pinned figures, and instantiated models of every shape of the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from albert_cli.counting import shapes
from albert_cli.counting.costs import count
from albert_cli.counting.paper import SEVEN, SHAPES
from albert_cli.model.config import PRESETS, ModelConfig

BASE = PRESETS["albert-base"]

# name: without pooler, with pooler, with pooler and both heads, the paper's millions
MAIN = {
    "bert-base": (108_490_752, 109_081_344, 109_705_010, 108),
    "bert-large": (333_557_760, 334_607_360, 335_691_058, 334),
    "bert-xlarge": (1_271_095_296, 1_275_291_648, 1_279_526_194, 1270),
    "albert-base": (11_092_992, 11_683_584, 11_813_810, 12),
    "albert-large": (16_634_368, 17_683_968, 17_847_474, 18),
    "albert-xlarge": (54_528_512, 58_724_864, 59_021_490, 60),
    "albert-xxlarge": (205_814_272, 222_595_584, 223_158_450, 235),
}
# (E, sharing): the same three counts and the paper's millions (Tables 3 and 4), None where it has no such row
ABLATIONS = {
    (64, "all"): (9_090_816, 9_681_408, 9_762_290, 10),
    (64, "attention"): (61_054_464, 61_645_056, 61_725_938, None),
    (64, "ffn"): (35_093_760, 35_684_352, 35_765_234, None),
    (64, "none"): (87_057_408, 87_648_000, 87_728_882, 87),
    (128, "all"): (11_092_992, 11_683_584, 11_813_810, 12),
    (128, "attention"): (63_056_640, 63_647_232, 63_777_458, 64),
    (128, "ffn"): (37_095_936, 37_686_528, 37_816_754, 38),
    (128, "none"): (89_059_584, 89_650_176, 89_780_402, 89),
    (256, "all"): (15_097_344, 15_687_936, 15_916_850, 16),
    (256, "attention"): (67_060_992, 67_651_584, 67_880_498, None),
    (256, "ffn"): (41_100_288, 41_690_880, 41_919_794, None),
    (256, "none"): (93_063_936, 93_654_528, 93_883_442, 93),
    (768, "all"): (30_524_160, 31_114_752, 31_738_418, 31),
    (768, "attention"): (82_487_808, 83_078_400, 83_702_066, 83),
    (768, "ffn"): (56_527_104, 57_117_696, 57_741_362, 57),
    (768, "none"): (108_490_752, 109_081_344, 109_705_010, 108),
}
GROUPS = {
    "albert-base": {
        1: 11_683_584,
        2: 18_771_456,
        3: 25_859_328,
        4: 32_947_200,
        6: 47_122_944,
        12: 89_650_176,
    },
    "albert-large": {1: 17_683_968, 2: 30_280_192, 3: 42_876_416, 4: 55_472_640, 6: 80_665_088}
    | {8: 105_857_536, 12: 156_242_432, 24: 307_397_120},
    "albert-xlarge": {1: 58_724_864, 2: 109_083_136, 4: 209_799_680, 12: 612_665_856, 24: 1_216_965_120},
    "albert-xxlarge": {1: 222_595_584, 2: 423_975_424, 3: 625_355_264, 4: 826_735_104}
    | {6: 1_229_494_784, 12: 2_437_773_824},
}


def three(config: ModelConfig) -> tuple[int, int, int]:
    counts = count(config)
    return counts.without_pooler, counts.with_pooler, counts.total


@pytest.mark.parametrize("name", MAIN)
def test_presets_count_exactly(name: str) -> None:
    assert three(PRESETS[name]) == MAIN[name][:3]


@pytest.mark.parametrize(("embedding", "sharing"), ABLATIONS)
def test_ablations_count_exactly(embedding: int, sharing: str) -> None:
    config = shapes.find(f"albert-base:E={embedding},sharing={sharing}").config
    assert three(config) == ABLATIONS[embedding, sharing][:3]


@pytest.mark.parametrize("name", GROUPS)
def test_layer_groups_count_exactly(name: str) -> None:
    for groups, expected in GROUPS[name].items():
        assert count(replace(PRESETS[name], num_hidden_groups=groups)).with_pooler == expected


def test_inner_blocks_have_weights_of_their_own() -> None:
    assert count(replace(BASE, inner_group_num=2)).with_pooler == 18_771_456


def test_parts_of_the_base_model() -> None:
    counts = count(BASE)
    assert (counts.embeddings, counts.projection, counts.attention + counts.feed_forward) == (
        3_906_048,
        99_072,
        7_087_872,
    )
    assert (counts.pooler, counts.mlm_head, counts.sentence_order_head) == (590_592, 128_688, 1_538)


@pytest.mark.parametrize("name", [name for names in SHAPES.values() for name in names])
def test_counts_equal_the_instantiated_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    from albert_cli.model.heads import PretrainingModel

    config = shapes.find(name).config
    counts = count(config)
    with torch.device("meta"):
        model = PretrainingModel(config)

    def held(*prefixes: str) -> int:
        return sum(p.numel() for n, p in model.named_parameters() if n.startswith(prefixes))

    assert held("encoder.embeddings.") == counts.embeddings
    assert held("encoder.projection.") == counts.projection
    assert held("encoder.attention.") == counts.attention
    assert held("encoder.feed_forward.") == counts.feed_forward
    assert held("encoder.pooler.") == counts.pooler
    assert held("masked.") == counts.mlm_head
    assert held("order.") == counts.sentence_order_head
    assert held("") == counts.total


# What Hugging Face has a class for is compared with that class, too.
EXPRESSIBLE = {
    **{name: PRESETS[name] for name in SEVEN},
    **{f"groups {g}": replace(BASE, num_hidden_groups=g) for g in (3, 12)},
    **{f"E {e}": replace(BASE, embedding_size=e) for e in (64, 256)},
    "inner 2": replace(BASE, inner_group_num=2, num_hidden_groups=2),
    "30522": replace(PRESETS["bert-base"], vocab_size=30522),
}


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_counts_equal_the_instantiated_reference(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ours = EXPRESSIBLE[name]
    bert = ours.sharing == "none"
    kind = "Bert" if bert else "Albert"
    shared = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    keys = shared if bert else (*shared, "embedding_size", "num_hidden_groups", "inner_group_num")
    config = getattr(transformers, f"{kind}Config")(**{key: getattr(ours, key) for key in keys})
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForPreTraining")(config)
    encoder = model.bert if bert else model.albert
    assert sum(p.numel() for p in encoder.parameters()) == count(ours).with_pooler
    assert sum(p.numel() for p in model.parameters()) == count(ours).total
