"""Two variants of the matrix products that no training setting has, timed alone on a model's own shapes.

A shared matrix gets a gradient from every layer. Training adds each to a sum in fp32; *deferred*, the inputs and
output gradients of all layers are kept and multiplied at once. And fp8, with one scale a tensor, in place of bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from albert_cli.bench.timing import alternate
from albert_cli.model.config import ModelConfig

_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_CAPABILITY: Final = (8, 9)  # of a CUDA device that multiplies fp8
PRODUCTS: Final = ("forward", "gradient of the input", "gradient of the weight")


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a block's matrices; query, key and value are one, as the block multiplies them."""
    h, f = config.hidden_size, config.intermediate_size
    return {"query, key, value": (3 * h, h), "attention's output": (h, h), "up": (f, h), "down": (h, f)}


def weight_gradients(
    config: ModelConfig, tokens: int, rounds: int, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Any]:
    """Milliseconds for the weight gradients of one backward pass: a product a layer, or one product at the end.

    `kept_bytes`: what must be kept until the end, inputs and output gradients of all layers. `differ_by`: the relative
    difference of the two results, by norms.
    """
    layers, found, kept = config.num_hidden_layers, {"per_layer_ms": 0.0, "deferred_ms": 0.0}, 0
    off = 0.0
    for name, (outputs, inputs) in matrices(config).items():
        x_LTI = torch.randn(layers, tokens, inputs, device=device, dtype=dtype)
        dy_LTO = torch.randn(layers, tokens, outputs, device=device, dtype=dtype)
        results: dict[str, Tensor] = {}

        def per_layer(x: Tensor = x_LTI, dy: Tensor = dy_LTO, results: dict[str, Tensor] = results) -> float:
            total = torch.zeros(dy.shape[-1], x.shape[-1], device=device)
            for layer in range(layers):
                total += (dy[layer].t() @ x[layer]).float()
            results["per_layer"] = total
            return 0.0

        def deferred(x: Tensor = x_LTI, dy: Tensor = dy_LTO, results: dict[str, Tensor] = results) -> float:
            results["deferred"] = (dy.flatten(0, 1).t() @ x.flatten(0, 1)).float()
            return 0.0

        timings = alternate({"per_layer": per_layer, "deferred": deferred}, rounds, device, name)
        for variant, timing in timings.items():
            found[f"{variant}_ms"] += 1e3 * timing.median
        off = max(off, _apart(results["deferred"], results["per_layer"]))
        kept += x_LTI.nbytes + dy_LTO.nbytes
    rounded = {name: round(value, 4) for name, value in found.items()}
    faster = round(found["per_layer_ms"] / found["deferred_ms"], 3)
    return {"tokens": tokens, **rounded, "deferred_is_faster": faster, "kept_bytes": kept, "differ_by": round(off, 6)}


def _apart(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(one.float() - other.float()) / torch.linalg.vector_norm(other.float()))


# ---------------------------------------------------------------- fp8


def lacks_fp8(device: torch.device) -> str | None:
    """What the device needs to multiply in fp8 and has not."""
    if not hasattr(torch, "_scaled_mm"):
        return "this torch has no product in fp8"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
        return "this GPU has no units for fp8"
    return None if device.type in ("cuda", "cpu") else f"torch has no product in fp8 on {device.type}"


