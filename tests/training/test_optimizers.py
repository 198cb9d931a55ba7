"""Tests of the optimizers, which must equal their published rules in float64."""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn
from torch.optim import Optimizer

from albert_cli.model.heads import PretrainingModel
from albert_cli.model.weight_files import read_tensors
from albert_cli.training.optimizers import (
    OPTIMIZERS,
    Lamb,
    clip_gradients,
    is_norm_or_bias,
    load_optimizer_state,
    make_optimizer,
    state_tensors,
    tensor_norms,
    update_weights,
)
from albert_cli.training.settings import OptimizerSettings
from tests.helpers.nfs import is_mapped, needs_maps
from tests.helpers.processes import start
from tests.helpers.shapes import ALL_SHAPES, TINY

Arrays = dict[str, NDArray[Any]]
SHAPES: dict[str, tuple[int, ...]] = {
    "encoder.embeddings.word.weight": (50, 8),
    "encoder.attention.0.query.weight": (16, 16),
    "encoder.attention.0.query.bias": (16,),
    "encoder.attention.0.norm.weight": (16,),
    "encoder.attention.0.norm.bias": (16,),
    "order.weight": (2, 16),
    "masked.bias": (50,),
    "zero.weight": (3, 4),
}
# These tensors have a large trust ratio, a small one, and one that is 1 in the first step.
SCALES = {"encoder.embeddings.word.weight": 40.0, "order.weight": 1e-4, "zero.weight": 0.0}
EXCLUDED = {n for n in SHAPES if n.endswith("bias") or "norm" in n}
VARIANTS = {
    "LAMB": OptimizerSettings(),
    "LAMB as in apex": OptimizerSettings(bias_correction=True),
    "NVLAMB": OptimizerSettings("nvlamb", bias_correction=True, eps=1e-7),
    "AdamW": OptimizerSettings("adamw", weight_decay=0.1),
    "AdamW with bias correction": OptimizerSettings("adamw", bias_correction=True, beta1=0.8, beta2=0.99),
}


def published_rule(start: Arrays, gradients: list[Arrays], rates: list[float], s: OptimizerSettings) -> Arrays:
    """Return the weights after the published updates, computed in float64, one tensor at a time."""
    b1, b2 = s.beta1, s.beta2
    weights = {n: w.astype(np.float64) for n, w in start.items()}
    m = {n: np.zeros_like(w) for n, w in weights.items()}
    v = {n: np.zeros_like(w) for n, w in weights.items()}
    for t, (gradient, lr) in enumerate(zip(gradients, rates, strict=True), 1):
        for n, w in weights.items():
            g = gradient[n].astype(np.float64)
            m[n] = b1 * m[n] + (1 - b1) * g
            v[n] = b2 * v[n] + (1 - b2) * g * g
            m_hat, v_hat = (m[n] / (1 - b1**t), v[n] / (1 - b2**t)) if s.bias_correction else (m[n], v[n])
            u = m_hat / (np.sqrt(v_hat) + s.eps)
            if n not in EXCLUDED:
                u = u + s.weight_decay * w
            ratio = 1.0
            if s.name == "nvlamb" or (s.name == "lamb" and n not in EXCLUDED):
                w_norm, u_norm = math.sqrt((w * w).sum()), math.sqrt((u * u).sum())
                ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
            weights[n] = w - lr * ratio * u
    return weights


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str)
def test_optimizer_equals_the_published_rule(dtype: torch.dtype, tolerance: float, variant: str) -> None:
    rng = np.random.default_rng(0)
    kind = np.float32 if dtype == torch.float32 else np.float64
    start: Arrays = {n: (SCALES.get(n, 0.02) * rng.standard_normal(s)).astype(kind) for n, s in SHAPES.items()}
    scales = rng.lognormal(-4, 2, 100)
    gradients = [{n: (c * rng.standard_normal(s)).astype(kind) for n, s in SHAPES.items()} for c in scales]
    rates = [0.002 * min(1.0, t / 10) * (1 - t / 100) for t in range(100)]
    parameters = {n: nn.Parameter(torch.from_numpy(w.copy())) for n, w in start.items()}
    optimizer = OPTIMIZERS[VARIANTS[variant].name](parameters.items(), VARIANTS[variant])
    for gradient, lr in zip(gradients, rates, strict=True):
        for n, p in parameters.items():
            p.grad = torch.from_numpy(gradient[n].copy())
        update_weights(optimizer, lr)
        assert all(p.grad is None for p in parameters.values())
    expected = published_rule(start, gradients, rates, VARIANTS[variant])
    for n, p in parameters.items():
        assert p.dtype == dtype
        error = np.linalg.norm(p.detach().numpy().astype(np.float64) - expected[n]) / np.linalg.norm(expected[n])
        assert error <= tolerance, (n, error)


