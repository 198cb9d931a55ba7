"""The names that `albert params` accepts, and its errors for other names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.counting.shapes import SYMBOLS, find_shape
from albert_cli.errors import AlbertError, CheckpointError, ConfigError
from albert_cli.model.config import PRESETS

BASE = PRESETS["albert-base"]
CONFIG = {
    "model_type": "albert",
    "embedding_size": 128,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "gap_size": 0,  # old official configurations have keys of no meaning
}


@pytest.mark.parametrize("name", PRESETS)
def test_shape_from_preset_has_its_config(name: str) -> None:
    shape = find_shape(name)
    assert (shape.config, shape.source, shape.vocab_size_assumed) == (PRESETS[name], "preset", False)


def test_shape_from_second_release_name_is_read() -> None:
    assert find_shape("albert-xlarge-v2").config == PRESETS["albert-xlarge"]
    for name in ("bert-base-v2", "albert-base-v1-v2"):
        with pytest.raises(ConfigError, match=name):
            find_shape(name)


def test_shape_changes_by_symbol_or_name_are_applied() -> None:
    assert find_shape("albert-base:E=64,sharing=none").config == replace(BASE, embedding_size=64, sharing="none")
    assert find_shape("albert-base:group_sizes=[2,10],A=8").config == replace(
        BASE, group_sizes=(2, 10), num_attention_heads=8
    )
    assert find_shape("albert-base:embedding_size=64").config == replace(BASE, embedding_size=64)
    assert find_shape("albert-base:hidden_dropout_prob=0.1").config == replace(BASE, hidden_dropout_prob=0.1)
    every = find_shape("albert-base:V=100,E=16,H=32,L=4,A=2,F=48,G=2").config
    assert [getattr(every, name) for name in SYMBOLS.values()] == [100, 16, 32, 4, 2, 48, 2]


def test_shape_overrides_are_applied_last() -> None:
    config = find_shape("albert-base:E=64", ["model.embedding_size=256", "model.num_hidden_layers=3"]).config
    assert config == replace(BASE, embedding_size=256, num_hidden_layers=3)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("albert-base:E=wide", "model.embedding_size is 'wide'"),
        ("albert-base:Z=1", "unknown key 'model.Z'"),
        ("albert-base:E=64,none", "expected KEY=VALUE, not 'none'"),
        ("albert-base:E=0", "model.embedding_size is 0"),
        ("albert-base:sharing=some", "model.sharing is 'some'"),
        ("albert-base:H=100", "cannot be split over 12 attention heads"),
        ("albert-base:G=13", "there are only 12 layers"),
        ("albert-base:E=true", "model.embedding_size is True"),
        ("albert-lrage:E=64", "albert-lrage: neither a preset"),
        (":E=64", ":E=64: neither a preset"),
        ("", "neither a preset"),
    ],
)
def test_shape_impossible_change_raises(name: str, printed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_shape(name)
    assert printed in raised.value.message and raised.value.hint


@pytest.mark.parametrize("override", ["train.seed=1", "model=3", "optimizer=adam"])
def test_shape_override_outside_model_raises(override: str) -> None:
    with pytest.raises(ConfigError, match=r"only keys of the \[model\] section change the shape"):
        find_shape("albert-base", [override])


def test_shape_from_recipe_path_equals_name(tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text('extends = "pretrain/albert-base"\n[model]\nembedding_size = 64\n')
    shape = find_shape(str(recipe))
    assert (shape.config.embedding_size, shape.source, shape.vocab_size_assumed) == (64, "recipe", False)
    assert find_shape(f"{recipe}:E=32").config.embedding_size == 32
    assert find_shape("pretrain/albert-large").config.num_hidden_layers == 24
    assert find_shape("mini/wiki").vocab_size_assumed
    assert not find_shape("mini/wiki:V=2000").vocab_size_assumed
    assert not find_shape("mini/wiki", ["model.vocab_size=2000"]).vocab_size_assumed


def test_shape_from_checkpoint_run_or_file_is_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step, layers in (("step-00000001", 2), ("step-00000002", 3)):
        (run / step).mkdir(parents=True)
        (run / step / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
        store.seal(run / step, "pretraining checkpoint")
    for name in (run, run / "step-00000002", run / "step-00000002" / "config.json"):
        shape = find_shape(str(name))
        assert (shape.config, shape.source) == (replace(BASE, num_hidden_layers=3), "checkpoint")
    assert find_shape(f"{run}:L=5").config.num_hidden_layers == 5


def test_shape_from_unreadable_layout_raises(tmp_path: Path) -> None:
    (tmp_path / "flax_model.msgpack").touch()
    with pytest.raises(CheckpointError, match="contains Flax weights"):
        find_shape(str(tmp_path))


def test_shape_from_directory_named_like_a_change_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "albert-base:E=64"
    odd.mkdir()
    (odd / "config.json").write_text(json.dumps(CONFIG))
    assert find_shape(str(odd)).config == BASE


def test_shape_from_cached_hub_id_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of the Hub's own cache: a name's reference points to a snapshot."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stored = tmp_path / "models--someone--an-albert"
    (stored / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("0" * 40)
    (stored / "snapshots" / ("0" * 40) / "config.json").write_text(json.dumps(CONFIG))
    shape = find_shape("someone/an-albert")
    assert (shape.config, shape.source) == (BASE, "hub")
    assert find_shape("someone/an-albert:E=64").config == replace(BASE, embedding_size=64)


def test_shape_from_unreachable_hub_id_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match=r"someone/nothing: no such directory.*could not be downloaded"):
        find_shape("someone/nothing")


def test_shape_unknown_name_raises_with_suggestion() -> None:
    for name, meant in (("albert-lrage", "albert-large"), ("pretrain/albert-lrage", "pretrain/albert-large")):
        with pytest.raises(ConfigError, match=name) as raised:
            find_shape(name)
        assert raised.value.hint is not None and meant in raised.value.hint


def test_shape_unusable_input_raises(tmp_path: Path) -> None:
    def printed(name: object, kind: type[AlbertError]) -> str:
        with pytest.raises(kind) as raised:
            find_shape(str(name))
        return f"{raised.value.message} ({raised.value.hint})"

    assert "contains no checkpoint" in printed(tmp_path, CheckpointError)
    (tmp_path / "config.json").write_text("{")
    assert "not valid JSON" in printed(tmp_path, CheckpointError)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert "gpt2" in printed(tmp_path, CheckpointError)
    recipe = tmp_path / "r.toml"
    recipe.write_text("[model]\nhiden_size = 12\n")
    assert "hidden_size" in printed(recipe, ConfigError)
    recipe.write_text("[train]\nseed = 1\n")
    assert "no [model] section" in printed(recipe, ConfigError)
    for name in ("finetune/cola", "mini/table"):
        assert "a fine-tuning recipe has no shape" in printed(name, ConfigError)
