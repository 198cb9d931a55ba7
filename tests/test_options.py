"""Options of several commands: examples of a step, saving, seeds, character coverage, and the teacher."""

from __future__ import annotations

import json
from pathlib import Path

from albert_cli import store
from tests.helpers.command import albert


def test_inspect_shows_the_examples_of_a_training_step(tiny_data: Path, tmp_path: Path) -> None:
    result = albert("inspect", tiny_data, "--examples", 2, "--step", 3)
    assert "from step 3, 32 sequences a step, seed 0:" in result.out
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "mini/docs"\n[train]\nbatch_size = 8\nseed = 4\n[data]\nmax_seq_length = 24\n')
    call = ["inspect", tiny_data, "--examples", 2, "--step", 3, "--recipe", recipe, "--json"]
    facts = json.loads(albert(*call).out)
    assert [example["index"] for example in facts["examples"]] == [24, 25]
    assert (facts["step"], facts["batch_size"], facts["seed"]) == (3, 8, 4)
    assert all(example["positions"] <= 24 for example in facts["examples"])
    assert json.loads(albert(*call, "--seed", 0).out)["seed"] == 0


def test_inspect_respects_batch_size_warmup(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "mini/docs"\n[batch]\nwarmup_steps = 4\nwarmup_from = 4\n[train]\nbatch_size = 8\n')
    call = ["inspect", tiny_data, "--examples", 1, "--step", 3, "--recipe", recipe, "--json"]
    facts = json.loads(albert(*call).out)
    assert (facts["batch_size"], facts["examples"][0]["index"]) == (7, 4 + 5 + 6)


def test_save_every_and_keep_override_the_recipe(tiny_data: Path, tmp_path: Path) -> None:
    call = ["pretrain", "mini/docs", "--data", tiny_data, "--out", tmp_path / "run", "--show-config", "--json"]
    for every, expected in (("500", 500), ("10m", "10m")):
        recipe = json.loads(albert(*call, "-s", "train.keep=9", "--keep", 3, "--save-every", every).out)
        assert (recipe["train"]["save_every"], recipe["train"]["keep"]) == (expected, 3)
    assert "--save-every: 'soon' is not a duration" in albert(*call, "--save-every", "soon", expect=2).err


def test_seed_out_of_range_is_rejected(tmp_path: Path) -> None:
    for seed in (-1, 2**70):
        call = ["finetune", "cola", "--checkpoint", tmp_path, "--out", tmp_path / "out", "--seed", seed]
        assert "--seed" in albert(*call, expect=2).err


def test_wrong_option_of_the_text_does_not_hint_recipes(tmp_path: Path) -> None:
    for option in (("--sample-size", 0), ("--max-line", 10)):
        error = albert("vocab", "docs:", *option, "--out", tmp_path / "vocabulary", expect=2).err
        assert "--help" in error
        assert "recipes" not in error


def test_lower_coverage_excludes_rare_characters(documents_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "in.txt"
    text.write_text(documents_file.read_text(encoding="utf-8") + "\nж ж\n", encoding="utf-8")
    reports = []
    for coverage in ("1.0", "0.99"):
        call = ["vocab", text, "--size", 200, "--character-coverage", coverage, "--out", tmp_path / coverage, "--json"]
        reports.append(json.loads(albert(*call).out)["report"])
    assert reports[0]["tokens"]["character_coverage"] == 1 > reports[1]["tokens"]["character_coverage"]
    assert [report["request"]["settings"]["character_coverage"] for report in reports] == [1.0, 0.99]


def test_vocabulary_has_the_maximum_length_of_the_paper(tiny_vocabulary: Path) -> None:
    assert store.read_json(tiny_vocabulary / "tokenizer_config.json")["model_max_length"] == 512


def test_teacher_path_may_look_like_a_number(tiny_data: Path, tmp_path: Path) -> None:
    call = ("pretrain", "mini/docs", "--data", tiny_data, "--out", tmp_path / "run", "--teacher", "2024")
    recipe = json.loads(albert(*call, "--show-config", "--json").out)
    assert recipe["distill"]["teacher"] == "2024"
