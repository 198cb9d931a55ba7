from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from albert_cli.errors import CheckpointError, InputError
from albert_cli.os_errors import translate_os_errors, translate_read_errors


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_translate_read_errors_failed_disk_is_no_bad_input(number: int) -> None:
    with pytest.raises(CheckpointError, match=r"notes\.txt") as raised, translate_read_errors("notes.txt"):
        raise OSError(number, os.strerror(number))
    assert "same command continues" in str(raised.value.hint)


def test_translate_read_errors_refused_file_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"notes\.txt"), translate_read_errors("notes.txt"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_translate_os_errors_removed_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is about the working directory, not about the file that the block writes."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match="the working directory no longer exists"), translate_os_errors(tmp_path):
        Path.cwd()