def test_optimizers_have_every_recipe_name() -> None:
    assert set(OPTIMIZERS) == set(get_args(typing.get_type_hints(OptimizerSettings)["name"]))


def test_adamw_bias_corrected_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Parameter(torch.full((6, 5), 0.3, dtype=torch.float64)) for _ in range(2))
    settings = OptimizerSettings("adamw", bias_correction=True, weight_decay=0.1)
    optimizer = OPTIMIZERS["adamw"]([("weight", ours)], settings)
    reference = torch.optim.AdamW([theirs], lr=0.01, eps=1e-6, weight_decay=0.1)
    for _ in range(20):
        ours.grad = torch.randn(6, 5, dtype=torch.float64, generator=generator)
        theirs.grad = ours.grad.clone()
        update_weights(optimizer, 0.01)
        reference.step()
    assert torch.allclose(ours, theirs, rtol=1e-13, atol=0)


def test_tensor_norms_large_tensors_are_exact() -> None:
    """On a CPU, torch adds up this norm in a few long sums, and its result is wrong by 1e-4."""
    large = torch.randn(30_000, 128, generator=torch.Generator().manual_seed(0)) * 0.02
    for tensor in (large, large.view(240, 16_000), large.view(-1)[:30_000], large[0, 0], torch.zeros(3, 0)):
        expected = float(tensor.double().norm())
        assert float(tensor_norms([tensor])[0]) == pytest.approx(expected, rel=5e-7)


def test_lamb_accepts_strided_gradients() -> None:
    gradient = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    contiguous, strided = (nn.Parameter(torch.ones(4, 3)) for _ in range(2))
    contiguous.grad, strided.grad = gradient, gradient.T.contiguous().T
    assert not strided.grad.is_contiguous()
    for parameter in (contiguous, strided):
        update_weights(Lamb([("weight", parameter)], OptimizerSettings()), 0.1)
    assert torch.equal(contiguous, strided)


@pytest.mark.parametrize("name", ALL_SHAPES)
def test_is_norm_or_bias_selects_exactly_those(name: str) -> None:
    model = PretrainingModel(ALL_SHAPES[name])
    by_module = set()
    for path, module in model.named_modules():
        for leaf, _ in module.named_parameters(recurse=False):
            if isinstance(module, nn.LayerNorm) or leaf == "bias":
                by_module.add(f"{path}.{leaf}")
    assert {n for n, _ in model.named_parameters() if is_norm_or_bias(n)} == by_module
    tables = ("word", "position", "segment")
    assert not any(is_norm_or_bias(f"encoder.embeddings.{table}.weight") for table in tables)


def make_torch_adamw(named: Iterable[tuple[str, nn.Parameter]], settings: OptimizerSettings) -> Optimizer:
    """Return an optimizer of torch, as a contributor would add one."""
    return torch.optim.AdamW(named, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True)


