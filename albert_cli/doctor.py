"""What this machine offers: versions, devices, number formats, compiler, space, and what is not installed.

Every probe reports what it found or why it found nothing; none of them raises.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from albert_cli import __version__, machine

PACKAGE = "albert-cli"
# What an extra brings, for those who do not have it.
EXTRAS = {
    "tensorboard": "TensorBoard: curves of a run while it trains",
    "test": "pytest, hypothesis, transformers: the test suite",
    "dev": "ruff, mypy: what a change to the code is checked with",
}


def describe() -> tuple[dict[str, Any], str]:
    """Everything found, as data and as text; imports torch, and nothing else that is heavy."""
    versions, extras, needed = _versions()
    torch, of_torch = _torch()
    cpu, memory, compiler, disk = machine.cpu(), machine.memory(), machine.compiler(), shutil.disk_usage(Path.cwd())
    data: dict[str, Any] = {
        "albert": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu,
        "torch": torch,
        "compiler": compiler,
        "memory_bytes": memory,
        "disk_free_bytes": disk.free,
        "versions": versions,
        "missing_requirements": needed,
        "missing_extras": extras,
    }
    units = ", ".join(cpu["bf16_units"])
    bf16 = f"bf16 units: {units}" if units else "no bf16 units, so fp32 is the fast format here"
    free = f"{_gib(memory['available'])} free of {_gib(memory['total'])}" if len(memory) == 2 else "unknown"
    no_compiler = "none found: install g++ or clang++; without one nothing is compiled, and all else works"
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        ("albert", f"{__version__}, Python {data['python']}, {data['platform']}"),
        ("python", sys.executable),
        ("cpu", f"{cpu['model']}, {cpu['cores']} core{'s' if cpu['cores'] != 1 else ''}, {bf16}"),
        ("memory", free),
        ("disk", f"{_gib(disk.free)} free in the current directory"),
        *of_torch,
        ("compiler", f"{compiler}, for torch.compile" if compiler else no_compiler),
        ("versions", installed or f"unknown: {PACKAGE} is not installed, only run from its folder"),
        *(("missing", f"{name}, which albert needs: pip install --upgrade {PACKAGE}") for name in needed),
    ]
    for extra, names in extras.items():
        lacks = f"{extra} lacks {', '.join(names)}"
        lines.append(("extra", f"{lacks}; pip install '{PACKAGE}[{extra}]' brings {EXTRAS[extra]}"))
    width = max(len(name) for name, _ in lines)
    return data, "\n".join(f"{name.ljust(width)}  {value}" for name, value in lines)


def _versions() -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    versions: dict[str, str] = {}
    lacking: dict[str, list[str]] = {}
    needed: list[str] = []
    try:
        requirements = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        requirements = []
    for line in requirements:
        name = re.split(r"[^\w.-]", line)[0]
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", line)
        try:
            if name != PACKAGE:  # an extra that brings another
                versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            (lacking.setdefault(extra[1], []) if extra else needed).append(name)
    return versions, lacking, needed


def _torch() -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """torch and its devices, as data and as lines."""
    try:
        import torch
    except (ImportError, OSError) as error:
        why = f"{type(error).__name__}: {error}"
        return {"error": why}, [("torch", f"cannot be imported ({why}); reinstall {PACKAGE}")]
    threads, devices = torch.get_num_threads(), list[dict[str, Any]]()
    lines = [("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}, {threads} threads")]
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(i)
        about = {"model": card.name, "memory_bytes": card.total_memory, "capability": f"{card.major}.{card.minor}"}
        devices.append({"name": f"cuda:{i}", **about, "bf16": card.major >= 8})  # its tensor cores, from Ampere on
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "model": "Apple GPU", "bf16": False})
    for device in devices:
        memory = f", {_gib(device['memory_bytes'])}" if "memory_bytes" in device else ""
        lines.append((device["name"], f"{device['model']}{memory}, {'bf16' if device['bf16'] else 'no bf16, so fp32'}"))
    if not devices:
        lines.append(("gpu", "none that torch can use; training runs on the CPU"))
    found = {"version": str(torch.__version__), "cuda": torch.version.cuda, "threads": threads, "devices": devices}
    return found | {"triton": importlib.util.find_spec("triton") is not None}, lines


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
