"""Time variants of the same work against each other, in alternating rounds after a warm-up, on any device.

A variant is a call without arguments, such as a training step of albert or of `transformers`. The second half of the
module makes such calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean, median
from typing import Final, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from albert_cli import console
from albert_cli.errors import AlbertError, is_compile_error
from albert_cli.formatting import finite_or_none
from albert_cli.machine import make_matmul, measure_matmul_peak, synchronize
from albert_cli.model.heads import PretrainingModel
from albert_cli.ranks import RankGroup
from albert_cli.training.device import autocast, evaluation_mode, summarize_compile_error
from albert_cli.training.optimizers import clip_gradients, update_weights
from albert_cli.training.reduction import reduce_gradients

Batch = TypeVar("Batch")
TimedCall = Callable[[], float]  # does the work once and returns its loss
WARM_UP: Final = 2  # untimed calls of every variant, which compile, tune kernels and fill the allocator's cache
SINGLE_PROCESS: Final = RankGroup()  # for measurements without data parallelism


@dataclass(frozen=True)
class Workload:
    """The work of one call: tokens of text without padding, and FLOPs of the full model without pruning."""

    tokens: int
    flops: float


@dataclass(frozen=True)
class VariantTiming:
    """Timings of one variant."""

    median_ms: float  # a single slow call does not change the median
    minimum_ms: float
    tokens_per_second: int  # of all ranks
    mfu: float  # model FLOPs utilization: FLOP/s as a fraction of the matmul peak of the same rounds
    speedup: float  # of the variant "albert" over this variant
    loss: float | None  # None if it is not finite


@dataclass(frozen=True)
class Comparison:
    """Timings of all variants, the matmul peak in FLOP/s, and the mean tokens of a call."""

    matmul_peak_flops: int
    tokens: float
    variants: dict[str, VariantTiming]


@dataclass(frozen=True)
class Conditions:
    """The device, the threads and the precision of a measurement."""

    device: str
    threads: int
    precision: str


def current_conditions(device: torch.device, precision: str) -> Conditions:
    """Return the conditions under which this process measures."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Conditions(name, torch.get_num_threads(), precision)


