"""Tests of `training.plan`: dry runs, memory and time budgets."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli import journal, machine, store
from albert_cli.data.pairs import PairSettings, examples_per_pass
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import BusyError, ConfigError
from albert_cli.ranks import RankGroup
from albert_cli.training import plan as plan_module
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.plan import RunPlan
from albert_cli.training.pretrain import dry_run_pretraining, pretrain
from albert_cli.training.pretrain_recipe import PretrainRecipe, load_pretrain_recipe
from albert_cli.training.pretrain_result import DryRun
from tests.helpers.command import albert
from tests.helpers.jobs import MakeJob
from tests.helpers.processes import end, start, start_ranks
from tests.helpers.runs import list_steps, read_status

GROWING = ("batch.warmup_steps=12", "batch.warmup_from=2")
BY_TOKENS = "batch.micro_tokens=70"


def test_plan_counts_growing_batch(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    constant = dry_run_pretraining(str(recipe), tiny_data, run, device="cpu").plan
    growing = dry_run_pretraining(str(recipe), tiny_data, run, GROWING, device="cpu").plan
    assert (growing.sequences_in_first_step, growing.batch_warmup_steps) == (2, 12)
    assert constant.batch_warmup_steps is None and "batch_warmup_steps" not in constant.to_json()
    sequences = 18 * 8 + sum(2 + 6 * step // 12 for step in range(12))
    assert growing.passes_over_corpus == pytest.approx(constant.passes_over_corpus * sequences / 240, abs=0.01)
    longer = dry_run_pretraining(str(recipe), tiny_data, run, ["schedule.total_steps=3000"], device="cpu").plan
    size = examples_per_pass(TokenCorpus.open(tiny_data), PairSettings(32))
    assert longer.passes_over_corpus == pytest.approx(24_000 / size, rel=1e-3)
    tiny = ("schedule.total_steps=1", "schedule.warmup_steps=0", "train.batch_size=1", "train.micro_batch_size=1")
    shortest = dry_run_pretraining(str(recipe), tiny_data, run, tiny, device="cpu").plan
    assert shortest.passes_over_corpus == pytest.approx(1 / size, rel=1e-3)
    by_tokens = dry_run_pretraining(str(recipe), tiny_data, run, [BY_TOKENS], device="cpu").plan
    assert (constant.sequences_per_micro_batch, by_tokens.sequences_per_micro_batch) == (4, 2)
    assert by_tokens.activations_bytes == constant.activations_bytes / 2


def test_plan_writes_nothing(recipe: Path, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", device="cpu")
    plan = planned.plan
    assert (plan.steps, plan.sequences_per_step, plan.processes) == (30, 8, 1)
    assert planned.duration.seconds is not None and planned.duration.seconds > 0
    assert re.search(r"compiled +no\n", capsys.readouterr().out)
    assert planned.duration.measured_sequences == plan.sequences_per_micro_batch == 4
    assert planned.duration.to_text().endswith("measured on a micro-batch")
    overrides = ["train.checkpoint_activations=true", "train.micro_batch_size=2"]
    small = dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu").plan
    assert 0 < small.activations_bytes < plan.activations_bytes / 2
    assert small.weights_gradients_moments_bytes == plan.weights_gradients_moments_bytes
    state = plan.weights_gradients_moments_bytes
    assert state + plan.activations_bytes < plan.memory_bytes_estimated < 3 * (state + plan.activations_bytes)
    assert not list(tmp_path.iterdir())


def test_plan_measures_a_micro_batch_that_fits_into_memory(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that needs more memory than there is was once killed without a message."""
    measured = []
    warnings = []

    def measure(job: PretrainingJob, *_: object, **__: object) -> float:
        out, err = capsys.readouterr()
        assert re.search(r"memory estimated +[\d.,]+ MB\n", out)
        warnings.append(err)
        measured.append(job.settings.train.micro_batch_size)
        return 0.5

    def plan_with(free: float) -> DryRun:
        monkeypatch.setattr(machine, "memory_info", lambda: {"available": int(free)})
        overrides = ["train.micro_batch_size=64", "train.batch_size=64"]
        return dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")

    monkeypatch.setattr(plan_module, "measure_step_seconds", measure)
    needed = plan_with(1e12).plan.memory_bytes_estimated
    half = plan_with(0.6 * needed)
    assert measured == [64, 32]
    assert "warning" not in warnings[0]
    assert "set train.checkpoint_activations=true, which changes no result" in warnings[1]
    assert half.duration.seconds == 30 * 0.5 * 2  # a step is two of the measured micro-batches
    assert "measured on 32 of the micro-batch's 64 sequences, and scaled" in half.duration.to_text()
    unmeasured = plan_with(1e3).duration
    assert measured == [64, 32] and unmeasured.seconds > 0
    assert unmeasured.flops_per_second is not None
    assert "at least" in unmeasured.to_text()


