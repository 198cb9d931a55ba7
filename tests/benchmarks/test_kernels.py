"""Tests of `benchmarks.kernels`."""

from __future__ import annotations

import json

from benchmarks import kernels
from tests.helpers.benchmarks import run_benchmark


def test_command_times_attention_by_shape() -> None:
    times = json.loads(run_benchmark(kernels.app, "--tokens", 512, "--rounds", 1, "--device", "cpu", "--json").out)
    assert list(times) == ["12 heads of 64", "16 heads of 64", "16 heads of 128"]
    for row in times.values():
        assert row["efficient, padded"] is not None and isinstance(row["flash 3"], str)


def test_busy_time_counts_overlaps_once() -> None:
    assert kernels._busy_time([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0)]) == (5.0, 7.0)
