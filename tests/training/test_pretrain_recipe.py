"""Tests of growing batches, of micro-batches limited by tokens, and of recipes without a model."""

from __future__ import annotations

import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.training.pretrain import load_recipe_for_data, pretrain
from albert_cli.training.pretrain_recipe import BatchSettings, PretrainRecipe
from albert_cli.training.settings import TrainSettings
from tests.helpers.processes import end, start_ranks
from tests.helpers.runs import SHAPE, checkpoint_hashes, create_checkpoint, read_curve
from tests.helpers.tiny_recipe import RECIPE

GROWING = ("batch.warmup_steps=12", "batch.warmup_from=2")
BY_TOKENS = "batch.micro_tokens=70"


def growing(batch_size: int, steps: int, begin: int) -> PretrainRecipe:
    return PretrainRecipe(train=TrainSettings(batch_size=batch_size), batch=BatchSettings(steps, begin))


@given(st.integers(1, 5000), st.integers(0, 400), st.data())
def test_batch_index_contains_each_example_once_in_order(batch_size: int, steps: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(1, batch_size))
    recipe = growing(batch_size, steps, begin)
    sizes = [len(recipe.batch_index(step)) for step in range(steps + 3)]
    assert sizes == sorted(sizes) and sizes[-3:] == [batch_size] * 3
    assert steps == 0 or sizes[0] == begin
    step = data.draw(st.integers(0, steps + 2))
    assert recipe.examples_before(step) == sum(sizes[:step])
    assert recipe.batch_index(step).tolist() == list(range(sum(sizes[:step]), sum(sizes[: step + 1])))


def test_batch_index_grows_evenly() -> None:
    sizes = [len(growing(100, 4, 20).batch_index(step)) for step in range(6)]
    assert sizes == [20, 40, 60, 80, 100, 100]
    long = growing(4096, 10_000, 256)
    assert long.examples_before(125_000) == long.examples_before(10_000) + 115_000 * 4096