def test_plan_memory_warning_names_the_effective_key(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "memory_info", lambda: {"available": 1000})
    for override, key in (("batch.micro_tokens=96", "batch.micro_tokens"), ("train.seed=1", "train.micro_batch_size")):
        dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", [override], device="cpu")
        assert f"or lower {key}, which" in " ".join(capsys.readouterr().err.split())


def test_plan_first_step_of_continuing_run_is_its_own(
    recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    overrides = (*GROWING, f"warm_start.continues={finished}", "schedule.total_steps=60")
    plan = dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu").plan
    assert plan.sequences_in_first_step == 8, "the continued run has finished the warmup of the batch size"


class FirstRank(RankGroup):
    """Rank 0 of several ranks, without the other ranks."""

    def all_gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size


def estimate_and_record(recipe: Path, overrides: list[str], group: RankGroup, make_job: MakeJob) -> PretrainRecipe:
    """Estimate a run's duration, and return the recipe of the job that is measured."""
    loaded = load_pretrain_recipe(str(recipe), overrides, vocab_size=300)
    measured: list[PretrainRecipe] = []

    def new_job(settings: PretrainRecipe) -> PretrainingJob:
        measured.append(settings)
        return make_job()

    plan_module.estimate_duration(loaded, torch.device("cpu"), group, new_job)
    return measured[0]


@pytest.mark.parametrize(
    ("micro_batch_size", "ranks", "seconds"),
    [(64, 1, 15), (32, 2, 15), (64, 2, 15), (16, 3, 30)],  # with three ranks, the first has two of four micro-batches
)
def test_estimate_duration_counts_only_ranks_that_compute(
    micro_batch_size: int, ranks: int, seconds: float, recipe: Path, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "measure_step_seconds", lambda *_, **__: 0.5)
    overrides = ["train.batch_size=64", f"train.micro_batch_size={micro_batch_size}", "train.compile=off"]
    loaded = load_pretrain_recipe(str(recipe), overrides, vocab_size=300)
    job = make_job()
    duration = plan_module.estimate_duration(loaded, torch.device("cpu"), FirstRank(0, ranks), lambda _: job)
    assert duration.seconds == seconds


def test_estimate_duration_measures_a_micro_batch_per_rank(
    recipe: Path, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "measure_step_seconds", lambda *_, **__: 0.5)
    monkeypatch.setattr(plan_module, "_MEASURED_SECONDS", 0.0)  # so that a single sequence is measured
    overrides = ["train.batch_size=64", "batch.micro_tokens=1024", "train.compile=off"]
    measured = estimate_and_record(recipe, overrides, FirstRank(0, 2), make_job)
    assert measured.train.batch_size == 2
    sizes = (measured.batch.micro_tokens, measured.train.micro_batch_size)
    assert sizes == (0, 1), "both ranks have a micro-batch"


def test_estimate_duration_measures_the_same_on_all_ranks(
    recipe: Path, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank with another peak or other free memory would otherwise wait in an all-reduce of the steps."""

    class SecondRank(RankGroup):
        def all_gather(self, value: Any) -> list[Any]:
            return [1, value]

    monkeypatch.setattr(plan_module, "measure_step_seconds", lambda *_, **__: 0.5)
    overrides = ["train.batch_size=64", "train.micro_batch_size=64", "train.compile=off"]
    assert estimate_and_record(recipe, overrides, SecondRank(1, 2), make_job).train.micro_batch_size == 1


def test_plan_without_disk_space_is_printed_before_the_error(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "free_bytes", lambda path: 1000)
    call = ("pretrain", recipe, "--data", tiny_data, "--out", tmp_path / "run", "--device", "cpu")
    printed = albert(*call, "--dry-run", expect=4)
    assert "disk needed" in printed.out and "takes about" in printed.out
    assert "the checkpoints need" in printed.err
    assert "the checkpoints need" in albert(*call, expect=4).err
    plan = json.loads(albert(*call, "--dry-run", "--json", expect=4).out)
    assert plan["disk_bytes_free"] == 1000 and plan["estimated_seconds"] > 0


def expect_slow_disk() -> None:
    """Assume 0.3 s for a checkpoint, so that fewer steps fit into the time budget."""
    vars(plan_module)["_CHECKPOINT_SECONDS"] = 0.3


def test_time_budget_fixes_number_of_steps(command: Sequence[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments: list[object] = [*command, "--out", run, "--max-time", "10s"]
    arguments += ["-s", "train.save_every=1", "-s", "schedule.total_steps=99999"]
    process = start(tmp_path / "log", *arguments, run_first=expect_slow_disk)
    process.wait_until(lambda: len(list_steps(run)) >= 2)
    process.kill()
    saved = store.read_json(run / "status.json")["total_steps"]
    assert saved < 99_999
    assert f"total_steps = {saved}\n" in (run / "recipe.toml").read_text()
    ranks = start_ranks(tmp_path / "log", 2, *arguments)
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    assert read_status(run)["state"] == "done"
    assert read_status(run)["step"] == list_steps(run)[-1] == saved
    last = [record for record in journal.read_journal(run / "metrics.jsonl") if "lr" in record][-1]
    assert last["lr"] < 0.01 * 5.5 / saved  # the schedule has ended near zero


def test_time_budget_for_few_steps_warns(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_module, "measure_step_seconds", lambda *_, **__: 10.0)
    monkeypatch.setattr(plan_module, "measure_evaluation", lambda *_: 1.0)
    arguments = (str(recipe), tiny_data, tmp_path / "run", ["train.save_every=0"])
    dry_run_pretraining(*arguments, max_time="1m", device="cpu")
    warning = capfd.readouterr().err
    assert "a model learns nothing in 5 steps; delete --out and raise --max-time" in warning
    assert "run `albert pretrain` with shorter sequences" in " ".join(warning.split())  # a quickstart cannot do this
    dry_run_pretraining(*arguments, max_time="1h", device="cpu")
    assert "learns nothing" not in capfd.readouterr().err


def test_time_budget_keeps_shape_of_schedule(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_module, "measure_step_seconds", lambda *_, **__: 0.01)
    monkeypatch.setattr(plan_module, "measure_evaluation", lambda *_: 1.0)
    overrides = ["schedule.total_steps=1000", "schedule.warmup_steps=250", "train.eval_every=100", "train.save_every=0"]

    def plan_with(*more: str) -> RunPlan:
        return dry_run_pretraining(
            str(recipe), tiny_data, tmp_path / "run", [*overrides, *more], max_time="1h", device="cpu"
        ).plan

    plan = plan_with()
    assert plan.steps == pytest.approx(0.97 * 3600 / 0.02, rel=0.01)
    assert plan.warmup_steps == round(plan.steps / 4)
    assert re.search(
        r"174,\d{3} steps fit into 1 h.*, with 43,\d{3} warmup steps .*250 of 1,000", capfd.readouterr().err
    )
    assert plan_with("train.eval_every=1000000").steps == pytest.approx(0.97 * 3600 / 0.01, rel=0.01)
    # The batch grows from one sequence over half of the steps, so on average it has three quarters of its full size.
    growing = plan_with("batch.warmup_steps=500", "batch.warmup_from=1", "train.eval_every=1000000")
    assert growing.batch_warmup_steps == pytest.approx(growing.steps / 2, abs=1)
    assert growing.steps == pytest.approx(0.97 * 3600 / 0.0075, rel=0.1)


def test_time_budget_of_unfinished_warmup_lists_its_steps(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = ["schedule.total_steps=10", "schedule.warmup_steps=8", "train.save_every=5"]
    pretrain(str(recipe), tiny_data, tmp_path / "parent", overrides, device="cpu")
    monkeypatch.setattr(plan_module, "measure_step_seconds", lambda *_, **__: 0.01)
    monkeypatch.setattr(plan_module, "measure_evaluation", lambda *_: 1.0)

    def print_budget_from(step: str, run: str) -> str:
        more = [f"warm_start.continues={tmp_path / 'parent' / step}", "schedule.total_steps=20"]
        dry_run_pretraining(str(recipe), tiny_data, tmp_path / run, [*overrides, *more], max_time="1m", device="cpu")
        return capfd.readouterr().err

    assert "warmup steps (the recipe has 8 of 20)" in print_budget_from("step-00000005", "unfinished")
    assert "warmup steps" not in print_budget_from("step-00000010", "finished")


def test_plan_checks_resume_as_a_run_does(recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", resume="must", device="cpu")
    with pytest.raises(BusyError):
        dry_run_pretraining(str(recipe), tiny_data, finished, resume="never", device="cpu")


def test_pretrain_teacher_with_any_name_is_found_or_named(tiny_data: Path, tmp_path: Path) -> None:
    call = ["pretrain", "mini/docs", "--data", tiny_data, "--out", tmp_path / "run", "--device", "cpu", "--teacher"]
    assert "lehrer😀" in albert(*call, tmp_path / "lehrer😀", expect=4).err
