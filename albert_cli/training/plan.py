"""What a pretraining run needs: memory and disk by arithmetic, time by measuring; the steps that fit into a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from albert_cli import console, machine, store
from albert_cli.counting import costs
from albert_cli.data.pairs import examples_per_pass
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import CheckpointError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.ranks import RankGroup
from albert_cli.training import capacity
from albert_cli.training.device import use_threads
from albert_cli.training.loop import evaluate_job, measure_step_seconds
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.pretrain_recipe import PretrainRecipe

_MAX_MICRO_TOKENS = 131_072  # of a micro-batch: a launch then takes no time beside its kernel
_MEASURED_SECONDS = 2.0  # seconds of a step that a dry run measures
_RESERVED_FRACTION = 0.03  # share of a time budget kept for a machine that slows down
_SAVING = (0.1, 2e8)  # seconds of a checkpoint, and bytes written, hashed and synced a second: a slow disk's


# ---------------------------------------------------------------- memory and disk


def estimate_run_memory(recipe: PretrainRecipe, device: torch.device, sequences: int) -> dict[str, int]:
    """Bytes that a process needs for a micro-batch of `sequences` of full length, see `capacity.needed`."""
    teacher = ModelConfig.read(hub.find_checkpoint(recipe.distill.teacher) / "config.json") if recipe.distill else None
    return capacity.estimate_memory(recipe.model, recipe.train, recipe.data.max_seq_length, sequences, device, teacher)


def resolve_micro_tokens(recipe: PretrainRecipe, device: torch.device, group: RankGroup) -> int:
    """What `batch.micro_tokens = "auto"` stands for: 0 on a CPU, else as many tokens as the free memory holds.

    At most as many as keep all matrix products at their full rate, and as a rank's share of the batch has.
    """
    if device.type != "cuda":
        return 0
    train, model, length = recipe.train, recipe.model, recipe.data.max_seq_length
    setup = costs.ComputeSetup.of("cuda", train.precision, train.compile)
    free = capacity.available_memory(device) or 0
    held = costs.largest_batch(model, length, free, setup, checkpointed=train.checkpoint_activations)
    share = -(-train.batch_size // group.world_size)
    return length * max(1, min(held, share, _MAX_MICRO_TOKENS // length))


def count_sent_bytes(recipe: PretrainRecipe, group: RankGroup) -> int:
    """Bytes of gradients that each process sends a step, around a ring."""
    return costs.gradient_bytes(recipe.model, group.world_size) // (2 if recipe.train.communication == "bf16" else 1)


def check_disk(recipe: PretrainRecipe, out: Path) -> None:
    """Refuse to start where not even the checkpoints that are kept would fit, one more while it is written."""
    keep, have = recipe.train.keep, len(store.saved_steps(out))
    needed, free = costs.checkpoint_bytes(recipe.model) * max(1, keep + 1 - have), store.free_bytes(out)
    if free < needed:
        raise CheckpointError(
            f"{out}: {needed / 1e6:.1f} MB are needed for {keep} checkpoints and {free / 1e6:.1f} MB are free",
            "free some space, or keep fewer with -s train.keep=1",
        )


# ---------------------------------------------------------------- a number of steps from a time


def fit_steps_to_budget(
    budget: float, begun: float, recipe: PretrainRecipe, job: PretrainingJob, group: RankGroup
) -> PretrainRecipe:
    """The recipe with as many steps as fit into `budget` seconds since `begun`, so that the schedule can reach zero.

    The budget is that of the whole run from now on: steps, evaluations, checkpoints, and this measurement. The shape of
    the schedule stays: a batch that grows keeps its mean share of the full one.
    """
    train, schedule, total, done = recipe.train, recipe.schedule, recipe.schedule.total_steps, recipe.first_step
    with use_threads(train.threads):
        step = measure_step_seconds(_with_full_batch(job), group, steps=8, seconds=min(10, budget / 20))
        evaluation = measure_evaluation(job, group)
    saving = _SAVING[0] + costs.checkpoint_bytes(recipe.model) / _SAVING[1]
    every, interval = train.save_interval()
    if total > done:
        step *= recipe.sequences / ((total - done) * train.batch_size)
    saving_per_step = saving / every if every else saving * step / interval if interval else 0.0
    evaluation_per_step = evaluation / train.eval_every if train.eval_every else 0.0
    left = (
        (1 - _RESERVED_FRACTION) * (budget - (time.monotonic() - begun)) - evaluation - saving
    )  # one of each at the end
    steps = max(1, int(group.broadcast(left / (step + evaluation_per_step + saving_per_step))))

    def scaled(number: int) -> int:
        return round(number * (done + steps) / total)

    # What a run that is continued has behind it keeps its length.
    had, decay, growth = schedule.warmup_steps, schedule.decay_steps, recipe.batch.warmup_steps
    warmup = had if had is None or done else scaled(had)
    growth = growth if done else scaled(growth)
    decay = None if decay is None else scaled(decay)
    schedule = replace(schedule, total_steps=done + steps, warmup_steps=warmup, decay_steps=decay)
    of_them = f", {warmup:,} of them warm-up, as the recipe has {had:,} of {total:,}" if had and not done else ""
    console.info(
        f"{1000 * step:.1f} ms a step, {evaluation:.1f} s an evaluation: {steps:,} steps fit into "
        f"{console.format_duration(budget)}{of_them}"
    )
    return replace(recipe, schedule=schedule, batch=replace(recipe.batch, warmup_steps=growth))


def measure_evaluation(job: PretrainingJob, group: RankGroup) -> float:
    """Seconds that an evaluation takes, by one on few sequences."""
    settings = job.settings
    whole = settings.train.eval_sequences
    few = min(whole, 2 * settings.micro_batch * group.world_size)
    part = replace(job, settings=replace(settings, train=replace(settings.train, eval_sequences=few)))
    started = 0.0
    for _ in range(2):  # the first warms up
        started = time.monotonic()
        evaluate_job(part, group)
    return group.broadcast((time.monotonic() - started) * whole / few)


def _with_full_batch(job: PretrainingJob, **train: Any) -> PretrainingJob:
    """The job with steps of its full batch from the start, to be measured; `train` are changes to its `[train]`."""
    settings = job.settings
    batch = replace(settings.batch, warmup_steps=0)
    return replace(job, settings=replace(settings, batch=batch, train=replace(settings.train, **train)))


# ---------------------------------------------------------------- a dry run


def describe_run(
    recipe: PretrainRecipe, corpus: TokenCorpus, out: Path, device: torch.device, group: RankGroup
) -> dict[str, Any]:
    """What a run would do: shapes, tokens, memory and disk."""
    train, total = recipe.train, recipe.schedule.total_steps
    length, kept = recipe.data.max_seq_length, costs.checkpoint_bytes(recipe.model)
    growth = {"sequences_in_first_step": len(recipe.examples_of(0)), "batch_warmup_steps": recipe.batch.warmup_steps}
    return {
        "parameters": costs.count_parameters(recipe.model).total,
        "steps": total,
        **({"steps_done_before": recipe.first_step} if recipe.first_step else {}),
        "warmup_steps": recipe.schedule.warmup,
        "sequences_per_step": train.batch_size,
        **(growth if recipe.batch.warmup_steps else {}),
        "sequences_per_micro_batch": recipe.micro_batch,
        **({"tokens_per_micro_batch_at_most": recipe.batch.tokens} if recipe.batch.tokens else {}),
        "tokens_per_step_at_most": train.batch_size * length,
        "corpus_tokens": corpus.tokens,
        "passes_over_corpus": round(recipe.sequences / examples_per_pass(corpus, recipe.data), 2),
        **estimate_run_memory(recipe, device, recipe.micro_batch),
        "memory_bytes_free": capacity.available_memory(device),
        "checkpoint_bytes": kept,
        "disk_bytes_needed": kept * (train.keep + 1),
        "disk_bytes_free": store.free_bytes(out),
        "device": str(device),
        "precision": train.precision,
        "compiled": train.compile == "on",
        "threads": train.threads,
        "processes": group.world_size,
        **({"sent_bytes_per_step": sent} if (sent := count_sent_bytes(recipe, group)) else {}),
    }


def estimate_duration(
    recipe: PretrainRecipe, device: torch.device, group: RankGroup, new_job: Callable[[], PretrainingJob]
) -> dict[str, Any]:
    """The time that a run takes, measured on as many sequences as fit into memory and into some seconds."""
    train, length, few = recipe.train, recipe.data.max_seq_length, recipe.micro_batch
    with use_threads(train.threads):
        peak = machine.measure_matmul_peak(train.precision, device, seconds=0.1)
        few = min(few, max(1, int(_MEASURED_SECONDS * peak / (length * costs.training_flops(recipe.model, length)))))
        free = capacity.available_memory(device)
        while few and free is not None and estimate_run_memory(recipe, device, few)["memory_bytes_estimated"] > free:
            few //= 2
        if few == 0:
            return {"estimated_seconds": None, "measured_on_sequences": 0}
        size = few * group.world_size
        part = _with_full_batch(new_job(), batch_size=size, micro_batch_size=few)
        seconds = measure_step_seconds(part, group, steps=2, seconds=0.5) * recipe.sequences / size
    return {"estimated_seconds": round(seconds, 1), "measured_on_sequences": few}


def format_plan(plan: Mapping[str, Any]) -> str:
    """The arithmetic of a dry run's plan as a table."""

    def shown(key: str, value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if "bytes" in key:
            return f"{float(str(value)) / 1e6:,.1f} MB"
        return f"{value:,}" if isinstance(value, int) else str(value)

    return console.format_table(
        ("plan", ""), [(k.replace("_bytes", "").replace("_", " "), shown(k, v)) for k, v in plan.items()]
    )


def format_duration_estimate(plan: Mapping[str, Any]) -> str:
    """How long a dry run's plan takes, and by what that is known."""
    few, micro = plan["measured_on_sequences"], plan["sequences_per_micro_batch"]
    if few == 0:
        return "its time was not measured: not even a single sequence fits into the memory"
    part = f"{few} of the micro-batch's {micro} sequences, and scaled" if few < micro else "a micro-batch"
    return f"takes about {console.format_duration(plan['estimated_seconds'])}, measured on {part}"
