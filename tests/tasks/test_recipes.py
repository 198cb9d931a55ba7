"""The fine-tuning recipes are the paper's table 14."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.config import read_recipe
from albert_cli.errors import ConfigError
from albert_cli.tasks.glue import GLUE_SCORE_TASKS
from albert_cli.tasks.registry import TASKS
from albert_cli.training.task_recipe import load_recipe

# arXiv 1909.11942, table 14: learning rate, batch size, dropout, steps, warm-up.
TABLE_14 = {
    "cola": (1e-5, 16, 0.0, 5336, 320),
    "stsb": (2e-5, 16, 0.0, 3598, 214),
    "sst2": (1e-5, 32, 0.0, 20935, 1256),
    "mnli": (3e-5, 128, 0.0, 10000, 1000),
    "qnli": (1e-5, 32, 0.0, 33112, 1986),
    "qqp": (5e-5, 128, 0.1, 14000, 1000),
    "rte": (3e-5, 32, 0.1, 800, 200),
    "mrpc": (2e-5, 32, 0.0, 800, 200),
    "wnli": (2e-5, 16, 0.1, 2000, 250),
    "squad1": (5e-5, 48, 0.0, 3649, 365),
    "squad2": (3e-5, 48, 0.0, 8144, 814),
    "race": (2e-5, 32, 0.1, 12000, 1000),
}


@pytest.mark.parametrize("name", TABLE_14)
def test_finetune_recipes_equal_table_14(name: str) -> None:
    recipe = read_recipe(f"finetune/{name}")
    optimizer, schedule, model = recipe["optimizer"], recipe["schedule"], recipe["model"]
    here = (
        optimizer["lr"],
        recipe["train"]["batch_size"],
        model["dropout"],
        schedule["total_steps"],
        schedule["warmup_steps"],
    )
    assert here == TABLE_14[name]
    assert recipe["task"] == name
    assert recipe["data"]["max_seq_length"] == (384 if name == "squad1" else 512)
    assert model["classifier_dropout"] == 0.1
    assert (optimizer["name"], optimizer["weight_decay"], optimizer["eps"]) == ("adamw", 0.01, 1e-6)


def test_finetune_recipes_cover_every_trained_task() -> None:
    assert set(TABLE_14) == {*GLUE_SCORE_TASKS, "squad1", "squad2", "race"}
    assert set(TABLE_14) <= TASKS.keys()
    for name, task in TASKS.items():
        assert task.train_split is None or read_recipe(f"finetune/{name}")["task"] == name
    for name in ("race_middle", "race_high"):
        assert read_recipe(f"finetune/{name}") == read_recipe("finetune/race") | {"task": name}


def test_mini_recipes_cover_glue() -> None:
    for name in GLUE_SCORE_TASKS:
        recipe = load_recipe(name, (), "mini")
        intermediate_task = "stsb" if name in ("mrpc", "rte") else "pretrained"  # "pretrained" means none
        assert recipe.task == name and recipe.intermediate_task == intermediate_task
        assert recipe.schedule.epochs and recipe.schedule.total_steps is None and recipe.train.eval_every == 0
        assert recipe.optimizer.bias_correction and recipe.model.classifier_bias == "labels"
        assert recipe == load_recipe(f"mini/{name}", ())
        paper = load_recipe(name, ())
        assert paper.schedule.epochs is None and paper.model.classifier_bias == "zero"
    # A task that is only scored has a recipe only in the folder of the paper.
    assert load_recipe("ax", (), "mini") == load_recipe("ax", ())


def test_finetune_reads_custom_recipes(tmp_path: Path) -> None:
    (tmp_path / "rte.toml").write_text('extends = "mini/rte"\n[optimizer]\nlr = 0.5\n')
    assert load_recipe("rte", (), str(tmp_path)).optimizer.lr == 0.5
    with pytest.raises(ConfigError, match="found no recipe for cola"):
        load_recipe("cola", (), str(tmp_path))
    with pytest.raises(ConfigError, match="--recipes minni: found no recipe for rte"):
        load_recipe("rte", (), "minni")
