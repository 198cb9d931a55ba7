"""Count the cost of an experiment's stages: the steps, tokens, FLOPs and disk space of pretraining and fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from albert_cli.counting import costs
from albert_cli.experiments.experiment import ExperimentScale
from albert_cli.experiments.inputs import load_task_recipe
from albert_cli.experiments.plan import Cost
from albert_cli.model.config import ModelConfig
from albert_cli.tasks.registry import TASKS
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.task_recipe import NO_INTERMEDIATE_TASK, FinetuneRecipe

_BYTES_PER_WEIGHT = 4  # fine-tuned models are saved in fp32


def pretraining_cost(recipe: PretrainRecipe, finished_steps: int = 0) -> Cost:
    """Return the cost of a run's steps after `finished_steps`.

    It is an upper bound, because it assumes that all sequences have the full length.
    """
    length = recipe.data.max_seq_length
    steps = recipe.schedule.total_steps - finished_steps
    tokens = recipe.train.batch_size * length * steps
    flops = tokens * costs.training_flops(recipe.model, length)
    parameters = costs.count_parameters(recipe.model).total
    # A new checkpoint is written before the oldest one is deleted, so there is one more than are kept.
    disk_bytes = costs.checkpoint_bytes(recipe.model) * (recipe.train.keep + 1)
    return Cost(parameters, steps, tokens, flops, disk_bytes)


def fine_tuning_cost(recipe: FinetuneRecipe, model: ModelConfig, scale: ExperimentScale) -> Cost | None:
    """Return the cost of a task's fine-tuning runs, and of the intermediate task's run if the recipe has one.

    It is an upper bound, because it assumes that inputs have the full length, and that the files of the intermediate
    task exist. Returns None if a number of steps is unknown because it depends on the data.
    """
    cost = _cost_of_runs(recipe, model, scale.task_runs)
    if cost is None or recipe.intermediate_task == NO_INTERMEDIATE_TASK:
        return cost
    intermediate_recipe = load_task_recipe(recipe.intermediate_task, scale)
    assert intermediate_recipe is not None, "every task of GLUE has a recipe"
    intermediate = _cost_of_runs(intermediate_recipe, model, runs=1)  # all runs of the task start from it
    if intermediate is None:
        return None
    return replace(
        cost,
        steps=cost.steps + intermediate.steps,
        tokens=cost.tokens + intermediate.tokens,
        flops=cost.flops + intermediate.flops,
        disk_bytes=cost.disk_bytes + intermediate.disk_bytes,
    )


def _cost_of_runs(recipe: FinetuneRecipe, model: ModelConfig, runs: int) -> Cost | None:
    """Return the cost of a number of runs of a fine-tuning recipe; None if its number of steps is unknown."""
    if recipe.schedule.total_steps is None:
        return None
    length = min(recipe.data.max_seq_length, model.max_position_embeddings)
    # The tasks of the user's files, which are not in `TASKS`, have one sequence per item.
    sequences_per_item = TASKS[recipe.task].sequences_per_item if recipe.task in TASKS else 1
    steps = recipe.schedule.total_steps * runs
    tokens = steps * recipe.train.batch_size * sequences_per_item * length
    parameters = costs.count_parameters(model).with_pooler
    flops = tokens * costs.training_flops(model, length, masked_fraction=0.0)
    return Cost(parameters, steps, tokens, flops, _BYTES_PER_WEIGHT * parameters * runs)
