"""What this machine offers: versions, devices, number formats, compiler, space, and what is not installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from albert_cli import __version__, console, machine

PACKAGE = "albert-cli"
# What an extra brings, for those who do not have it.
EXTRAS = {
    "tensorboard": "TensorBoard: curves of a run while it trains",
    "test": "pytest, hypothesis, transformers: the test suite",
    "dev": "ruff, mypy: what a change to the code is checked with",
}


def describe_environment() -> tuple[dict[str, Any], str]:
    """Everything found, as data and as text; imports torch, and nothing else that is heavy."""
    versions, extras, needed = _versions()
    cpu, memory, compiler, disk = (
        machine.describe_cpu(),
        machine.memory_info(),
        machine.find_compiler(),
        shutil.disk_usage(Path.cwd()),
    )
    data: dict[str, Any] = {
        "albert": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu": cpu,
        "torch": _torch(),
        "compiler": compiler,
        "memory_bytes": memory,
        "disk_free_bytes": disk.free,
        "versions": versions,
        "missing_requirements": needed,
        "missing_extras": extras,
    }
    shown = data | {
        "compiler": compiler or "none: nothing is compiled; install g++ or clang++",
        "memory_bytes": {name: _gib(count) for name, count in memory.items()},
        "disk_free_bytes": _gib(disk.free),
        "versions": versions or f"unknown: {PACKAGE} is not installed, only run from its folder",
        "missing_requirements": None,
        "missing_extras": None,
    }
    lines = console.format_named_values(shown)
    lines += [f"  {name} is missing, which albert needs: pip install --upgrade {PACKAGE}" for name in needed]
    for extra, names in extras.items():
        remedy = f"pip install '{PACKAGE}[{extra}]' brings {EXTRAS[extra]}"
        lines.append(f"  extra {extra} lacks {', '.join(names)}; {remedy}")
    return data, "\n".join(lines)


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


def _torch() -> dict[str, Any]:
    """torch and its devices."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": f"cannot be imported ({type(error).__name__}: {error}); reinstall {PACKAGE}"}
    devices = list[dict[str, Any]]()
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(i)
        about = {"model": card.name, "memory_bytes": card.total_memory, "capability": f"{card.major}.{card.minor}"}
        devices.append({"name": f"cuda:{i}", **about, "bf16": card.major >= 8})  # its tensor cores, from Ampere on
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "model": "Apple GPU", "bf16": False})
    found = {"version": str(torch.__version__), "cuda": torch.version.cuda, "threads": torch.get_num_threads()}
    return found | {"devices": devices, "triton": importlib.util.find_spec("triton") is not None}


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
