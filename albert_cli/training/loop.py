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
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from albert_cli import console, store
from albert_cli.data.prefetch import prefetch
from albert_cli.errors import DivergedError, Interrupted
from albert_cli.ranks import Group
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.device import autocast, matmul_peak, reproducible
from albert_cli.training.lamb import Lamb, norms
from albert_cli.training.run import make_optimizer
from albert_cli.training.schedule import learning_rate
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from albert_cli.training.watch import DIVERGED, RECENT, Board, Watch, Window, divergence, in_words, not_finite, where


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step's batch, still on the host; `number` is its place in the global batch.

    `counts` says over how many items each loss is averaged (masked positions, pairs, examples), `flops` what the
    full model computes for it, forward and backward.
    """

    number: int
    data: Any
    counts: Mapping[str, int]
    tokens: int
    flops: float = 0.0


class Job(Protocol):
    """What the loop trains."""

    @property
    def model(self) -> nn.Module:
        """The module whose parameters are trained."""

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The losses whose sum is minimised."""

    @property
    def shown(self) -> Mapping[str, str]:
        """Other sums of `loss_sums` that are only shown, each with the loss over whose items it is averaged."""

    def draw(self, step: int, group: Group) -> list[MicroBatch]:
        """This rank's micro-batches of a step: a pure function of (seed, step, rank, world size)."""

    def loss_sums(self, data: Any) -> dict[str, Tensor]:
        """The sums of each loss over the items of one micro-batch, named as in its `counts`, and what is shown."""

    def evaluate(self, group: Group) -> dict[str, float]:
        """Scores of the current weights, none when there is nothing to score on; called in evaluation mode."""

    def score(self, metrics: Mapping[str, float]) -> float:
        """The number by which evaluations are compared; greater is better."""

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Called on rank 0 when an evaluation is the best so far."""

    def write_model(self, directory: Path) -> None:
        """Write the model as a Hugging Face directory into a staged directory."""


def micro_batches(total: int, size: int, group: Group) -> Iterator[tuple[int, int, int]]:
    """(number, start, stop) of this rank's parts of a batch; the cut does not depend on the world size."""
    for number, start in enumerate(range(0, total, size)):
        if number % group.world_size == group.rank:
            yield number, start, min(start + size, total)