@pytest.mark.parametrize("variant", ["LAMB", "LAMB as in apex", "torch's"])
def test_load_optimizer_state_resumes_any_optimizer(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = VARIANTS.get(variant, OptimizerSettings())
    if variant not in VARIANTS:
        monkeypatch.setitem(cast(dict[str, Any], OPTIMIZERS), settings.name, make_torch_adamw)

    def train(steps: range, optimizer: Optimizer, model: PretrainingModel) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            update_weights(optimizer, 0.01)

    torch.manual_seed(0)
    uninterrupted, resumed = PretrainingModel(TINY), PretrainingModel(TINY)
    resumed.load_state_dict(uninterrupted.state_dict())
    train(range(6), make_optimizer(uninterrupted, settings), uninterrupted)
    first, second = (make_optimizer(resumed, settings) for _ in range(2))
    train(range(3), first, resumed)
    state = {name: tensor.clone() for name, tensor in state_tensors(first).items()}
    names = {name.partition(".")[2] for name in state}
    assert names == {name for name, _ in resumed.named_parameters()}
    load_optimizer_state(second, state, 3)
    train(range(3, 6), second, resumed)
    assert all(torch.equal(a, b) for a, b in zip(uninterrupted.parameters(), resumed.parameters(), strict=True))
    state.popitem()
    with pytest.raises(ValueError, match=r"^no "):
        load_optimizer_state(second, state, 3)


@needs_maps
def test_load_optimizer_state_does_not_map_its_file(tmp_path: Path) -> None:
    """NFS cannot delete a file as long as it is mapped."""
    path = tmp_path / "optimizer.safetensors"
    parameter = nn.Parameter(torch.ones(2000))
    first, second = (make_torch_adamw([("weight", parameter)], OptimizerSettings()) for _ in range(2))
    parameter.grad = torch.ones(2000)
    update_weights(first, 0.01)
    save_file(state_tensors(first), path)
    load_optimizer_state(second, read_tensors(path), 1)
    assert torch.equal(second.state[parameter]["exp_avg"], first.state[parameter]["exp_avg"])
    assert not is_mapped(path)


def test_lamb_leaves_frozen_parameters() -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    update_weights(Lamb([("weight", frozen), ("other.weight", nn.Parameter(torch.ones(2)))], OptimizerSettings()), 0.5)
    assert torch.equal(frozen, torch.ones(2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_leaves_parameters_without_gradient(name: str) -> None:
    """LAMB's weight decay alone would shrink the weights of an unused head by a constant factor in every step."""
    unused, used = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    settings = OptimizerSettings(cast(Any, name))
    optimizer = OPTIMIZERS[name]([("pooler.weight", unused), ("word.weight", used)], settings)
    for _ in range(50):
        used.grad = torch.ones(4, 4)
        update_weights(optimizer, 0.01)
    assert torch.equal(unused, torch.ones(4, 4)) and not torch.equal(used, torch.ones(4, 4))
    assert {key for key, moment in state_tensors(optimizer).items() if moment.any()} == {
        "first.word.weight", "second.word.weight",
    }  # fmt: skip
    load_optimizer_state(optimizer, state_tensors(optimizer), 50)


def run_one_step() -> None:
    model = PretrainingModel(TINY)
    optimizer = make_optimizer(model, OptimizerSettings())
    sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    update_weights(optimizer, 1e-3)
    assert all(p.grad is None for p in model.parameters())
    print("torch._dynamo" in sys.modules)
    raise SystemExit


def test_lamb_step_does_not_import_compiler(tmp_path: Path) -> None:
    """At every start, the import of the compiler would take half as long as the import of torch."""
    process = start(tmp_path / "log", run_first=run_one_step)
    assert (process.wait(), process.printed_text()) == (0, "False\n")


def test_clip_gradients_keeps_direction_and_returns_norm() -> None:
    for limit, factor in ((1.0, 1 / 13), (0.0, 1.0), (13.0, 1.0), (100.0, 1.0)):
        model = nn.ParameterList(torch.zeros(2) for _ in range(3))  # the last one has no gradient
        first, second, _ = model
        first.grad, second.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0, 0.0])
        assert float(clip_gradients(model, limit)) == 13.0
        assert torch.allclose(first.grad, torch.tensor([3.0, 4.0]) * factor)
        assert torch.allclose(second.grad, torch.tensor([12.0, 0.0]) * factor)
