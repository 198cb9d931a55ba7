"""Tests of `model.recomputation`: the backward pass computes with the random numbers of the forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from albert_cli.model.recomputation import recompute_in_backward


@pytest.mark.parametrize("device_type", ["cpu", "mps"])
def test_recomputation_samples_the_same_dropout(device_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate generator plays the one of Apple's GPU, which `torch.utils.checkpoint` does not know."""
    generator = torch.default_generator
    if device_type == "mps":
        generator = torch.Generator()
        monkeypatch.setattr(torch.mps, "get_rng_state", generator.get_state)
        monkeypatch.setattr(torch.mps, "set_rng_state", generator.set_state)

    def drop(x: Tensor, scale: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=generator) < 0.5) * scale

    x = torch.ones(1000, requires_grad=True)
    first = recompute_in_backward(torch.device(device_type), drop, x, torch.tensor(3.0))
    second = recompute_in_backward(torch.device(device_type), drop, x, torch.tensor(5.0))
    before = generator.get_state()
    (first + second).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, first + second)
    assert not torch.equal(first / 3, second / 5)
    assert torch.equal(generator.get_state(), before), "the next step samples other numbers"
