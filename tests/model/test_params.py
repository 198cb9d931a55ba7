"""The counts are exact: pinned figures, instantiated models, and what the paper prints."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model.config import PRESETS, ModelConfig
from albert_cli.model.params import SEVEN, count, describe, paper_count, paper_figure, paper_note

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
    figure = paper_figure(PRESETS[name])
    assert figure is not None and figure[0] == MAIN[name][3]


@pytest.mark.parametrize(("embedding", "sharing"), ABLATIONS)
def test_ablations_count_exactly(embedding: int, sharing: str) -> None:
    config = replace(BASE, embedding_size=embedding, sharing=sharing)  # type: ignore[arg-type]
    *counts, millions = ABLATIONS[embedding, sharing]
    assert three(config) == tuple(counts)
    figure = paper_figure(config)
    assert (figure and figure[0]) == millions
    if millions is not None:
        assert round(paper_count(config) / 1e6) == millions
        assert paper_note(config) == ""


@pytest.mark.parametrize("name", GROUPS)
def test_layer_groups_count_exactly(name: str) -> None:
    for groups, expected in GROUPS[name].items():
        assert count(replace(PRESETS[name], num_hidden_groups=groups)).with_pooler == expected


def test_inner_blocks_have_weights_of_their_own() -> None:
    assert count(replace(BASE, inner_group_num=2)).with_pooler == 18_771_456


@pytest.mark.parametrize(("hidden", "millions"), [(1024, 18), (2048, 60), (4096, 225), (6144, 499)])
def test_three_layer_rows_of_table_12(hidden: int, millions: int) -> None:
    config = ModelConfig(
        hidden_size=hidden,
        num_hidden_layers=3,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )
    assert paper_figure(config) == (millions, "Table 11" if hidden == 1024 else "Table 12")
    # The paper's own figure needs a position table of width H, and is then met to the million.
    assert round((paper_count(config) + 512 * (hidden - 128)) / 1e6) == millions
    if hidden == 6144:
        assert three(config) == (457_763_328, 495_518_208, 496_347_314)


def test_parts_of_the_base_model() -> None:
    counts = count(BASE)
    assert (counts.embeddings, counts.projection, counts.blocks) == (3_906_048, 99_072, 7_087_872)
    assert (counts.pooler, counts.mlm_head, counts.sentence_order_head) == (590_592, 128_688, 1_538)


def test_differences_to_the_paper_are_explained() -> None:
    notes = {name: paper_note(PRESETS[name]) for name in SEVEN}
    assert {name for name, note in notes.items() if note} == {
        "bert-xlarge",
        "albert-xlarge",
        "albert-xxlarge",
    }
    assert "235M" in notes["albert-xxlarge"] and "222,595,584" in notes["albert-xxlarge"]
    assert "not reproducible" in notes["albert-xxlarge"]


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


def test_describe_shows_the_seven_presets_beside_the_paper() -> None:
    data, text = describe()
    assert [m["name"] for m in data["models"]] == list(MAIN)
    for model in data["models"]:
        without, with_pooler, total, millions = MAIN[model["name"]]
        assert (model["without_pooler"], model["with_pooler"]) == (without, with_pooler)
        assert model["total"] == total
        assert model["paper"]["figure"] == millions
        assert sum(model["parts"].values()) == total
        assert f"{total:,}" in text and f"{millions}M" in text
    json.dumps(data)


def test_describe_reads_recipes_and_checkpoints(tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text('extends = "pretrain/albert-base"\n[model]\nembedding_size = 64\n')
    ours = tmp_path / "checkpoint"
    ours.mkdir()
    (ours / "config.json").write_text(
        '{"model_type": "albert", "embedding_size": 128, "hidden_size": 768, '
        '"num_attention_heads": 12, "intermediate_size": 3072, "gap_size": 0}'
    )
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text('{"model_type": "bert", "vocab_size": 30522}')
    data, _ = describe([str(recipe), str(ours), str(bert), "pretrain/albert-large", "pretrain/bert-large"])
    counts = [model["with_pooler"] for model in data["models"]]
    assert counts == [9_681_408, 11_683_584, 109_482_240, 17_683_968, 334_607_360]
    sources = [model["source"] for model in data["models"]]
    assert sources == ["recipe", "checkpoint", "checkpoint", "recipe", "recipe"]


def test_shipped_paper_recipes_have_the_presets_shapes() -> None:
    for name in SEVEN:
        if name == "bert-xlarge":
            continue
        data, _ = describe([f"pretrain/{name}", name])
        recipe, preset = (model["config"] for model in data["models"])
        dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        assert {k: v for k, v in recipe.items() if k not in dropouts} == {
            k: v for k, v in preset.items() if k not in dropouts
        }


def test_an_assumed_vocabulary_is_said(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[model]\nvocab_size = 8000\n")
    data, text = describe(["mini/wiki", str(recipe), "albert-base"])
    assert [m["vocab_size"] for m in data["models"]] == [30_000, 8_000, 30_000]
    assert [m["vocab_size_assumed"] for m in data["models"]] == [True, False, False]
    assert [line for line in text.splitlines() if "30,000 pieces" in line] == [
        "mini/wiki: names no vocabulary; counted with 30,000 pieces."
    ]


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="albert-lrage") as raised:
        describe(["albert-lrage"])
    assert raised.value.hint is not None and "albert-large" in raised.value.hint


def test_unusable_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        describe([str(tmp_path)])
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        describe([str(tmp_path)])
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(CheckpointError, match="gpt2"):
        describe([str(tmp_path)])
    recipe = tmp_path / "r.toml"
    recipe.write_text("[model]\nhiden_size = 12\n")
    with pytest.raises(ConfigError, match="hiden_size") as raised:
        describe([str(recipe)])
    assert raised.value.hint is not None and "hidden_size" in raised.value.hint
    recipe.write_text("[train]\nseed = 1\n")
    with pytest.raises(ConfigError, match=r"no \[model\] section"):
        describe([str(recipe)])
    for name in ("finetune/cola", "mini/table"):
        with pytest.raises(ConfigError, match="a fine-tuning recipe has no shape of its own"):
            describe([name])


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from albert_cli.model import params;"
        "params.describe([]); params.describe(['pretrain/bert-large']);"
        "heavy = ('torch', 'pydantic', 'rich', 'numpy', 'transformers', 'matplotlib');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
