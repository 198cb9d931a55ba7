"""The one training loop: pretraining and every fine-tuning task run through these lines.

What is trained is a `Job`: it draws the micro-batches of a step as a function of (seed, step), turns one
into sums of losses, evaluates, and writes its model. The loop adds everything else: accumulation, the
reduction over ranks, clipping, the finite check, schedule, logging, evaluation, saving, interruption.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from albert_cli import config, console, machine, store
from albert_cli.data.prefetch import prefetch
from albert_cli.errors import DivergedError, Interrupted
from albert_cli.model.packing import to_device
from albert_cli.ranks import RankGroup, handle_signals
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.device import autocast, deterministic_kernels, evaluation_mode, seed_micro_batch
from albert_cli.training.log import LossHints, RunLog, StepWindow, progress_suffix
from albert_cli.training.optimizers import clip_gradients, make_optimizer, update_weights
from albert_cli.training.reduction import reduce_during_backward, reduce_gradients
from albert_cli.training.settings import ScheduleSettings

DIVERGED_FILE: Final = "diverged.json"
_STABILITY_HINT: Final = "lower optimizer.lr or lengthen the warm-up; the last checkpoint is intact"
_SAVE_SIGNAL = getattr(signal, "SIGUSR1", signal.SIGTERM)  # what SLURM can send before the time limit


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step's batch, still on the host; `number` is its place in the global batch.

    `counts`: over how many items each loss is averaged (masked positions, pairs, examples), `flops` what the
    full model computes for it, forward and backward.
    """

    number: int
    data: Any
    counts: Mapping[str, int]
    tokens: int
    flops: float = 0.0


class TrainingJob(ABC):
    """What the loop trains: `settings` is the recipe, whose `[train]` and `[optimizer]` the loop reads."""

    model: nn.Module
    settings: Any

    @property
    def recipe(self) -> str:
        """The resolved recipe as TOML, kept in every checkpoint."""
        return config.dump_toml(self.settings)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The losses whose sum is minimised."""
        return ("loss",)

    @property
    def extra_metrics(self) -> Mapping[str, str]:
        """Sums of `loss_sums` that are logged beside the losses, each with the loss whose count divides it."""
        return {}

    @abstractmethod
    def draw(self, step: int, group: RankGroup) -> list[MicroBatch]:
        """This rank's micro-batches of a step: a pure function of (seed, step, rank, world size)."""

    @abstractmethod
    def loss_sums(self, data: Any) -> dict[str, Tensor]:
        """The sums of each loss over the items of one micro-batch, named as in its `counts`, and of extra metrics."""

    @abstractmethod
    def evaluate(self, group: RankGroup) -> dict[str, float]:
        """Scores of the current weights, none when there is nothing to score on; called in evaluation mode."""

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:  # noqa: B027
        """Called after every evaluation: keep the model, and note it in the state, where it is the best so far."""

    @abstractmethod
    def write_model(self, directory: Path) -> None:
        """Write the model as a Hugging Face directory into a staged directory."""


def split_micro_batches(total: int, size: int, group: RankGroup) -> Iterator[tuple[int, int, int]]:
    """(number, start, stop) of this rank's parts of a batch; the cut does not depend on the world size."""
    for number, start in enumerate(range(0, total, size)):
        if number % group.world_size == group.rank:
            yield number, start, min(start + size, total)


