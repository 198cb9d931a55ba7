"""`albert bench optimizer`: a step of LAMB and of AdamW, against torch's own fused AdamW and a plain copy of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from albert_cli import console
from albert_cli.bench.harness import Step, alternate, conditions
from albert_cli.counting import shapes
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import choose_device
from albert_cli.training.optimizers import OPTIMIZERS, is_excluded
from albert_cli.training.settings import OptimizerSettings

PEER: Final = "torch AdamW, fused"
# Bytes of fp32 read and written a parameter: the kernel of AdamW, and LAMB's (training/optimizers.py) where it adapts.
_ADAMW_BYTES: Final = 28
_LAMB_BYTES: Final = 56
_LR: Final = 1e-6  # small, so that hundreds of steps on one random gradient stay finite


def run(models: Sequence[str], rounds: int, device: str) -> dict[str, Any]:
    """Time a step over each model's parameters; raises `ConfigError` for an unknown shape or device."""
    target = choose_device(device)
    found = {name: _measure(shapes.find(name).config, name, rounds, target) for name in models}
    return {**conditions(target, "fp32"), "models": found}


def _measure(config: ModelConfig, name: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """`times_fused_adamw` by medians; `share_of_copy`: bytes a second, of those that a plain copy moves."""
    named = random_parameters(config, device)
    total = sum(p.numel() for p in named.values())
    source, target = torch.ones((2, total), device=device)
    settings = OptimizerSettings()
    optimizers = {
        "LAMB": OPTIMIZERS["lamb"](named.items(), settings),
        "AdamW": OPTIMIZERS["adamw"](named.items(), settings),
        PEER: torch.optim.AdamW(named.values(), lr=_LR, eps=1e-6, weight_decay=0.01, fused=True),
    }
    steps = {variant: _step(optimizer) for variant, optimizer in optimizers.items()}
    timings = alternate(steps | {"copy": lambda: len(target.copy_(source))}, rounds, device, name)
    bandwidth = 8 * total / timings.pop("copy").minimum
    excluded = sum(p.numel() for n, p in named.items() if is_excluded(n))
    moved = dict.fromkeys(timings, _ADAMW_BYTES * total)
    moved["LAMB"] = _LAMB_BYTES * (total - excluded) + _ADAMW_BYTES * excluded
    return {
        "parameters": total,
        "tensors": len(named),
        "copy_bytes_per_second": round(bandwidth),
        "variants": {
            variant: {
                "median_ms": round(timing.median * 1e3, 3),
                "minimum_ms": round(timing.minimum * 1e3, 3),
                "times_fused_adamw": round(timing.median / timings[PEER].median, 3),
                "bytes_moved": moved[variant],
                "share_of_copy": round(moved[variant] / timing.median / bandwidth, 4),
            }
            for variant, timing in timings.items()
        },
    }


def random_parameters(config: ModelConfig, device: torch.device) -> dict[str, nn.Parameter]:
    """What pretraining trains, by name, with random values and gradients."""
    with torch.device("meta"):
        shaped = {name: p.shape for name, p in PretrainingModel(config).named_parameters()}
    torch.manual_seed(0)
    named = {name: nn.Parameter(torch.randn(shape, device=device)) for name, shape in shaped.items()}
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    return named


def _step(optimizer: Optimizer) -> Step:
    """A step; there is no loss to compare."""
    for group in optimizer.param_groups:
        group["lr"] = _LR

    def step() -> float:
        optimizer.step()
        return 0.0

    return step


def text(result: Mapping[str, Any]) -> str:
    """The result of `run` as tables."""
    parts = [f"a step on {result['device']}, {result['threads']} threads"]
    for name, found in result["models"].items():
        rows = [
            (
                variant,
                f"{v['median_ms']:,.2f}",
                f"{v['minimum_ms']:,.2f}",
                f"{v['times_fused_adamw']:.2f}x",
                f"{v['bytes_moved'] / 1e6:,.0f}",
                f"{v['share_of_copy']:.0%}",
            )
            for variant, v in found["variants"].items()
        ]
        head = f"{name}, {found['parameters']:,} parameters"
        table = console.table((head, "median ms", "least ms", "of fused AdamW", "MB moved", "of copy"), rows)
        parts.append(f"{table}\ncopying moves {found['copy_bytes_per_second'] / 1e9:,.1f} GB/s")
    return "\n\n".join(parts)
