"""The training loop of pretraining and fine-tuning.

A `TrainingJob` samples batches, sums losses, evaluates, and writes its model. The loop does the rest: gradient
accumulation, reduction over ranks, clipping, the check for finite values, the schedule, logging, saving and
interruption. `Loop.run` calls `Loop.steps`, and `Loop._step` makes one update.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Generic, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from albert_cli import config, console, executor, machine, store
from albert_cli.data.run_ahead import run_ahead
from albert_cli.errors import DivergedError, Interrupted
from albert_cli.model.packing import to_device
from albert_cli.ranks import RankGroup, handle_signals
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import StepWindow, TrainState
from albert_cli.training.device import autocast, deterministic_kernels, evaluation_mode, seed_micro_batch
from albert_cli.training.job import BatchT, MicroBatch, TrainingJob
from albert_cli.training.log import LossHints, RunLog, progress_suffix
from albert_cli.training.optimizers import clip_gradients, make_optimizer, update_weights
from albert_cli.training.reduction import reduce_during_backward, reduce_gradients
from albert_cli.training.settings import ScheduleSettings
from albert_cli.training.trackers import open_trackers

DIVERGED_FILE: Final = "diverged.json"
# SLURM can send SIGUSR1 before the time limit; Windows has no such signal.
_TIME_LIMIT_SIGNAL = getattr(signal, "SIGUSR1", signal.SIGTERM)


@dataclass(frozen=True)
class StepResult:
    """The outcome of one update, the same on every rank except for `flops`.

    `values`: the losses and metrics, averaged over the global batch, the gradient's norm before clipping, and the
    learning rate. A loss or metric without items in the batch is absent. `tokens` are those of all ranks, `flops` those
    of this rank only. `stop_requested`: a signal requested one of the ranks to stop. `save_due`: the time in
    `train.save_every` has passed on rank 0.
    """

    values: Mapping[str, float]
    tokens: int
    flops: float
    stop_requested: bool
    save_due: bool


@dataclass(repr=False)  # the default repr would print every weight wherever Python prints the signal handler
class Loop(Generic[BatchT]):
    """One run of a job, from the step in `state` to the last step of `schedule`.

    `out` is the run's directory, `label` the text before the progress bar. `parents`: the fingerprints of data and
    parent checkpoints, which every checkpoint records. `hints`: the rules for hints about the loss; None prints none.
    `report_step`: called on rank 0 with the number of each step that is logged or saved; None reports none.
    """

    job: TrainingJob[BatchT]
    optimizer: Optimizer
    schedule: ScheduleSettings
    out: Path
    group: RankGroup
    label: str = "train"
    parents: Mapping[str, str] = field(default_factory=dict)
    state: TrainState = field(default_factory=TrainState)
    hints: LossHints | None = None
    report_step: Callable[[int], None] | None = None
    _stop_requested: bool = field(default=False, init=False)
    _last_save: float = field(default=0.0, init=False)  # `time.monotonic()` of the last save, or of the start

    def run(self) -> None:
        """Train to the last step; evaluate and save at the intervals that `[train]` sets.

        Raises `DivergedError` if a loss, a gradient or an evaluation is not finite. Raises `Interrupted` after saving
        if a signal (SIGTERM, SIGUSR1, Ctrl-C) asks the process to stop.
        """
        train = self.job.settings.train
        if train.deterministic and self.job.device.type == "cuda":
            console.info(
                "train.deterministic: slower kernels, most of all attention's backward pass; "
                "compare `albert bench pretrain` with and without it"
            )
        if self.group.rank == 0:
            checkpoint.prune_checkpoints(self.out, train.keep)  # the run may have been killed before it pruned
            (self.out / DIVERGED_FILE).unlink(missing_ok=True)
        total_steps = self.schedule.total_steps
        with self._open_log(train.track) as log, contextlib.closing(self.steps(log, total_steps)) as results:
            for result in results:
                if self._is_due(train.eval_every):
                    self._evaluate(log)
                save_due = result.save_due  # for `train.save_every` as a time
                if train.save_steps:
                    save_due = self._is_due(train.save_steps)
                if save_due or result.stop_requested:
                    self.save(log)
                if result.stop_requested:
                    raise Interrupted(f"{self.out}: stopped after step {self.state.step}")

    @contextlib.contextmanager
    def _open_log(self, tracker_names: Sequence[str]) -> Iterator[RunLog | None]:
        """Open the run's log on rank 0, with the trackers of these names; other ranks have none."""
        if self.group.rank != 0:
            yield None
            return
        trackers = open_trackers(self.out, self.state.step, tracker_names, config.to_toml_values(self.job.settings))
        with contextlib.closing(RunLog(self.out, self.state.step, self.hints, trackers)) as log:
            yield log

    def steps(self, log: RunLog | None, bar_total: int | None) -> Generator[StepResult]:
        """Update the weights step by step, yield each step's result, and log the means every `train.log_every` steps.

        The caller evaluates, saves and stops between the steps. `bar_total` is the number of steps at the end of the
        progress bar; with None the bar has no end.
        """
        train = self.job.settings.train
        remaining_steps = range(self.state.step, self.schedule.total_steps)
        sampled_steps = (self.job.sample_step(step, self.group) for step in remaining_steps)
        peak = machine.matmul_peak(train.precision, self.job.device)
        step_started = time.monotonic()
        started = step_started - self.state.seconds  # as if the run had never been interrupted
        self._last_save = step_started
        with (
            deterministic_kernels(train.deterministic),
            handle_signals((signal.SIGTERM, signal.SIGINT, _TIME_LIMIT_SIGNAL), self._on_signal),
            contextlib.closing(run_ahead(sampled_steps)) as batches,
            console.show_progress(self.label, bar_total, self.state.step) as bar,
        ):
            for micro_batches in batches:
                result = self._step(micro_batches)
                self.state.step += 1
                now = time.monotonic()
                self.state.seconds = now - started
                window = self.state.window
                window.add(result.values, result.tokens, result.flops, now - step_started)
                means = window.means()
                speed = window.speed(peak)
                bar.update(self.state.step, progress_suffix(means, speed))
                if self._is_due(train.log_every):
                    if log:
                        log.write_steps(self.state, means, speed)
                        self._report_step()
                    self.state.window = StepWindow()
                yield result
                step_started = time.monotonic()  # the speed excludes the caller's evaluations and saves

    def _report_step(self) -> None:
        """Pass the number of the last step to `report_step`, if there is one; only rank 0 calls this method."""
        if self.report_step is not None:
            self.report_step(self.state.step)

    def _on_signal(self, number: int, frame: object) -> None:
        """Record SIGTERM, SIGUSR1 and the first Ctrl-C; a second Ctrl-C interrupts immediately."""
        if self._stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stop_requested = True
        executor.request_stop()  # after the last step this loop ends as usual, and no further work may start

    def _step(self, micro_batches: Sequence[MicroBatch[BatchT]]) -> StepResult:
        """Update the weights once, with one wait for the device.

        The wait is necessary: the gradient's norm must be known to be finite before the update. Losses, metrics and the
        ranks' requests to stop or to save are copied to the host together with the norm.
        """
        settings = self.job.settings
        means, item_counts = accumulate(self.job, micro_batches, self.state.step, self.group)
        norm = clip_gradients(self.job.model, settings.optimizer.clip_norm)
        lr = self.schedule.rate(self.state.step, settings.optimizer.peak_lr)
        tokens = sum(micro_batch.tokens for micro_batch in micro_batches)
        # Rank 0's clock decides when to save. The interval is 0 if `train.save_every` is a number of steps.
        save_seconds = settings.train.save_seconds
        is_save_time = self.group.rank == 0 and 0 < save_seconds <= time.monotonic() - self._last_save
        # The sums of the two flags are the numbers of ranks that request to stop and to save.
        local_counts = (tokens, self._stop_requested, is_save_time)
        replicated = torch.cat([norm[None], item_counts])
        global_means, global_counts, replicated_values = sum_over_ranks(means, local_counts, replicated, self.group)
        all_tokens, stops, saves = global_counts
        grad_norm, *counts = replicated_values
        # A loss without items has no mean: for example, a batch may have no sentence pair.
        values = {name: mean for name, mean, count in zip(means, global_means, counts, strict=True) if count > 0}
        losses = {name: values[name] for name in self.job.loss_names if name in values}
        if not all(map(math.isfinite, (*losses.values(), grad_norm))):
            self._raise_diverged(means, {**losses, "grad_norm": grad_norm})
        update_weights(self.optimizer, lr)
        return StepResult(
            {"loss": sum(losses.values()), **values, "grad_norm": grad_norm, "lr": lr},
            tokens=round(all_tokens),
            flops=sum(micro_batch.flops for micro_batch in micro_batches),
            stop_requested=stops > 0,
            save_due=saves > 0,
        )

    def _raise_diverged(self, means: Mapping[str, Tensor], values: Mapping[str, float]) -> NoReturn:
        """Write `diverged.json` and raise `DivergedError`.

        The file and the error name the losses that are not finite, with their ranks. If all losses are finite, they
        name the weights whose gradients are not. `means` are this rank's parts of the mean losses, `values` the global
        losses and the gradient's norm.
        """
        local_causes = [name for name in self.job.loss_names if not math.isfinite(float(means[name]))]
        causes: list[str] = []
        for rank, names in enumerate(self.group.all_gather(local_causes)):
            causes += [f"{name} on rank {rank}" for name in names]
        if not causes:
            causes = find_diverged_weights(self.job.model)
        step = self.state.step + 1  # the state counts finished steps
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
        message = f"step {step}: the loss or gradient is not finite ({numbers}; {causes[0]}{more}); nothing was updated"
        if self.group.rank == 0:
            report = DivergenceReport(message, dict(self.parents), step, causes)
            store.write_json(self.out / DIVERGED_FILE, asdict(report))
        raise DivergedError(message, self._divergence_hint())

    def _divergence_hint(self) -> str:
        if self.state.step == 0 and self.job.weight_sources:  # before the first update, the learning rate is no cause
            return f"the weights in {' or '.join(self.job.weight_sources)} may be damaged; use another checkpoint"
        hint = "lower optimizer.lr or lengthen the warmup, and choose another --out"
        steps = store.saved_steps(self.out)
        return f"{hint}; the last checkpoint is {steps[-1]}" if steps else hint

    def _is_due(self, every: int) -> bool:
        """Return True after the last step and after every `every` steps; 0 means after the last step only."""
        if self.state.step == self.schedule.total_steps:
            return True
        return every > 0 and self.state.step % every == 0

    def _evaluate(self, log: RunLog | None) -> None:
        """Score the weights, log the scores, and let the job keep the weights if they are the best so far.

        Raises `DivergedError` if a score is not finite.
        """
        metrics = evaluate_job(self.job, self.group)
        if not metrics:
            return
        # If the last update of the run made a weight infinite, no later step can notice it.
        if not all(map(math.isfinite, metrics.values())):
            raise DivergedError(f"step {self.state.step}: an evaluation score is not finite", self._divergence_hint())
        if log:
            log.write_evaluation(self.state, metrics)
            scores = "  ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in metrics.items())
            console.info(f"{self.label} step {self.state.step:,}: {scores}")
        self.job.keep_best(metrics, self.state)

    def save(self, log: RunLog | None = None) -> None:
        """Commit a checkpoint of the current step; flush the log before, so that it has all steps of the checkpoint."""
        if log:
            log.sync()
        if self.group.rank == 0:
            checkpoint.save_checkpoint(
                self.out, self.state, self.optimizer, self.job.write_model, recipe=self.job.recipe_toml,
                parents=self.parents, keep=self.job.settings.train.keep,
            )  # fmt: skip
            self._report_step()
        self.group.barrier()
        self._last_save = time.monotonic()


