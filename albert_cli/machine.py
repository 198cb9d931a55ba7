"""Return facts about this machine: processor, memory, compiler, and the measured matmul rate.

Only the functions of the last part import torch, so that light commands start fast.
"""

from __future__ import annotations

import ctypes
import functools
import math
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

# Numbers of parameters of `mallopt`, from glibc's malloc.h
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_RETAINED_BYTES: Final = 1 << 30  # the value of both parameters
_MAX_OLD_MMAP_THRESHOLD: Final = 1 << 25  # older releases of glibc reject a larger M_MMAP_THRESHOLD
_HUGE_PAGE_BYTES: Final = 1 << 29  # the part of the heap that asks for huge pages; less than `_RETAINED_BYTES`
_HUGE_PAGE_BLOCK: Final = 1 << 24  # less than every M_MMAP_THRESHOLD above, so that a block lies in the heap
_MADV_HUGEPAGE: Final = 14  # from Linux's mman.h
_BF16_FLAGS: Final = {"amx_bf16", "avx512_bf16", "bf16"}  # in /proc/cpuinfo; the last one is Arm's


@dataclass(frozen=True)
class CpuInfo:
    """The processor: its name, the number of cores that this process may use, and its instruction sets for bf16."""

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
    return CpuInfo(model, available_cores(), sorted(flags & _BF16_FLAGS))


def available_cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has.

    The scheduler (`taskset`, Slurm) and the container (`docker --cpus`) may limit them.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return min([cores, *_core_limits()])


def _core_limits() -> Iterator[int]:
    """Yield the number of cores, rounded up, whose time each control group of this process may use."""
    for folder in _control_groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of versions 2 and 1
            with suppress(OSError, ValueError):  # a missing file, or "max" instead of a number
                text = " ".join((folder / name).read_text() for name in names)
                quota, period = map(int, text.split())
                if quota > 0:  # version 1 has -1 for no limit
                    yield math.ceil(quota / period)


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
    """Yield (limit, bytes in use) of each control group of this process, which psutil does not read."""
    for folder in _control_groups("memory"):
        counts = _read_counts(folder / "memory.stat")
        # The cache of files does not count as used: the kernel frees it when memory is needed.
        cache = counts.get("total_inactive_file", counts.get("inactive_file", 0))
        files_v2 = ("memory.max", "memory.current")
        files_v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        for limit_file, usage_file in (files_v2, files_v1):
            with suppress(OSError, ValueError):  # a missing file, or "max" instead of a number
                limit = int((folder / limit_file).read_text())
                usage = int((folder / usage_file).read_text())
                yield limit, usage - cache


def _control_groups(controller: str) -> list[Path]:
    """Return the folders of this process's control groups, from the innermost group to the root.

    controller: "cpu" or "memory"; in version 1 each controller has its own hierarchy.
    """
    folders: list[Path] = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            # "" is version 2, which has one hierarchy for all controllers. Version 1 may join some: "cpu,cpuacct".
            if controllers == "" or controller in controllers.split(","):
                root = Path("/sys/fs/cgroup") / controllers
                folder = root / name.strip("/")
                folders += [p for p in (folder, *folder.parents) if p.is_relative_to(root)]
    return folders


def _read_counts(path: Path) -> dict[str, int]:
    """Return the numbers by name in a system file with a name and a number on each line; {} if it cannot be read."""
    with suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
    return {}


def count_oom_kills() -> int:
    """Return the number of processes of this machine or container that the kernel killed because memory ran out."""
    files = (Path("/proc/vmstat"), *(folder / "memory.events" for folder in _control_groups("memory")))
    return max(_read_counts(path).get("oom_kill", 0) for path in files)


