"""What a run says about itself: the means of its steps, its share of the hardware's peak, and hints in words.

A hint is decided from the journal's lines alone, so that a resumed run says what an uninterrupted one would have said.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

DIVERGED: Final = "diverged.json"
RECENT: Final = 20  # steps that it tells of
SEE: Final = 'see "When the loss stays or jumps" in the README'
_PATIENCE = 500  # steps without progress before the first hint; then twice as many, and so on
_PROGRESS = 0.1  # nats; less is noise
_NEAR = 0.3  # nats below the unigram entropy: what copying unmasked pieces brings, without any use of context
_BLOCK = 250  # steps whose mean is compared: a single step's loss is too noisy
_JUMP = 0.5  # nats above the usual loss, and eight usual deviations


@dataclass
class Window:
    """Sums over the steps since the last line of the journal; `flops` are the full model's, on this rank."""

    sums: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def add(self, values: Mapping[str, float], tokens: int, flops: float) -> None:
        """One more step, with what it computed on this rank."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.steps, self.tokens, self.flops = self.steps + 1, self.tokens + tokens, self.flops + flops

    def means(self) -> dict[str, float]:
        """The mean of each value over the steps."""
        return {name: value / self.steps for name, value in self.sums.items()}

    def speed(self, ranks: int, peak: float | None) -> dict[str, float]:
        """Tokens a second over all ranks, and the share of the peak (FLOP/s of one rank) that was reached."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        found: dict[str, float] = {"tokens_per_second": round(self.tokens * ranks / seconds)}
        if peak and self.flops:
            found["mfu"] = round(self.flops / seconds / peak, 4)
        return found


def in_words(means: Mapping[str, float], speed: Mapping[str, float]) -> str:
    """What stands beside the progress bar."""
    parts = [f"loss {means['loss']:.3f}"]
    for name, label in (("mlm_accuracy", "masked"), ("order_accuracy", "order")):
        if name in means:
            parts.append(f"{label} {means[name]:.1%}")
    parts.append(f"{speed['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in speed:
        parts.append(f"{speed['mfu']:.0%} of peak")
    return "  ".join(parts)


# ---------------------------------------------------------------- hints


@dataclass
class Watch:
    """Sees the journal's lines in order, and says in words when the curve looks like trouble.

    `unigram_entropy`, nats: what a model loses that only knows how often each piece occurs. `warmup`: steps during
    which slow progress is no wonder.
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

    def see(self, record: Mapping[str, Any]) -> list[str]:
        """The hints that one more line of the journal gives reason for."""
        if "mlm_loss" not in record or "loss" not in record:
            return []
        hints = [self._spike(record), self._plateau(record["step"], record["mlm_loss"])]
        return [hint for hint in hints if hint]

    def _spike(self, record: Mapping[str, Any]) -> str:
        """A loss far above what it was in the lines before."""
        step, loss, norm = record["step"], record["loss"], record["grad_norm"]
        said = ""
        if len(self._usual) >= 20:
            losses = [x for x, _ in self._usual]
            middle = statistics.median(losses)
            deviation = 1.4826 * statistics.median(abs(x - middle) for x in losses)
            is_high = loss > middle + max(_JUMP, 8 * deviation)
            if is_high and not self._is_high:
                usually = statistics.median(n for _, n in self._usual)
                said = (
                    f"loss jumped from {middle:.3f} to {loss:.3f} by step {step:,} (gradient norm {norm:.3g}, usually "
                    f"{usually:.3g}): if it does not come back, lower optimizer.lr or lengthen the warm-up; {SEE}"
                )
            self._is_high = is_high
        self._usual.append((loss, norm))
        return said

    def _plateau(self, step: int, loss: float) -> str:
        """A masked-word loss that stays near what counting pieces alone would reach."""
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
            f"{self.unigram_entropy:.2f}: the model knows how often pieces occur, and nothing of their context). What "
            "decides: the number of updates (shorter sequences, smaller batches), a lower optimizer.lr, "
            f'model.initializer_range = "auto", masked_bias = "unigram"; {SEE}'
        )


# ---------------------------------------------------------------- TensorBoard


class Board:
    """The journal's figures for TensorBoard, in `tensorboard/` of the run, where that package is installed."""

    _writer: Any = None

    def open(self, out: Path, step: int) -> None:
        """Write from now on, going on after `step`."""
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # What an interrupted run wrote after the step that it is resumed from is hidden.
            self._writer = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def add(self, kind: str, values: Mapping[str, float], step: int) -> None:
        """One point on each curve; `kind` groups them: train, heldout."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()


# ---------------------------------------------------------------- divergence


def not_finite(model: torch.nn.Module) -> set[str]:
    """Names of the parameters whose gradient is not finite."""
    with_gradient = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    return {name for name, gradient in with_gradient if not bool(torch.isfinite(gradient).all())}


def divergence(
    step: int, causes: Mapping[int, Sequence[str]], recent: Iterable[Mapping[str, float]]
) -> dict[str, object]:
    """What `diverged.json` says: the losses, or else the gradients, that were not finite on each rank when the step
    was computed once more, and the last steps with this one, each with losses, rate and gradient norm.
    """  # fmt: skip
    return {
        "step": step,
        "not_finite": [{"rank": rank, "names": list(names)} for rank, names in causes.items() if names],
        "found_again": any(causes.values()),
        # JSON has no NaN
        "last_steps": [{k: v if math.isfinite(v) else str(v) for k, v in step.items()} for step in recent],
    }


def where(causes: Mapping[int, Sequence[str]]) -> str:
    """On which ranks it lies, and in what, for the error's one line."""
    ranks = [rank for rank, names in causes.items() if names]
    if not ranks:
        return "; computed again it was finite: suspect the hardware"
    first = causes[ranks[0]]
    named = f"{first[0]} and {len(first) - 1} more" if len(first) > 1 else first[0]
    return f"; on rank {', '.join(map(str, ranks))}: {named}"