@dataclass(repr=False)  # to register a signal handler Python takes its repr, which would print every weight
class Loop:
    """One run of a job, from its state to its last step; `label` names it beside the progress bar."""

    job: TrainingJob
    optimizer: Optimizer
    schedule: ScheduleSettings
    out: Path
    group: RankGroup
    label: str = "train"
    parents: Mapping[str, str] = field(default_factory=dict)
    state: TrainState = field(default_factory=TrainState)
    hints: LossHints | None = None

    def run(self) -> None:
        """Train to the last step.

        Raises `DivergedError` before an update, and where an evaluation, is not finite, and `Interrupted` after saving
        when the process was asked to stop (SIGTERM, SIGUSR1, Ctrl-C).
        """
        train = self.job.settings.train
        if train.deterministic and self.job.device.type == "cuda":
            console.info(
                "train.deterministic: slower kernels, attention's backward pass above all; "
                "`albert bench pretrain` with and without it shows by how much"
            )
        if self.group.rank == 0:
            checkpoint.prune_checkpoints(self.out, train.keep)  # a kill may have come right after the last save
        with contextlib.closing(self.steps(self.schedule.total_steps)) as steps:
            for _ in steps:
                if self._is_due(train.eval_every):
                    self._evaluate()
                every, _ = train.save_interval()
                if self._is_due(every) if every else self._save_is_due:
                    self.save()
                if self.must_stop:
                    self.save()
                    raise Interrupted(f"{self.out}: stopped after step {self.state.step}")

    def steps(self, shown: int | None) -> Generator[None]:
        """Open the run's files and take one step after the other, each with its line in the journal when it is due.

        `shown`: how many the progress bar counts to; None where that is open. Evaluating, saving and stopping are left
        to the caller; closing the generator closes the files.
        """
        train, total = self.job.settings.train, self.schedule.total_steps
        self._log = None
        if self.group.rank == 0:
            (self.out / DIVERGED_FILE).unlink(missing_ok=True)
            self._log = RunLog(self.out, self.state.step, self.hints)
        peak = machine.measure_matmul_peak(train.precision, self.job.device, seconds=0.1)
        self._window, self._is_asked = StepWindow(), False
        self._last_save = self._started = time.monotonic()
        self._seconds_before = self.state.seconds
        with (
            contextlib.closing(self._log) if self._log else contextlib.nullcontext(),
            deterministic_kernels(train.deterministic),
            handle_signals((signal.SIGTERM, signal.SIGINT, _SAVE_SIGNAL), self._on_signal),
            prefetch(lambda step: self.job.draw(step, self.group), range(self.state.step, total)) as batches,
            console.progress(self.label, shown, self.state.step) as bar,
        ):
            for parts in batches:
                self._step(parts)
                means, speed = self._window.means(), self._window.speed(peak)
                bar.update(self.state.step, progress_suffix(means, speed))
                if self._is_due(train.log_every):
                    if self._log:
                        self._log.steps(self.state, means, speed)
                    self._window = StepWindow()
                yield

    def _on_signal(self, number: int, frame: object) -> None:
        """Note SIGTERM, SIGUSR1 and the first Ctrl-C; a second Ctrl-C interrupts at once."""
        if self._is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_asked = True

    # ------------------------------------------------------------ one step

    def _step(self, parts: Sequence[MicroBatch]) -> None:
        """One update of the weights, with one wait for the device.

        The wait cannot be left out: no update may follow a gradient that is not finite, so its norm must be known
        first. Losses, accuracies and the ranks' wishes to stop or to save come in the same copy.
        """
        settings = self.job.settings
        means = accumulate(self.job, parts, self.state.step, self.group)
        norm = clip_gradients(self.job.model, settings.optimizer.clip_norm)
        lr = self.schedule.rate(self.state.step, settings.optimizer.peak)
        values = self._exchange(means, norm, sum(part.tokens for part in parts))
        step = {"loss": sum(values[name] for name in self.job.loss_names), **values, "lr": lr}
        decisive = {name: values[name] for name in (*self.job.loss_names, "grad_norm")}
        if not all(map(math.isfinite, decisive.values())):
            self._diverged(means, decisive)
        update_weights(self.optimizer, lr)
        self.state.step += 1
        self.state.seconds = self._seconds_before + time.monotonic() - self._started
        self._window.add(step, self._tokens, sum(part.flops for part in parts))

    def _exchange(self, means: Mapping[str, Tensor], norm: Tensor, tokens: int) -> dict[str, float]:
        """The means over the whole batch and the gradient's norm as numbers, the same on every rank.

        The gradient was summed over the ranks before, so a part that is not finite is seen by all of them. Notes how
        many tokens all ranks had, whether one was asked to stop, and whether a checkpoint is due by rank 0's clock.
        """
        _, seconds = self.job.settings.train.save_interval()
        is_time = self.group.rank == 0 and 0 < seconds <= time.monotonic() - self._last_save
        counts = to_device([np.array([tokens, self._is_asked, is_time], np.float32)], norm.device)
        own = torch.cat([torch.stack(list(means.values())), *counts])
        *values, of_all, stop, save, last = torch.cat([self.group.all_reduce(own), norm[None]]).tolist()
        self._tokens, self.must_stop, self._save_is_due = round(of_all), stop > 0, save > 0
        return {**dict(zip(means, values, strict=True)), "grad_norm": last}

    def _diverged(self, means: Mapping[str, Tensor], values: Mapping[str, float]) -> NoReturn:
        """Leave `diverged.json` with what is not finite, and end: losses by rank, or else weights by their gradient."""
        own = [name for name in self.job.loss_names if not math.isfinite(float(means[name]))]
        causes = [f"{name} on rank {rank}" for rank, names in enumerate(self.group.all_gather(own)) for name in names]
        if not causes:  # a loss would spoil every gradient
            parameters = self.job.model.named_parameters()
            greatest = {name: float(p.grad.abs().max()) for name, p in parameters if p.grad is not None}
            infinite = [name for name, value in greatest.items() if not math.isfinite(value)]
            causes = infinite or [max(greatest, key=lambda name: greatest[name])]  # or their norm alone overflowed
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        at = "".join(f"; {name}" for name in causes[:1]) + (f" and {len(causes) - 1} more" if causes[1:] else "")
        message = f"step {self.state.step}: the loss or gradient is not finite ({numbers}{at}); nothing was updated"
        if self.group.rank == 0:
            found = {"message": message, "step": self.state.step, "not_finite": causes, "parents": dict(self.parents)}
            store.write_json(self.out / DIVERGED_FILE, found)
        raise DivergedError(message, _STABILITY_HINT)

    def _is_due(self, every: int) -> bool:
        """Whether the last step or a multiple of `every` is done; 0: the last step only."""
        last = self.schedule.total_steps
        return self.state.step == last or (every > 0 and self.state.step % every == 0)

    # ------------------------------------------------------------ every so often

    def _evaluate(self) -> None:
        """Score the weights, note it, and let the job keep them where they are the best so far."""
        started = time.monotonic()
        metrics = evaluate_job(self.job, self.group)
        if not metrics:
            return
        # The last update can spoil the weights, which no step follows.
        if not all(map(math.isfinite, metrics.values())):
            raise DivergedError(f"step {self.state.step}: what is scored after it is not finite", _STABILITY_HINT)
        if self._log:
            self._log.evaluation(self.state, metrics)
            shown = "  ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in metrics.items())
            console.info(f"{self.label} step {self.state.step:,}: {shown}")
        self.job.keep_best(metrics, self.state)
        self._window.started += time.monotonic() - started

    def save(self) -> None:
        """Commit a checkpoint of the current step."""
        if self._log:
            self._log.sync()
        if self.group.rank == 0:
            checkpoint.save_checkpoint(
                self.out, self.state, self.optimizer, self.job.write_model, recipe=self.job.recipe,
                parents=self.parents, keep=self.job.settings.train.keep,
            )  # fmt: skip
        self.group.barrier()
        self._last_save = time.monotonic()


