from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_cli import hub_access
from albert_cli.errors import InputError
from albert_cli.text.corpus import read_documents, read_part
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import TextSource
from tests.helpers.text_files import read_texts


def test_bad_json_escapes_are_rejected_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "ok"}\n{"text": "x\\ud800y\\u0000z"}\n')
    with pytest.raises(InputError, match=r"bad.jsonl:2: "):
        read_texts(path)
    assert read_texts(path, on_bad_bytes="replace") == ["ok", "x\ufffdyz"]


def test_json_lines_text_field_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n')
    assert read_texts(path, text_field="body") == ["x"]


def test_hub_rows_are_joined_to_documents(tmp_path: Path) -> None:
    """Join books with a sentence per row: a document of one sentence has no sentence order to learn."""
    books = [("a", "One."), ("a", "Two."), ("a", None), ("b", "Three."), ("b", "Four."), ("a", "Five.")]
    rows = "".join(json.dumps({"text": text, "book": book}) + "\n" for book, text in books)
    (tmp_path / "train.jsonl").write_text(rows)
    documents = {
        "": ["One.", "Two.", "Three.", "Four.", "Five."],
        "?rows=2": ["One.\nTwo.", "Three.", "Four.\nFive."],
        "?rows=99": ["One.\nTwo.\nThree.\nFour.\nFive."],
        "?document=book": ["One.\nTwo.", "Three.\nFour.", "Five."],
        "::train?rows=2": ["One.\nTwo.", "Three.", "Four.\nFive."],
    }
    assert {options: read_texts(f"hf:{tmp_path}{options}") for options in documents} == documents
    # `datasets` reads a local folder as it reads the name of a data set on the Hub.
    # Each error is one line, also without a network.
    for source, reason in (
        (f"hf:{tmp_path}?document=author", r"no field 'author' .*book"),
        ("hf:nobody/nothing", "nobody/nothing: cannot be read from the Hub"),
        (f"hf:{tmp_path}::test", "::test: cannot be read from the Hub"),
    ):
        with pytest.raises(InputError, match=reason) as raised:
            list(read_documents([source]))
        assert "\n" not in raised.value.message


class FakeRows(list[dict[str, str]]):
    """The rows of a data set, which does not list its features."""

    features = None


class FakeDatasets(ModuleType):
    """The `datasets` library with one row in every data set.

    It reads the offline mode when `load_dataset` is imported from it.
    """

    offline_mode: str | None = None

    def __getattr__(self, name: str) -> Callable[..., FakeRows]:
        if name != "load_dataset":
            raise AttributeError(name)
        self.offline_mode = os.environ.get("HF_HUB_OFFLINE")
        return lambda *arguments, **options: FakeRows([{"text": "A row."}])


def test_hub_offline_mode_is_set_before_datasets_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeDatasets("datasets")
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setattr(hub_access, "_is_reachable", lambda: False)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert read_texts("hf:books") == ["A row."]
    assert library.offline_mode == "1"


def test_parquet_null_is_skipped_and_damage_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "text": ["One.", None, " ", "Two."]}), path, row_group_size=2)
    assert read_texts(path) == ["One.", "Two."]
    with pytest.raises(InputError, match=r"a\.parquet: record 1: field 'id' is a number"):
        read_texts(path, text_field="id")
    pq.write_table(pa.table({"text": pa.array([b"\xf3x"]).view(pa.string())}), tmp_path / "no UTF-8.parquet")
    with pytest.raises(InputError, match=r"UTF-8\.parquet: not a readable Parquet file"):
        read_texts(tmp_path / "no UTF-8.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read_texts(path)


def test_csv_keeps_quoted_line_ends_rejects_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,"First line,\nsecond ""line""."\n\n2,Plain.\n')
    assert read_texts(path) == ['First line,\nsecond "line".', "Plain."]
    for rows, where in (
        ("1,ok\n2,too,many\n", r"a\.csv:3: 3 fields, but the header has 2"),
        ('1,"two\nlines"\n2\n', r"a\.csv:4: 1 field,"),
        ('1,ok\n2,"never closed\nmore\n', r"a\.csv:3: unexpected end of data"),
        ('1,"stray" quote\n', r"a\.csv:2: .*expected after"),
    ):
        path.write_text("id,text\n" + rows)
        with pytest.raises(InputError, match=where):
            read_texts(path)
    path.write_text("id,body\n1,x\n")
    with pytest.raises(InputError, match=r"a\.csv:1: no text in field 'text' \(fields: id, body\)"):
        read_texts(path)
    assert read_texts(path, text_field="body") == ["x"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_text_column_that_occurs_twice_is_rejected(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    names = ["id", "id", "text", "text"]
    if ending == "parquet":
        pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 4, names=names), path)
    else:
        delimiter = "," if ending == "csv" else "\t"
        path.write_text(delimiter.join(names) + "\n" + delimiter.join("abcd") + "\n")
    with pytest.raises(InputError, match=rf"a\.{ending}.*: the column 'text' occurs twice") as raised:
        read_texts(path)
    assert raised.value.hint == "rename one of them"
    if ending != "parquet":
        path.write_text(path.read_text().replace("text", "body", 1))
        assert read_texts(path) == ["d"]


def test_tsv_quotes_have_no_meaning(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"Well", he said.\t1\nNo "end\t0\n')
    assert read_texts(path) == ['"Well", he said.', 'No "end']
    path.write_text("text\tlabel\nfine\t1\ncut\n")
    with pytest.raises(InputError, match=r"a\.tsv:3: 1 field, but the header has 2"):
        read_texts(path)


def test_long_cell_or_record_is_rejected_or_skipped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["fine", "x" * 5000]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("text\nfine\n" + "x" * 5000 + "\n")
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "' + "x" * 5000 + '"}\n')
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        with pytest.raises(InputError, match="longer than"):
            read_texts(tmp_path / name, max_line=4096)
        assert read_texts(tmp_path / name, max_line=4096, on_long_line="skip") == ["fine"]


LONG_ROWS = {
    "a cell of short lines": '"' + "\n".join(["x" * 500] * 4) + '",1\n',
    "a long first line": '"' + "x" * 1500 + '\nthe rest","\n1"\n',
    "a long line in the middle": '"a ""word""\n""' + "x" * 1500 + '\nthe rest",1\n',
    "a long last line": '"the ""start\n' + "x" * 1500 + '""",1\n',
    "a cell with letters of two bytes": '"' + "\n".join(["é" * 40] * 20) + '",1\n',
    "cells that are long together": ",".join(['"a\n' + "x" * 600 + '"'] * 2) + "\n",
    "a long line without quotes": "x" * 3_000_000 + ",1\n",
    "long lines with many quotes": '"' + '""\n"",' * 200_000 + '"\n',
}


@pytest.mark.parametrize("row", LONG_ROWS.values(), ids=LONG_ROWS)
def test_csv_long_row_is_rejected_or_skipped_whole(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'text,n\nfirst,0\n{row}"two\nlines",2\nlast,3\n')
    with pytest.raises(InputError, match=r"a\.csv:3: longer than"):
        read_texts(path, max_line=1024)
    counter = ReadCounter()
    settings = ReadSettings(max_line=1024, on_long_line="skip")
    documents = read_part(SourcePart(TextSource(str(path), "csv")), settings, counter)
    assert [document.text for document in documents] == ["first", "two\nlines", "last"]
    assert counter.counts.too_long == 1
    assert counter.size == path.stat().st_size
