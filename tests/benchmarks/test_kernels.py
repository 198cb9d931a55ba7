"""Tests of `benchmarks.kernels`."""

from __future__ import annotations

import torch

from benchmarks import kernels


def test_time_attention_measures_every_head_size() -> None:
    times = kernels.time_attention(torch.device("cpu"), rounds=1, tokens=512)
    assert list(times) == ["12 heads of 64", "16 heads of 64", "16 heads of 128"]
    for row in times.values():
        assert row["efficient, padded"] is not None and isinstance(row["flash 3"], str)


def test_busy_time_counts_overlaps_once() -> None:
    assert kernels._busy_time([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0)]) == (5.0, 7.0)
