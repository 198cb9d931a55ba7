from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.text_files import read_texts


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x85", "\u2028"])
def test_joined_lines_end_as_in_a_text_file(tmp_path: Path, character: str) -> None:
    book = f"Page one is\nwrapped\n{character}and page two\nfollows.\r\n\r\nThe second\rone, with{character}no end.\n"
    (tmp_path / "a.txt").write_bytes(book.encode())
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": book}) + "\n")
    (from_text,) = read_texts(tmp_path / "a.txt", join_lines=True, document="file")
    (from_record,) = read_texts(tmp_path / "a.jsonl", join_lines=True)
    assert from_record == from_text
    assert from_text.count("\n") == 1


def test_joined_lines_leave_texts_of_a_list_apart(tmp_path: Path) -> None:
    record = {"text": ["Text one\nis wrapped.", "Text two\n\nhas paragraphs."]}
    expected = "Text one is wrapped.\nText two\nhas paragraphs."
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "a.json").write_text(json.dumps([record, "Only\ntext."], indent=1))
    assert read_texts(tmp_path / "train.jsonl", join_lines=True) == [expected]
    assert read_texts(tmp_path / "a.json", join_lines=True) == [expected, "Only text."]


def test_joined_lines_leave_rows_of_a_document_apart(tmp_path: Path) -> None:
    rows = ("Row one\nis wrapped.", "Row two.", "Row three.")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    documents = read_texts(f"hf:{tmp_path}?rows=2", join_lines=True)
    assert documents == ["Row one is wrapped.\nRow two.", "Row three."]


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        ("他去了北\n京。\n我，\n也去。\n", "他去了北京。我，也去。"),
        ("日本\nの東\nABC\n社", "日本の東 ABC 社"),
        ("ภาษา\nไทย", "ภาษาไทย"),
        ("나는\n학교에", "나는 학교에"),
    ],
)
def test_joined_lines_have_blanks_as_in_their_script(tmp_path: Path, lines: str, joined: str) -> None:
    (tmp_path / "a.txt").write_text(lines)
    assert read_texts(tmp_path / "a.txt", join_lines=True, document="file") == [joined]