def time_alternating(
    variants: Mapping[str, TimedCall], rounds: int, device: torch.device, label: str
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each variant's timed calls, and the loss of its last call, by name.

    Each round calls every variant once, so a disturbance of the machine affects all variants alike. On a GPU, all
    workloads are computed once before the timed rounds, because the first step with a new number of tokens may take
    longer: on an H200 up to 74 ms, later 45 ms. A cause could be that matmuls of a new shape load other kernels.
    """
    warm_up = WARM_UP
    if device.type != "cpu":
        # The training steps cycle through `rounds + WARM_UP` batches, or repeat a single one. One more whole cycle
        # computes every batch once, and the timed rounds still begin with the same batch as on a CPU.
        warm_up += rounds + WARM_UP
    for call in variants.values():
        for _ in range(warm_up):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    losses: dict[str, float] = {}
    with console.show_progress(label, rounds) as progress:
        for completed in range(rounds):
            for name, call in variants.items():
                synchronize(device)
                begin = time.perf_counter()
                losses[name] = call()
                synchronize(device)
                seconds[name].append(time.perf_counter() - begin)
            progress.update(completed + 1)
    return seconds, losses


def compare_variants(
    variants: Mapping[str, TimedCall],
    workloads: Sequence[Workload],
    precision: str,
    device: torch.device,
    label: str,
    *,
    losses: Mapping[str, float] | None = None,
    ranks: int = 1,
) -> Comparison:
    """Time the variants in alternating rounds; in round n every variant does the n-th workload.

    variants: by name; the variant "albert" is compared with all others. losses: the losses to report, by variant; by
    default those of the last calls. ranks: processes that do the same work at the same time.
    """
    peak_before = measure_matmul_peak(precision, device)
    matmul, matmul_flops = make_matmul(precision, device)
    # Every round also times a matmul, so a disturbance of the machine affects the peak as it does the variants.
    seconds, last_losses = time_alternating({**variants, "peak": matmul}, len(workloads), device, label)
    peak_after = measure_matmul_peak(precision, device, seconds=0.1)
    peak = max(peak_before, matmul_flops / min(seconds["peak"]), peak_after)
    reported_losses = last_losses if losses is None else losses
    timings = {}
    for name in variants:
        rates = [work.tokens / s for s, work in zip(seconds[name], workloads, strict=True)]
        utilizations = [work.flops / s / peak for s, work in zip(seconds[name], workloads, strict=True)]
        speedups = [peer / albert for peer, albert in zip(seconds[name], seconds["albert"], strict=True)]
        timings[name] = VariantTiming(
            median_ms=round(1e3 * median(seconds[name]), 2),
            minimum_ms=round(1e3 * min(seconds[name]), 2),
            tokens_per_second=round(ranks * median(rates)),
            mfu=round(median(utilizations), 4),
            speedup=round(median(speedups), 3),
            loss=finite_or_none(round(reported_losses[name], 6)),
        )
    mean_tokens = round(fmean(work.tokens for work in workloads), 1)
    return Comparison(round(peak), mean_tokens, timings)


def format_or_not_finite(value: float | None, spec: str) -> str:
    """Return a number in the format `spec`, or "not finite" for None."""
    return "not finite" if value is None else format(value, spec)


def format_headline(
    name: str, conditions: Conditions, peak: float, *, processes: int = 1, compiled: bool = False
) -> str:
    """Return the line above the tables: the model, the conditions, and `peak`, the matmul peak in FLOP/s."""
    ranks = f"{processes} processes of " if processes > 1 else ""
    compilation = ", compiled" if compiled else ""
    return (
        f"{name} on {ranks}{conditions.device}, {conditions.threads} threads, {conditions.precision}{compilation}; "
        f"peak matmul {peak / 1e9:,.0f} GFLOP/s"
    )


def format_variants(title: str, variants: Mapping[str, VariantTiming]) -> str:
    """Return a table with a row for each variant."""
    rows = [
        (
            name,
            f"{timing.median_ms:,.1f}",
            f"{timing.minimum_ms:,.1f}",
            f"{timing.tokens_per_second:,}",
            f"{timing.mfu:.0%}",
            "" if name == "albert" else f"{timing.speedup:.2f}x",
            format_or_not_finite(timing.loss, ".5f"),
        )
        for name, timing in variants.items()
    ]
    return console.format_table((title, "median ms", "min ms", "tokens/s", "MFU", "speedup of albert", "loss"), rows)


# ---------------------------------------------------------------- calls to time


def with_compiled_block(model: PretrainingModel, call: TimedCall) -> TimedCall:
    """Return a call that runs `call` with the encoder's block compiled; the model itself stays uncompiled."""
    plain = model.encoder.block
    model.encoder.compile_block()
    compiled = model.encoder.block
    model.encoder.block = plain

    def call_compiled() -> float:
        model.encoder.block = compiled
        try:
            return call()
        finally:
            model.encoder.block = plain

    return with_compile_hint(call_compiled)


def with_compile_hint(call: TimedCall) -> TimedCall:
    """Return a call of a compiled variant, which raises `AlbertError` if compiling fails: `--no-compiled` helps."""

    def call_with_hint() -> float:
        try:
            return call()
        except Exception as error:
            if not is_compile_error(error):
                raise
            hint = "use --no-compiled, which leaves out the compiled models"
            raise AlbertError(summarize_compile_error(error), hint) from error

    return call_with_hint


def make_passes(
    model: nn.Module, loss_of: Callable[[Batch], Tensor], batches: Sequence[Batch], precision: str
) -> TimedCall:
    """Return a call that runs the forward and backward pass of each batch; its result is the mean loss."""
    device = next(model.parameters()).device

    def call() -> float:
        total = torch.zeros((), device=device)
        for batch in batches:
            model.zero_grad(set_to_none=True)
            with autocast(precision, device):
                loss = loss_of(batch)
            torch.autograd.backward(loss)
            total += loss.detach()
        return float(total) / len(batches)

    return call


def make_training_step(
    model: nn.Module,
    loss_of: Callable[[Batch], Tensor],
    batches: Iterable[Batch],
    optimizer: Optimizer,
    clip_norm: float,
    precision: str,
    group: RankGroup = SINGLE_PROCESS,
) -> TimedCall:
    """Return a call that takes a step as the training loop does, on the next of `batches`, which repeat.

    The learning rate is 0, so the weights are the same in all rounds.
    """
    device = next(model.parameters()).device
    batch_cycle = cycle(batches)

    def call() -> float:
        with autocast(precision, device):
            loss = loss_of(next(batch_cycle))
        torch.autograd.backward(loss)
        reduce_gradients(model, group)
        # The training loop also waits for the loss and the gradient norm before the update.
        values = torch.stack([loss.detach(), clip_gradients(model, clip_norm)]).tolist()
        update_weights(optimizer, 0.0)
        return float(values[0])

    return call


def make_plain_training_step(
    model: nn.Module, loss_of: Callable[[Batch], Tensor], batches: Iterable[Batch], precision: str
) -> TimedCall:
    """Return a call that takes a step as a plain training script does, on the next of `batches`, which repeat.

    Like `make_training_step`, it includes gradient clipping and the optimizer's update: fused AdamW, learning rate 0.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01, fused=True)
    device = next(model.parameters()).device
    batch_cycle = cycle(batches)

    def call() -> float:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            loss = loss_of(next(batch_cycle))
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return call


def loss_without_dropout(model: nn.Module, loss_of: Callable[[Batch], Tensor], batch: Batch, precision: str) -> float:
    """Return the loss of a batch in evaluation mode."""
    with evaluation_mode(model), autocast(precision, next(model.parameters()).device):
        return float(loss_of(batch))
