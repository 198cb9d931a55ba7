"""Inputs of `predict` and `encode`: hostile files are read as text or rejected, and take limited memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from albert_cli.errors import InputError
from albert_cli.inference.inputs import InputReader
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.registry import TASKS

READER = InputReader(TASKS["sst2"])


@pytest.mark.parametrize("line", ['{"a":' * 100_000, '[{"a":' * 100_000])
def test_read_chunks_line_that_is_no_json_is_a_text(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(f"{line}\nfigo\n")
    (chunk,) = READER.read_chunks(str(tmp_path / "a.txt"))
    examples = [row.example for row in chunk]
    assert [example.text_a for example in examples if isinstance(example, TextExample)] == [line, "figo"]


def test_read_chunks_array_that_expands_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("albert_cli.text.lines._EXPANSION_LIMIT_FACTOR", 1)  # 64 MiB instead of 1 GiB
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[\n" + (b" " * 1_000_000 + b"\n") * 70 + b"]"))
    with pytest.raises(InputError, match=r"a\.json\.gz: expands to more than 64 MiB"):
        list(READER.read_chunks(str(path)))


def test_read_chunks_many_blank_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"\n" * 150_000 + b"figo\n"))
    chunks = READER.read_chunks(str(path))
    assert sum(map(len, chunks)) == 150_001
