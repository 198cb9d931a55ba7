"""Tests of `training.resolve`: a recipe is resolved from the environment and the saved recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from albert_cli.errors import ConfigError
from albert_cli.ranks import RankGroup
from albert_cli.training import resolve
from albert_cli.training.first_weights import ParentRun
from albert_cli.training.pretrain_recipe import BatchSettings, PretrainRecipe
from albert_cli.training.resolve import RunEnvironment, list_changes, resolve_recipe
from albert_cli.training.settings import ScheduleSettings, TrainSettings
from albert_cli.training.warm_start import WarmStart

T = TypeVar("T")
ENVIRONMENT = RunEnvironment(torch.device("cpu"), RankGroup(), data_fingerprint="da7a")
SCHEDULE = ScheduleSettings(total_steps=100, warmup_steps=10)
TRAIN = TrainSettings(precision="fp32", compile="off", threads=1)
RECIPE = PretrainRecipe(schedule=SCHEDULE, train=TRAIN)
PARENT_RUN = ParentRun(Path("run/step-00000050"), 50, RECIPE, "01d")


def test_resolve_recipe_fills_in_auto_values() -> None:
    recipe = replace(RECIPE, train=TrainSettings(precision="fp32"), batch=BatchSettings(micro_tokens="auto"))
    resolved = resolve_recipe(recipe, ENVIRONMENT, None)
    assert resolved.train.compile == "off"
    assert isinstance(resolved.train.threads, int)
    assert resolved.batch.micro_tokens == 0, "a CPU has no limit of tokens"


@dataclass(frozen=True)
class GroupOfTwo(RankGroup):
    """Two ranks, of which the other one has less free memory."""

    def all_gather(self, value: Any) -> list[Any]:
        return [value, 32_768]

    def broadcast(self, value: T) -> T:
        return value


def test_resolve_recipe_micro_tokens_fit_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "resolve_micro_tokens", lambda *arguments: 131_072)
    environment = replace(ENVIRONMENT, group=GroupOfTwo(0, 2))
    recipe = replace(RECIPE, batch=BatchSettings(micro_tokens="auto"))
    assert resolve_recipe(recipe, environment, None).batch.micro_tokens == 32_768


def test_resolve_recipe_resumed_run_keeps_saved_auto_values() -> None:
    saved = replace(RECIPE, train=replace(TRAIN, precision="bf16", threads=7), batch=BatchSettings(micro_tokens=4096))
    recipe = replace(RECIPE, train=TrainSettings(), batch=BatchSettings(micro_tokens="auto"))
    resolved = resolve_recipe(recipe, ENVIRONMENT, saved)
    assert (resolved.train.precision, resolved.train.threads, resolved.batch.max_micro_tokens) == ("bf16", 7, 4096)


def test_resolve_recipe_resumed_run_prints_threads_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = replace(RECIPE, train=replace(TRAIN, threads="auto"))
    first = resolve_recipe(recipe, ENVIRONMENT, None)
    fitting = first.train.threads
    assert isinstance(fitting, int)
    resolve_recipe(recipe, ENVIRONMENT, first)
    assert not capsys.readouterr().err
    more = replace(RECIPE, train=replace(TRAIN, threads=fitting + 1))  # as if started on a machine with more cores
    resolve_recipe(recipe, ENVIRONMENT, more)
    assert f"now -s train.threads={fitting} fits" in " ".join(capsys.readouterr().err.split())
    resolve_recipe(more, ENVIRONMENT, more)
    assert not capsys.readouterr().err, "the user has set this number"


def test_resolve_recipe_time_budget_is_measured_once() -> None:
    def fit_steps(recipe: PretrainRecipe) -> PretrainRecipe:
        return replace(recipe, schedule=replace(recipe.schedule, total_steps=77, warmup_steps=8))

    environment = replace(ENVIRONMENT, fit_steps=fit_steps)
    first = resolve_recipe(RECIPE, environment, None)
    assert (first.schedule.total_steps, first.schedule.warmup_steps) == (77, 8)
    saved = replace(first, schedule=replace(first.schedule, total_steps=66))
    assert resolve_recipe(RECIPE, environment, saved).schedule == saved.schedule


def test_resolve_recipe_continuing_run_skips_finished_warmup() -> None:
    recipe = replace(RECIPE, warm_start=WarmStart(continues="run"), schedule=ScheduleSettings(total_steps=200))
    environment = replace(ENVIRONMENT, parent_fingerprint="f00d", parent_run=PARENT_RUN)
    resolved = resolve_recipe(recipe, environment, None)
    assert resolved.schedule.resolved_warmup_steps == 10
    assert resolved.warm_start is not None
    assert (resolved.warm_start.fingerprint, resolved.warm_start.step) == ("f00d", 50)
    assert resolved.warm_start.changes == ("schedule.total_steps: 100 -> 200", "data: '01d' -> 'da7a'")
    resumed = resolve_recipe(recipe, ENVIRONMENT, resolved)
    assert resumed == resolved, "the parent is not read again"


def test_resolve_recipe_unfinished_warmup_of_parent_is_not_kept() -> None:
    parent_run = replace(PARENT_RUN, recipe=replace(RECIPE, schedule=replace(SCHEDULE, warmup_steps=80)))
    recipe = replace(RECIPE, warm_start=WarmStart(continues="run"), schedule=replace(SCHEDULE, total_steps=200))
    first = resolve_recipe(recipe, replace(ENVIRONMENT, parent_fingerprint="f00d", parent_run=parent_run), None)
    changed = replace(recipe, schedule=replace(recipe.schedule, warmup_steps=150))
    resumed = resolve_recipe(changed, ENVIRONMENT, first)
    assert (first.schedule.warmup_steps, resumed.schedule.warmup_steps) == (10, 150), "so the caller sees the change"


@pytest.mark.parametrize("total_steps", [5, 50])
def test_resolve_recipe_no_steps_left_raises(total_steps: int) -> None:
    schedule = ScheduleSettings(total_steps=total_steps, warmup_steps=1)
    recipe = replace(RECIPE, warm_start=WarmStart(continues="run"), schedule=schedule)
    environment = replace(ENVIRONMENT, parent_fingerprint="f00d", parent_run=PARENT_RUN)
    with pytest.raises(ConfigError, match=rf"is at step 50, and schedule\.total_steps is {total_steps}") as error:
        resolve_recipe(recipe, environment, None)
    assert "-s schedule.total_steps=100" in str(error.value.hint)


def test_resolve_recipe_time_budget_replaces_too_few_steps() -> None:
    def fit_steps(recipe: PretrainRecipe) -> PretrainRecipe:
        return replace(recipe, schedule=replace(recipe.schedule, total_steps=77))

    schedule = ScheduleSettings(total_steps=5, warmup_steps=1)
    recipe = replace(RECIPE, warm_start=WarmStart(continues="run"), schedule=schedule)
    environment = replace(ENVIRONMENT, parent_fingerprint="f00d", parent_run=PARENT_RUN, fit_steps=fit_steps)
    resolved = resolve_recipe(recipe, environment, None)
    assert (resolved.schedule.total_steps, resolved.schedule.warmup_steps) == (77, 10)


def test_list_changes_leaves_out_unused_and_safe_keys() -> None:
    recipe = replace(RECIPE, masked_bias="unigram", train=replace(TRAIN, keep=9, threads=2, seed=3))
    assert list_changes(PARENT_RUN, recipe, "01d") == ("train.seed: 0 -> 3",)