@dataclass(frozen=True)
class DivergenceReport:
    """`diverged.json`: the message of the error that ended a run, and the fingerprints of the run's parents.

    `step` is the step that diverged, and `not_finite` lists its losses, or else the weights, that caused it. If an
    evaluation diverged, `step` is None and `not_finite` is empty.
    """

    message: str
    parents: dict[str, str]
    step: int | None = None
    not_finite: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- the arithmetic of a step


def accumulate(
    job: TrainingJob[BatchT], micro_batches: Sequence[MicroBatch[BatchT]], step: int, group: RankGroup
) -> tuple[dict[str, Tensor], Tensor]:
    """Compute the gradient of the global batch's loss, and leave it in each parameter's `.grad`.

    Returns (means, item counts). `means` has this rank's part of each mean loss and extra metric, by name; the parts of
    all ranks add up to the means. The item counts, fp32 [len(means)], are those of all ranks. Every sum is divided by
    its count over the *global* batch, so neither the micro-batch size nor the number of ranks changes the update.
    Nothing here waits for the device.
    """
    device = job.device
    train = job.settings.train
    loss_names = job.loss_names
    local_counts = [sum(micro_batch.counts[name] for micro_batch in micro_batches) for name in loss_names]
    (counts_on_device,) = to_device([np.array(local_counts, np.float32)], device)
    item_counts = dict(zip(loss_names, group.all_reduce(counts_on_device), strict=True))
    for metric, loss_name in job.extra_metrics.items():
        item_counts[metric] = item_counts[loss_name]
    divisors = {name: count.clamp(min=1.0) for name, count in item_counts.items()}  # a loss without items is 0 / 1
    means = {name: torch.zeros((), device=device) for name in divisors}
    sent_dtype = torch.bfloat16 if train.communication == "bf16" else torch.float32
    for micro_batch in micro_batches:
        seed_micro_batch(train.seed, step, micro_batch.number)
        with autocast(train.precision, device):
            sums = job.loss_sums(micro_batch.data)
        loss = torch.stack([sums[name] / divisors[name] for name in loss_names]).sum()
        # Gradients accumulate locally; only the last backward pass sends them. A group of one rank sends nothing.
        sending_group = group if micro_batch is micro_batches[-1] else RankGroup()
        with reduce_during_backward(job.model, sending_group, sent_dtype):
            torch.autograd.backward(loss)
        for name, divisor in divisors.items():
            means[name] += sums[name].detach() / divisor
    if not micro_batches:  # without a backward pass this rank must still send its zeros, for which the other ranks wait
        reduce_gradients(job.model, group, sent_dtype)
    return means, torch.stack(list(item_counts.values()))