@dataclass
class Loop:
    """One run of a job, from its state to its last step."""

    job: Job
    optimizer: Lamb
    optimizer_settings: OptimizerSettings
    schedule: ScheduleSettings
    settings: TrainSettings
    out: Path
    recipe: str
    parents: Mapping[str, str]
    group: Group
    device: torch.device
    label: str = "train"
    state: TrainState = field(default_factory=TrainState)
    watch: Watch | None = None

    def run(self) -> dict[str, float]:
        """Train to the last step; return its evaluation.

        Raises `DivergedError` before an update that is not finite, and `Interrupted` after saving when the
        process was asked to stop (SIGTERM, SIGUSR1, Ctrl-C).
        """
        if self.settings.deterministic and self.device.type == "cuda":
            console.note(
                "train.deterministic: slower kernels, attention's backward pass above all; "
                "`albert bench pretrain` with and without it says by how much"
            )
        metrics: dict[str, float] = {}
        with contextlib.closing(self.steps(self.schedule.total_steps)) as steps:
            for _ in steps:
                if self._is_due(self.settings.eval_every):
                    metrics = self._evaluate()
                if self._must_save():
                    self.save()
                if self.must_stop:
                    self.save()
                    raise Interrupted(
                        f"{self.out}: stopped after step {self.state.step}", "the same command goes on from there"
                    )
        return metrics

    def steps(self, shown: int | None) -> Generator[None]:
        """Open the run's files and take one step after the other, each with its line in the journal when it is due.

        `shown`: how many the progress bar counts to; None where that is open.

        Evaluating, saving and stopping are left to the caller; closing the generator closes the files.
        """
        self._open()
        self._peak = matmul_peak(self.settings.precision, self.device, seconds=0.1)
        self._window = Window()
        self._last_save = self._started = time.monotonic()
        self._seconds_before = self.state.seconds
        total = self.schedule.total_steps
        with (
            reproducible(self.settings.deterministic),
            _stop_signals() as self._stop,
            prefetch(lambda step: self.job.draw(step, self.group), range(self.state.step, total)) as batches,
            console.progress(self.label, shown, self.state.step) as bar,
            contextlib.closing(self.journal),
            contextlib.closing(self.board),
        ):
            for parts in batches:
                self._step(parts)
                self._after_step(bar)
                yield

    def _open(self) -> None:
        """Go on with the journal where the state stands."""
        self.journal, self.board = store.Journal(self.out / "metrics.jsonl"), Board()
        self._recent: deque[Mapping[str, float]] = deque(maxlen=RECENT)
        if self.group.rank == 0:
            (self.out / DIVERGED).unlink(missing_ok=True)
            self.journal.cut_back(self.state.step)
            self.board.open(self.out, self.state.step)
            if self.watch is not None and self.journal.path.exists():
                for record in store.read_journal(self.journal.path):
                    self.watch.see(record)

    # ------------------------------------------------------------ one step

    def _step(self, parts: Sequence[MicroBatch]) -> None:
        """One update of the weights, with one wait for the device.

        The wait cannot be left out: no update may follow a gradient that is not finite, so its norm must be known
        first. Losses, accuracies and the ranks' wishes to stop or to save come in the same copy.
        """
        means = accumulate(self.job, parts, self.settings, self.state.step, self.group, self.device)
        norm = clip(self.optimizer, self.optimizer_settings.clip_norm, self.optimizer_settings.normalize_gradient)
        s = self.schedule
        lr = learning_rate(self.state.step, self.optimizer_settings.peak, s.decay, s.warmup)
        values = self._exchange(means, norm)
        losses = {name: values[name] for name in self.job.loss_names}
        step = {"loss": sum(losses.values()), **values, "lr": lr}
        self._recent.append({"step": self.state.step, **step})
        if not all(map(math.isfinite, [*losses.values(), step["grad_norm"]])):
            self._diverged(parts, losses)
        self.optimizer.step(lr)
        self.optimizer.zero_grad()
        self.state.step += 1
        self.state.seconds = self._seconds_before + time.monotonic() - self._started
        self._window.add(step, sum(part.tokens for part in parts), sum(part.flops for part in parts))

    def _exchange(self, means: Mapping[str, Tensor], norm: Tensor) -> dict[str, float]:
        """The means over the whole batch and the gradient's norm as numbers, the same on every rank.

        The gradient was summed over the ranks before, so a part that is not finite is seen by all of them. Notes
        whether a rank was asked to stop, and whether rank 0's clock says that a checkpoint is due.
        """
        wishes = torch.tensor([float(self._stop.is_set), float(self.group.rank == 0 and self._is_time_to_save())])
        own = torch.cat([torch.stack(list(means.values())), wishes.to(norm.device, non_blocking=True)])
        *values, stop, save, last = torch.cat([self.group.sum(own), norm[None]]).tolist()
        self.must_stop, self._save_is_due = stop > 0, save > 0
        return {**dict(zip(means, values, strict=True)), "grad_norm": last}

    def _diverged(self, parts: Sequence[MicroBatch], losses: Mapping[str, float]) -> NoReturn:
        """Leave `diverged.json`, and end. The step is computed once more, to see on which rank the cause lies."""
        step = self.state.step
        self.optimizer.zero_grad()
        own = accumulate(self.job, parts, self.settings, step, Group(), self.device)
        bad = {name for name in losses if not math.isfinite(float(own[name]))} or not_finite(self.job.model)
        self.optimizer.zero_grad()
        names = [*losses, *(name for name, _ in self.job.model.named_parameters())]
        rows = self.group.gather_numbers([float(name in bad) for name in names])
        causes = {rank: [n for n, is_bad in zip(names, row, strict=True) if is_bad] for rank, row in enumerate(rows)}
        said = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
        message = f"step {step}: the loss or gradient is not finite ({said}{where(causes)}); nothing was updated"
        if self.group.rank == 0:
            record = {"message": message, **divergence(step, causes, self._recent), "parents": dict(self.parents)}
            store.write_json(self.out / DIVERGED, record)
        raise DivergedError(message, "lower optimizer.lr or lengthen the warm-up; the last checkpoint is intact")

    def _is_due(self, every: int) -> bool:
        """Whether the last step or a multiple of `every` is done; 0: the last step only."""
        return self.state.step == self.schedule.total_steps or (every > 0 and self.state.step % every == 0)

    def _after_step(self, bar: console.Progress) -> None:
        """Show progress, and every so often write the mean of the steps since the last line."""
        means, speed = self._window.means(), self._window.speed(self.group.world_size, self._peak)
        bar.update(self.state.step, in_words(means, speed))
        if not self._is_due(self.settings.log_every):
            return
        if self.group.rank == 0:
            record = {"step": self.state.step, **{key: _short(value) for key, value in means.items()}, **speed}
            self.journal.append({**record, "seconds": round(self.state.seconds, 2)})
            self.board.add("train", {**means, **speed}, self.state.step)
            for hint in self.watch.see(record) if self.watch else ():
                self.journal.append({"step": self.state.step, "hint": hint})
                console.warn(hint)
        self._window = Window()

    # ------------------------------------------------------------ every so often

    def _evaluate(self) -> dict[str, float]:
        """Score the weights, note it, and let the job keep them when they are the best so far."""
        started = time.monotonic()
        metrics = evaluate(self.job, self.settings, self.group, self.device)
        if not metrics:
            return {}
        score = self.job.score(metrics)
        if self.group.rank == 0:
            rounded = {key: _short(value) for key, value in metrics.items()}
            self.journal.append({"step": self.state.step, "eval": rounded, "seconds": round(self.state.seconds, 2)})
            self.board.add("heldout", metrics, self.state.step)
            shown = "  ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in metrics.items())
            console.note(f"{self.label} step {self.state.step:,}: {shown}")
        if self.state.best_score is None or score > self.state.best_score:
            self.state.best_score, self.state.best_step = score, self.state.step
            if self.group.rank == 0:
                self.job.keep_best(metrics, self.state)
        self._window.started += time.monotonic() - started
        return metrics

    def _must_save(self) -> bool:
        steps, _ = self.settings.save_interval()
        return self._is_due(steps) if steps else self._save_is_due

    def _is_time_to_save(self) -> bool:
        _, seconds = self.settings.save_interval()
        return seconds > 0 and time.monotonic() - self._last_save >= seconds

    def save(self) -> None:
        """Commit a checkpoint of the current step."""
        if self.group.rank == 0:
            keep = self.settings.keep
            checkpoint.save(self.out, self.state, self.optimizer, self.job.write_model, self.recipe, self.parents, keep)
        self.group.barrier()
        self._last_save = time.monotonic()


