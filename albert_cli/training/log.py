"""The log of a run: means of its steps, speed, evaluations and hints, as JSON lines and for trackers."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from albert_cli import console, journal
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.trackers import Trackers

# Every hint of a run, with the fields that its rule fills in.
_HINTS: Final = {
    "spike": (
        "loss jumped from {median:.3f} to {loss:.3f} by step {step:,} (gradient norm {norm:.3g}, usually "
        "{usual_norm:.3g}): if it does not come back, lower optimizer.lr or lengthen the warmup; "
    ),
    "plateau": (
        "MLM loss has stayed at {mean:.2f} for {steps:,} steps (the unigram entropy is {entropy:.2f}: the model "
        "knows how often tokens occur, but uses no context). Try informed initialization ([init]), more updates "
        "(shorter sequences, smaller batches), a lower optimizer.lr, "
        'model.initializer_range = "auto" or masked_bias = "unigram"; '
    ),
}
_DOCS_REFERENCE: Final = 'see "When the loss stays or jumps" in docs/pretraining.md'

_SPIKE_RECORDS: Final = 50  # journal records whose median is the usual loss
_MIN_SPIKE_RECORDS: Final = 20
_SPIKE_NATS: Final = 0.5  # a spike is above the median by this and by eight usual deviations
_SPIKE_DEVIATIONS: Final = 8
_MAD_TO_DEVIATION: Final = 1.4826  # the standard deviation of normal noise is so many median absolute deviations

_PLATEAU_STEPS: Final = 500  # steps without progress before the first hint; twice as many before each further one
_PROGRESS_NATS: Final = 0.1  # less is noise
_CONTEXT_NATS: Final = 0.3  # below the unigram entropy: reached by copying unmasked tokens, without context
_MEAN_STEPS: Final = 250  # the loss of one step is too noisy to compare

LossRecord = Mapping[str, float]  # a journal record; hints need "step", "loss", "mlm_loss" and "grad_norm"


@dataclass
class StepWindow:
    """Sums over the steps since the last journal record: `tokens` of all ranks, `flops` of the full model on one.

    `steps_of_value`: the steps that have a value; a loss without items in a batch has none.
    """

    sums: dict[str, float] = field(default_factory=dict)
    steps_of_value: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    flops: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def add(self, values: Mapping[str, float], tokens: int, flops: float) -> None:
        """Add one step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.steps_of_value[name] = self.steps_of_value.get(name, 0) + 1
        self.tokens += tokens
        self.flops += flops

    def means(self) -> dict[str, float]:
        """Return the mean of each value over the steps that have it."""
        return {name: total / self.steps_of_value[name] for name, total in self.sums.items()}

    def speed(self, peak: float | None) -> dict[str, float]:
        """Return tokens per second of all ranks, and the MFU of one rank if its `peak` in FLOP/s is known."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        speed: dict[str, float] = {"tokens_per_second": round(self.tokens / seconds)}
        if peak and self.flops:
            speed["mfu"] = round(self.flops / seconds / peak, 4)
        return speed


@dataclass
class SpikeRule:
    """A hint for a loss far above its median over the last journal records, once until it is back."""

    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=_SPIKE_RECORDS))
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=_SPIKE_RECORDS))
    _is_high: bool = False

    def observe(self, record: LossRecord) -> str | None:
        """Add a record; return the hint that it gives reason for."""
        loss = record["loss"]
        was_high = self._is_high
        hint = None
        if len(self._losses) >= _MIN_SPIKE_RECORDS:
            median = statistics.median(self._losses)
            deviation = _MAD_TO_DEVIATION * statistics.median(abs(x - median) for x in self._losses)
            self._is_high = loss > median + max(_SPIKE_NATS, _SPIKE_DEVIATIONS * deviation)
            if self._is_high and not was_high:
                hint = _HINTS["spike"].format(
                    median=median,
                    loss=loss,
                    step=record["step"],
                    norm=record["grad_norm"],
                    usual_norm=statistics.median(self._norms),
                )
        self._losses.append(loss)
        self._norms.append(record["grad_norm"])
        return hint


@dataclass
class PlateauRule:
    """A hint for an MLM loss that stays near the unigram entropy, at growing intervals."""

    unigram_entropy: float
    warmup: int
    _last_step: int = 0
    _sum: float = 0.0
    _steps: int = 0
    _best: float = float("inf")
    _best_step: int = 0
    _patience: int = _PLATEAU_STEPS

    def observe(self, record: LossRecord) -> str | None:
        """Add a record; return the hint that it gives reason for."""
        step = int(record["step"])
        self._sum += (step - self._last_step) * record["mlm_loss"]
        self._steps += step - self._last_step
        self._last_step = step
        if self._steps < _MEAN_STEPS:
            return None
        mean = self._sum / self._steps
        self._sum = 0.0
        self._steps = 0
        if mean < self._best - _PROGRESS_NATS or step <= self.warmup:
            self._best = mean
            self._best_step = step
            self._patience = _PLATEAU_STEPS
        waited = step - self._best_step
        if waited < self._patience or mean < self.unigram_entropy - _CONTEXT_NATS:
            return None
        self._patience *= 2
        return _HINTS["plateau"].format(mean=mean, steps=waited, entropy=self.unigram_entropy)


class LossHints:
    """Hints about a loss that jumps or stays, from the records of the journal in their order.

    The hints depend on the records alone, so a resumed run prints the same hints as an uninterrupted one.
    `unigram_entropy`, in nats, is the loss of a model that only knows token frequencies. `warmup`: steps in which slow
    progress is normal.
    """

    def __init__(self, unigram_entropy: float, warmup: int) -> None:
        self._rules = (SpikeRule(), PlateauRule(unigram_entropy, warmup))

    def observe(self, record: LossRecord) -> list[str]:
        """Add a record of the journal; return the hints that it gives reason for."""
        if not {"loss", "mlm_loss", "grad_norm"} <= record.keys():
            return []
        hints = [rule.observe(record) for rule in self._rules]
        return [hint + _DOCS_REFERENCE for hint in hints if hint is not None]


class RunLog:
    """Rank 0's `metrics.jsonl`, the same curves for trackers, and hints; opening it drops records after `step`."""

    def __init__(self, out: Path, step: int, hints: LossHints | None, trackers: Trackers) -> None:
        self._journal = journal.Journal(out / journal.JOURNAL)
        self._hints = hints
        self._trackers = trackers
        self._journal.truncate_after(step)
        if hints is not None and self._journal.path.exists():
            for record in journal.read_journal(self._journal.path):
                hints.observe(cast(LossRecord, record))

    def write_steps(self, state: TrainState, means: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """Write a record of the steps since the last one, and the hints that it gives reason for."""
        record = {"step": state.step, **{key: _round_digits(value) for key, value in means.items()}, **speed}
        self._write("train", record, state, {**means, **speed})
        if self._hints is None:
            return
        for hint in self._hints.observe(record):
            self._journal.append({"step": state.step, "hint": hint})
            console.warn(hint)

    def write_evaluation(self, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Write a record of an evaluation."""
        rounded = {key: _round_digits(value) for key, value in metrics.items()}
        self._write("heldout", {"step": state.step, "eval": rounded}, state, metrics)

    def _write(self, curves: str, record: Mapping[str, object], state: TrainState, values: Mapping[str, float]) -> None:
        self._journal.append({**record, "seconds": round(state.seconds, 2)})
        self._trackers.write({f"{curves}/{name}": value for name, value in values.items()}, state.step)

    def sync(self) -> None:
        """Flush the journal to the disk."""
        self._journal.sync()

    def close(self) -> None:
        """Flush and close the files."""
        self._journal.close()
        self._trackers.close()


def progress_suffix(means: Mapping[str, float], speed: Mapping[str, float]) -> str:
    """Return the text next to the progress bar."""
    parts = [f"loss {means['loss']:.3f}"]
    for name, label in (("mlm_accuracy", "masked"), ("order_accuracy", "sentence pairs")):
        if name in means:
            parts.append(f"{label} {means[name]:.1%}")
    parts.append(f"{speed['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in speed:
        parts.append(f"{speed['mfu']:.0%} of peak")
    return "  ".join(parts)


def _round_digits(value: float) -> float:
    """Round to six significant digits: enough for a curve, short enough to read."""
    return float(f"{value:.6g}")