def sum_over_ranks(
    means: Mapping[str, Tensor], counts: Sequence[float], replicated: Tensor, group: RankGroup
) -> tuple[list[float], list[float], list[float]]:
    """Sum `means` and `counts` over the ranks; return both sums and `replicated`, after one wait for the device.

    replicated: values that are equal on every rank, such as the gradient's norm; they are only copied to the host.
    """
    (counts_on_device,) = to_device([np.array(counts, np.float32)], replicated.device)
    summed = group.all_reduce(torch.cat([torch.stack(list(means.values())), counts_on_device]))
    numbers: list[float] = torch.cat([summed, replicated]).tolist()
    return numbers[: len(means)], numbers[len(means) : len(summed)], numbers[len(summed) :]


def find_diverged_weights(model: nn.Module) -> list[str]:
    """Return the names of the weights whose gradients are not finite.

    If all gradients are finite and only their norm overflows, return the weight with the largest gradient entry.
    """
    largest = {name: float(p.grad.abs().max()) for name, p in model.named_parameters() if p.grad is not None}
    diverged = [name for name, value in largest.items() if not math.isfinite(value)]
    if diverged:
        return diverged
    return [max(largest, key=lambda name: largest[name])]


def evaluate_job(job: TrainingJob[BatchT], group: RankGroup) -> dict[str, float]:
    """Score the current weights in evaluation mode, without gradients, with matmuls in the recipe's precision."""
    with evaluation_mode(job.model), autocast(job.settings.train.precision, job.device):
        return job.evaluate(group)


