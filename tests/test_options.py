"""Options that reach through several layers: the examples of a step, the coverage of a vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

from albert_cli import store
from tests.command import albert


def test_inspect_shows_the_examples_that_a_step_trains_on(tiny_data: Path, tmp_path: Path) -> None:
    said = albert("inspect", tiny_data, "--examples", 2, "--step", 3)
    assert "from step 3, 32 sequences a step, seed 0:" in said.out
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "mini/docs"\n[train]\nbatch_size = 8\nseed = 4\n[data]\nmax_seq_length = 24\n')
    call = ["inspect", tiny_data, "--examples", 2, "--step", 3, "--recipe", recipe, "--json"]
    facts = json.loads(albert(*call).out)
    assert [example["index"] for example in facts["examples"]] == [24, 25]
    assert (facts["step"], facts["batch_size"], facts["seed"]) == (3, 8, 4)
    assert all(example["positions"] <= 24 for example in facts["examples"])
    assert json.loads(albert(*call, "--seed", 0).out)["seed"] == 0


def test_a_lower_coverage_leaves_rare_characters_out(documents_file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(documents_file.read_text(encoding="utf-8") + "\nж ж\n", encoding="utf-8")
    reports = [
        json.loads(
            albert(
                "vocab", tmp_path / "in.txt", "--size", 200, "--character-coverage", share, "--out", tmp_path / share,
                "--json",
            ).out
        )
        for share in ("1.0", "0.99")
    ]  # fmt: skip
    assert reports[0]["character_coverage_achieved"] == 1 > reports[1]["character_coverage_achieved"]
    assert [r["request"]["character_coverage"] for r in reports] == [1.0, 0.99]


def test_a_bare_vocabulary_leaves_the_length_at_the_paper_s(tiny_vocabulary: Path) -> None:
    assert store.read_json(tiny_vocabulary / "tokenizer_config.json")["model_max_length"] == 512
