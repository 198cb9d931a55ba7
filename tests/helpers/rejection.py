"""Run commands that must reject their input with an exit code, one error line and one hint, and must write no files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import Ended, albert, snapshot

USAGE = 2
INPUT = 3
CHECKPOINT = 4
BUSY = 6


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder, so that `refused` notices every file that a command leaves."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def refused(code: int, *arguments: object) -> Ended:
    """Run a command; assert its exit code, that it ends with an `error:` and a `hint:` line, and changes no files."""
    before = snapshot(Path())
    printed = albert(*arguments, expect=code)
    assert snapshot(Path()) == before
    assert printed.out == ""
    assert "Traceback" not in printed.err
    lines = printed.err.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["error:", "hint:"], printed.err
    assert sum(line.startswith("error:") for line in lines) == 1
    return printed
