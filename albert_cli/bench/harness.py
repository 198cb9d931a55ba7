"""Timing variants of the same work against each other: alternating, warmed up, on any device; and one table for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
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
from albert_cli.training.device import autocast, evaluating
from albert_cli.training.optimizers import clip, update
from albert_cli.training.reduction import reduce_gradients

WARM_UP: Final = 2  # calls of every variant that are not timed: compilation, autotuning, the allocator
ALONE: Final = Group()
Step = Callable[[], float]  # one call to time; it returns its loss
Round = tuple[int, float]  # what it computes: tokens of text, the full model's FLOPs; without padding and pruning


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


def alternate(
    variants: Mapping[str, Step], rounds: int, device: torch.device, label: str
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each variant's timed calls, and what its last call returned.

    Each is called once a round, so that whatever disturbs the machine disturbs all of them alike.
    """
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
    return seconds, results


def compare(
    variants: Mapping[str, Step], rounds: Sequence[Round], precision: str, device: torch.device, label: str,
    *, losses: Mapping[str, float] | None = None, ranks: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Time "albert" and its peers in turn, a call a round.

    By variant: median and least milliseconds, tokens a second (of all `ranks`), the share of what matrix products reach
    here (`mfu`), how many times as fast "albert" is, and the loss (the last call's, or of `losses`).
    """
    peak, (product, of_product) = matmul_peak(precision, device), matmul(precision, device)
    # What disturbs the rounds disturbs the products between them alike.
    seconds, last = alternate({**variants, "peak": product}, len(rounds), device, label)
    peak = max(peak, of_product / min(seconds["peak"]), matmul_peak(precision, device, seconds=0.1))
    found = {}
    for name in variants:
        timed = list(zip(seconds[name], seconds["albert"], rounds, strict=True))
        found[name] = {
            "median_ms": round(1e3 * median(seconds[name]), 2),  # which single disturbances leave alone
            "minimum_ms": round(1e3 * min(seconds[name]), 2),
            "tokens_per_second": round(ranks * median(tokens / s for s, _, (tokens, _) in timed)),
            "mfu": round(median(flops / s for s, _, (_, flops) in timed) / peak, 4),
            "albert_is_faster": round(median(s / own for s, own, _ in timed), 3),
            "loss": round((losses or last)[name], 6),
        }
    mean = round(fmean(tokens for tokens, _ in rounds), 1)
    return {"matmul_peak_flops": round(peak), "tokens": mean, "variants": found}


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


def passes(model: nn.Module, loss: Callable[[Any], Tensor], batches: Sequence[Any], precision: str) -> Step:
    """Forward and backward pass of each batch's loss in turn; returns the mean of the losses."""
    device = next(model.parameters()).device

    def step() -> float:
        total = torch.zeros((), device=device)
        for batch in batches:
            model.zero_grad(set_to_none=True)
            with autocast(precision, device):
                value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return float(total) / len(batches)

    return step


def whole_step(
    model: nn.Module,
    loss: Callable[[Any], Tensor],
    batches: Iterable[Any],
    optimizer: Optimizer,
    clip_norm: float,
    precision: str,
    group: Group = ALONE,
) -> Step:
    """A step as the loop takes it, with one batch after the other; the rate is 0: all rounds have the same weights."""
    device, in_turn = next(model.parameters()).device, cycle(batches)

    def step() -> float:
        with autocast(precision, device):
            value = loss(next(in_turn))
        value.backward()  # type: ignore[no-untyped-call]
        if group.world_size > 1:
            reduce_gradients(model, group)
        read = torch.stack([value.detach(), clip(model, clip_norm)]).tolist()  # before the update, as there
        update(optimizer, 0.0)
        return float(read[0])

    return step


def plain_step(model: nn.Module, loss: Callable[[Any], Tensor], batches: Iterable[Any], precision: str) -> Step:
    """A step as a plain training script has it: clipped, AdamW in one kernel; the rate is 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01, fused=True)
    device, in_turn = next(model.parameters()).device, cycle(batches)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            value = loss(next(in_turn))
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(value.detach())

    return step


def without_dropout(model: nn.Module, loss: Callable[[Any], Tensor], batch: Any, precision: str) -> float:
    """The loss of a batch in evaluation mode."""
    with evaluating(model), autocast(precision, next(model.parameters()).device):
        return float(loss(batch))
