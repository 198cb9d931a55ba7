"""Tests of `albert_cli.journal`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from albert_cli.journal import Journal, read_journal


def test_a_journal_is_appended_and_cut_back(tmp_path: Path) -> None:
    lines = Journal(tmp_path / "metrics.jsonl")
    for step in (10, 20, 20, 30):
        lines.append({"step": step, "loss": 1 / 3})
    assert [r["step"] for r in read_journal(lines.path)] == [10, 20, 20, 30]
    with lines.path.open("a") as stream:
        stream.write('{"step": 40, "lo')  # torn by a crash
    assert [r["step"] for r in read_journal(lines.path)] == [10, 20, 20, 30]
    lines.truncate_after(20)
    lines.append({"step": 21, "loss": 1 / 3})
    lines.close()
    assert lines.path.read_text().count("\n") == 4
    assert read_journal(lines.path)[-1] == {"step": 21, "loss": 1 / 3}


def test_a_closed_journal_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    lines = Journal(tmp_path / "metrics.jsonl")
    lines.append({"step": 1})
    lines.close()
    assert flushed


def test_nothing_to_cut_back_is_no_error(tmp_path: Path) -> None:
    Journal(tmp_path / "gone").truncate_after(0)
    assert not list(tmp_path.iterdir())
