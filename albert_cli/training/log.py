"""What a run writes down: means of its steps, speed and evaluations, as JSON lines and for TensorBoard, and hints."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from albert_cli import console, journal, store
from albert_cli.training.checkpoint import TrainState

DOCS_HINT: Final = 'see "When the loss stays or jumps" in docs/pretraining.md'
_PATIENCE = 500  # steps without progress before the first hint; then twice as many, and so on
_PROGRESS = 0.1  # nats; less is noise
_NEAR = 0.3  # nats below the unigram entropy: what copying unmasked tokens brings, without any use of context
_BLOCK = 250  # steps whose mean is compared: a single step's loss is too noisy
_JUMP = 0.5  # nats above the usual loss, and eight usual deviations


@dataclass
class StepWindow:
    """Sums over the steps since the journal's last line: `tokens` of all ranks, the full model's `flops` of one."""

    sums: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def add(self, values: Mapping[str, float], tokens: int, flops: float) -> None:
        """One more step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.steps, self.tokens, self.flops = self.steps + 1, self.tokens + tokens, self.flops + flops

    def means(self) -> dict[str, float]:
        """The mean of each value over the steps."""
        return {name: value / self.steps for name, value in self.sums.items()}

    def speed(self, peak: float | None) -> dict[str, float]:
        """Tokens a second over all ranks, and the share of the peak (FLOP/s of one rank) that was reached."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        found: dict[str, float] = {"tokens_per_second": round(self.tokens / seconds)}
        if peak and self.flops:
            found["mfu"] = round(self.flops / seconds / peak, 4)
        return found


@dataclass
class LossHints:
    """Hints in words when a run's curve looks like trouble, decided from the journal's lines in order.

    From them alone, so that a resumed run has the hints of an uninterrupted one. `unigram_entropy`, nats: the loss of
    a model that only knows how often each token occurs. `warmup`: steps during which slow progress is no wonder.
    """

    unigram_entropy: float
    warmup: int
    _before: int = 0
    _block: list[tuple[int, float]] = field(default_factory=list)
    _best: float = float("inf")
    _best_step: int = 0
    _patience: int = _PATIENCE
    _usual: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=50))
    _is_high: bool = False

    def after(self, record: Mapping[str, Any]) -> list[str]:
        """The hints that one more line of the journal gives reason for."""
        if not {"loss", "mlm_loss", "grad_norm"} <= record.keys():
            return []
        hints = [self._spike(record), self._plateau(record["step"], record["mlm_loss"])]
        return [hint for hint in hints if hint]

    def _spike(self, record: Mapping[str, Any]) -> str:
        """A loss far above what it was in the lines before."""
        step, loss, norm = record["step"], record["loss"], record["grad_norm"]
        hint = ""
        if len(self._usual) >= 20:
            losses = [x for x, _ in self._usual]
            middle = statistics.median(losses)
            deviation = 1.4826 * statistics.median(abs(x - middle) for x in losses)
            is_high = loss > middle + max(_JUMP, 8 * deviation)
            if is_high and not self._is_high:
                usually = statistics.median(n for _, n in self._usual)
                hint = (
                    f"loss jumped from {middle:.3f} to {loss:.3f} by step {step:,} (gradient norm {norm:.3g}, usually "
                    f"{usually:.3g}): if it does not come back, lower optimizer.lr or lengthen the warm-up; {DOCS_HINT}"
                )
            self._is_high = is_high
        self._usual.append((loss, norm))
        return hint

    def _plateau(self, step: int, loss: float) -> str:
        """A masked-word loss that stays near what counting tokens alone would reach."""
        self._block.append((step - self._before, loss))
        self._before = step
        steps = sum(n for n, _ in self._block)
        if steps < _BLOCK:
            return ""
        mean = sum(n * x for n, x in self._block) / steps
        self._block.clear()
        if mean < self._best - _PROGRESS or step <= self.warmup:
            self._best, self._best_step, self._patience = mean, step, _PATIENCE
        waited = step - self._best_step
        if waited < self._patience or mean < self.unigram_entropy - _NEAR:
            return ""
        self._patience *= 2
        return (
            f"masked-word loss has not left {mean:.2f} for {waited:,} steps (the unigram entropy is "
            f"{self.unigram_entropy:.2f}: the model knows how often tokens occur, and nothing of their context). What "
            "decides: starting weights ([init]), the number of updates (shorter sequences, smaller batches), a lower "
            f'optimizer.lr, model.initializer_range = "auto", masked_bias = "unigram"; {DOCS_HINT}'
        )


class RunLog:
    """Rank 0's `metrics.jsonl`, cut back to `step` first; the same figures for TensorBoard; and hints."""

    def __init__(self, out: Path, step: int, hints: LossHints | None) -> None:
        self._journal, self._hints, self._curves = journal.Journal(out / journal.JOURNAL), hints, out / "tensorboard"
        self._board: Any = None
        self._journal.truncate_after(step)
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # What an interrupted run wrote after the step that it is resumed from is hidden.
            with store.translate_os_errors(self._curves):
                self._board = SummaryWriter(str(self._curves), purge_step=step + 1)
        if hints is not None and self._journal.path.exists():
            for record in journal.read_journal(self._journal.path):
                hints.after(record)

    def steps(self, state: TrainState, means: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """A line on the steps since the last one, and what it gives reason to hint at."""
        record = {"step": state.step, **{key: _round_digits(value) for key, value in means.items()}, **speed}
        self._write("train", record, state, {**means, **speed})
        for hint in self._hints.after(record) if self._hints else ():
            self._journal.append({"step": state.step, "hint": hint})
            console.warn(hint)

    def evaluation(self, state: TrainState, metrics: Mapping[str, float]) -> None:
        """A line on an evaluation."""
        rounded = {key: _round_digits(value) for key, value in metrics.items()}
        self._write("heldout", {"step": state.step, "eval": rounded}, state, metrics)

    def _write(self, curves: str, record: dict[str, Any], state: TrainState, values: Mapping[str, float]) -> None:
        self._journal.append({**record, "seconds": round(state.seconds, 2)})
        if self._board is not None:
            with store.translate_os_errors(self._curves):
                for name, value in values.items():
                    self._board.add_scalar(console.strip_control_chars(f"{curves}/{name}"), value, state.step)

    def sync(self) -> None:
        """Flush the journal to the disk."""
        self._journal.sync()

    def close(self) -> None:
        """Flush and close the files."""
        self._journal.close()
        if self._board is not None:
            with store.translate_os_errors(self._curves):
                self._board.close()


def progress_suffix(means: Mapping[str, float], speed: Mapping[str, float]) -> str:
    """The text beside the progress bar."""
    parts = [f"loss {means['loss']:.3f}"]
    for name, label in (("mlm_accuracy", "masked"), ("order_accuracy", "sentence order")):
        if name in means:
            parts.append(f"{label} {means[name]:.1%}")
    parts.append(f"{speed['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in speed:
        parts.append(f"{speed['mfu']:.0%} of peak")
    return "  ".join(parts)


def _round_digits(value: float) -> float:
    """Six significant digits: enough for a curve, short enough to read."""
    return float(f"{value:.6g}")