def measure_step_seconds(job: TrainingJob[BatchT], group: RankGroup, *, steps: int, seconds: float) -> float:
    """Measure the seconds of one step of the loop, including sampling and logging.

    The measurement takes at least `steps` steps and `seconds` seconds. Its first half is not counted, because the first
    steps compile kernels. The learning rate is close to zero so that no step diverges, but the weights change: discard
    them afterwards.
    """
    endless = ScheduleSettings(total_steps=10**9, warmup_steps=10**9)
    started = time.monotonic()
    uncounted_steps = 0  # the steps of the first half; 0 until it is over
    counted_from = started
    with TemporaryDirectory(prefix="albert-") as out:
        optimizer = make_optimizer(job.model, job.settings.optimizer)
        loop = Loop(job, optimizer, endless, Path(out), group, label="measuring")
        # The trackers of `train.track` would show a run that nobody has started.
        with loop._open_log(()) as log, contextlib.closing(loop.steps(log, None)) as results:
            for count, result in enumerate(results, start=1):
                if result.stop_requested:
                    raise Interrupted("stopped while the speed was measured", "nothing was trained yet")
                elapsed = group.broadcast(time.monotonic() - started)  # all ranks must end at the same step
                if uncounted_steps == 0:
                    if count >= steps / 2 and elapsed >= seconds / 2:
                        machine.synchronize(job.device)  # kernels run after their calls have returned
                        uncounted_steps = count
                        counted_from = time.monotonic()
                elif count >= steps and elapsed >= seconds:
                    machine.synchronize(job.device)
                    return group.broadcast((time.monotonic() - counted_from) / (count - uncounted_steps))
    raise AssertionError("the loop has no last step")