def test_growing_batch_resumes_exactly_and_equals_two_ranks(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    overrides = [*GROWING, BY_TOKENS, "train.log_every=1", "train.save_every=8", "schedule.total_steps=15"]
    uninterrupted = tmp_path / "uninterrupted"
    two = tmp_path / "two"
    pretrain(str(recipe), tiny_data, uninterrupted, overrides, device="cpu")
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    shutil.rmtree(run / "step-00000015")
    pretrain(str(recipe), tiny_data, run, overrides, device="cpu")  # from step 8, during the warmup
    assert checkpoint_hashes(run, "step-00000015") == checkpoint_hashes(uninterrupted, "step-00000015")
    assert read_curve(run) == read_curve(uninterrupted)
    arguments: list[object] = ["pretrain", recipe, "--data", tiny_data, "--device", "cpu"]
    arguments += [word for override in overrides for word in ("-s", override)]
    assert end(start_ranks(tmp_path / "log", 2, *arguments, "--out", two)) == [0, 0]
    for expected, actual in zip(read_curve(uninterrupted), read_curve(two), strict=True):
        assert actual["step"] == expected["step"]
        assert actual.get("loss", 0) == pytest.approx(expected.get("loss", 0), abs=2e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["batch.warmup_steps=5", "batch.warmup_from=9"], r"more than train.batch_size \(8\)"),
        (["batch.warmup_from=0"], "batch.warmup_from is 0: it should be greater"),
        (["batch.warmup_steps=-1"], "batch.warmup_steps is -1: it should be greater"),
        (["batch.micro_tokens=31"], "one sequence may have 32"),
        (["batch.micro_token=64"], "micro_tokens"),
    ],
)
def test_batch_settings_invalid_values_raise(
    overrides: list[str], message: str, recipe: Path, tiny_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert re.search(message, f"{raised.value.message} {raised.value.hint}")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- recipes without [model]


@pytest.fixture
def without_model(tmp_path: Path) -> str:
    """The tiny recipe without [model], for ten steps."""
    path = tmp_path / "without-model.toml"
    path.write_text(RECIPE[RECIPE.index("[data]") :].replace("total_steps = 30", "total_steps = 10"))
    return str(path)


def test_unshared_run_resumes_without_model_or_parent(
    without_model: str, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    parent = Path(shutil.copytree(finished, tmp_path / "parent"))
    run = tmp_path / "run"
    overrides = [f"warm_start.checkpoint={parent}", "model.sharing=none"]
    pretrain(without_model, tiny_data, run, overrides, device="cpu")
    shutil.rmtree(parent)
    assert pretrain(without_model, tiny_data, run, overrides, device="cpu").steps == 10
    model = load_recipe_for_data(without_model, tiny_data, run, overrides).model
    assert (model.sharing, model.num_hidden_groups) == ("none", 1)
    (run / "recipe.toml").write_text("[train]\nseed = 0\n")
    with pytest.raises(CheckpointError, match=r"recipe\.toml: has no section \[model\]"):
        load_recipe_for_data(without_model, tiny_data, run, overrides)


def test_continued_run_without_model_records_no_change_of_it(
    recipe: Path, without_model: str, tiny_data: Path, tmp_path: Path
) -> None:
    shape = ["model.sharing=none", "model.initializer_range=auto"]
    parent = tmp_path / "parent"
    pretrain(str(recipe), tiny_data, parent, [*shape, "schedule.total_steps=5"], device="cpu")
    run = tmp_path / "run"
    pretrain(without_model, tiny_data, run, [f"warm_start.continues={parent}"], device="cpu")
    changes = tomllib.loads((run / "recipe.toml").read_text())["warm_start"]["changes"]
    assert changes == ["schedule.total_steps: 5 -> 10"]


def test_parent_with_other_vocabulary_size_is_reported(
    without_model: str, tiny_vocabulary: Path, tiny_data: Path, tmp_path: Path
) -> None:
    padded = create_checkpoint(
        tmp_path / "padded", tiny_vocabulary, replace(SHAPE, vocab_size=320, max_position_embeddings=48)
    )
    overrides = [f"warm_start.checkpoint={padded}"]
    with pytest.raises(ConfigError, match=f"{padded}: has a vocabulary of 320 tokens, the data's has 300") as raised:
        load_recipe_for_data(without_model, tiny_data, tmp_path / "run", overrides)
    hint = str(raised.value.hint)
    assert f"--vocab {padded}" in hint and f"`albert convert {padded} --out NEW`" in hint
    with pytest.raises(ConfigError) as raised:
        pretrain(without_model, tiny_data, tmp_path / "run", [*overrides, "model.vocab_size=300"], device="cpu")
    assert f"`albert convert {padded} --out NEW`" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("warm_start.chekpoint=run", "unknown key 'warm_start.chekpoint'"),
        ("warm_start.stack=true", "needs either checkpoint or continues"),
        ("warm_start=run", "warm_start is 'run'"),
    ],
)
def test_wrong_warm_start_without_model_is_reported(
    setting: str, message: str, without_model: str, tiny_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_recipe_for_data(without_model, tiny_data, tmp_path / "run", [setting])


def test_partial_model_is_laid_over_the_parents_shape(
    without_model: str, tiny_vocabulary: Path, tiny_data: Path, tmp_path: Path
) -> None:
    shape = replace(SHAPE, hidden_dropout_prob=0.25, max_position_embeddings=48)
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary, shape)
    child = tmp_path / "child.toml"
    child.write_text(f'extends = "{without_model}"\n[model]\nattention = "window"\n')
    arguments = (str(child), tiny_data, tmp_path / "run")
    model = load_recipe_for_data(*arguments, [f"warm_start.checkpoint={parent}"]).model
    assert model == replace(shape, attention="window")
    assert load_recipe_for_data(*arguments, ["data.max_seq_length=128"]).model == ModelConfig(
        vocab_size=300, attention="window"
    )
