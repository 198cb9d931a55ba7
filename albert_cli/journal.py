"""The journal of a run: a file of JSON lines that is only appended to, and cut back to the step a run resumes from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Required

from typing_extensions import TypedDict  # pydantic takes the standard library's from Python 3.12 on

from albert_cli import store

JOURNAL = "metrics.jsonl"  # of a run


class JournalRecord(TypedDict, total=False):
    """A line of a run's journal: figures of the steps since the last one, or of an evaluation, or a hint."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]  # noqa: RUF012
    step: Required[int]
    loss: float
    mlm_loss: float
    grad_norm: float
    seconds: float
    tokens_per_second: float
    eval: dict[str, float]
    hint: str


class Journal:
    """A file of JSON lines that is only appended to, and cut back to the resumed step after a crash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[str] | None = None

    def append(self, record: Mapping[str, object]) -> None:
        """Add one line and hand it to the operating system."""
        with store.translate_os_errors(self.path):
            if self._stream is None:
                self._stream = self.path.open("a", encoding="utf-8")
            self._stream.write(json.dumps(record) + "\n")
            self._stream.flush()

    def sync(self) -> None:
        """Flush what was appended to the disk: a checkpoint that outlives a loss of power does so with its lines."""
        if self._stream is not None:
            with store.translate_os_errors(self.path):
                os.fsync(self._stream.fileno())

    def truncate_after(self, step: int) -> None:
        """Drop the lines after `step`, and a last line that was cut by a crash."""
        self.close()
        if self.path.exists():
            kept = [json.dumps(r) + "\n" for r in read_journal(self.path) if r["step"] <= step]
            store.write_text(self.path, "".join(kept))

    def close(self) -> None:
        """Flush it to the disk and close it; a later `append` opens it again."""
        if self._stream is not None:
            self.sync()
            self._stream.close()
            self._stream = None


def read_journal(path: Path, kind: Any = JournalRecord) -> list[dict[str, Any]]:
    """The records of a journal; a torn last line is left out, and so is any other that is no such record."""
    from pydantic import ValidationError

    records: list[dict[str, Any]] = []
    for line in store.read_bytes(path).split(b"\n"):
        with suppress(ValidationError):
            records.append(store.type_adapter(kind).validate_json(line, strict=True))
    return records
