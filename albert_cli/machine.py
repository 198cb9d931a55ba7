"""Facts about this machine: processor, memory, compiler, and the measured matmul rate.

Only the last part imports torch.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

    from albert_cli.matmul import MatmulBackend

_M_TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD in glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
_BF16_UNITS: Final = {"amx_bf16", "avx512_bf16", "bf16"}


@dataclass(frozen=True)
class CpuInfo:
    """The processor: its name, the cores that this process may use, and its units for bf16."""

    model: str
    cores: int
    bf16_units: list[str]


def describe_cpu() -> CpuInfo:
    """Describe the processor."""
    flags: set[str] = set()
    model = platform.processor() or platform.machine()
    with suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key in ("flags", "Features"):
                flags |= set(value.split())
            elif key == "model name":
                model = value
    return CpuInfo(model, available_cores(), sorted(flags & _BF16_UNITS))


def available_cores() -> int:
    """Return the number of cores that this process may use; in a container it can be below the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_info() -> dict[str, int]:
    """Return total and available memory in bytes, within the limits of the container and of this process."""
    import psutil

    machine_memory = psutil.virtual_memory()
    total = machine_memory.total
    available = machine_memory.available
    for limit, used in (*_container_limits(), *_process_limits()):
        total = min(total, limit)
        available = max(0, min(available, limit - used))
    return {"total": total, "available": available}


def _process_limits() -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use) of `ulimit -v` and `ulimit -d`."""
    import psutil

    process = psutil.Process()
    if not hasattr(process, "rlimit"):  # not Linux
        return
    usage = process.memory_info()
    for resource, used in ((psutil.RLIMIT_AS, usage.vms), (psutil.RLIMIT_DATA, usage.data)):
        limit, _ = process.rlimit(resource)
        if limit != psutil.RLIM_INFINITY:
            yield limit, used


def _container_limits() -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use) of this process's control groups up to the root, of version 2, then 1.

    psutil does not read them.
    """
    for folder in _control_groups():
        counts = _read_counts(folder / "memory.stat")
        # The kernel gives back the files' cache when memory is needed.
        cache = counts.get("total_inactive_file", counts.get("inactive_file", 0))
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):  # "max" is not a number
                yield int((folder / limit).read_text()), int((folder / used).read_text()) - cache


def _control_groups() -> list[Path]:
    """Return the folders of this process's control groups, innermost first."""
    folders: list[Path] = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory"):
                root = Path("/sys/fs/cgroup") / controllers
                folder = root / name.strip("/")
                folders += [p for p in (folder, *folder.parents) if p.is_relative_to(root)]
    return folders


def _read_counts(path: Path) -> dict[str, int]:
    """Return the numbers of a system file with a name and a number on each line; nothing without the file."""
    with suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
    return {}


def count_oom_kills() -> int:
    """Return how many processes of this machine, or container, the kernel has killed because memory ran out."""
    files = (Path("/proc/vmstat"), *(folder / "memory.events" for folder in _control_groups()))
    return max(_read_counts(path).get("oom_kill", 0) for path in files)


def retain_freed_memory() -> None:
    """Have glibc retain the memory that this process frees, for its next allocations.

    A training step frees and allocates the same large arrays again and again. By default glibc returns each to the
    system and gets new pages, which the system clears: a tenth to a seventh of the time of a narrow model's step.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        if not library.mallopt(parameter, 1 << 30):  # older releases reject more than 32 MB for the first one
            library.mallopt(parameter, 1 << 25)


def find_compiler() -> str | None:
    """Return the C++ compiler that `torch.compile` needs on a CPU and Triton on a GPU, or None."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            return path
    return None


# ---------------------------------------------------------------- the matmul rate


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def matmul_backends(precision: str, device: torch.device) -> tuple[MatmulBackend, ...]:
    """Return the libraries that can multiply matrices in a precision on a device."""
    from albert_cli.matmul import has_onednn

    return ("torch", "onednn") if device.type == "cpu" and precision == "fp32" and has_onednn() else ("torch",)


def make_matmul(
    precision: str, device: torch.device, backend: MatmulBackend = "torch"
) -> tuple[Callable[[], float], int]:
    """Return a square matmul to time, and its FLOPs; a GPU's matrices are 8192 wide, a CPU's 1024."""
    import torch

    from albert_cli.matmul import linear

    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.rand(size, size, device=device, dtype=dtype) - 0.5 for _ in range(2))

    def matmul() -> float:
        linear(a, b, None, backend)
        return 0.0

    return matmul, 2 * size**3


@functools.cache
def measure_matmul_peak(precision: str, device: torch.device, *, seconds: float = 1.0) -> float:
    """Return the FLOP/s of the fastest of several matmuls by any backend, measured once per process.

    Each backend has at least two, and more until `seconds` have passed.
    """
    matmuls = [make_matmul(precision, device, backend) for backend in matmul_backends(precision, device)]
    rate = 0.0
    rounds = 0
    started = time.perf_counter()
    while rounds < 2 or time.perf_counter() - started < seconds:
        for matmul, flops in matmuls:
            synchronize(device)
            begin = time.perf_counter()
            matmul()
            synchronize(device)
            rate = max(rate, flops / (time.perf_counter() - begin))
        rounds += 1
    return rate
