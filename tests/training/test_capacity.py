"""Memory that a step needs, and warnings about it."""

from __future__ import annotations

import pytest
import torch

from albert_cli import machine
from albert_cli.training import capacity


def needed(total: int) -> capacity.MemoryEstimate:
    return capacity.MemoryEstimate(state=0, activations=0, teacher=0, total=total)


def test_warn_training_memory_warns_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    left = iter([1100, 900, 800, 700, 700])
    monkeypatch.setattr(capacity, "available_memory", lambda device: next(left))
    cpu = torch.device("cpu")
    capacity._warn_once.cache_clear()
    for _ in range(4):  # the seeds of an evaluation, with a little less free each time
        capacity.warn_training_memory(needed(1000), 8, cpu)
    assert capsys.readouterr().err.count("warning: ") == 1
    capacity.warn_training_memory(needed(1001), 8, cpu)
    assert "8 sequences" in capsys.readouterr().err
    capacity._warn_once.cache_clear()
    monkeypatch.setattr(capacity, "available_memory", lambda device: 0)
    capacity.warn_training_memory(needed(1000), 8, cpu)
    assert "warning: " in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(machine, "memory_info", dict)
    capacity.warn_training_memory(needed(1002), 8, cpu)
    assert capacity.available_memory(cpu) is None and not capsys.readouterr().err
