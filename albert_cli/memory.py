"""How much memory this process may use."""

from __future__ import annotations

from pathlib import Path


def memory() -> dict[str, int]:
    """Total and available memory in bytes, within the container's limit; empty where unknown."""
    found: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key in ("MemTotal", "MemAvailable"):
                found[{"MemTotal": "total", "MemAvailable": "available"}[key]] = int(value.split()[0]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8").strip()
        if limit.isdecimal():
            used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="utf-8"))
            found["total"] = min(found["total"], int(limit))
            found["available"] = min(found["available"], int(limit) - used)
    except (OSError, KeyError, ValueError, IndexError):
        pass
    return found