@functools.cache  # once per process
def retain_freed_memory() -> None:
    """Make glibc retain the memory that this process frees, for its next allocations, and keep it in huge pages.

    Each training step allocates the same large arrays again. By default glibc returns a freed array to the system and
    gets new pages for the next array, which the system must clear. In a narrow model this takes 10 % to 14 % of a step.
    Pages of 2 MB instead of 4 KB need fewer translations of addresses, which shortens the step by another 10 % to 20 %.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        is_accepted = library.mallopt(parameter, _RETAINED_BYTES)
        if not is_accepted:
            library.mallopt(parameter, _MAX_OLD_MMAP_THRESHOLD)
    _request_huge_pages(library)


def _request_huge_pages(glibc: ctypes.CDLL) -> None:
    """Let the heap's next `_HUGE_PAGE_BYTES` consist of huge pages, where the system allows it.

    Blocks are allocated, marked, and freed again. Nothing is written to them, so they take no memory by themselves.
    """
    glibc.malloc.restype = ctypes.c_void_p
    glibc.malloc.argtypes = [ctypes.c_size_t]
    glibc.free.argtypes = [ctypes.c_void_p]
    glibc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = os.sysconf("SC_PAGE_SIZE")
    blocks = [glibc.malloc(_HUGE_PAGE_BLOCK) for _ in range(_HUGE_PAGE_BYTES // _HUGE_PAGE_BLOCK)]
    for block in filter(None, blocks):  # None: the process has no address space left
        # `madvise` needs the address of a page, so only the whole pages in the block are marked.
        start = (block + page - 1) // page * page
        end = (block + _HUGE_PAGE_BLOCK) // page * page
        glibc.madvise(start, end - start, _MADV_HUGEPAGE)
    for block in blocks:
        glibc.free(block)


def find_compiler() -> str | None:
    """Return the path of the C++ compiler that `torch.compile` needs on a CPU and Triton on a GPU, or None."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        path = shutil.which(name)  # None for an empty name
        if path is not None:
            return path
    return None


# ---------------------------------------------------------------- torch


def limit_threads() -> None:
    """Let torch use at most the available cores, unless OMP_NUM_THREADS is set.

    By itself torch ignores the limit of a container, and more threads than this limit wait for each other.
    """
    import torch

    cores = available_cores()
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cores:
        torch.set_num_threads(cores)


def describe_device(device: torch.device, processes: int = 1) -> str:
    """Return the name of the GPU or of the processor, by which measured times are comparable.

    processes: their number, each with its own GPU. For a processor, the name includes the number of torch's threads.
    """
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{describe_cpu().model}, {torch.get_num_threads()} threads, {device.type}"
    return name if processes == 1 else f"{processes} processes on {name}"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def matmul_backends(precision: str, device: torch.device) -> tuple[MatmulBackend, ...]:
    """Return the backends of `matmul.linear` that can multiply matrices in a precision on a device."""
    from albert_cli.matmul import has_onednn

    if device.type == "cpu" and precision == "fp32" and has_onednn():
        return ("torch", "onednn")
    return ("torch",)


def make_matmul(
    precision: str, device: torch.device, backend: MatmulBackend = "torch"
) -> tuple[Callable[[], float], int]:
    """Return a function that computes one matmul of square matrices, and the matmul's number of FLOPs.

    The function returns 0.0, because `bench` measures it in the same way as training steps, which return their loss.
    """
    import torch

    from albert_cli.matmul import linear

    size = 8192 if device.type == "cuda" else 1024  # large enough for the device's highest rate
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.rand(size, size, device=device, dtype=dtype) - 0.5 for _ in range(2))

    def matmul() -> float:
        linear(a, b, None, backend)
        return 0.0

    return matmul, 2 * size**3


@functools.cache
def matmul_peak(precision: str, device: torch.device) -> float:
    """Return the FLOP/s of the fastest matmul among all backends, measured for 0.1 s, once per process."""
    return measure_matmul_peak(precision, device, seconds=0.1)


def measure_matmul_peak(precision: str, device: torch.device, *, seconds: float = 1.0) -> float:
    """Measure the FLOP/s of the fastest matmul among all backends.

    Every backend computes at least two matmuls, and more until `seconds` have passed.
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
