"""Hints in words when a run's curve looks like trouble.

A hint is decided from the journal's lines alone, so that a resumed run has those of an uninterrupted one.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SEE: Final = 'see "When the loss stays or jumps" in docs/pretraining.md'
_PATIENCE = 500  # steps without progress before the first hint; then twice as many, and so on
_PROGRESS = 0.1  # nats; less is noise
_NEAR = 0.3  # nats below the unigram entropy: what copying unmasked tokens brings, without any use of context
_BLOCK = 250  # steps whose mean is compared: a single step's loss is too noisy
_JUMP = 0.5  # nats above the usual loss, and eight usual deviations


@dataclass
class Hints:
    """Reads the journal's lines in order.

    `unigram_entropy`, nats: the loss of a model that only knows how often each token occurs. `warmup`: steps during
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
                    f"{usually:.3g}): if it does not come back, lower optimizer.lr or lengthen the warm-up; {SEE}"
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
            "decides: starting weights ([start]), the number of updates (shorter sequences, smaller batches), a lower "
            f'optimizer.lr, model.initializer_range = "auto", masked_bias = "unigram"; {SEE}'
        )
