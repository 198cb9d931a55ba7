"""Tests of `training.capacity`: warnings about the memory that a step needs."""

from __future__ import annotations

import pytest
import torch

from albert_cli import machine
from albert_cli.training import capacity


def make_estimate(total: int) -> capacity.MemoryEstimate:
    return capacity.MemoryEstimate(state=0, activations=0, teacher=0, total=total)


def test_warn_training_memory_warns_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    free_bytes = iter([1100, 900, 800, 700, 700])  # enough for the first of four seeds; the last is for 1001
    monkeypatch.setattr(capacity, "available_memory", lambda device: next(free_bytes))
    cpu = torch.device("cpu")
    capacity._warn_once.cache_clear()
    for _ in range(4):  # the seeds of an evaluation, each with less free memory
        capacity.warn_training_memory(make_estimate(1000), 8, cpu)
    assert capsys.readouterr().err.count("warning: ") == 1
    capacity.warn_training_memory(make_estimate(1001), 8, cpu)
    assert "8 sequences" in capsys.readouterr().err
    capacity._warn_once.cache_clear()
    monkeypatch.setattr(capacity, "available_memory", lambda device: 0)
    capacity.warn_training_memory(make_estimate(1000), 8, cpu)
    assert "warning: " in capsys.readouterr().err
    monkeypatch.undo()  # `available_memory` is the real function again
    monkeypatch.setattr(machine, "memory_info", dict)  # a system that does not report its memory
    capacity.warn_training_memory(make_estimate(1002), 8, cpu)
    assert capacity.available_memory(cpu) is None
    assert not capsys.readouterr().err


def test_available_memory_includes_what_torch_keeps_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 800)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 50)
    assert capacity.available_memory(torch.device("cuda", 0)) == 850
