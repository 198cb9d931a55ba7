"""What a run writes down: the means of its steps, its speed, its evaluations, as JSON lines and for TensorBoard."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albert_cli import console, journal, store
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.hints import Hints


@dataclass
class Window:
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


class RunLog:
    """Rank 0's `metrics.jsonl`, cut back to `step` first; the same figures for TensorBoard; and hints."""

    def __init__(self, out: Path, step: int, hints: Hints | None) -> None:
        self._journal, self._hints, self._curves = journal.Journal(out / journal.JOURNAL), hints, out / "tensorboard"
        self._board: Any = None
        self._journal.cut_back(step)
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # What an interrupted run wrote after the step that it is resumed from is hidden.
            with store.explain(self._curves):
                self._board = SummaryWriter(str(self._curves), purge_step=step + 1)
        if hints is not None and self._journal.path.exists():
            for record in journal.read(self._journal.path):
                hints.after(record)

    def steps(self, state: TrainState, means: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """A line on the steps since the last one, and what it gives reason to hint at."""
        record = {"step": state.step, **{key: _short(value) for key, value in means.items()}, **speed}
        self._write("train", record, state, {**means, **speed})
        for hint in self._hints.after(record) if self._hints else ():
            self._journal.append({"step": state.step, "hint": hint})
            console.warn(hint)

    def evaluation(self, state: TrainState, metrics: Mapping[str, float]) -> None:
        """A line on an evaluation."""
        rounded = {key: _short(value) for key, value in metrics.items()}
        self._write("heldout", {"step": state.step, "eval": rounded}, state, metrics)

    def _write(self, curves: str, record: dict[str, Any], state: TrainState, values: Mapping[str, float]) -> None:
        self._journal.append({**record, "seconds": round(state.seconds, 2)})
        if self._board is not None:
            with store.explain(self._curves):
                for name, value in values.items():
                    self._board.add_scalar(console.harmless(f"{curves}/{name}"), value, state.step)

    def sync(self) -> None:
        """Flush the journal to the disk."""
        self._journal.sync()

    def close(self) -> None:
        """Flush and close the files."""
        self._journal.close()
        if self._board is not None:
            with store.explain(self._curves):
                self._board.close()


def beside_the_bar(means: Mapping[str, float], speed: Mapping[str, float]) -> str:
    """The text beside the progress bar."""
    parts = [f"loss {means['loss']:.3f}"]
    for name, label in (("mlm_accuracy", "masked"), ("order_accuracy", "sentence order")):
        if name in means:
            parts.append(f"{label} {means[name]:.1%}")
    parts.append(f"{speed['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in speed:
        parts.append(f"{speed['mfu']:.0%} of peak")
    return "  ".join(parts)


def _short(value: float) -> float:
    """Six significant digits: enough for a curve, short enough to read."""
    return float(f"{value:.6g}")
