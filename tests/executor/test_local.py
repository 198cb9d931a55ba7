"""Tests of `albert_cli.executor.local`."""

from __future__ import annotations

import multiprocessing
import sys

import pytest

from albert_cli.executor import process_context


@pytest.mark.parametrize(("platform", "expected"), [("linux", "forkserver"), ("darwin", "spawn"), ("win32", "spawn")])
def test_process_context_forks_only_where_it_is_safe(
    platform: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ["spawn"] if platform == "win32" else ["fork", "spawn", "forkserver"]
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    assert process_context(set()).get_start_method() == expected
