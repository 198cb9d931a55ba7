"""Linear layers computed by oneDNN equal torch's, forward and backward; without oneDNN, torch computes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli import machine, matmul
from albert_cli.matmul import has_onednn, has_prepacked_linear, linear, onednn_linear, prepack_weight
from albert_cli.model.block import ACTIVATIONS

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let oneDNN compute matmuls of any size."""
    monkeypatch.setattr(matmul, "_MIN_FLOPS", 0.0)


@pytest.fixture
def fresh_check() -> Iterator[None]:
    """Clear the cached check of oneDNN before and after a test."""
    has_onednn.cache_clear()
    yield
    has_onednn.cache_clear()


def gradients(backend: matmul.MatmulBackend, shape: tuple[int, int, int], *, bias: bool = True) -> list[Tensor]:
    """Return the output of a linear layer, and the gradients of its input and parameters."""
    rows, inputs, outputs = shape
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, inputs, generator=generator, requires_grad=True)
    weight = torch.randn(outputs, inputs, generator=generator, requires_grad=True)
    parameters = [x, weight]
    if bias:
        parameters.append(torch.randn(outputs, generator=generator, requires_grad=True))
    output = linear(x, weight, parameters[2] if bias else None, backend)
    incoming = torch.randn(
        outputs, rows, generator=generator
    ).T  # transposed, so its memory layout differs from the output's
    return [output.detach(), *torch.autograd.grad(output, parameters, incoming)]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (7, 5, 3), (33, 64, 128), (20, 1024, 96), (20, 96, 1024), (5, 1024, 1024)]
)
def test_linear_onednn_equals_torch(shape: tuple[int, int, int], bias: bool, any_size: None) -> None:
    for ours, expected in zip(gradients("onednn", shape, bias=bias), gradients("torch", shape, bias=bias), strict=True):
        assert ours.shape == expected.shape
        assert ours.dtype == torch.float32
        assert float((ours - expected).norm()) <= 2e-6 * float(expected.norm()) + 1e-6


@needs_onednn
@pytest.mark.parametrize("activation", ["none", *ACTIVATIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prepacked_linear_equals_torch(dtype: torch.dtype, activation: str) -> None:
    if not has_prepacked_linear(dtype):
        pytest.skip(f"oneDNN does not compute in {dtype} here")
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((33, 64), (96, 64), (96,)))
    packed = prepack_weight(weight, rows=33)
    expected = F.linear(x.float(), weight.float(), bias.float())
    if activation != "none":
        expected = ACTIVATIONS[activation](expected)
    output = linear(x, packed, bias) if activation == "none" else onednn_linear(x, packed, bias, activation)
    assert output.dtype == dtype
    # Rounding the result to bf16 changes it by at most 1/256 of its size.
    assert torch.allclose(output.float(), expected, atol=1e-5, rtol=1e-6 if dtype.itemsize > 2 else 4e-3)


@needs_onednn
def test_linear_onednn_gradient_of_constant_input_is_none(any_size: None) -> None:
    x, weight = torch.randn(6, 4), torch.randn(3, 4, requires_grad=True)
    linear(x, weight, None, "onednn").sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert torch.allclose(weight.grad, x.sum(0).expand(3, 4), atol=1e-5)


def test_linear_small_or_bf16_uses_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "onednn_linear", lambda *_: pytest.fail("called oneDNN"))
    monkeypatch.setattr(matmul, "has_onednn", lambda: True)
    x, weight, bias = torch.randn(8, 16), torch.randn(4, 16), torch.randn(4)
    assert torch.equal(linear(x, weight, bias, "onednn"), F.linear(x, weight, bias))
    large = torch.randn(512, 512)
    assert linear(large.bfloat16(), large.bfloat16(), None, "onednn").dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(large, large, None, "onednn").dtype == torch.bfloat16


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_linear_without_onednn_falls_back(
    error: type[Exception], any_size: None, fresh_check: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: object) -> Tensor:
        raise error

    monkeypatch.setattr(matmul, "onednn_linear", missing)
    x, weight = torch.randn(8, 16), torch.randn(4, 16)
    assert not has_onednn()
    assert torch.equal(linear(x, weight, None, "onednn"), F.linear(x, weight))


def test_no_prepacked_linear_if_the_activation_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "prepack_weight", lambda weight, rows: weight)
    monkeypatch.setattr(matmul, "onednn_linear", lambda x, weight, bias, activation: F.linear(x, weight, bias))
    assert not has_prepacked_linear.__wrapped__(torch.float32)


def test_no_onednn_if_its_result_is_wrong(fresh_check: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "onednn_linear", lambda x, weight, bias: F.linear(x, weight, bias) + 1)
    assert not has_onednn()


def test_matmul_peak_is_the_speed_of_the_fastest_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    seconds = {"torch": 2.0, "onednn": 1.0}

    def make_matmul(precision: str, device: torch.device, backend: str = "torch") -> tuple[object, int]:
        def run() -> None:
            clock[0] += seconds[backend]

        return run, 100

    monkeypatch.setattr(machine, "make_matmul", make_matmul)
    monkeypatch.setattr(machine, "matmul_backends", lambda precision, device: ("torch", "onednn"))
    monkeypatch.setattr("albert_cli.machine.time.perf_counter", lambda: clock[0])
    assert machine.measure_matmul_peak("fp32", CPU, seconds=0.0) == 100.0
