"""LAMB against a transcription of its published rule in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from albert_cli.model.heads import PretrainingModel
from albert_cli.training.lamb import Lamb, is_excluded, trust_ratios
from tests.model.shapes import ALL, TINY

Arrays = dict[str, NDArray[Any]]
SHAPES: dict[str, tuple[int, ...]] = {
    "encoder.embeddings.word.weight": (50, 8),
    "encoder.attention.0.query.weight": (16, 16),
    "encoder.attention.0.query.bias": (16,),
    "encoder.attention.0.norm.weight": (16,),
    "encoder.attention.0.norm.bias": (16,),
    "order.weight": (2, 16),
    "masked.bias": (50,),
    "zero.weight": (3, 4),  # starts at zero, so that its ratio is 1
}
EXCLUDED = {n for n in SHAPES if n.endswith("bias") or "norm" in n}


def transcription(
    start: Arrays, gradients: list[Arrays], rates: list[float], decay: float, adapt: bool, b1: float, b2: float
) -> Arrays:
    """The reference's update, one tensor at a time, in float64."""
    weights = {n: w.astype(np.float64) for n, w in start.items()}
    m = {n: np.zeros_like(w) for n, w in weights.items()}
    v = {n: np.zeros_like(w) for n, w in weights.items()}
    for gradient, lr in zip(gradients, rates, strict=True):
        for n, w in weights.items():
            g = gradient[n].astype(np.float64)
            m[n] = b1 * m[n] + (1 - b1) * g
            v[n] = b2 * v[n] + (1 - b2) * g * g
            u = m[n] / (np.sqrt(v[n]) + 1e-6)
            ratio = 1.0
            if n not in EXCLUDED:
                u = u + decay * w
                w_norm, u_norm = math.sqrt((w * w).sum()), math.sqrt((u * u).sum())
                if adapt and w_norm > 0 and u_norm > 0:
                    ratio = w_norm / u_norm
            weights[n] = w - lr * ratio * u
    return weights


@pytest.mark.parametrize("adapt", [True, False], ids=["LAMB", "AdamW"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str)
def test_a_hundred_steps_against_the_published_rule(dtype: torch.dtype, tolerance: float, adapt: bool) -> None:
    rng = np.random.default_rng(0)
    kind = np.float32 if dtype == torch.float32 else np.float64
    start: Arrays = {n: rng.normal(0, 0.02, s).astype(kind) for n, s in SHAPES.items()}
    start["zero.weight"] *= 0
    scales = rng.lognormal(-4, 2, 100)
    gradients = [{n: (c * rng.standard_normal(s)).astype(kind) for n, s in SHAPES.items()} for c in scales]
    rates = [0.002 * min(1.0, t / 10) * (1 - t / 100) for t in range(100)]
    parameters = {n: nn.Parameter(torch.from_numpy(w.copy())) for n, w in start.items()}
    optimizer = Lamb(parameters.items(), weight_decay=0.01, adapt=adapt)
    for gradient, lr in zip(gradients, rates, strict=True):
        for n, p in parameters.items():
            p.grad = torch.from_numpy(gradient[n].copy())
        optimizer.step(lr)
        optimizer.zero_grad()
    expected = transcription(start, gradients, rates, 0.01, adapt, 0.9, 0.999)
    for n, p in parameters.items():
        assert p.dtype == dtype
        error = np.linalg.norm(p.detach().numpy().astype(np.float64) - expected[n]) / np.linalg.norm(expected[n])
        assert error <= tolerance, (n, error)


@pytest.mark.parametrize("name", ALL)
def test_exactly_biases_and_layer_norms_are_left_out(name: str) -> None:
    model = PretrainingModel(ALL[name])
    by_module = set()
    for path, module in model.named_modules():
        for leaf, _ in module.named_parameters(recurse=False):
            if isinstance(module, nn.LayerNorm) or leaf == "bias":
                by_module.add(f"{path}.{leaf}")
    assert {n for n, _ in model.named_parameters() if is_excluded(n)} == by_module
    tables = ("word", "position", "segment")
    assert not any(is_excluded(f"encoder.embeddings.{table}.weight") for table in tables)


def test_what_is_left_out_is_neither_decayed_nor_adapted() -> None:
    weight, bias = nn.Parameter(torch.full((4,), 2.0)), nn.Parameter(torch.full((4,), 2.0))
    optimizer = Lamb([("it.weight", weight), ("it.bias", bias)], weight_decay=0.5)
    optimizer.step(0.1)  # no gradient at all: only decay acts, and the ratio makes its length lr * ||w||
    assert torch.equal(bias, torch.full((4,), 2.0))
    assert torch.allclose(weight, torch.full((4,), 2.0 - 0.1 * 2.0))


def test_the_first_step_has_no_bias_correction() -> None:
    bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    bias.grad = torch.full((1,), 0.5, dtype=torch.float64)
    Lamb([("bias", bias)]).step(1.0)
    assert bias.item() == pytest.approx(-(0.1 * 0.5) / (math.sqrt(0.001 * 0.25) + 1e-6), rel=1e-12)


def test_the_length_of_a_lamb_step_is_the_rate_times_the_weights() -> None:
    for scale in (1e-3, 1.0, 1e3):  # no clamp on the ratio
        weight = nn.Parameter(torch.full((10, 10), scale))
        weight.grad = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
        before = weight.detach().clone()
        Lamb([("weight", weight)]).step(0.01)
        step = torch.linalg.vector_norm(weight.detach() - before) / torch.linalg.vector_norm(before)
        assert float(step) == pytest.approx(0.01, rel=1e-3)


def test_the_ratio_is_one_where_a_norm_is_zero() -> None:
    zero, ones = torch.zeros(3), torch.ones(3)
    ratios = trust_ratios([zero, ones, ones, 2 * ones], [ones, zero, ones, ones])
    assert [float(r) for r in ratios] == [1.0, 1.0, 1.0, 2.0]


def test_its_state_goes_on_where_it_stood() -> None:
    def train(steps: range, optimizer: Lamb, model: PretrainingModel) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step(0.01)

    torch.manual_seed(0)
    through, stopped = PretrainingModel(TINY), PretrainingModel(TINY)
    stopped.load_state_dict(through.state_dict())
    train(range(6), Lamb(through.named_parameters()), through)
    first, second = Lamb(stopped.named_parameters()), Lamb(stopped.named_parameters())
    train(range(3), first, stopped)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    assert len(state) == 2 * len(list(stopped.parameters()))
    second.load_state_dict(state)
    train(range(3, 6), second, stopped)
    assert all(torch.equal(a, b) for a, b in zip(through.parameters(), stopped.parameters(), strict=True))
    state.popitem()
    with pytest.raises(KeyError):
        second.load_state_dict(state)


def test_frozen_parameters_are_left_alone() -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    Lamb([("weight", frozen), ("other.weight", nn.Parameter(torch.ones(2)))]).step(0.5)
    assert torch.equal(frozen, torch.ones(2))