# ---------------------------------------------------------------- the arithmetic of a step


def accumulate(
    job: Job, parts: Sequence[MicroBatch], settings: TrainSettings, step: int, group: Group, device: torch.device
) -> dict[str, Tensor]:
    """Leave in `.grad` the gradient of the global batch's loss; return this rank's part of each mean over that batch.

    The parts of all ranks add up to the losses and to what the job shows beside them. Every sum is divided by its
    count over the *global* batch, so that neither the micro-batch size nor the number of ranks changes the update;
    gradients are summed locally and reduced once. Nothing here waits for the device.
    """
    names = job.loss_names  # a rank without micro-batches must know them too
    own = torch.tensor([float(sum(p.counts[n] for p in parts)) for n in names]).to(device, non_blocking=True)
    counts = dict(zip(names, group.sum(own).clamp(min=1.0), strict=True))
    counts |= {name: counts[loss] for name, loss in job.shown.items()}
    means = {name: torch.zeros((), device=device) for name in counts}
    for part in parts:
        checkpoint.seed_for(settings.seed, step, part.number)
        with autocast(settings.precision, device):
            sums = job.loss_sums(part.data)
        torch.stack([sums[name] / counts[name] for name in names]).sum().backward()  # type: ignore[no-untyped-call]
        for name, count in counts.items():
            means[name] += sums[name].detach() / count
    if group.world_size > 1:
        reduce_gradients(job.model, group)
    return means


