from __future__ import annotations

import errno
from pathlib import Path

import pytest

from albert_cli import hub_access
from albert_cli.errors import InputError, NetworkError
from albert_cli.text.hub_datasets import translate_hub_errors
from tests.helpers.recordings import write_recordings
from tests.helpers.text_files import read_texts


@pytest.mark.parametrize(
    "error", [ConnectionError("reset"), TimeoutError(), OSError(errno.EIO, "I/O error"), OSError(errno.ESTALE, "stale")]
)
def test_translate_hub_errors_failed_network_may_be_repeated(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_access, "IS_OFFLINE_BY_CHOICE", False)
    with (
        pytest.raises(NetworkError, match="hf:books: cannot be read from the Hub now"),
        translate_hub_errors("hf:books"),
    ):
        raise error


def test_translate_hub_errors_chosen_offline_mode_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_access, "IS_OFFLINE_BY_CHOICE", True)
    with pytest.raises(InputError, match="cannot be read from the Hub"), translate_hub_errors("hf:books"):
        raise ConnectionError("offline")


def test_hub_texts_with_recordings_are_read(tmp_path: Path) -> None:
    write_recordings(tmp_path / "train.parquet", ["One.", "Two."])
    assert read_texts(f"hf:{tmp_path}") == ["One.", "Two."]


def test_translate_hub_errors_cause_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_access, "IS_OFFLINE_BY_CHOICE", False)
    with pytest.raises(NetworkError), translate_hub_errors("hf:books"):
        raise RuntimeError("no data set") from ConnectionResetError("reset by peer")
    with pytest.raises(InputError), translate_hub_errors("hf:books"):
        raise ValueError("no such configuration")
