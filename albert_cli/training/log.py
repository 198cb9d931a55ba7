"""The log of a run: the means of its steps, speed, evaluations and hints.

`RunLog` writes them to `metrics.jsonl` and to the trackers; `LossHints` finds a loss that jumps or stalls.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from albert_cli import console, journal
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.trackers import Trackers

_DOCS_REFERENCE: Final = '; see "When the loss stalls or jumps" in docs/pretraining.md'  # the end of every hint

_SPIKE_RECORDS: Final = 50  # the last journal records, whose median is the usual loss
_MIN_SPIKE_RECORDS: Final = 20  # with fewer records the median is not yet the usual loss
# A spike is above the median by this many nats and by this many standard deviations.
_SPIKE_NATS: Final = 0.5
_SPIKE_DEVIATIONS: Final = 8
# The standard deviation of normally distributed values, divided by their median absolute deviation (MAD).
_MAD_TO_DEVIATION: Final = 1.4826

_PLATEAU_STEPS: Final = 500  # steps without progress before the first hint; the number doubles with each hint
_PROGRESS_NATS: Final = 0.1  # a smaller decrease of the mean loss is noise
# The loss of a model that uses context is at least this far below the unigram entropy. Without context, the loss can be
# a little below it, because [MASK] does not replace every token that is to be predicted, and a model can copy the rest.
_CONTEXT_NATS: Final = 0.3
_MEAN_STEPS: Final = 250  # means over this many steps are compared, because the loss of one step is noisy

LossRecord = Mapping[str, float]  # a journal record with "step", "loss", "mlm_loss" and "grad_norm"


@dataclass
class SpikeRule:
    """A rule that gives a hint when the loss rises far above its median over the last journal records.

    The next hint follows only after the loss has come back.
    """

    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=_SPIKE_RECORDS))
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=_SPIKE_RECORDS))
    _is_high: bool = False

    def observe(self, record: LossRecord) -> str | None:
        """Add a record; return a hint if a spike begins with it."""
        loss = record["loss"]
        was_high = self._is_high
        hint = None
        if len(self._losses) >= _MIN_SPIKE_RECORDS:
            median = statistics.median(self._losses)
            deviation = _MAD_TO_DEVIATION * statistics.median(abs(value - median) for value in self._losses)
            self._is_high = loss > median + max(_SPIKE_NATS, _SPIKE_DEVIATIONS * deviation)
            if self._is_high and not was_high:
                hint = (
                    f"loss jumped from {median:.3f} to {loss:.3f} by step {record['step']:,} (gradient norm "
                    f"{record['grad_norm']:.3g}, usually {statistics.median(self._norms):.3g}): if it does not come "
                    "back, lower optimizer.lr or lengthen the warmup"
                )
        self._losses.append(loss)
        self._norms.append(record["grad_norm"])
        return hint


@dataclass
class PlateauRule:
    """A rule that gives a hint when the MLM loss stalls near the unigram entropy, at growing intervals.

    The rule compares means of the loss over at least `_MEAN_STEPS` steps.
    """

    unigram_entropy: float  # in nats
    warmup: int  # in steps; during the warmup every mean counts as progress
    _last_step: int = 0  # of the last record
    _loss_sum: float = 0.0  # of the last `_summed_steps` steps
    _summed_steps: int = 0
    _progress_mean: float = float("inf")  # the mean at the last progress
    _progress_step: int = 0
    _patience: int = _PLATEAU_STEPS  # steps without progress before the next hint

    def observe(self, record: LossRecord) -> str | None:
        """Add a record; return a hint if the loss has made no progress for `_patience` steps."""
        step = int(record["step"])
        steps = step - self._last_step  # the record's loss is the mean over these steps
        self._last_step = step
        self._loss_sum += steps * record["mlm_loss"]
        self._summed_steps += steps
        if self._summed_steps < _MEAN_STEPS:
            return None
        mean = self._loss_sum / self._summed_steps
        self._loss_sum = 0.0
        self._summed_steps = 0
        if mean < self._progress_mean - _PROGRESS_NATS or step <= self.warmup:
            self._progress_mean = mean
            self._progress_step = step
            self._patience = _PLATEAU_STEPS
        steps_without_progress = step - self._progress_step
        if steps_without_progress < self._patience or mean < self.unigram_entropy - _CONTEXT_NATS:
            return None
        self._patience *= 2
        return (
            f"MLM loss has stayed at {mean:.2f} for {steps_without_progress:,} steps (the unigram entropy is "
            f"{self.unigram_entropy:.2f}: the model knows how often tokens occur, but uses no context). Try informed "
            "initialization ([init]), more updates (shorter sequences, smaller batches), a lower optimizer.lr, "
            'model.initializer_range = "auto" or masked_bias = "unigram"'
        )


class LossHints:
    """The rules for hints about a loss that jumps or does not fall; they read the journal's records in their order.

    The hints depend on the records alone, so a resumed run prints the same hints as an uninterrupted one.
    `unigram_entropy`, in nats, is the loss of a model that only knows token frequencies. `warmup` is the number of
    steps in which slow progress is normal.
    """

    def __init__(self, unigram_entropy: float, warmup: int) -> None:
        self._rules = (SpikeRule(), PlateauRule(unigram_entropy, warmup))

    def observe(self, record: LossRecord) -> list[str]:
        """Add a record of the journal; return the hints that it causes, none for an evaluation's record."""
        if not {"loss", "mlm_loss", "grad_norm"} <= record.keys():
            return []
        hints = [rule.observe(record) for rule in self._rules]
        return [hint + _DOCS_REFERENCE for hint in hints if hint is not None]