def reduce_gradients(model: nn.Module, group: Group) -> None:
    """Sum the gradients over the ranks in one collective; a rank without micro-batches adds zeros."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in parameters])
    group.sum(flat)
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def clip(optimizer: Lamb, limit: float, normalize: bool = False) -> Tensor:
    """Scale all gradients so that their global norm is at most `limit` (0: never); return the norm before.

    With `normalize` the norm becomes `limit` (0: 1) even where it was less, unless it was zero.
    """
    gradients = [p.grad for p in optimizer.parameters.values() if p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(norms(gradients))
    if normalize:
        torch._foreach_mul_(gradients, (limit or 1.0) / torch.where(norm > 0, norm, 1.0))
    elif limit > 0:
        torch._foreach_mul_(gradients, limit / norm.clamp(min=limit))
    return norm


# ---------------------------------------------------------------- small things


@dataclass
class _Stop:
    is_set: bool = False


@contextlib.contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Turn SIGTERM, SIGUSR1 and the first Ctrl-C into a flag; a second Ctrl-C interrupts at once."""
    stop = _Stop()
    before: dict[int, Any] = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.is_set = True

    with contextlib.suppress(ValueError):  # not in the main thread: the caller handles signals
        for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
            before.setdefault(number, signal.signal(number, on_signal))
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def evaluate(job: Job, settings: TrainSettings, group: Group, device: torch.device) -> dict[str, float]:
    """The scores of the current weights, computed as the settings say."""
    job.model.eval()
    with torch.inference_mode(), autocast(settings.precision, device):
        metrics = job.evaluate(group)
    job.model.train()
    return metrics


def measure(
    job: Job,
    settings: TrainSettings,
    optimizer: OptimizerSettings,
    group: Group,
    device: torch.device,
    *,
    steps: int,
    seconds: float,
) -> float:
    """Seconds that one step of a run takes: the loop's own, with the next batches drawn beside it and a journal.

    It runs for at least `steps` and at least `seconds`, of which the first half warms up: code is made for every new
    shape. The rate is next to nothing, so that none makes it diverge, but the weights are changed: throw them away.
    """
    forever, optimizer = ScheduleSettings(total_steps=10**9), replace(optimizer, lr=1e-12)
    with TemporaryDirectory(prefix="albert-") as out:
        loop = Loop(
            job, make_optimizer(job.model, optimizer), optimizer, forever, settings, Path(out), "", {}, group, device,
            "measuring",
        )  # fmt: skip
        ends = [time.monotonic()]
        with contextlib.closing(loop.steps(None)) as taken:
            for _ in taken:
                ends.append(time.monotonic())
                if loop.must_stop:
                    raise Interrupted("stopped while the speed was measured", "nothing was trained yet")
                if len(ends) > steps and group.broadcast(ends[-1] - ends[0]) >= seconds:
                    break
    half = (len(ends) - 1) // 2
    return group.broadcast((ends[-1] - ends[half]) / (len(ends) - 1 - half))


def _short(value: float) -> float:
    """Six significant digits: enough for a curve, short enough to read."""
    return float(f"{value:.6g}")
