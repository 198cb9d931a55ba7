from __future__ import annotations

import pytest

from albert_cli.work_plan import current_command


def test_current_command_has_no_secrets_of_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["albert", "data", "https://reader:SECRET@host/a.txt?token=SECRET@2", "notes.txt", "--task=0/2"]
    monkeypatch.setattr("sys.argv", words)
    assert current_command() == "albert data 'https://host/a.txt?token=…@2' notes.txt"
