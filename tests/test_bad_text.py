"""`albert data` and `albert vocab` reject bad text and options: they report location and remedy, and leave no files."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from tests.helpers.command import albert
from tests.helpers.rejection import INPUT, USAGE, refused, work

__all__ = ["work"]  # a fixture that every test of this module uses

BAD_FILES: dict[str, tuple[bytes, str]] = {
    "overlong.txt": (b"One.\n\xc0\xaf two.\n", "overlong.txt:2: invalid UTF-8 at byte 5"),
    "surrogate.txt": (b"One.\n\xed\xa0\x80 two.\n", "surrogate.txt:2: invalid UTF-8 at byte 5"),
    "nul.txt": (b"One.\n\nTw\0o.\n", "nul.txt:3: a NUL character"),
    "escape.jsonl": (b'{"text": "x"}\n{"text": "\\ud800"}\n', "escape.jsonl:2: a lone surrogate"),
    "wide.txt": ("text".encode("utf-16"), "wide.txt: is UTF-16"),
    "zipped.txt": (gzip.compress(b"text " * 100), "zipped.txt: is a gzip (.gz) file"),
    "cut.txt.gz": (gzip.compress(os.urandom(4000).hex().encode())[:900], "cut.txt.gz: damaged or truncated"),
    "number.jsonl": (b'{"text": 3}\n', "number.jsonl:1: field 'text' is a number, not text"),
    "list.jsonl": (b'{"text": "x"}\n[1]\n', "list.jsonl:2: not a JSON object"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", "deep.jsonl:1: not valid JSON"),
    "renamed.csv": (b"id,body\n1,x\n", "renamed.csv:1: no text in field 'text' (fields: id, body)"),
    "short.tsv": (b"text\tlabel\nfine\t1\ncut\n", "short.tsv:3: 1 field, but the header has 2"),
    "long.csv": (b"id,text\n1,fine\n2,too,long\n", "long.csv:3: 3 fields, but the header has 2"),
    "quote.csv": (b'id,text\n1,fine\n2,"never closed\n', "quote.csv:3: unexpected end of data"),
    "line.txt": (b"fine\n\n" + b"x" * 5000, "line.txt:3: longer than 0.00390625 MiB"),
    "kind.docx": (b"text", "kind.docx: unknown kind of file"),
    "none.parquet": (b"no parquet", "none.parquet: not a readable Parquet file"),
    "spaces.txt": (b" \t \n" * 100, "no text in spaces.txt"),
    "blank.txt": (b"\n" * 10_000, "no text in blank.txt"),
    "empty.jsonl": (b'{"text": ""}\n{"text": "  "}\n', "no text in empty.jsonl"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_data_rejects_bad_text_with_its_location(name: str, tiny_vocabulary: Path) -> None:
    content, message = BAD_FILES[name]
    Path(name).write_bytes(content)
    call = ["data", name, "--vocab", tiny_vocabulary, "--out", "out", "--max-line", "4096"]
    result = refused(INPUT, *([*call[:-1], "1MiB"] if name == "deep.jsonl" else call))
    assert f"error: {message}" in result.err


def test_data_rejects_a_pipe_and_a_folder_without_text(work: Path, tiny_vocabulary: Path) -> None:
    os.mkfifo(work / "pipe.txt")
    (work / "empty").mkdir()
    for source, message in (("pipe.txt", "not a regular file"), ("empty", "no file with a known ending")):
        call = ["data", source, "--vocab", tiny_vocabulary, "--out", "out"]
        result = albert(*call, expect=INPUT)
        assert f"error: {source}: {message}" in result.err
        assert not Path("out").exists()


def test_data_reports_unknown_tokens_of_another_script(work: Path, tiny_vocabulary: Path) -> None:
    (work / "a.txt").write_text("これは 日本語 です。\n\nもう 一つ です。\n")
    result = albert("data", "a.txt", "--vocab", tiny_vocabulary, "--out", "out")
    assert "of the tokens are unknown" in result.out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--task", "4/4"], "--task 4/4: job 4 of 4 does not exist"),
        (["--task", "auto"], "--task auto: not a job of an array"),
        (["--max-line", "huge"], "'huge' is not a size"),
        (["--holdout", "1"], "--holdout 1"),
    ],
)
def test_data_rejects_impossible_options(
    option: list[str], message: str, documents_file: Path, tiny_vocabulary: Path
) -> None:
    call = ["data", documents_file, "--vocab", tiny_vocabulary, "--out", "out", *option]
    assert f"error: {message}" in albert(*call, expect=USAGE).err
    assert not Path("out").exists()


def test_vocab_skips_long_lines_on_request(work: Path) -> None:
    lines = [f"This is line {i} of {i * 7 % 60} with a few words." for i in range(200)]
    Path("a.txt").write_text("\n".join([*lines, "x" * 5000, *lines]) + "\n")
    call = ["vocab", "a.txt", "--size", "40", "--out", "out", "--max-line", "4096"]
    assert "error: a.txt:201: longer than" in refused(INPUT, *call).err
    albert(*call, "--on-long-line", "skip")
    assert json.loads(Path("out/vocabulary.json").read_text())["characters"] < 25_000
