"""Profile a training step on a GPU, kernel by kernel, and time the attention kernels by themselves.

`python -m benchmarks.gpu --out speeds --part attention` runs the second; the parts `profile-...` run the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity

from albert_cli.bench.harness import TimedCall, time_alternating
from albert_cli.errors import AlbertError
from albert_cli.formatting import first_line
from albert_cli.machine import synchronize

AttentionTimes = dict[str, dict[str, float | str]]  # by heads and by kernel: milliseconds, or an error message
_DeviceType: Any = vars(torch.autograd)["DeviceType"]  # torch's type annotations do not export it
_PROFILED_STEPS: Final = 5
_SHOWN_KERNELS: Final = 15
_STEPS_LABEL: Final = "profiled steps"  # of the event that spans all steps
_WAITS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
# The number and the size of attention heads in base, large and xlarge. The heads of xxlarge have size 64, too.
_HEADS: Final = ((12, 64), (16, 64), (16, 128))
_LENGTH: Final = 512


@dataclass(frozen=True)
class StepProfile:
    """The time of a step, its requests to the device, and its slowest kernels; all numbers are means per step.

    On a CPU, torch's operations count as kernels.
    """

    ms: float
    busy: float  # fraction of the time in which a kernel runs
    launches: float  # of kernels, without copies and fills of memory
    waits: float  # of the host for the device
    pageable_copies: float  # from host memory that is not pinned, which also make the host wait
    kernels_ms: dict[str, float]


def profile_step(step: TimedCall, device: torch.device) -> StepProfile:
    """Profile a step that has been called before, because its first calls also compile and allocate.

    Raises `AlbertError` if the profiler sees no kernel.
    """
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if is_cuda:
        activities.append(ProfilerActivity.CUDA)
    synchronize(device)
    with torch.profiler.profile(activities=activities) as profiler:
        with torch.profiler.record_function(_STEPS_LABEL):
            for _ in range(_PROFILED_STEPS):
                step()
        synchronize(device)
    events: Any = profiler.events()
    kernel_type = _DeviceType.CUDA if is_cuda else _DeviceType.CPU
    kernels = [event for event in events if event.device_type == kernel_type and event.name != _STEPS_LABEL]
    if not kernels:
        raise AlbertError("torch's profiler saw no kernel", "check whether this user may profile the GPU (CUPTI)")
    busy_us, span_us = _busy_time([(kernel.time_range.start, kernel.time_range.end) for kernel in kernels])
    kernel_us = Counter[str]()
    for kernel in kernels:
        kernel_us[kernel.name] += kernel.self_device_time_total if is_cuda else kernel.self_cpu_time_total
    pageable_copies = sum("Pageable -> Device" in event.name for event in events)
    # `synchronize` and the profiler itself wait after the steps; these waits do not count.
    (steps,) = (event for event in events if event.name == _STEPS_LABEL and event.device_type == _DeviceType.CPU)
    end_of_steps = steps.time_range.end
    waits = sum(event.name in _WAITS and event.time_range.start < end_of_steps for event in events)
    launches = sum("Memcpy" not in kernel.name and "Memset" not in kernel.name for kernel in kernels)
    slowest = kernel_us.most_common(_SHOWN_KERNELS)
    return StepProfile(
        ms=round(span_us / _PROFILED_STEPS / 1e3, 3),
        busy=round(busy_us / span_us, 3),
        launches=round(launches / _PROFILED_STEPS, 1),
        waits=round(waits / _PROFILED_STEPS, 1),
        pageable_copies=round(pageable_copies / _PROFILED_STEPS, 1),
        kernels_ms={name[:90]: round(us / _PROFILED_STEPS / 1e3, 3) for name, us in slowest},
    )


def _busy_time(intervals: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the length of the union of (start, end) intervals, and the time from the first start to the last end."""
    intervals = sorted(intervals)
    first_start = intervals[0][0]
    last_end = first_start
    busy = 0.0
    for start, end in intervals:
        busy += max(0.0, end - max(start, last_end))
        last_end = max(last_end, end)
    return busy, last_end - first_start


def time_attention(device: torch.device, rounds: int, tokens: int) -> AttentionTimes:
    """Return the milliseconds of attention's forward and backward pass in bf16, by heads and kernel.

    An error message replaces the milliseconds of a kernel that does not run here. All sequences have 512 tokens, so all
    kernels do the same work.
    """
    times: AttentionTimes = {}
    sequences = max(1, tokens // _LENGTH)
    for heads, size in _HEADS:
        shape = (sequences * _LENGTH, 3, heads, size)
        qkv = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        offsets = torch.arange(0, len(qkv) + 1, _LENGTH, dtype=torch.int32, device=device)
        kernels = _make_attention_kernels(offsets, sequences)
        row = {name: _time_kernel(name, kernel, qkv, rounds, device) for name, kernel in kernels.items()}
        times[f"{heads} heads of {size}"] = row
    return times


def _time_kernel(
    name: str, kernel: Callable[[Tensor], Tensor], qkv: Tensor, rounds: int, device: torch.device
) -> float | str:
    """Return the milliseconds of the fastest call, or the error message if the kernel does not run."""

    def call() -> float:
        torch.autograd.backward(kernel(qkv).sum())
        qkv.grad = None
        return 0.0

    try:
        seconds, _ = time_alternating({name: call}, rounds, device, name)
    except (RuntimeError, ImportError) as error:  # this GPU or this version of torch lacks the kernel
        return first_line(error)[:60]
    return round(1e3 * min(seconds[name]), 3)


def _make_attention_kernels(offsets: Tensor, sequences: int) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return by kernel the attention as a function of queries, keys and values, bf16 [T, 3, heads, head size].

    offsets: the starts of the sequences and the end of the last sequence, int32 [sequences + 1].
    """

    def flash_2(qkv: Tensor, dropout: float = 0.0) -> Tensor:
        q, k, v = qkv.unbind(1)
        outputs = torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, _LENGTH, _LENGTH, dropout, is_causal=False, return_debug_mask=False
        )
        context: Tensor = outputs[0]
        return context

    def flash_3(qkv: Tensor) -> Tensor:
        from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

        activate_flash_attention_impl("FA3")
        try:
            return flash_2(qkv)
        finally:
            restore_flash_attention_impl()

    def padded(backend: SDPBackend) -> Callable[[Tensor], Tensor]:
        def call(qkv: Tensor) -> Tensor:
            by_sequence = qkv.view(sequences, _LENGTH, *qkv.shape[1:])
            q, k, v = by_sequence.transpose(1, 3).unbind(2)  # each [sequences, heads, tokens, head size]
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v)

        return call

    return {
        "flash 2": flash_2,
        "flash 2, dropout 0.1": lambda qkv: flash_2(qkv, 0.1),
        "flash 3": flash_3,
        "cuDNN, padded": padded(SDPBackend.CUDNN_ATTENTION),
        "efficient, padded": padded(SDPBackend.EFFICIENT_ATTENTION),
    }


def attention_table(times: AttentionTimes) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows of a table of attention times."""
    names = list(next(iter(times.values())))
    rows = [[shape, *(str(row[name]) for name in names)] for shape, row in times.items()]
    return ["attention alone, ms", *names], rows
