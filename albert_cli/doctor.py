"""Describe this machine and installation, and list the requirements that are missing (`albert doctor`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from albert_cli import __version__, console, machine

PACKAGE = "albert-cli"
# The extras of `pyproject.toml`, each with a description that is shown if it is not installed.
EXTRAS = {
    "tensorboard": "TensorBoard: curves of a run while it trains",
    "wandb": "Weights & Biases: curves of a run (train.track)",
    "mlflow": "MLflow: curves of a run (train.track)",
    "trackio": "trackio: curves of a run (train.track)",
    "onnx": "ONNX: export of a model (albert export)",
    "tf": "TensorFlow: conversion of TensorFlow checkpoints (albert convert)",
    "remote": "fsspec's file systems: sources on s3://, gs:// and https://",
    "test": "pytest, hypothesis, transformers: the test suite",
    "cluster": "Dask: parallel work on a cluster (--cluster)",
    "docs": "mkdocs: the documentation site",
    "dev": "ruff, mypy: checks for changes to the code",
}


@dataclass
class _Requirements:
    """The requirements of the installed package.

    versions: the version of each installed requirement; missing: names of missing requirements of the package itself;
    missing_by_extra: names of missing requirements by the extra that needs them.
    """

    versions: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    missing_by_extra: dict[str, list[str]] = field(default_factory=dict)


def describe_environment() -> tuple[dict[str, object], str]:
    """Return the facts about this machine and installation as JSON values, and as text for a person."""
    requirements = _read_requirements()
    memory = machine.memory_info()
    compiler = machine.find_compiler()
    free_disk = shutil.disk_usage(Path.cwd()).free
    data: dict[str, object] = {
        "albert": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu": asdict(machine.describe_cpu()),
        "torch": _describe_torch(),
        "compiler": compiler,
        "memory_bytes": memory,
        "disk_free_bytes": free_disk,
        "versions": requirements.versions,
        "missing_requirements": requirements.missing,
        "missing_extras": requirements.missing_by_extra,
    }
    shown = data | {  # the same facts, formatted for a person
        "compiler": compiler or "none: nothing is compiled; install g++ or clang++",
        "memory_bytes": {name: _format_gib(count) for name, count in memory.items()},
        "disk_free_bytes": _format_gib(free_disk),
        "versions": requirements.versions or f"unknown: {PACKAGE} runs from its folder without being installed",
        "missing_requirements": None,  # None hides a row; the lines below tell what is missing
        "missing_extras": None,
    }
    lines = console.format_named_values(shown)
    for name in requirements.missing:
        lines.append(f"  {name} is missing, but albert needs it: pip install --upgrade {PACKAGE}")
    for extra, names in requirements.missing_by_extra.items():
        command = f"pip install '{PACKAGE}[{extra}]'"
        lines.append(f"  extra {extra} lacks {', '.join(names)}; {command} installs {EXTRAS[extra]}")
    return data, "\n".join(lines)


def _read_requirements() -> _Requirements:
    """Read the package's metadata, and look up which requirements are installed."""
    requirements = _Requirements()
    try:
        lines = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:  # albert runs from a checkout that was never installed
        return requirements
    for line in lines:  # such as: distributed>=2025.1; extra == "cluster"
        name = re.split(r"[^\w.-]", line)[0]
        if name == PACKAGE:  # an extra such as dev requires other extras of this package
            continue
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", line)
        try:
            requirements.versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if extra:
                requirements.missing_by_extra.setdefault(extra[1], []).append(name)
            else:
                requirements.missing.append(name)
    return requirements


def _describe_torch() -> dict[str, object]:
    """Return torch's version and devices, or the error of importing it."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": f"cannot be imported ({type(error).__name__}: {error}); reinstall {PACKAGE}"}
    machine.limit_threads()  # so that "threads" below is the number with which commands compute
    devices: list[dict[str, object]] = []
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(n_gpus):
        card = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "name": f"cuda:{index}",
                "model": card.name,
                "memory_bytes": card.total_memory,
                "capability": f"{card.major}.{card.minor}",
                "bf16": card.major >= 8,  # tensor cores support bf16 from Ampere (8.0) on
            }
        )
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "model": "Apple GPU", "bf16": False})
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "devices": devices,
        "triton": importlib.util.find_spec("triton") is not None,
    }


def _format_gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
