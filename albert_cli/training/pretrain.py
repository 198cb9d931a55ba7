"""`albert pretrain`: train a recipe on a data directory, from step 0 or from the newest checkpoint of the run.

`pretrain` calls the stages of a run in their order. `dry_run_pretraining` trains nothing, and describes what the run
would need.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from albert_cli import config, console, store
from albert_cli.data.batches import sample_lengths
from albert_cli.data.shards import TokenCorpus
from albert_cli.formatting import count_of
from albert_cli.model import hub
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import plan, run
from albert_cli.training.device import use_threads
from albert_cli.training.first_weights import ParentRun, set_first_weights
from albert_cli.training.idle_ranks import warn_idle_ranks
from albert_cli.training.log import LossHints
from albert_cli.training.loop import Loop
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.pretrain_inputs import PretrainInputs, open_inputs
from albert_cli.training.pretrain_recipe import PretrainRecipe, load_pretrain_recipe
from albert_cli.training.pretrain_result import DryRun, PretrainResult, read_last_evaluation, read_result
from albert_cli.training.resolve import RunEnvironment, resolve_recipe, with_parent_path
from albert_cli.training.settings import parse_duration
from albert_cli.training.warm_start import load_parent

_MIN_USEFUL_STEPS: Final = 20  # fewer hardly change the first weights; for the warning of `--max-time`


def pretrain(
    recipe: str,
    data: Path,
    out: Path,
    overrides: Sequence[str] = (),
    *,
    resume: run.ResumeMode = "auto",
    max_time: str | None = None,
    device: str = "auto",
    verify: bool = False,
) -> PretrainResult:
    """Train a recipe to its last step, or resume the run in `out`; `albert pretrain --help` explains the options.

    max_time: the time budget, such as "2h"; the run then has as many steps as fit into it. verify: hash all data again
    first.
    """
    budget = None if max_time is None else parse_duration(max_time, "--max-time")
    opened = open_inputs(recipe, data, out, overrides, device, verify=verify)
    with opened as inputs, run.write_run_status(out) as status:
        group = inputs.group
        resolved = _resolve(inputs, out, overrides, resume, budget)
        if group.rank == 0:
            plan.check_disk(resolved, out)
        schedule = resolved.schedule
        parents = inputs.list_parents(resolved)  # the fingerprints of all inputs: data, parent checkpoint, teacher
        with use_threads(resolved.train.threads):
            job = inputs.new_job(resolved)
            optimizer = make_optimizer(job.model, resolved.optimizer)
            if group.rank == 0:
                store.write_text(out / "recipe.toml", job.recipe_toml)
            state = run.resume_state(out, job.model, optimizer, group, parents)
            if state is None:
                state = set_first_weights(inputs, job, optimizer, out)
            run.mark_running(out, status, state.step, schedule.total_steps)
            job.last_metrics = read_last_evaluation(out, state.step)  # for the model cards until the next evaluation
            hints = LossHints(inputs.corpora.train.unigram_entropy(), schedule.resolved_warmup_steps)
            report_step = partial(run.write_step, out, status)
            loop = Loop(
                job, optimizer, schedule, out, group, "pretrain", parents, state, hints, report_step=report_step
            )
            loop.run()
            # With a duration or 0 as `train.save_every`, the loop need not save the last step. A step that is saved
            # already is not written again.
            loop.save()
        return read_result(out, schedule.total_steps)


def dry_run_pretraining(
    recipe: str,
    data: Path,
    out: Path,
    overrides: Sequence[str] = (),
    *,
    resume: run.ResumeMode = "auto",
    max_time: str | None = None,
    device: str = "auto",
    verify: bool = False,
) -> DryRun:
    """Print the plan of a run and estimate the run's duration, with the checks of `pretrain` except for disk space."""
    budget = None if max_time is None else parse_duration(max_time, "--max-time")
    with open_inputs(recipe, data, out, overrides, device, verify=verify) as inputs:
        group = inputs.group
        resolved = _resolve(inputs, out, overrides, resume, budget)
        run_plan = plan.describe_run(resolved, inputs.corpora.train, out, inputs.device, group.world_size)
        console.print_partial_result(run_plan.to_text())
        duration = plan.estimate_duration(resolved, inputs.device, group, inputs.new_job)
        return DryRun(resolved, run_plan, duration)


def load_recipe_for_data(recipe: str, data: Path, out: Path, overrides: Sequence[str]) -> PretrainRecipe:
    """Load the recipe that `--show-config` prints for the run `out`, with the vocabulary size of a data directory."""
    vocabulary = Vocabulary.load(TokenCorpus.open(data).vocabulary_dir)
    return load_pretrain_recipe(recipe, overrides, vocabulary.size, out)


