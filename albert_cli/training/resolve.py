"""Resolve a pretraining recipe: fill in every value that the first start of its run determines.

The result of `resolve_recipe` depends only on the recipe, the environment and, for a resumed run, the recipe that the
run has saved. For some values of "auto" it measures speeds on the environment's device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from albert_cli import config, store
from albert_cli.errors import ConfigError
from albert_cli.ranks import RankGroup
from albert_cli.training.device import note_changed_threads, resolve_auto
from albert_cli.training.first_weights import ParentRun
from albert_cli.training.plan import resolve_micro_tokens
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import RESUME_SAFE_KEYS
from albert_cli.training.warm_start import find_parent

# Differences in these sections and keys are not listed in `warm_start.changes`: the parent run has another [warm_start]
# or none, and [init] and masked_bias only set first weights, which the parent's weights replace.
_IGNORED_KEYS = ("warm_start", "init", "masked_bias")


@dataclass(frozen=True)
class RunEnvironment:
    """The device, ranks, data and parent of a run, for which its recipe is resolved.

    `parent_fingerprint` belongs to the checkpoint in `[warm_start]`, and `parent_run` is the run that this one
    continues (`warm_start.continues`); both are None once the run has saved a step. `fit_steps` measures a recipe and
    sets the number of steps that fit into `--max-time`; it is None without `--max-time`.
    """

    device: torch.device
    group: RankGroup
    data_fingerprint: str
    parent_fingerprint: str | None = None
    parent_run: ParentRun | None = None
    fit_steps: Callable[[PretrainRecipe], PretrainRecipe] | None = None


def resolve_recipe(recipe: PretrainRecipe, environment: RunEnvironment, saved: PretrainRecipe | None) -> PretrainRecipe:
    """Fill in every value of a recipe that the first start determines; `saved` is the recipe of the run to resume.

    Raises `ConfigError` if the teacher's fingerprint is not the one in the recipe, or if no step is left. The result
    differs from `saved` if the user's recipe, the parent or the teacher has changed since the first start; the caller
    compares them with `run.check_same_recipe`.
    """
    recipe = with_warm_start(recipe, environment, saved)
    if recipe.distill is not None:
        recipe = replace(recipe, distill=recipe.distill.with_fingerprint())
    recipe = with_auto_values(recipe, environment, saved)
    recipe = with_time_budget(recipe, environment, saved)
    return with_changes(recipe, environment)


def with_warm_start(
    recipe: PretrainRecipe, environment: RunEnvironment, saved: PretrainRecipe | None
) -> PretrainRecipe:
    """Fill in the parent's fingerprint and, if the run continues its parent, the parent's step and finished warmup.

    Once the run has saved a step, `environment` has no parent, and the values are those in `saved`. Raises
    `ConfigError` if the parent run has already made all steps of the recipe, unless a time budget sets their number.
    """
    warm_start = recipe.warm_start
    if warm_start is None:
        return recipe
    if environment.parent_fingerprint is not None:  # this run has not saved a step yet
        step = None
        finished_warmup = None
        if environment.parent_run is not None:
            step = environment.parent_run.step
            parent_warmup = environment.parent_run.recipe.schedule.resolved_warmup_steps
            finished_warmup = parent_warmup if parent_warmup <= step else None
        warm_start = replace(
            warm_start, fingerprint=environment.parent_fingerprint, step=step, finished_warmup=finished_warmup
        )
    elif saved is not None and saved.warm_start is not None:
        # A fingerprint in the recipe is retained, so that `run.check_same_recipe` reports it if it is another one.
        fingerprint = warm_start.fingerprint or saved.warm_start.fingerprint
        recorded = saved.warm_start
        warm_start = replace(
            warm_start,
            fingerprint=fingerprint,
            step=recorded.step,
            finished_warmup=recorded.finished_warmup,
            changes=recorded.changes,
        )
    else:  # [warm_start] was added to the recipe of a saved run; the caller rejects this change
        return recipe
    if environment.fit_steps is None:  # otherwise the time budget sets the number of steps
        _check_steps_left(recipe, environment.parent_run)
    recipe = replace(recipe, warm_start=warm_start)
    if warm_start.finished_warmup is not None:
        # This run continues the count of the parent's steps. With the parent's number of warmup steps, all steps of
        # this run come after the warmup.
        warmup = warm_start.finished_warmup
        total_steps = max(recipe.schedule.total_steps, warmup + 1)  # fewer are possible only with a time budget
        recipe = replace(recipe, schedule=replace(recipe.schedule, warmup_steps=warmup, total_steps=total_steps))
    return recipe


def with_parent_path(saved: PretrainRecipe, recipe: PretrainRecipe) -> PretrainRecipe:
    """Return a run's saved recipe with the path of the parent in `recipe`, if that path leads to the same checkpoint.

    The parent may have been moved since the first start, or its path may be written in another way.
    """
    old = saved.warm_start
    new = recipe.warm_start
    if old is None or new is None:
        return saved
    moved = replace(old, checkpoint=new.checkpoint, continues=new.continues)
    uses_other_key = (old.continues is None) != (new.continues is None)
    if moved == old or uses_other_key or store.fingerprint(find_parent(new)) != old.fingerprint:
        return saved
    return replace(saved, warm_start=moved)


def with_auto_values(
    recipe: PretrainRecipe, environment: RunEnvironment, saved: PretrainRecipe | None
) -> PretrainRecipe:
    """Replace each "auto" by the value in the saved recipe or, at the first start, by the one that rank 0 measures.

    The "auto" of `batch.micro_tokens` becomes the number of tokens that fits into the free memory of every rank.
    """
    device = environment.device
    train = recipe.train
    sequences = recipe.sequences_per_micro_batch
    length = recipe.data.max_seq_length
    if saved is not None:
        train = train.with_resolved(saved.train)
        if recipe.train.threads == "auto" and device.type == "cpu":
            note_changed_threads(train, recipe.model, sequences=sequences, length=length)
    train = resolve_auto(train, recipe.model, device, sequences=sequences, length=length)
    recipe = replace(recipe, train=train)
    if recipe.batch.micro_tokens == "auto":
        if saved is None:
            group = environment.group
            # Other programs may use the memory of some GPUs, so the GPU with the least free memory decides.
            tokens = min(group.all_gather(resolve_micro_tokens(recipe, device, group.world_size)))
        else:
            tokens = saved.batch.max_micro_tokens  # the saved `micro_tokens`, which the first start has resolved
        recipe = replace(recipe, batch=replace(recipe.batch, micro_tokens=tokens))
    train, batch = environment.group.broadcast((recipe.train, recipe.batch))
    return replace(recipe, train=train, batch=batch)


def with_time_budget(
    recipe: PretrainRecipe, environment: RunEnvironment, saved: PretrainRecipe | None
) -> PretrainRecipe:
    """Set the number of steps that fit into `--max-time`; a resumed run keeps the number of its first start."""
    if environment.fit_steps is None:
        return recipe
    if saved is None:
        return environment.fit_steps(recipe)
    schedule = replace(
        recipe.schedule,
        total_steps=saved.schedule.total_steps,
        warmup_steps=saved.schedule.warmup_steps,
        decay_steps=saved.schedule.decay_steps,
    )
    return replace(recipe, schedule=schedule, batch=replace(recipe.batch, warmup_steps=saved.batch.warmup_steps))


def with_changes(recipe: PretrainRecipe, environment: RunEnvironment) -> PretrainRecipe:
    """Record in `warm_start.changes` how the recipe differs from that of the parent run, if the run continues one.

    Raises `ConfigError` if the parent run has already made all steps of this recipe.
    """
    parent_run = environment.parent_run
    if parent_run is None or recipe.warm_start is None:
        return recipe
    _check_steps_left(recipe, parent_run)
    changes = list_changes(parent_run, recipe, environment.data_fingerprint)
    return replace(recipe, warm_start=replace(recipe.warm_start, changes=changes))


def _check_steps_left(recipe: PretrainRecipe, parent_run: ParentRun | None) -> None:
    """Raise `ConfigError` if the parent run, if there is one, has already made all steps of the recipe."""
    if parent_run is None:
        return
    total = recipe.schedule.total_steps
    if total <= parent_run.step:
        raise ConfigError(
            f"{parent_run.directory}: is at step {parent_run.step:,}, and schedule.total_steps is {total:,}",
            "schedule.total_steps counts the steps of the parent run too: use "
            f"-s schedule.total_steps={2 * parent_run.step}",
        )


def list_changes(parent_run: ParentRun, recipe: PretrainRecipe, data_fingerprint: str) -> tuple[str, ...]:
    """Return a line for each key in which a recipe differs from the parent run's, and one if the data differ.

    `_IGNORED_KEYS` and `RESUME_SAFE_KEYS` are left out.
    """
    before = parent_run.recipe
    warmup = before.schedule.resolved_warmup_steps
    if warmup == recipe.schedule.warmup_steps:  # then a ratio in the parent's recipe is not a difference
        before = replace(before, schedule=replace(before.schedule, warmup_steps=warmup))
    lines = [
        *config.list_differences(config.to_toml_values(before), config.to_toml_values(recipe)),
        *config.list_differences({"data": parent_run.data}, {"data": data_fingerprint}),
    ]
    changes = []
    for line in lines:
        key = line.split(":")[0]  # a line is `section.key: old -> new`
        if key not in RESUME_SAFE_KEYS and key.split(".")[0] not in _IGNORED_KEYS:
            changes.append(line)
    return tuple(changes)
