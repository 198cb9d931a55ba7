"""Timing variants of the same work against each other: alternating, warmed up, on any device; and one table for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NotRequired

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import TypedDict

from albert_cli import config, console, store
from albert_cli.errors import ConfigError
from albert_cli.machine import matmul, matmul_peak, synchronize
from albert_cli.model.heads import PretrainingModel
from albert_cli.ranks import Group
from albert_cli.training.device import autocast
from albert_cli.training.optimizers import clip, update
from albert_cli.training.reduction import reduce_gradients

WARM_UP: Final = 2  # calls of every variant that are not timed: compilation, autotuning, the allocator
ALONE: Final = Group()
Step = Callable[[], float]  # one call to time; it returns its loss


@dataclass(frozen=True)
class Timing:
    """Seconds of each timed call, and what the last call returned."""

    seconds: tuple[float, ...]
    result: float

    @property
    def median(self) -> float:
        """Of the seconds, which single disturbances leave alone."""
        return median(self.seconds)

    @property
    def minimum(self) -> float:
        """The least of the seconds: those of a call that nothing disturbed."""
        return min(self.seconds)


class _Measured(TypedDict):
    conditions: dict[str, Any]
    parts: NotRequired[dict[str, dict[str, Any]]]
    cells: NotRequired[dict[str, list[float]]]


def found_before(file: Path, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier call wrote to `file`, if anything; raises `ConfigError` where its conditions were others."""
    if not file.exists():
        return {}
    found = store.read_record(file, _Measured)
    if found["conditions"] != conditions:
        lines = "; ".join(config.differences(found["conditions"], conditions))
        raise ConfigError(f"{file.parent}: was measured under other conditions: {lines}", "choose another --out")
    return dict(found)


def alternate(variants: Mapping[str, Step], rounds: int, device: torch.device, label: str) -> dict[str, Timing]:
    """Call each variant once a round, so that whatever disturbs the machine disturbs all of them alike."""
    for function in variants.values():
        for _ in range(WARM_UP):
            function()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    results: dict[str, float] = {}
    with console.progress(label, rounds) as progress:
        for done in range(rounds):
            for name, function in variants.items():
                synchronize(device)
                begin = time.perf_counter()
                results[name] = function()
                synchronize(device)
                seconds[name].append(time.perf_counter() - begin)
            progress.update(done + 1)
    return {name: Timing(tuple(seconds[name]), results[name]) for name in variants}


@dataclass(frozen=True)
class Round:
    """What a timed call computes: tokens of text, and the full model's FLOPs; neither counts padding or pruning."""

    tokens: int
    flops: float


def compare(
    variants: Mapping[str, Step], rounds: Sequence[Round], precision: str, device: torch.device, label: str,
    *, losses: Mapping[str, float] | None = None, ranks: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Time "albert" and its peers in turn, a call a round.

    By variant: median and least milliseconds, tokens a second (of all `ranks`), the share of what matrix products reach
    here (`mfu`), how many times as fast "albert" is, and the loss (the last call's, or of `losses`).
    """
    peak, (product, flops) = matmul_peak(precision, device), matmul(precision, device)
    # What disturbs the rounds disturbs the products between them alike.
    timings = alternate({**variants, "peak": product}, len(rounds), device, label)
    peak = max(peak, flops / timings.pop("peak").minimum, matmul_peak(precision, device, seconds=0.1))
    found = {}
    for name, timing in timings.items():
        timed = list(zip(timing.seconds, timings["albert"].seconds, rounds, strict=True))
        found[name] = {
            "median_ms": round(1e3 * timing.median, 2),
            "minimum_ms": round(1e3 * timing.minimum, 2),
            "tokens_per_second": round(ranks * median(work.tokens / s for s, _, work in timed)),
            "mfu": round(median(work.flops / s for s, _, work in timed) / peak, 4),
            "albert_is_faster": round(median(s / own for s, own, _ in timed), 3),
            "loss": round(losses[name] if losses else timing.result, 6),
        }
    tokens = round(fmean(work.tokens for work in rounds), 1)
    return {"matmul_peak_flops": round(peak), "tokens": tokens, "variants": found}


def conditions(device: torch.device, precision: str) -> dict[str, Any]:
    """The device, the threads and the precision of a measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "threads": torch.get_num_threads(), "precision": precision}


def headline(name: str, result: Mapping[str, Any]) -> str:
    """The line above the tables."""
    ranks = f"{result['processes']} processes of " if result.get("processes", 1) > 1 else ""
    compiled = ", compiled" if result.get("compiled") else ""
    return (
        f"{name} on {ranks}{result['device']}, {result['threads']} threads, {result['precision']}{compiled}; "
        f"matrix products reach {result['matmul_peak_flops'] / 1e9:,.0f} GFLOP/s"
    )


def table(title: str, variants: Mapping[str, Mapping[str, float]]) -> str:
    """What `compare` found, a row each variant."""
    rows = [
        (
            name,
            f"{v['median_ms']:,.1f}",
            f"{v['minimum_ms']:,.1f}",
            f"{v['tokens_per_second']:,}",
            f"{v['mfu']:.0%}",
            "" if name == "albert" else f"{v['albert_is_faster']:.2f}x",
            f"{v['loss']:.5f}",
        )
        for name, v in variants.items()
    ]
    return console.table((title, "median ms", "least ms", "tokens/s", "of peak", "albert is", "loss"), rows)


def compiled(model: PretrainingModel, step: Step) -> Step:
    """The same step with the block compiled."""
    plain = model.encoder.block
    model.encoder.compile()
    fused, model.encoder.block = model.encoder.block, plain

    def function() -> float:
        model.encoder.block = fused
        try:
            return step()
        finally:
            model.encoder.block = plain

    return function


def passes(model: nn.Module, losses: Sequence[Callable[[], Tensor]], precision: str) -> Step:
    """Forward and backward pass of each loss in turn; returns the mean of the losses."""
    device = next(model.parameters()).device

    def step() -> float:
        total = torch.zeros((), device=device)
        for loss in losses:
            model.zero_grad(set_to_none=True)
            with autocast(precision, device):
                value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return float(total) / len(losses)

    return step


def whole_step(
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: Optimizer,
    clip_norm: float,
    precision: str,
    group: Group = ALONE,
) -> Step:
    """One step as the loop takes it; the rate is 0, so that all rounds compute with the same weights."""
    device = next(model.parameters()).device

    def step() -> float:
        with autocast(precision, device):
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        if group.world_size > 1:
            reduce_gradients(model, group)
        read = torch.stack([value.detach(), clip(model, clip_norm)]).tolist()  # before the update, as there
        update(optimizer, 0.0)
        return float(read[0])

    return step


def plain_step(model: nn.Module, loss: Callable[[], Tensor], precision: str) -> Step:
    """One step as a plain training script has it: clipped, AdamW in one kernel; the rate is 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01, fused=True)
    device = next(model.parameters()).device

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(value.detach())

    return step


def without_dropout(model: nn.Module, loss: Callable[[], Tensor], precision: str) -> float:
    """The loss in evaluation mode."""
    with evaluating(model), autocast(precision, next(model.parameters()).device):
        return float(loss())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While it is open, the model is in evaluation mode, and nothing keeps a gradient."""
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train()
