"""Timing variants of the same work against each other: alternating, warmed up, on any device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from albert_cli import console
from albert_cli.training.device import synchronize


@dataclass(frozen=True)
class Timing:
    """Seconds of each timed call, and what the last call returned."""

    seconds: tuple[float, ...]
    result: float

    @property
    def median(self) -> float:
        """The middle of the seconds."""
        return median(self.seconds)

    @property
    def minimum(self) -> float:
        """The least of the seconds: what the machine does when nothing disturbs it."""
        return min(self.seconds)


def alternate(
    variants: Mapping[str, Callable[[], float]], rounds: int, device: torch.device, label: str
) -> dict[str, Timing]:
    """Call each variant once a round, so that whatever disturbs the machine disturbs all of them alike.

    Two calls of each warm up first: compilation, autotuning, the allocator.
    """
    for function in variants.values():
        for _ in range(2):
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


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second that copying `size` bytes reads and writes, best of ten."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    best = float("inf")
    for _ in range(10):
        synchronize(device)
        begin = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size / best
