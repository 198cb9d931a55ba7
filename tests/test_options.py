"""Options of several commands: the vocabulary, examples of a step, saving, seeds, character coverage, the teacher."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from albert_cli import hub_access, store
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.command import albert
from tests.helpers.runs import LAST, copy_run


def test_vocab_accepts_a_run_and_a_hub_id(
    finished: Path, documents_file: Path, tiny_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    def download(name: str, patterns: Sequence[str]) -> Path:
        names.append(name)
        return store.saved_steps(finished)[-1]

    monkeypatch.setattr(hub_access, "download_hub_files", download)
    monkeypatch.chdir(tmp_path)
    fingerprint = Vocabulary.load(tiny_vocabulary).fingerprint
    for number, name in enumerate((finished, "someone/model")):
        albert("data", documents_file, "--vocab", name, "--out", str(number))
        assert Vocabulary.load(Path(str(number))).fingerprint == fingerprint
    assert names == ["someone/model"]


def test_vocab_of_a_run_that_is_being_trained_is_rejected(finished: Path, documents_file: Path, tmp_path: Path) -> None:
    run = copy_run(finished, tmp_path)
    call = ["data", documents_file, "--out", tmp_path / "data", "--vocab"]
    with store.lock(run):
        ended = albert(*call, run, expect=6).err
        assert f"error: --vocab {run}: this run is being trained" in ended
        assert "wait until it has finished, or name a step" in ended
        assert not (tmp_path / "data").exists()
        albert(*call, run / LAST)
    albert(*call[:3], tmp_path / "again", "--vocab", run)


def test_vocab_directory_is_not_sought_on_the_hub(
    tiny_vocabulary: Path, documents_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(hub_access, "download_hub_files")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_vocabulary, "vocabulary")
    albert("data", documents_file, "--vocab", "vocabulary", "--out", "data")
    albert("data", documents_file, "--vocab", "data", "--out", "again")  # a data directory has a vocabulary
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "no spiece.model"), ("vocabulary/spiece.model", "not a directory")):
        assert message in albert("data", documents_file, "--vocab", name, "--out", "none", expect=4).err


def test_vocab_of_bench_finetune_accepts_a_run(finished: Path, tmp_path: Path) -> None:
    rows = "sentence\tlabel\n" + "ba de fi\t0\nro su ta\t1\n" * 4
    (tmp_path / "SST-2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "SST-2" / f"{split}.tsv").write_text(rows)
    options = ["--model", "albert-base:L=2,H=32,A=2,F=64,E=16", "--rounds", 1, "-s", "train.batch_size=4"]
    call = ["bench", "finetune", "sst2", "--data", tmp_path, *options, "-s", "train.precision=fp32", "--device", "cpu"]
    assert "sst2: a step of 4 examples" in albert(*call, "--vocab", finished).out


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


def test_show_config_rejects_max_time(tiny_data: Path, tmp_path: Path) -> None:
    """It would print another number of steps than the run with the time budget has."""
    call = ["pretrain", "mini/docs", "--data", tiny_data, "--out", tmp_path / "run", "--show-config"]
    error = albert(*call, "--max-time", "1m", expect=2).err
    assert "--max-time" in error and "--dry-run" in error


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
