"""Tests of `benchmarks.correctness`."""

from __future__ import annotations

import torch

from albert_cli.training.settings import TrainSettings
from benchmarks import correctness
from tests.helpers.shapes import TINY


def test_measure_correctness_finds_the_cpu_correct() -> None:
    result = correctness.measure_correctness(TINY, TrainSettings(precision="fp32"), torch.device("cpu"))
    assert result.is_correct and result.form.startswith("fp32")
