"""Tests of `benchmarks.memory`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from albert_cli.counting.paper import MEMORY
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS
from benchmarks import memory


@pytest.mark.parametrize("estimate", [0, 1, 7, 40, 1000])
@pytest.mark.parametrize("most", [0, 1, 2, 31, 64, 700])
def test_find_largest_is_within_a_sixteenth(most: int, estimate: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= most

    largest = memory.find_largest(fits, estimate)
    assert most - max(0, most // 16) <= largest <= most and len(tried) < 20


def test_try_batch_builds_the_model_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host, initializing some three hundred models would take minutes."""
    devices = []

    def record(config: Any) -> Any:
        devices.append(torch.empty(0).device.type)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(memory, "PretrainingModel", record)
    assert not memory._try_batch(PRESETS["albert-base"], 8, "fp32", torch.device("meta"), 1)
    assert devices == ["meta"]


def test_find_largest_batches_on_a_cpu_is_empty() -> None:
    assert memory.find_largest_batches(torch.device("cpu")) == {}


def test_gpu_with_less_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, MEMORY - 1))
    with pytest.raises(ConfigError, match="less than"):
        memory.find_largest_batches(torch.device("cuda"))
