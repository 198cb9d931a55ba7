"""Options that reach through several layers: the examples of a step, the coverage of a vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

from albert_cli import store
from tests.helpers.command import albert


def test_inspect_shows_the_examples_that_a_step_trains_on(tiny_data: Path, tmp_path: Path) -> None:
    printed = albert("inspect", tiny_data, "--examples", 2, "--step", 3)
    assert "from step 3, 32 sequences a step, seed 0:" in printed.out
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "mini/docs"\n[train]\nbatch_size = 8\nseed = 4\n[data]\nmax_seq_length = 24\n')
    call = ["inspect", tiny_data, "--examples", 2, "--step", 3, "--recipe", recipe, "--json"]
    facts = json.loads(albert(*call).out)
    assert [example["index"] for example in facts["examples"]] == [24, 25]
    assert (facts["step"], facts["batch_size"], facts["seed"]) == (3, 8, 4)
    assert all(example["positions"] <= 24 for example in facts["examples"])
    assert json.loads(albert(*call, "--seed", 0).out)["seed"] == 0


def test_inspect_follows_a_batch_that_grows(tiny_data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "mini/docs"\n[batch]\nwarmup_steps = 4\nwarmup_from = 4\n[train]\nbatch_size = 8\n')
    call = ["inspect", tiny_data, "--examples", 1, "--step", 3, "--recipe", recipe, "--json"]
    facts = json.loads(albert(*call).out)
    assert (facts["batch_size"], facts["examples"][0]["index"]) == (7, 4 + 5 + 6)


def test_how_often_to_save_and_how_much_to_keep(tiny_data: Path, tmp_path: Path) -> None:
    call = ["pretrain", "mini/docs", "--data", tiny_data, "--out", tmp_path / "run", "--show-config", "--json"]
    for every, expected in (("500", 500), ("10m", "10m")):
        recipe = json.loads(albert(*call, "-s", "train.keep=9", "--keep", 3, "--save-every", every).out)
        assert (recipe["train"]["save_every"], recipe["train"]["keep"]) == (expected, 3)
    assert "train.save_every" in albert(*call, "--save-every", "soon", expect=2).err


def test_a_seed_that_no_generator_takes_is_refused(tmp_path: Path) -> None:
    for seed in (-1, 2**70):
        call = ["finetune", "cola", "--checkpoint", tmp_path, "--out", tmp_path / "out", "--seed", seed]
        assert "--seed" in albert(*call, expect=2).err


def test_a_lower_coverage_leaves_rare_characters_out(documents_file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(documents_file.read_text(encoding="utf-8") + "\nж ж\n", encoding="utf-8")
    reports = [
        json.loads(
            albert(
                "vocab", tmp_path / "in.txt", "--size", 200, "--character-coverage", share, "--out", tmp_path / share,
                "--json",
            ).out
        )["report"]
        for share in ("1.0", "0.99")
    ]  # fmt: skip
    assert reports[0]["tokens"]["character_coverage"] == 1 > reports[1]["tokens"]["character_coverage"]
    assert [report["request"]["settings"]["character_coverage"] for report in reports] == [1.0, 0.99]


def test_a_bare_vocabulary_leaves_the_length_at_the_paper_s(tiny_vocabulary: Path) -> None:
    assert store.read_json(tiny_vocabulary / "tokenizer_config.json")["model_max_length"] == 512


def test_a_teacher_may_be_called_like_a_number(tiny_data: Path, tmp_path: Path) -> None:
    call = ("pretrain", "mini/docs", "--data", tiny_data, "--out", tmp_path / "run", "--teacher", "2024")
    shown = json.loads(albert(*call, "--show-config", "--json").out)
    assert shown["distill"]["teacher"] == "2024"
