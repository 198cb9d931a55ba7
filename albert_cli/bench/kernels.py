"""Where the time of a GPU's step goes, kernel by kernel; and attention's kernels by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity

from albert_cli.bench.harness import Step, time_alternating
from albert_cli.errors import AlbertError
from albert_cli.machine import synchronize

_Type: Any = vars(torch.autograd)["DeviceType"]
_STEPS: Final = 5  # profiled
_SHOWN: Final = 15  # kernels
_WAITS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
# Heads and their width: of base, of large and xxlarge, of xlarge.
_HEADS: Final = ((12, 64), (16, 64), (16, 128))
_LENGTH: Final = 512


def profile(step: Step, device: torch.device) -> dict[str, Any]:
    """What a warm step asks of the device: launches, waits, copies, milliseconds, and its longest kernels.

    `busy`: the share of the time in which a kernel runs. On a CPU torch's own operations stand for kernels.
    """
    is_cuda = device.type == "cuda"
    asked = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    synchronize(device)
    with torch.profiler.profile(activities=asked) as found:
        for _ in range(_STEPS):
            step()
        synchronize(device)
    events: Any = found.events()
    kernels = [e for e in events if e.device_type == (_Type.CUDA if is_cuda else _Type.CPU)]
    if not kernels:
        raise AlbertError("torch's profiler saw no kernel run", "see whether this user may profile the GPU (CUPTI)")
    ran = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    busy, until = 0.0, ran[0][0]
    for start, end in ran:
        busy, until = busy + max(0.0, end - max(start, until)), max(until, end)
    spent, names = Counter[str](), Counter(e.name for e in events)
    for event in kernels:
        spent[event.name] += event.self_device_time_total if is_cuda else event.self_cpu_time_total
    pageable = sum(count for name, count in names.items() if "Pageable -> Device" in name)
    waits = sum(names[name] for name in _WAITS) - is_cuda  # the last one is ours
    return {
        "ms": round((until - ran[0][0]) / _STEPS / 1e3, 3),
        "busy": round(busy / (until - ran[0][0]), 3),
        "launches": round(sum("Memcpy" not in e.name and "Memset" not in e.name for e in kernels) / _STEPS, 1),
        "waits": round(waits / _STEPS, 1),
        "pageable_copies": round(pageable / _STEPS, 1),
        "kernels_ms": {name[:90]: round(time / _STEPS / 1e3, 3) for name, time in spent.most_common(_SHOWN)},
    }


def attention(device: torch.device, rounds: int, tokens: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of attention's forward and backward pass by shape and kernel, or why it does not run.

    All sequences have 512 tokens, so that every kernel computes the same.
    """
    found = {}
    for heads, size in _HEADS:
        count = max(1, tokens // _LENGTH)
        shape = (count * _LENGTH, 3, heads, size)
        qkv = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        offsets = torch.arange(0, len(qkv) + 1, _LENGTH, dtype=torch.int32, device=device)
        row: dict[str, Any] = {}
        for name, call in _kernels(offsets, count).items():

            def step(call: Callable[[Tensor], Tensor] = call, qkv: Tensor = qkv) -> float:
                call(qkv).sum().backward()  # type: ignore[no-untyped-call]
                qkv.grad = None
                return 0.0

            try:
                row[name] = round(1e3 * min(time_alternating({name: step}, rounds, device, name)[0][name]), 3)
            except (RuntimeError, ImportError) as error:  # this card or this torch lacks it
                row[name] = str(error).strip().partition("\n")[0][:60]
        found[f"{heads} heads of {size}"] = row
    return found


def _kernels(offsets: Tensor, count: int) -> Mapping[str, Callable[[Tensor], Tensor]]:
    def by_offsets(qkv: Tensor, dropout: float = 0.0) -> Tensor:
        q, k, v = qkv.unbind(1)
        out = torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, _LENGTH, _LENGTH, dropout, False, False
        )
        context: Tensor = out[0]
        return context

    def padded(backend: SDPBackend) -> Callable[[Tensor], Tensor]:
        def call(qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(count, _LENGTH, *qkv.shape[1:]).transpose(1, 3).unbind(2)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v)

        return call

    def third(qkv: Tensor) -> Tensor:
        from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

        activate_flash_attention_impl("FA3")
        try:
            return by_offsets(qkv)
        finally:
            restore_flash_attention_impl()

    return {
        "flash 2": by_offsets,
        "flash 2, dropout 0.1": lambda qkv: by_offsets(qkv, 0.1),
        "flash 3": third,
        "cuDNN, padded": padded(SDPBackend.CUDNN_ATTENTION),
        "efficient, padded": padded(SDPBackend.EFFICIENT_ATTENTION),
    }