def _resolve(
    inputs: PretrainInputs, out: Path, overrides: Sequence[str], resume: run.ResumeMode, budget: float | None
) -> PretrainRecipe:
    """Resolve the recipe for its inputs, the run in `out`, and the time budget in seconds, if there is one.

    Raises `BusyError` or `ConfigError` if `out` cannot hold the run, or holds a run that the recipe cannot resume.
    """
    group = inputs.group
    started = time.monotonic()  # the time budget begins here
    saved = run.load_saved_recipe(out, resume, PretrainRecipe)
    group.barrier()  # rank 0 writes its recipe only after all ranks have looked for a saved one
    parent_fingerprint = None
    parent_run = None
    recipe = inputs.recipe
    warm_start = recipe.warm_start
    if warm_start is not None and not store.saved_steps(out):  # a run with a saved step no longer reads its parent
        corpora = inputs.corpora
        parent = load_parent(warm_start, recipe.model, corpora.vocabulary, corpora.train.directory)
        if warm_start.continues is not None:
            parent_run = ParentRun.load(parent.directory)
        parent_fingerprint = store.fingerprint(parent.directory)
        recipe = _without_unused_settings(recipe, parent, overrides)
    elif warm_start is not None and saved is not None:
        # The first start may have reset `masked_bias` (`_without_unused_settings`), and the parent is no longer read.
        recipe = replace(recipe, masked_bias=saved.masked_bias)
    fit_steps = None
    if budget is not None:
        fit_steps = partial(_fit_steps, inputs, started, budget)
    environment = RunEnvironment(
        inputs.device, group, inputs.data_fingerprint, parent_fingerprint, parent_run, fit_steps
    )
    recipe = resolve_recipe(recipe, environment, saved)
    inputs.warn_memory(recipe)
    if group.world_size > 1:
        full_batch_index = recipe.batch_index(max(recipe.first_step, recipe.batch.warmup_steps))
        lengths = sample_lengths(inputs.corpora.train, recipe.data, recipe.train.seed, full_batch_index)
        warn_idle_ranks(recipe, lengths, group.world_size)
    if saved is not None:
        if budget is not None:
            console.info(f"{out}: keeps the {count_of(recipe.schedule.total_steps, 'step')} of its first start")
        run.check_same_recipe(out, with_parent_path(saved, recipe), recipe)
    if parent_run is not None and recipe.warm_start is not None:
        changes = "; ".join(recipe.warm_start.changes or ["nothing"])
        console.info(f"continues {parent_run.directory}, and changes: {changes}")
    return recipe


def _without_unused_settings(
    recipe: PretrainRecipe, parent: hub.Checkpoint, overrides: Sequence[str]
) -> PretrainRecipe:
    """Reset `masked_bias` if the parent has an MLM head; print a note if an override sets a key that has no effect.

    [init] never has an effect here; `PretrainRecipe.with_derived_values` has already reset it.
    """
    unused_keys = ["init"]
    if "masked.bias" in parent.tensors:
        unused_keys.append("masked_bias")
        recipe = replace(recipe, masked_bias="zero")
    overridden = {key.split(".")[0] for override in overrides for key in config.flatten_override(override)}
    if names := [key for key in unused_keys if key in overridden]:
        verb = "is" if len(names) == 1 else "are"
        console.info(f"starts from {parent.directory}, so {' and '.join(names)} {verb} not used")
    return recipe


def _fit_steps(inputs: PretrainInputs, started: float, budget: float, recipe: PretrainRecipe) -> PretrainRecipe:
    """Set and print the number of steps that fit into the time budget.

    budget: seconds, counted from `started`, a value of `time.monotonic()`.
    """
    inputs.warn_memory(recipe)
    _ = inputs.word_vectors  # computed and cached now: the budget includes the time of everything before the first step
    times = plan.measure_times(inputs.new_job(recipe), inputs.group, budget, started)
    fitted = plan.fit_steps_to_budget(recipe, times)
    console.info(plan.format_budget(recipe, fitted, times, budget))
    steps = fitted.schedule.total_steps - fitted.first_step
    if steps < _MIN_USEFUL_STEPS:
        console.warn(
            f"a model learns nothing in {count_of(steps, 'step')}; delete --out and raise --max-time, or run "
            "`albert pretrain` with shorter sequences (-s data.max_seq_length=64)"
        )
    return fitted
