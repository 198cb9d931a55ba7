"""Write and read the journal of a run: a file of JSON lines, one for each logged step and each evaluation.

Training appends lines. A resumed run first truncates the journal to the step that it resumes from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Required, TypeVar

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from albert_cli import store

T = TypeVar("T")
JOURNAL = "metrics.jsonl"  # in the directory of a run


class JournalRecord(TypedDict, total=False):
    """A line of a journal: metrics of the steps since the previous such line, metrics of an evaluation, or a hint.

    A line may have other keys, too.
    """

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]  # noqa: RUF012
    step: Required[int]
    loss: float
    mlm_loss: float
    distill_loss: float
    mlm_accuracy: float
    order_accuracy: float
    mfu: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float
    tokens_per_second: float
    eval: dict[str, float]
    hint: str


class Journal:
    """A journal that is being written; the file is opened by the first `append`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[str] | None = None

    def append(self, record: Mapping[str, object]) -> None:
        """Append a record as a line, and flush it to the operating system."""
        with store.translate_os_errors(self.path):
            if self._stream is None:
                self._stream = self.path.open("a", encoding="utf-8")
            self._stream.write(json.dumps(record) + "\n")
            self._stream.flush()

    def sync(self) -> None:
        """Flush the lines to the disk; call this before a checkpoint, so that both survive a loss of power."""
        if self._stream is not None:
            with store.translate_os_errors(self.path):
                os.fsync(self._stream.fileno())

    def truncate_after(self, step: int) -> None:
        """Remove the lines of steps after `step`, and a last line that a crash has left incomplete."""
        self.close()
        if self.path.exists():
            lines = [json.dumps(record) + "\n" for record in read_journal(self.path) if record["step"] <= step]
            store.write_text(self.path, "".join(lines))

    def close(self) -> None:
        """Flush the file to the disk and close it; a later `append` opens it again."""
        if self._stream is not None:
            self.sync()
            self._stream.close()
            self._stream = None


def read_journal(path: Path) -> list[JournalRecord]:
    """Return the records of a journal."""
    return read_json_lines(path, JournalRecord)


def read_json_lines(path: Path, kind: type[T]) -> list[T]:
    """Return the records of type `kind` in a file of JSON lines; skip other lines, such as an incomplete last line."""
    from pydantic import ValidationError

    records: list[T] = []
    for line in store.read_bytes(path).split(b"\n"):
        with suppress(ValidationError):
            records.append(store.type_adapter(kind).validate_json(line, strict=True))
    return records
