"""Tests of `experiments.stage_costs`: the tokens of fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.experiments import recipe
from albert_cli.experiments.inputs import load_task_recipe
from albert_cli.experiments.plan import Cost, ExperimentRequest
from albert_cli.experiments.stage_costs import fine_tuning_cost
from albert_cli.experiments.stages import make_plan
from albert_cli.training.task_recipe import FinetuneRecipe

SCALE = recipe.load_experiment("glue").scales["paper"]


def load(task: str) -> FinetuneRecipe:
    loaded = load_task_recipe(task, SCALE)
    assert loaded is not None
    return loaded


def cost_of(task: str) -> Cost:
    plan = make_plan(recipe.load_experiment("glue"), ExperimentRequest("paper", Path("out"), dry_run=True))
    pretrained = plan.runs[0].recipe
    assert pretrained is not None
    cost = fine_tuning_cost(load(task), pretrained.model, SCALE)
    assert cost is not None
    return cost


def tokens_of_run(task: str) -> int:
    steps = load(task).schedule.total_steps
    assert steps is not None
    return steps * load(task).train.batch_size * load(task).data.max_seq_length


@pytest.mark.parametrize(("task", "sequences_per_item"), [("mnli", 1), ("squad1", 1), ("race", 4)])
def test_fine_tuning_cost_counts_all_sequences_of_items(task: str, sequences_per_item: int) -> None:
    assert cost_of(task).tokens == SCALE.task_runs * sequences_per_item * tokens_of_run(task)


def test_fine_tuning_cost_includes_one_intermediate_run() -> None:
    rte, mnli = cost_of("rte"), cost_of("mnli")
    assert rte.tokens == SCALE.task_runs * tokens_of_run("rte") + tokens_of_run("mnli")
    assert rte.disk_bytes == (SCALE.task_runs + 1) * mnli.disk_bytes / SCALE.task_runs
    assert rte.flops / rte.tokens == pytest.approx(mnli.flops / mnli.tokens)
