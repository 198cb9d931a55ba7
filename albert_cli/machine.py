"""What this machine is made of, and the matrix products that it reaches; torch is imported for the latter alone."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD: Final = -1  # of glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3


def describe_cpu() -> dict[str, Any]:
    """The processor's name, the cores that this process may use, and its units for bf16."""
    flags: set[str] = set()
    model = platform.processor() or platform.machine()
    with suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key in ("flags", "Features"):
                flags |= set(value.split())
            elif key == "model name":
                model = value
    units = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})
    return {"model": model, "cores": available_cores(), "bf16_units": units}


def available_cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_info() -> dict[str, int]:
    """Total and available memory in bytes, within the limits of the container and of this process; empty if unknown."""
    kilobytes = _read_counts(Path("/proc/meminfo"))
    if not kilobytes.keys() >= {"MemTotal", "MemAvailable"}:
        return {}
    found = {"total": 1024 * kilobytes["MemTotal"], "available": 1024 * kilobytes["MemAvailable"]}
    for limit, used in (*_container_limits(), *_process_limits()):
        found["total"] = min(found["total"], limit)
        found["available"] = max(0, min(found["available"], limit - used))
    return found


def _read_counts(path: Path) -> dict[str, int]:
    """The numbers of a file of the system that has a name and a number a line; none where there is no such file."""
    with suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
    return {}


def _container_limits() -> Iterator[tuple[int, int]]:
    """(limit, in use) of the control groups that this process is in, from its own up to the root: v2, then v1."""
    for folder in _control_groups():
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            counts = _read_counts(folder / "memory.stat")
            # Files' cache is given back when memory is wanted.
            cache = counts.get("total_inactive_file", counts.get("inactive_file", 0))
            with suppress(OSError, ValueError):  # "max" is no number
                yield int((folder / limit).read_text()), int((folder / used).read_text()) - cache


def _control_groups() -> list[Path]:
    root, found = Path("/sys/fs/cgroup"), list[Path]()
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers in ("", "memory"):
                own = root / controllers / place.strip("/")
                found += [p for p in (own, *own.parents) if p.is_relative_to(root / controllers)]
    return found


def _process_limits() -> Iterator[tuple[int, int]]:
    """(limit, in use) of what `ulimit -v` and `ulimit -d` allow."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        pages = [int(n) for n in Path("/proc/self/statm").read_text().split()]
        for which, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
            limit, _ = resource.getrlimit(which)
            if limit != resource.RLIM_INFINITY:
                yield limit, used * resource.getpagesize()


def count_oom_kills() -> int:
    """How many processes of this machine, or of this container, the system has killed because memory ran out."""
    files = (Path("/proc/vmstat"), *(folder / "memory.events" for folder in _control_groups()))
    return max(_read_counts(path).get("oom_kill", 0) for path in files)


def retain_freed_memory() -> None:
    """Have this process keep the memory that it frees, for what it allocates next (glibc alone).

    A training step frees and allocates the same large arrays again and again. glibc would give each back to the system
    and take fresh pages, which the system clears: a tenth to a seventh of the time of a narrow model's step.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        # The first is refused above 32 MB by older releases.
        _ = library.mallopt(parameter, 1 << 30) or library.mallopt(parameter, 1 << 25)


def find_compiler() -> str | None:
    """The C++ compiler that `torch.compile` needs on a CPU and Triton on a GPU, or None."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


# ---------------------------------------------------------------- what it reaches


def synchronize(device: torch.device) -> None:
    """Wait until everything that was asked of the device is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def make_matmul(precision: str, device: torch.device) -> tuple[Callable[[], float], int]:
    """A square matrix product to time, and its FLOPs; a GPU's is 8192 wide, a CPU's 1024."""
    import torch

    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.rand(size, size, device=device, dtype=dtype) - 0.5 for _ in range(2))

    def product() -> float:
        a @ b
        return 0.0

    return product, 2 * size**3


@functools.cache
def measure_matmul_peak(precision: str, device: torch.device, *, seconds: float = 1.0) -> float:
    """FLOP/s of the best of some matrix products: what this machine can really do, measured once a process.

    At least two products are tried, and more until `seconds` have gone by.
    """
    product, flops = make_matmul(precision, device)
    best, started, tried = float("inf"), time.perf_counter(), 0
    while tried < 2 or time.perf_counter() - started < seconds:
        synchronize(device)
        begin = time.perf_counter()
        product()
        synchronize(device)
        best, tried = min(best, time.perf_counter() - begin), tried + 1
    return flops / best
