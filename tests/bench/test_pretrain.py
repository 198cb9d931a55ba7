"""Tests of `albert bench pretrain`: the parts add up to the step, and albert and transformers compute the same loss."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli.bench import pretrain
from albert_cli.ranks import RankGroup
from albert_cli.training import capacity
from tests.helpers.command import albert
from tests.helpers.processes import start_ranks


@pytest.fixture(scope="module")
def measured(recipe: Path, tiny_data: Path) -> dict[str, Any]:
    arguments = ("--data", tiny_data, "--against", "transformers", "--no-compiled", "--rounds", 3, "--device", "cpu")
    result: dict[str, Any] = json.loads(albert("bench", "pretrain", recipe, *arguments, "--json").out)
    return result


def test_albert_and_transformers_compute_the_same_loss(measured: dict[str, Any]) -> None:
    albert_timing, peer_timing = (measured["variants"][name] for name in ("albert", "transformers"))
    assert 5 < albert_timing["loss"] < 7.5 and peer_timing["loss"] == pytest.approx(albert_timing["loss"], rel=1e-4)
    assert albert_timing["speedup"] == 1 and peer_timing["speedup"] > 0
    for variant in (albert_timing, peer_timing):
        assert variant["tokens_per_second"] > 0 and variant["mfu"] > 0


def test_recipe_step_is_computed_from_the_parts(measured: dict[str, Any]) -> None:
    parts, step, micro = measured["parts_ms"], measured["recipe_step"], measured["micro_batch"]
    assert list(parts) == list(pretrain.PARTS) and micro["sequences"] == 4
    assert 4 * 8 < micro["tokens"] <= 4 * 32 and 0 < micro["filled_fraction"] <= 1
    computing = max(parts["forward"] + parts["backward"], parts["data"])
    assert (step["sequences"], step["micro_batches_per_process"], step["steps"]) == (8, 2, 30)
    expected = 2 * computing + parts["optimizer"] + parts["communication"]
    assert 1000 * step["seconds"] == pytest.approx(expected, abs=0.1)
    assert step["tokens_per_second"] == pytest.approx(2 * micro["tokens"] / step["seconds"], rel=0.01)
    assert step["devices_for_a_week"] == step["devices_for_a_day"] == 1


def test_memory_grows_with_dropout_and_is_as_estimated(measured: dict[str, Any]) -> None:
    without, with_dropout = (measured["memory"][name] for name in ("dropout 0", "dropout 0.1"))
    assert without["activations_saved"] < with_dropout["activations_saved"]
    for memory in (without, with_dropout):
        assert memory["activations_saved"] == pytest.approx(memory["activations_estimated"], rel=0.25)
        assert memory["peak"] is None


def test_without_data_ids_are_random_as_printed(recipe: Path) -> None:
    few = ("--rounds", 1, "--device", "cpu", "-s", "model.vocab_size=40", "-s", 'data.sentence_loss="none"')
    printed = albert("bench", "pretrain", recipe, *few, "--against", "transformers", "--no-compiled").out
    assert "random ids of 40 pieces" in printed and "(no --data)" in printed
    assert "parts of a step" in printed and re.search(r"Its 30 steps take [0-9]+ s here\.", printed)
    assert "dropout 0.1" in printed


def test_damaged_data_are_rejected(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    data = shutil.copytree(tiny_data, tmp_path / "data")
    path = next(data.rglob("train-*.sentences"))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1, *path.read_bytes()[1:]]))
    printed = albert("bench", "pretrain", recipe, "--data", data, "--rounds", 1, "--device", "cpu", expect=4)
    assert f"{path}: damaged" in printed.err


def test_two_processes_are_measured_together(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    call = ("bench", "pretrain", recipe, "--data", tiny_data, "--rounds", 1, "--device", "cpu", "--json", "--quiet")
    ranks = start_ranks(tmp_path / "log", 2, *call)
    assert [rank.wait() for rank in ranks] == [0, 0], "\n".join(r.printed_text() for r in ranks)
    result = json.loads(ranks[0].printed_text().strip().splitlines()[-1])
    assert result["processes"] == 2 and result["parts_ms"]["communication"] > 0
    assert result["recipe_step"]["micro_batches_per_process"] == 1
    assert ranks[1].printed_text().strip() == ""


def test_idle_process_does_not_count_as_a_device(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    call = ("bench", "pretrain", recipe, "--data", tiny_data, "--rounds", 1, "--device", "cpu", "--json", "--quiet")
    settings = ("-s", "train.micro_batch_size=8", "-s", "schedule.total_steps=9_000_000_000")
    ranks = start_ranks(tmp_path / "log", 2, *call, *settings)
    assert [rank.wait() for rank in ranks] == [0, 0], "\n".join(r.printed_text() for r in ranks)
    step = json.loads(ranks[0].printed_text().strip().splitlines()[-1])["recipe_step"]
    assert step["micro_batches_per_process"] == 1 and step["days"] > 10
    assert step["devices_for_a_day"] == pytest.approx(step["days"], abs=1)


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        (["finetune/mrpc"], 2, "fine-tuning recipe"),
        (["nonsense"], 2, "no recipe is called"),
        (["mini/docs", "--data", "nowhere"], 4, "no such directory"),
        (["mini/docs", "--against", "tensorflow"], 2, "transformers"),
        (["mini/docs", "-s", "model=albert-base"], 2, "-s model=albert-base: model is 'albert-base'"),
        (["mini/docs", "-s", "model.vocab_size=many"], 2, "model.vocab_size is 'many'"),
        (["mini/docs", "--sequences", 5, "-s", "train.batch_size=4"], 2, "--sequences 5: the recipe's batch has 4"),
    ],
)
def test_wrong_arguments(arguments: list[object], code: int, printed: str) -> None:
    assert printed in albert("bench", "pretrain", *arguments, expect=code).err


def test_partial_micro_batch_counts_in_proportion(recipe: Path, tiny_data: Path) -> None:
    call = ("bench", "pretrain", recipe, "--data", tiny_data, "--rounds", 1, "--device", "cpu", "--sequences", 5)
    result = json.loads(albert(*call, "--json").out)
    parts, step = result["parts_ms"], result["recipe_step"]
    computing = max(parts["forward"] + parts["backward"], parts["data"])
    assert (step["sequences"], step["micro_batches_per_process"]) == (8, 2)
    expected = 8 / 5 * computing + parts["optimizer"] + parts["communication"]
    assert 1000 * step["seconds"] == pytest.approx(expected, abs=0.01)


def test_duration_of_a_run_counts_the_batch_warmup(recipe: Path, tiny_data: Path) -> None:
    steps = 9_000_000
    changes = [f"schedule.total_steps={steps}", f"batch.warmup_steps={steps}", "batch.warmup_from=1"]
    options = [word for change in changes for word in ("-s", change)]
    call = ("bench", "pretrain", recipe, "--data", tiny_data, "--rounds", 1, "--device", "cpu", *options)
    result = json.loads(albert(*call, "--json").out)
    parts, step = result["parts_ms"], result["recipe_step"]
    updates = parts["optimizer"] + parts["communication"]
    computing = 1000 * step["seconds"] - updates  # of a step with the whole batch; on average a step has 4 of 8
    assert step["days"] == pytest.approx(steps * (computing * 4 / 8 + updates) / 86.4e6, rel=0.01)


def test_gpu_micro_batch_is_that_of_training(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda device: 10**11)  # of a GPU, which this test does not need
    settings = ("model.vocab_size=40", 'batch.micro_tokens="auto"', "train.compile=off", "train.batch_size=64")
    cuda, group = torch.device("cuda", 0), RankGroup()
    for changes, expected in ({}, 64), ({"sequences": 2}, 4), ({"against": "transformers"}, 4):
        options = pretrain.PretrainBenchOptions(overrides=settings, **changes)
        prepared, _, _ = pretrain.prepare_recipe(str(recipe), options)
        resolved = pretrain.resolve_for_bench(prepared, options, cuda, group)
        assert resolved.sequences_per_micro_batch == expected, changes


def test_teacher_is_rejected(recipe: Path, tiny_data: Path, finished: Path) -> None:
    call = ("bench", "pretrain", recipe, "--data", tiny_data, "--rounds", 1, "--device", "cpu")
    assert "--dry-run" in albert(*call, "-s", f"distill.teacher={finished}", expect=2).err


def test_duration_leaves_out_steps_of_the_continued_run(recipe: Path, tiny_data: Path, finished: Path) -> None:
    call = ("bench", "pretrain", recipe, "--data", tiny_data, "--rounds", 1, "--device", "cpu")
    changes = ("-s", f"warm_start.continues={finished}", "-s", "schedule.total_steps=50")
    result = json.loads(albert(*call, *changes, "--json").out)
    assert result["recipe_step"]["steps"] == 50 - 30
    missing = albert(*call, "-s", "warm_start.continues=missing", expect=4)
    assert "missing: no such directory" in missing.err


def test_days_of_a_short_run_are_not_rounded_to_zero(measured: dict[str, Any]) -> None:
    step = measured["recipe_step"]
    assert step["days"] == pytest.approx(30 * step["seconds"] / 86400, rel=0.001) and step["days"] > 0
