"""Plan a pretraining run before it trains: count memory and disk, measure the speed, and fit steps into a time budget.

`pretrain` uses it for `--max-time`, for `batch.micro_tokens = "auto"` and for its dry run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from albert_cli import console, machine, store
from albert_cli.counting import activations, costs
from albert_cli.data.pairs import examples_per_pass
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import CheckpointError
from albert_cli.formatting import count_of
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.ranks import RankGroup
from albert_cli.training import capacity
from albert_cli.training.capacity import MemoryEstimate
from albert_cli.training.device import use_threads
from albert_cli.training.idle_ranks import parallel_speedup
from albert_cli.training.loop import evaluate_job, measure_step_seconds
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.pretrain_recipe import BatchSettings, PretrainRecipe

_MAX_MICRO_TOKENS: Final = 131_072  # kernels are not faster with larger micro-batches
# The longest step that a dry run measures. For a longer one it measures fewer sequences, and scales the time.
_MEASURED_SECONDS: Final = 2.0
_MIN_MEASUREMENT_SECONDS: Final = 0.5  # of all steps that a dry run measures
_RESERVED_FRACTION: Final = 0.03  # of a time budget, in reserve because a machine can slow down
# The assumed time to save a checkpoint: a constant, and a rate of a slow disk that includes hashing and syncing.
_CHECKPOINT_SECONDS: Final = 0.1
_CHECKPOINT_BYTES_PER_SECOND: Final = 2e8


# ---------------------------------------------------------------- memory and disk


def estimate_run_memory(recipe: PretrainRecipe, device: torch.device, sequences: int) -> MemoryEstimate:
    """Count the bytes that a process needs, with its teacher, for a micro-batch of `sequences` of full length."""
    teacher = _read_teacher_shape(recipe)
    return capacity.estimate_memory(recipe.model, recipe.train, recipe.data.max_seq_length, sequences, device, teacher)


def _read_teacher_shape(recipe: PretrainRecipe) -> ModelConfig | None:
    """Read the shape of the recipe's teacher; return None if the recipe has no teacher."""
    if recipe.distill is None:
        return None
    return ModelConfig.read(hub.find_checkpoint(recipe.distill.teacher) / "config.json")


