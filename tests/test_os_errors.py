from __future__ import annotations

import errno
import os

import pytest

from albert_cli.errors import CheckpointError, InputError
from albert_cli.os_errors import translate_read_errors


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_translate_read_errors_failed_disk_is_no_bad_input(number: int) -> None:
    with pytest.raises(CheckpointError, match=r"notes\.txt") as raised, translate_read_errors("notes.txt"):
        raise OSError(number, os.strerror(number))
    assert "same command continues" in str(raised.value.hint)


def test_translate_read_errors_refused_file_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"notes\.txt"), translate_read_errors("notes.txt"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
