"""`albert doctor` describes any machine, even one that lacks a compiler or a usable torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli import __version__
from albert_cli.doctor import EXTRAS, describe_environment


def describe() -> tuple[Any, str]:
    """Return the description as JSON, without its type, and as text."""
    return describe_environment()


def test_doctor_describes_this_machine() -> None:
    data, text = describe()
    assert json.loads(json.dumps(data)) == data
    assert data["albert"] == __version__
    assert data["cpu"]["cores"] >= 1
    assert data["disk_free_bytes"] > 0
    assert data["torch"]["version"] == torch.__version__
    assert f"cores {data['cpu']['cores']}," in text
    assert data["torch"]["version"] in text
    assert all(line.strip() for line in text.splitlines())


def test_doctor_reports_a_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    data, text = describe()
    assert data["compiler"] is None
    assert "install g++" in text
    compiler = tmp_path / "clang++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    data, text = describe()
    assert data["compiler"] == str(compiler)
    assert str(compiler) in text


def test_doctor_lists_versions_of_the_requirements() -> None:
    if not any(package.metadata["Name"] == "albert-cli" for package in importlib.metadata.distributions()):
        pytest.skip("albert-cli is not installed: the tests run from a checkout")
    data, _ = describe()
    assert {"torch", "numpy", "safetensors"} <= set(data["versions"])
    assert data["missing_requirements"] == []


def test_doctor_knows_every_extra_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])


def test_doctor_imports_no_heavy_package_except_torch() -> None:
    script = (
        "import sys; from albert_cli.doctor import describe_environment; describe_environment();"
        "heavy = ('sentencepiece', 'datasets', 'sklearn', 'scipy', 'matplotlib', 'transformers', 'pydantic');"
        "print([name for name in heavy if name in sys.modules])"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == "[]"


def test_doctor_reports_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    script = "from albert_cli.doctor import describe_environment; print(describe_environment()[1])"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parent.parent,
    )
    assert "cannot be imported (ImportError: libcudart.so.12" in result.stdout


def test_doctor_shows_free_space_of_current_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    free = shutil.disk_usage(tmp_path).free
    assert abs(describe()[0]["disk_free_bytes"] - free) < 2**30


def test_memory_info_respects_memory_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limits are 1 GB of address space, then a control group of 1 GB with 300 MB in use."""
    from albert_cli import machine

    script = """
import resource
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (10**9, hard))
from albert_cli import machine
print(machine.memory_info()["available"], machine.memory_info()["total"])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    available, total = map(int, result.stdout.split())
    assert 0 < available < total == 10**9
    (tmp_path / "memory.max").write_text("1000000000\n")
    (tmp_path / "memory.current").write_text("300000000\n")
    monkeypatch.setattr(machine, "_control_groups", lambda controller: [tmp_path])
    memory = machine.memory_info()
    assert memory["total"] == 10**9
    assert memory["available"] <= 7 * 10**8
