"""Tests of `albert_cli.journal`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from albert_cli.journal import Journal, read_journal


def test_journal_is_appended_and_truncated(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    for step in (10, 20, 20, 30):
        journal.append({"step": step, "loss": 1 / 3})
    assert [record["step"] for record in read_journal(journal.path)] == [10, 20, 20, 30]
    with journal.path.open("a") as stream:
        stream.write('{"step": 40, "lo')  # a line that a crash has truncated
    assert [record["step"] for record in read_journal(journal.path)] == [10, 20, 20, 30]
    journal.truncate_after(20)
    journal.append({"step": 21, "loss": 1 / 3})
    journal.close()
    assert journal.path.read_text().count("\n") == 4
    assert read_journal(journal.path)[-1] == {"step": 21, "loss": 1 / 3}


def test_closed_journal_is_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.append({"step": 1})
    journal.close()
    assert flushed


def test_truncating_a_missing_journal_does_nothing(tmp_path: Path) -> None:
    Journal(tmp_path / "gone").truncate_after(0)
    assert not list(tmp_path.iterdir())
