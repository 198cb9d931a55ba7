"""`albert bench optimizer`: a step of LAMB and of AdamW, against torch's own fused AdamW and a plain copy of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from albert_cli import console
from albert_cli.bench.timing import Timing, alternate, copy_bandwidth
from albert_cli.model import shapes
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import choose_device
from albert_cli.training.lamb import Lamb, is_excluded

PEER: Final = "torch AdamW, fused"
# Bytes of fp32 read and written a parameter: the kernel of AdamW, and LAMB's (training/lamb.py) where it adapts.
_ADAMW_BYTES: Final = 28
_LAMB_BYTES: Final = 56
_LR: Final = 1e-6  # small, so that hundreds of steps on one random gradient stay finite


def run(models: Sequence[str], rounds: int, device: str) -> dict[str, Any]:
    """Time a step over each model's parameters; raises `ConfigError` for an unknown shape or device."""
    target = choose_device(device)
    found = {name: _measure(shapes.find(name).config, name, rounds, target) for name in models}
    return {
        "device": torch.cuda.get_device_name(target) if target.type == "cuda" else target.type,
        "threads": torch.get_num_threads(),
        "models": found,
    }


def _measure(config: ModelConfig, name: str, rounds: int, device: torch.device) -> dict[str, Any]:
    named = random_parameters(config, device)
    total = sum(p.numel() for p in named.values())
    bandwidth = copy_bandwidth(device, 8 * total)
    timings = alternate(_variants(named), rounds, device, name)
    excluded = sum(p.numel() for n, p in named.items() if is_excluded(n))
    lamb = _LAMB_BYTES * (total - excluded) + _ADAMW_BYTES * excluded
    moved = {variant: lamb if variant == "LAMB" else _ADAMW_BYTES * total for variant in timings}
    return {
        "parameters": total,
        "tensors": len(named),
        "copy_bytes_per_second": round(bandwidth),
        "variants": {v: _described(t, timings[PEER], moved[v], bandwidth) for v, t in timings.items()},
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


def _variants(named: Mapping[str, nn.Parameter]) -> dict[str, Callable[[], float]]:
    """A step of each; all work on the same weights, each with moments of its own."""
    lamb, adamw = Lamb(named.items()), Lamb(named.items(), adapt=False)
    peer = torch.optim.AdamW(named.values(), lr=_LR, eps=1e-6, weight_decay=0.01, fused=True)

    def timed(step: Callable[[], object]) -> Callable[[], float]:
        def call() -> float:
            step()
            return 0.0  # there is no loss to compare

        return call

    return {"LAMB": timed(lambda: lamb.step(_LR)), "AdamW": timed(lambda: adamw.step(_LR)), PEER: timed(peer.step)}


def _described(timing: Timing, peer: Timing, moved: int, bandwidth: float) -> dict[str, Any]:
    """`times_fused_adamw` by medians; `share_of_copy`: bytes a second, of those that a plain copy moves."""
    return {
        "median_ms": round(timing.median * 1e3, 3),
        "minimum_ms": round(timing.minimum * 1e3, 3),
        "times_fused_adamw": round(timing.median / peer.median, 3),
        "bytes_moved": moved,
        "share_of_copy": round(moved / timing.median / bandwidth, 4),
    }


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
                f"{100 * v['share_of_copy']:.0f} %",
            )
            for variant, v in found["variants"].items()
        ]
        head = f"{name}, {found['parameters']:,} parameters"
        table = console.table((head, "median ms", "least ms", "of fused AdamW", "MB moved", "of copy"), rows)
        parts.append(f"{table}\ncopying moves {found['copy_bytes_per_second'] / 1e9:,.1f} GB/s")
    return "\n\n".join(parts)
