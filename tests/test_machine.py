"""Tests of `albert_cli.machine`: the cores that a container leaves to a process, and the names of devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from albert_cli import machine
from albert_cli.training.device import choose_device, use_threads


def simulate_container(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with 64 cores, and a control group with these files in a group without limits."""
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(machine, "_control_groups", lambda controller: [folder, folder / "without limits"])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000000 100000"}, 64),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 64),
        ({"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_available_cores_respects_the_container(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_container(tmp_path, files, monkeypatch)
    assert machine.available_cores() == machine.describe_cpu().cores == expected


def test_control_groups_include_joint_hierarchies(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "4:cpu,cpuacct:/job\n3:memory:/job\n2:cpuset:/job\n0::/job\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: lines)
    folders = [folder.as_posix().removeprefix("/sys/fs/cgroup") for folder in machine._control_groups("cpu")]
    assert folders == ["/cpu,cpuacct/job", "/cpu,cpuacct", "/job", ""]


def test_choose_device_limits_threads_to_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_container(tmp_path, {"cpu.max": "200000 100000"}, monkeypatch)
    with use_threads(3):
        choose_device("cpu")
        assert torch.get_num_threads() == 3  # because the tests set OMP_NUM_THREADS
        monkeypatch.delenv("OMP_NUM_THREADS")
        choose_device("cpu")
        assert torch.get_num_threads() == 2


def test_describe_device_cpu_has_the_threads() -> None:
    with use_threads(3):
        assert machine.describe_device(torch.device("cpu")).endswith(", 3 threads, cpu")
