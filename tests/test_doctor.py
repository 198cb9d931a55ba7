"""The doctor describes any machine, also one where things are missing."""

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

from albert_cli import __version__
from albert_cli.doctor import EXTRAS, describe_environment


def described() -> tuple[Any, str]:
    """Return the facts as untyped JSON, and the text."""
    return describe_environment()


def test_describes_this_machine() -> None:
    data, text = described()
    assert json.loads(json.dumps(data)) == data
    assert data["albert"] == __version__
    assert data["cpu"]["cores"] >= 1
    assert data["disk_free_bytes"] > 0
    assert data["torch"]["version"] == importlib.metadata.version("torch")
    assert f"cores {data['cpu']['cores']}," in text and data["torch"]["version"] in text
    assert all(line.strip() for line in text.splitlines())


def test_says_when_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    data, text = described()
    assert data["compiler"] is None
    assert "install g++" in text
    compiler = tmp_path / "clang++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    data, text = described()
    assert data["compiler"] == str(compiler)
    assert str(compiler) in text


def test_lists_the_versions_of_the_requirements_when_installed() -> None:
    if not any(d.metadata["Name"] == "albert-cli" for d in importlib.metadata.distributions()):
        pytest.skip("albert-cli is run from a checkout that is not installed")
    data, _ = described()
    assert {"torch", "numpy", "safetensors"} <= set(data["versions"])
    assert data["missing_requirements"] == []


def test_every_extra_that_is_promised_exists() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])


def test_imports_nothing_heavy_but_torch() -> None:
    script = (
        "import sys; from albert_cli.doctor import describe_environment; describe_environment();"
        "heavy = ('sentencepiece', 'datasets', 'sklearn', 'scipy', 'matplotlib', 'transformers', 'pydantic');"
        "print([name for name in heavy if name in sys.modules])"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_a_torch_that_cannot_be_imported_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    script = "from albert_cli.doctor import describe_environment; print(describe_environment()[1])"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parent.parent,
    )
    assert "cannot be imported (ImportError: libcudart.so.12" in done.stdout


def test_free_space_is_that_of_the_current_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    free = shutil.disk_usage(tmp_path).free
    assert abs(described()[0]["disk_free_bytes"] - free) < 2**30


def test_limits_of_memory_count_as_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process within 2 GB of address space, in a control group of 1 GB of which 300 MB are used."""
    from albert_cli import machine

    script = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 * 10**9, -1)); from albert_cli import machine"
    script += "; print(machine.memory_info()['available'], machine.memory_info()['total'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    available, total = map(int, done.stdout.split())
    assert 0 < available < total == 2 * 10**9
    (tmp_path / "memory.max").write_text("1000000000\n")
    (tmp_path / "memory.current").write_text("300000000\n")
    monkeypatch.setattr(machine, "_control_groups", lambda: [tmp_path])
    memory = machine.memory_info()
    assert memory["total"] == 10**9 and memory["available"] <= 7 * 10**8