def fp8(config: ModelConfig, tokens: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of one layer's products in bf16 and in fp8, and how far the results are apart (by norms).

    `fp8_ms` is the product alone; `fp8_with_casts_ms` also finds the largest number of each activation and output
    gradient and casts it, unfused. The weights are cast before: once a step, for all layers. Output gradients have
    five bits of exponent, everything else four.
    """
    found: dict[str, dict[str, float]] = {
        name: {"bf16_ms": 0.0, "fp8_ms": 0.0, "fp8_with_casts_ms": 0.0, "differ_by": 0.0} for name in PRODUCTS
    }
    for name, (outputs, inputs) in matrices(config).items():
        for product, variants in _products(tokens, outputs, inputs, device).items():
            results: dict[str, Tensor] = {}
            timings = alternate(
                {variant: _kept(function, variant, results) for variant, function in variants.items()},
                rounds, device, f"{name}: {product}",
            )  # fmt: skip
            row = found[product]
            for variant, timing in timings.items():
                row[f"{variant}_ms"] += 1e3 * timing.median
            row["differ_by"] = max(row["differ_by"], _apart(results["fp8"], results["bf16"]))
    total = {key: sum(row[key] for row in found.values()) for key in ("bf16_ms", "fp8_ms", "fp8_with_casts_ms")}
    return {
        "tokens": tokens,
        "products": {name: {key: round(value, 5) for key, value in row.items()} for name, row in found.items()},
        "fp8_is_faster": round(total["bf16_ms"] / total["fp8_ms"], 3),
        "fp8_with_casts_is_faster": round(total["bf16_ms"] / total["fp8_with_casts_ms"], 3),
    }


def _kept(function: Callable[[], Tensor], name: str, results: dict[str, Tensor]) -> Callable[[], float]:
    def call() -> float:
        results[name] = function()
        return 0.0

    return call


def _products(
    tokens: int, outputs: int, inputs: int, device: torch.device
) -> dict[str, dict[str, Callable[[], Tensor]]]:
    """The three products of a linear layer, each in bf16, in fp8, and in fp8 with the casts.

    fp8 wants its first factor in rows and its second in columns, so that a transposed one is copied.
    """
    x, w = (torch.randn(n, inputs, device=device, dtype=torch.bfloat16) for n in (tokens, outputs))
    dy = torch.randn(tokens, outputs, device=device, dtype=torch.bfloat16)
    w8, w8_t = cast(w, _E4M3), cast(w.t().contiguous(), _E4M3)

    def a() -> tuple[Tensor, Tensor]:
        return cast(x, _E4M3)

    def b() -> tuple[Tensor, Tensor]:
        return cast(dy, _E5M2)

    def turned() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return cast(dy.t().contiguous(), _E5M2), cast(x.t().contiguous(), _E4M3)

    x8, dy8, (dy8_t, x8_t) = a(), b(), turned()
    return {
        "forward": {
            "bf16": lambda: x @ w.t(),
            "fp8": lambda: scaled(x8, w8),
            "fp8_with_casts": lambda: scaled(a(), w8),
        },
        "gradient of the input": {
            "bf16": lambda: dy @ w,
            "fp8": lambda: scaled(dy8, w8_t),
            "fp8_with_casts": lambda: scaled(b(), w8_t),
        },
        "gradient of the weight": {
            "bf16": lambda: dy.t() @ x,
            "fp8": lambda: scaled(dy8_t, x8_t),
            "fp8_with_casts": lambda: scaled(*turned()),
        },
    }


def cast(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(x in fp8, its scale as an fp32 scalar): the largest number becomes the largest that the type has."""
    scale = x.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (x / scale).to(dtype), scale


def scaled(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """[N, K] times the transpose of [M, K], both in fp8 with their scales: [N, M] in bf16."""
    (a, scale_a), (b, scale_b) = one, other
    product: Tensor = torch._scaled_mm(
        a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return product


# ---------------------------------------------------------------- shown

GRADIENT_HEADERS: Final = ("weight gradients, ms", "a product a layer", "one at the end", "gain", "kept, GB", "apart")
FP8_HEADERS: Final = ("a layer's products, ms", "bf16", "fp8", "fp8 with casts", "gain", "with casts", "apart")


def gradient_row(name: str, m: Mapping[str, Any]) -> list[str]:
    """A model's `weight_gradients` for a table under `GRADIENT_HEADERS`."""
    times = (f"{m['per_layer_ms']:,.2f}", f"{m['deferred_ms']:,.2f}", f"{m['deferred_is_faster']:.2f}x")
    return [name, *times, f"{m['kept_bytes'] / 1e9:,.2f}", f"{m['differ_by']:.1e}"]


def fp8_rows(name: str, measured: Mapping[str, Any]) -> list[list[str]]:
    """A model's `fp8` for a table under `FP8_HEADERS`."""
    keys = ("bf16_ms", "fp8_ms", "fp8_with_casts_ms")
    rows = [
        [f"{name}, {product}", *(f"{m[key]:,.3f}" for key in keys), f"{m['bf16_ms'] / max(m['fp8_ms'], 1e-9):.2f}x",
         f"{m['bf16_ms'] / max(m['fp8_with_casts_ms'], 1e-9):.2f}x", f"{m['differ_by']:.1e}"]
        for product, m in measured["products"].items()
    ]  # fmt: skip
    all_three = (f"{measured['fp8_is_faster']:.2f}x", f"{measured['fp8_with_casts_is_faster']:.2f}x")
    return [*rows, [f"{name}, all", "", "", "", *all_three, ""]]