def resolve_micro_tokens(recipe: PretrainRecipe, device: torch.device, world_size: int) -> int:
    """Return the value of `batch.micro_tokens = "auto"`: 0 on a CPU, else as many tokens as the free memory holds.

    On a GPU it is a multiple of the sequence length, at least one sequence. It is at most `_MAX_MICRO_TOKENS`, and at
    most the tokens of a rank's part of the batch.
    """
    if device.type != "cuda":
        return 0
    train = recipe.train
    length = recipe.data.max_seq_length
    setup = costs.ComputeSetup.from_recipe("cuda", train.precision, train.compile)
    free = capacity.available_memory(device) or 0
    fitting = activations.largest_batch(recipe.model, length, free, setup, checkpointed=train.checkpoint_activations)
    sequences_per_rank = math.ceil(train.batch_size / world_size)
    count = max(1, min(fitting, sequences_per_rank, _MAX_MICRO_TOKENS // length))
    teacher = _read_teacher_shape(recipe)
    if teacher is not None:  # `largest_batch` does not count the teacher
        usable = activations.USABLE_FRACTION * free

        def needed(sequences: int) -> int:
            return capacity.estimate_memory(recipe.model, train, length, sequences, device, teacher).total

        while count > 1 and needed(count) > usable:
            count -= 1
    return length * count


def count_sent_bytes(recipe: PretrainRecipe, world_size: int) -> int:
    """Count the bytes of gradients that each process sends per step in a ring all-reduce."""
    fp32_bytes = costs.gradient_bytes(recipe.model, world_size)
    if recipe.train.communication == "bf16":
        return fp32_bytes // 2
    return fp32_bytes


def check_disk(recipe: PretrainRecipe, out: Path) -> None:
    """Raise `CheckpointError` if the disk has no room for `train.keep` checkpoints and the one being written.

    A run whose last step is saved writes no more checkpoints.
    """
    saved = store.saved_steps(out)
    if saved and store.step_number(saved[-1]) >= recipe.schedule.total_steps:
        return
    # The checkpoints in `out` already have their space, but a new one is written before an old one is deleted.
    missing = max(1, recipe.train.keep + 1 - len(saved))
    needed = missing * costs.checkpoint_bytes(recipe.model)
    free = store.free_bytes(out)
    if free < needed:
        raise CheckpointError(
            f"{out}: the checkpoints need {needed / 1e6:.1f} MB, but only {free / 1e6:.1f} MB are free",
            "free some space, or keep fewer checkpoints with -s train.keep=1",
        )


# ---------------------------------------------------------------- the steps that fit into a time budget


@dataclass(frozen=True)
class StepTimes:
    """Times in seconds: one step with the full batch, one evaluation, and the rest of the time budget."""

    step: float
    evaluation: float
    budget_left: float


def measure_times(job: PretrainingJob, group: RankGroup, budget: float, started: float) -> StepTimes:
    """Measure the times of a run's parts, within the run's time budget.

    budget: seconds, counted from `started`, a value of `time.monotonic()`. The steps of the measurement change the
    job's weights.
    """
    full_batch = replace(job.settings.batch, warmup_steps=0)  # the full batch from the first step on
    full_batch_job = replace(job, settings=replace(job.settings, batch=full_batch))
    with use_threads(job.settings.train.threads):
        # The measurement counts toward the budget, so it takes at most a twentieth of it.
        step = measure_step_seconds(full_batch_job, group, steps=8, seconds=min(10, budget / 20))
        evaluation = measure_evaluation(job, group)
    budget_left = group.broadcast(budget - (time.monotonic() - started))
    return StepTimes(step, evaluation, budget_left)


def measure_evaluation(job: PretrainingJob, group: RankGroup) -> float:
    """Return the seconds of an evaluation, measured on two micro-batches per rank and scaled to all sequences."""
    settings = job.settings
    sequences = settings.train.eval_sequences
    measured = min(sequences, 2 * settings.sequences_per_micro_batch * group.world_size)
    small_train = replace(settings.train, eval_sequences=measured)
    small_job = replace(job, settings=replace(settings, train=small_train))
    evaluate_job(small_job, group)  # a warmup, which compiles kernels
    started = time.monotonic()
    evaluate_job(small_job, group)
    return group.broadcast((time.monotonic() - started) * sequences / measured)


def fit_steps_to_budget(recipe: PretrainRecipe, times: StepTimes) -> PretrainRecipe:
    """Set the number of steps to the largest that fits into the time budget with evaluations and checkpoints.

    The warmups of learning rate and batch size and the decay are scaled by the same factor as the number of steps, so
    the schedule keeps its shape. If the run continues a parent run, the warmup of the batch size is not scaled. Then
    the warmup of the learning rate is scaled only if the parent run has not finished it.
    """
    schedule = recipe.schedule
    total_steps = recipe.first_step + _count_fitting_steps(recipe, times)

    def scale(number: int) -> int:
        return round(number * total_steps / schedule.total_steps)

    warmup = schedule.warmup_steps
    decay = schedule.decay_steps
    batch_warmup = recipe.batch.warmup_steps
    if decay is not None:
        decay = scale(decay)
    if recipe.first_step == 0:
        batch_warmup = scale(batch_warmup)
    if _has_warmup(recipe) and warmup is not None:  # None: `warmup_ratio` scales the warmup
        warmup = scale(warmup)
    return replace(
        recipe,
        schedule=replace(schedule, total_steps=total_steps, warmup_steps=warmup, decay_steps=decay),
        batch=replace(recipe.batch, warmup_steps=batch_warmup),
    )


def _has_warmup(recipe: PretrainRecipe) -> bool:
    """Return True unless the run continues a parent run that has finished the warmup of the learning rate."""
    return recipe.warm_start is None or recipe.warm_start.finished_warmup is None


def _count_fitting_steps(recipe: PretrainRecipe, times: StepTimes) -> int:
    """Divide the rest of the time budget by the mean seconds per step, evaluations and checkpoints included."""
    train = recipe.train
    planned_steps = recipe.schedule.total_steps - recipe.first_step
    step_seconds = times.step
    if planned_steps > 0:  # `times.step` is for the full batch, and a batch warmup makes the mean batch smaller
        step_seconds *= recipe.total_sequences / (planned_steps * train.batch_size)
    saving_seconds = _CHECKPOINT_SECONDS + costs.checkpoint_bytes(recipe.model) / _CHECKPOINT_BYTES_PER_SECOND
    seconds_per_step = step_seconds
    if train.eval_every:
        seconds_per_step += times.evaluation / train.eval_every
    if train.save_steps:
        seconds_per_step += saving_seconds / train.save_steps
    elif train.save_seconds:  # a step takes this fraction of the time between two checkpoints
        seconds_per_step += saving_seconds * step_seconds / train.save_seconds
    # A run ends with one evaluation and one checkpoint.
    seconds_for_steps = (1 - _RESERVED_FRACTION) * times.budget_left - times.evaluation - saving_seconds
    return max(1, int(seconds_for_steps / seconds_per_step))


def format_budget(planned: PretrainRecipe, fitted: PretrainRecipe, times: StepTimes, budget: float) -> str:
    """Return a line with the number of steps that fit into a budget of seconds.

    `planned` is the recipe before `fit_steps_to_budget`, and `fitted` is the result. If the planned warmup has a fixed
    number of steps, the line also has the numbers of warmup steps before and after.
    """
    steps = fitted.schedule.total_steps - fitted.first_step
    verb = "fits" if steps == 1 else "fit"
    text = (
        f"{1000 * times.step:.1f} ms per step, {times.evaluation:.1f} s per evaluation: "
        f"{count_of(steps, 'step')} {verb} into {console.format_duration(budget)}"
    )
    warmup = planned.schedule.warmup_steps
    if warmup and _has_warmup(planned):
        total = planned.schedule.total_steps
        fitted_warmup = fitted.schedule.resolved_warmup_steps
        text += f", with {fitted_warmup:,} warmup steps (the recipe has {warmup:,} of {total:,})"
    return text


# ---------------------------------------------------------------- a dry run


@dataclass(frozen=True)
class RunPlan:
    """The steps, tokens, memory and disk space of a run; a value that is unknown or does not apply is None.

    The fields are the rows of the printed table and the keys of its JSON. Bytes of memory are those of one process.
    """

    parameters: int
    steps: int
    steps_done_before: int | None
    warmup_steps: int
    sequences_per_step: int
    sequences_in_first_step: int | None
    batch_warmup_steps: int | None
    sequences_per_micro_batch: int
    tokens_per_micro_batch_at_most: int | None
    tokens_per_step_at_most: int
    corpus_tokens: int
    passes_over_corpus: float
    weights_gradients_moments_bytes: int
    activations_bytes: int
    teacher_bytes: int | None
    memory_bytes_estimated: int
    memory_bytes_free: int | None
    checkpoint_bytes: int
    disk_bytes_needed: int
    disk_bytes_free: int
    device: str
    precision: str
    compiled: bool
    matmul: str
    threads: int | str
    processes: int
    sent_bytes_per_step: int | None

    def to_json(self) -> dict[str, object]:
        """Return the known values by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_text(self) -> str:
        """Return the known values as a table."""
        rows = []
        for name, value in self.to_json().items():
            rows.append((name.replace("_bytes", "").replace("_", " "), _format_value(name, value)))
        return console.format_table(("plan", ""), rows)


def _format_value(name: str, value: object) -> str:
    """Format a value of a `RunPlan` for its table."""
    if isinstance(value, bool):  # before int, of which bool is a subclass
        return "yes" if value else "no"
    if isinstance(value, int) and "bytes" in name:
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


@dataclass(frozen=True)
class DurationEstimate:
    """The estimated seconds of a run, scaled from measured steps.

    `micro_batch` is the number of sequences in the run's micro-batches, and `measured_sequences` the number in those
    that were measured. If not even one sequence fits into the memory, `measured_sequences` is 0, and `seconds` is the
    run's FLOPs divided by `flops_per_second`, the measured rate of matmuls on the ranks that compute.
    """

    seconds: float
    measured_sequences: int
    micro_batch: int
    flops_per_second: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values by their names in the JSON of a dry run."""
        return {"estimated_seconds": self.seconds, "measured_on_sequences": self.measured_sequences}

    def to_text(self) -> str:
        """Return the estimate as a sentence."""
        if self.flops_per_second is not None:
            rate = f"{self.flops_per_second / 1e12:.3g} TFLOP/s"
            return (
                f"takes at least {console.format_duration(self.seconds)} at {rate}, the measured rate of matmuls; not "
                "even one sequence fits into the memory here"
            )
        basis = "a micro-batch"
        if self.measured_sequences < self.micro_batch:
            basis = f"{self.measured_sequences} of the micro-batch's {self.micro_batch} sequences, and scaled"
        return f"takes about {console.format_duration(self.seconds)}, measured on {basis}"


def describe_run(
    recipe: PretrainRecipe, corpus: TokenCorpus, out: Path, device: torch.device, world_size: int
) -> RunPlan:
    """Count the steps, tokens, memory and disk space of a run; nothing is measured."""
    train = recipe.train
    memory = estimate_run_memory(recipe, device, recipe.sequences_per_micro_batch)
    checkpoint_bytes = costs.checkpoint_bytes(recipe.model)
    return RunPlan(
        parameters=costs.count_parameters(recipe.model).total,
        steps=recipe.schedule.total_steps,
        steps_done_before=recipe.first_step or None,
        warmup_steps=recipe.schedule.resolved_warmup_steps,
        sequences_per_step=train.batch_size,
        sequences_in_first_step=len(recipe.batch_index(recipe.first_step)) if recipe.batch.warmup_steps else None,
        batch_warmup_steps=recipe.batch.warmup_steps or None,
        sequences_per_micro_batch=recipe.sequences_per_micro_batch,
        tokens_per_micro_batch_at_most=recipe.batch.max_micro_tokens or None,
        tokens_per_step_at_most=train.batch_size * recipe.data.max_seq_length,
        corpus_tokens=corpus.n_tokens,
        passes_over_corpus=float(f"{recipe.total_sequences / examples_per_pass(corpus, recipe.data):.4g}"),
        weights_gradients_moments_bytes=memory.state,
        activations_bytes=memory.activations,
        teacher_bytes=memory.teacher or None,
        memory_bytes_estimated=memory.total,
        memory_bytes_free=capacity.available_memory(device),
        checkpoint_bytes=checkpoint_bytes,
        disk_bytes_needed=checkpoint_bytes * (train.keep + 1),
        disk_bytes_free=store.free_bytes(out),
        device=str(device),
        precision=train.precision,
        compiled=train.compile == "on",
        matmul=train.matmul,
        threads=train.threads,
        processes=world_size,
        sent_bytes_per_step=count_sent_bytes(recipe, world_size) or None,
    )


def estimate_duration(
    recipe: PretrainRecipe,
    device: torch.device,
    group: RankGroup,
    new_job: Callable[[PretrainRecipe], PretrainingJob],
) -> DurationEstimate:
    """Measure steps of one micro-batch per rank, and scale their time to the sequences of the run.

    The measured micro-batch is smaller than the run's if, by its FLOPs, the run's would take more than
    `_MEASURED_SECONDS`, or if it would not fit into the free memory. `new_job` creates the job of a recipe. Ranks
    without a micro-batch do not make the run faster.
    """
    train = recipe.train
    length = recipe.data.max_seq_length
    micro_batch = recipe.sequences_per_micro_batch
    speedup = parallel_speedup(train.batch_size, micro_batch, group.world_size)
    with use_threads(train.threads):
        peak = machine.matmul_peak(train.precision, device)
        flops_per_sequence = length * costs.training_flops(recipe.model, length)
        sequences = min(micro_batch, max(1, int(_MEASURED_SECONDS * peak / flops_per_sequence)))
        free = capacity.available_memory(device)
        while sequences and free is not None and estimate_run_memory(recipe, device, sequences).total > free:
            sequences //= 2
        # Each rank measures another peak and other free memory. All must run the same steps, which fit every rank.
        sequences = min(group.all_gather(sequences))
        if sequences == 0:
            rate = peak * speedup
            seconds = flops_per_sequence * recipe.total_sequences / rate
            return DurationEstimate(seconds, 0, micro_batch, rate)
        batch_size = sequences * group.world_size  # one micro-batch per rank
        measured_train = replace(train, batch_size=batch_size, micro_batch_size=sequences)
        # The default has no batch warmup and no limit on tokens. A limit on tokens could put the short sequences of
        # several ranks into one micro-batch.
        measured = replace(recipe, train=measured_train, batch=BatchSettings())
        step_seconds = measure_step_seconds(new_job(measured), group, steps=2, seconds=_MIN_MEASUREMENT_SECONDS)
    seconds = step_seconds * recipe.total_sequences / (sequences * speedup)
    return DurationEstimate(round(seconds, 1), sequences, micro_batch)
