from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.randomness import repetitions
from albert_cli.text.corpus import _READERS, document_hash, read_documents
from albert_cli.text.sources import SourceKind
from tests.helpers.memory import memory_below
from tests.helpers.text_files import COMPRESS_BY_ENDING, read_texts


def test_text_file_blank_line_ends_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\n \t\nThree\xe2\x80\xa8still three.\rFour.")
    assert read_texts(path) == ["One.\nTwo.", "Three\u2028still three.\nFour."]


def test_blank_documents_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("\n \n" * 100_000)
    (tmp_path / "c.jsonl").write_text('{"text": " "}\n\n')
    assert read_texts(tmp_path) == []


def test_long_line_is_split_in_little_memory(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    solid = tmp_path / "solid.txt"
    words.write_text("word " * 3_000_000)
    solid.write_text("é" * 4_000_000)
    with memory_below(40e6):  # the file has 15 MB; a document, its lines and the decoded text are held
        parts = [d.text.count("word") for d in read_documents([str(words)])]
    assert sum(parts) == 3_000_000
    assert "".join(read_texts(solid)).replace("\n", "") == "é" * 4_000_000


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"), min_size=1)))
def test_text_file_keeps_every_line(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes("\n".join(lines).encode())
    read = [line for text in read_texts(path) for line in text.split("\n")]
    assert read == [line for line in lines if line.strip()]


CONTENT_BY_ENDING = {
    ".txt": "Grüße.\n\nEnde, 2 mal.\n",
    ".jsonl": '{"text": "Grüße."}\n\n{"id": 2, "text": "Ende, 2 mal."}\n',
    ".csv": 'id,text\r\n1,Grüße.\r\n2,"Ende, 2 mal."\r\n',
    ".tsv": "text\tid\nGrüße.\t1\nEnde, 2 mal.\t2\n",
}


@pytest.mark.parametrize("compression", COMPRESS_BY_ENDING)
@pytest.mark.parametrize("ending", CONTENT_BY_ENDING)
def test_every_file_kind_in_every_compression_is_read(tmp_path: Path, ending: str, compression: str) -> None:
    path = tmp_path / f"a{ending}{compression}"
    path.write_bytes(COMPRESS_BY_ENDING[compression](CONTENT_BY_ENDING[ending].encode()))
    assert read_texts(path) == ["Grüße.", "Ende, 2 mal."]
    path = path.rename(tmp_path / path.name.upper())
    assert read_texts(path) == read_texts(tmp_path) == ["Grüße.", "Ende, 2 mal."]


@pytest.mark.parametrize("content", ['{"text": "One."}\n{"text": "Two."}\n', "One.\n\nTwo.\n"])
def test_stdin_is_text_or_json_lines(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(content.encode())))
    monkeypatch.setattr(sys, "stdin", stream)
    assert read_texts("-") == ["One.", "Two."]


def test_weight_sets_the_repetitions_of_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"Document {i}." for i in range(2000)))
    once = read_texts(path)
    quarter = read_texts(f"{path}@0.25")
    more = read_texts(f"{path}@2.25")
    assert 420 < len(quarter) < 580
    assert more == [t for t in once for _ in range(3 if t in set(quarter) else 2)]


def test_weight_is_independent_of_the_hold_out() -> None:
    hashes = [document_hash(str(i)) for i in range(20_000)]
    held_out = [h for h in hashes if h < 2**64 // 10]
    mean_repetitions = sum(repetitions(0.3, h) for h in held_out) / len(held_out)
    assert 0.26 < mean_repetitions < 0.34
    assert all(repetitions(3, h) == 3 for h in hashes[:100])


def test_every_source_kind_has_a_reader() -> None:
    assert {*_READERS, "docs", "stdin"} == {*get_args(SourceKind)}