# ---------------------------------------------------------------- the arithmetic of a step


def accumulate(job: TrainingJob, parts: Sequence[MicroBatch], step: int, group: RankGroup) -> dict[str, Tensor]:
    """Leave in `.grad` the gradient of the global batch's loss; return this rank's part of each mean over that batch.

    The parts of all ranks add up to the losses and to the extra metrics. Every sum is divided by its
    count over the *global* batch, so that neither the micro-batch size nor the number of ranks changes the update;
    gradients are summed locally and reduced once. Nothing here waits for the device.
    """
    names, device, train = job.loss_names, job.device, job.settings.train  # a rank without micro-batches needs them too
    (own,) = to_device([np.array([sum(p.counts[n] for p in parts) for n in names], np.float32)], device)
    counts = dict(zip(names, group.all_reduce(own).clamp(min=1.0), strict=True))
    counts |= {name: counts[loss] for name, loss in job.extra_metrics.items()}
    means = {name: torch.zeros((), device=device) for name in counts}
    sent_in = torch.bfloat16 if train.communication == "bf16" else torch.float32
    for part in parts:
        seed_micro_batch(train.seed, step, part.number)
        with autocast(train.precision, device):
            sums = job.loss_sums(part.data)
        loss = torch.stack([sums[name] / counts[name] for name in names]).sum()
        with reduce_during_backward(job.model, group if part is parts[-1] else RankGroup(), sent_in):
            loss.backward()  # type: ignore[no-untyped-call]
        for name, count in counts.items():
            means[name] += sums[name].detach() / count
    if not parts:
        reduce_gradients(job.model, group, sent_in)
    return means


def evaluate_job(job: TrainingJob, group: RankGroup) -> dict[str, float]:
    """The scores of the current weights, with products in the recipe's precision."""
    with evaluation_mode(job.model), autocast(job.settings.train.precision, job.device):
        return job.evaluate(group)


def measure_step_seconds(job: TrainingJob, group: RankGroup, *, steps: int, seconds: float) -> float:
    """Seconds that one step of a run takes: the loop's own, with the next batches drawn beside it and a journal.

    It runs for at least `steps` and at least `seconds`, of which the first half warms up: code is made for every new
    shape. The rate is next to nothing, so that none makes it diverge, but the weights are changed: throw them away.
    """
    tiny = replace(job.settings.optimizer, lr=1e-12)
    job = replace(job, settings=replace(job.settings, optimizer=tiny))  # type: ignore[type-var]
    with TemporaryDirectory(prefix="albert-") as out:
        optimizer, forever = make_optimizer(job.model, tiny), ScheduleSettings(total_steps=10**9)
        loop = Loop(job, optimizer, forever, Path(out), group, label="measuring")
        begin, warm, done = time.monotonic(), 0, 0.0
        with contextlib.closing(loop.steps(None)) as taken:
            for count, _ in enumerate(taken, start=1):
                if loop.must_stop:
                    raise Interrupted("stopped while the speed was measured", "nothing was trained yet")
                passed = group.broadcast(time.monotonic() - begin)
                if warm and count >= steps and passed >= seconds:
                    machine.synchronize(job.device)  # the clock is read when the work is done, not when it is queued
                    return group.broadcast((time.monotonic() - done) / (count - warm))
                if not warm and count >= steps / 2 and passed >= seconds / 2:
                    machine.synchronize(job.device)
                    warm, done = count, time.monotonic()
    raise AssertionError("the loop has no end of its own")