class RunLog:
    """The log of a run on rank 0: it writes the journal `metrics.jsonl`, the trackers' curves, and the hints.

    Opening the log removes the journal's records after `step`, the step from which the run resumes. The rules in
    `hints` read the remaining records first. `hints` is None for a run without hints.
    """

    def __init__(self, out: Path, step: int, hints: LossHints | None, trackers: Trackers) -> None:
        self._journal = journal.Journal(out / journal.JOURNAL)
        self._hints = hints
        self._trackers = trackers
        self._journal.truncate_after(step)
        if hints is not None and self._journal.path.exists():
            for record in journal.read_journal(self._journal.path):
                hints.observe(cast(LossRecord, record))

    def write_steps(self, state: TrainState, means: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """Write a record of the steps since the last record, and print and write the hints that it causes."""
        record = {"step": state.step, **{key: _round_digits(value) for key, value in means.items()}, **speed}
        self._write("train", record, state, {**means, **speed})
        if self._hints is None:
            return
        for hint in self._hints.observe(record):
            self._journal.append({"step": state.step, "hint": hint})
            console.warn(hint)

    def write_evaluation(self, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Write a record of an evaluation, with its metrics under the key `eval`."""
        rounded = {key: _round_digits(value) for key, value in metrics.items()}
        self._write("heldout", {"step": state.step, "eval": rounded}, state, metrics)

    def _write(self, prefix: str, record: Mapping[str, object], state: TrainState, values: Mapping[str, float]) -> None:
        """Append a record to the journal, and send unrounded `values` to the trackers' curves `PREFIX/NAME`."""
        self._journal.append({**record, "seconds": round(state.seconds, 2)})
        self._trackers.write({f"{prefix}/{name}": value for name, value in values.items()}, state.step)

    def sync(self) -> None:
        """Flush the journal to the disk."""
        self._journal.sync()

    def close(self) -> None:
        """Flush and close the files."""
        self._journal.close()
        self._trackers.close()


def progress_suffix(means: Mapping[str, float], speed: Mapping[str, float]) -> str:
    """Return the text after the progress bar: loss, accuracies and speed."""
    parts = [f"loss {means['loss']:.4g}"]
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
