"""Files as spreadsheet programs write them, and files that are something else."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from albert_cli.config import validate_recipe
from albert_cli.errors import InputError
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.data_files import read_objects, read_text
from albert_cli.tasks.table import open_table
from albert_cli.tasks.table_settings import TableSettings
from tests.helpers.memory import memory_below


def workbook() -> bytes:
    """Return the bytes of a zip archive, as an .xlsx file is."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (workbook(), "an Excel or LibreOffice workbook"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel workbook"),
        (gzip.compress(b"text,label\n", mtime=0), "a gzip archive"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"\x28\xb5\x2f\xfd\x04", "a Zstandard archive"),
    ],
    ids=["xlsx", "xls", "gzip", "parquet", "pdf", "zstd"],
)
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_open_table_binary_file_reports_its_format(tmp_path: Path, content: bytes, name: str, suffix: str) -> None:
    path = tmp_path / f"train.{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        open_table(TableSettings(), str(tmp_path))
    assert raised.value.message.startswith(f"{path}: {name}") and raised.value.hint


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "sep=;\ntext;label\na, b;x\nc;y\n"),
        ("a.csv", '"sep=;"\r\ntext;label\r\n"a, b";x\r\nc;y\r\n'),
        ("a.csv", "\ufeffsep=\t\ntext\tlabel\na, b\tx\nc\ty\n"),
        ("a.csv", 'sep=,\ntext,label\n"a, b",x\nc,y\n'),
        ("a.csv", "sep=|\ntext|label\na, b|x\nc|y\n"),
        ("a.csv", "text;label\na, b;x\nc;y\n"),
        ("a.csv", 'text;label\n"a, b";x\nc;y\n'),
        ("a.csv", "text\tlabel\na, b\tx\nc\ty\n"),
        ("a.tsv", "text,label\na b,x\nc,y\n"),
    ],
)
def test_read_table_finds_the_delimiter(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    task = open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)}, "recipe"))
    assert isinstance(task, Classification)
    # The comma is removed because the text of the last file has none.
    assert [example.text_a.replace(",", "") for example in task.read("dev")] == ["a b", "c"]


def test_read_table_sep_line_keeps_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sep=;\ntext;label\na;x\nb;\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.csv:4: the label is empty"):
        open_table(TableSettings(), str(path))


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("a.csv", "text,label\nthe film, was great,good\n", "put quotes around texts that contain ','"),
        ("a.csv", "text;label\nthe film; was great;good\n", "put quotes around texts that contain ';'"),
        ("a.csv", "text,label\nthe film\n", "a cut line"),
        ("a.tsv", "text\tlabel\nthe\tfilm\tgood\n", "a tab inside a text"),
        ("a.tsv", "text\tlabel\nthe film\n", "a cut line"),
    ],
)
def test_read_table_hint_fits_the_delimiter(tmp_path: Path, name: str, content: str, hint: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=rf"{name}:2: \d fields? instead of 2") as raised:
        open_table(TableSettings(), str(path))
    assert hint in str(raised.value.hint)


def test_open_table_path_of_a_workbook_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.xlsx"
    path.write_bytes(workbook())
    with pytest.raises(InputError, match=r"mine\.xlsx: an Excel or LibreOffice workbook"):
        open_table(TableSettings(), str(path))


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        ("csv", 'text,label\na,x\n"b,y\n', ":3: unexpected end of data"),
        ("jsonl", '{"text": "a", "label": "x"}\n{"text": \n', ":2: not valid JSON"),
    ],
)
def test_open_table_path_with_braces_is_in_the_error(tmp_path: Path, suffix: str, content: str, message: str) -> None:
    path = tmp_path / f"{{a}}{{0.b}}{{}}.{suffix}"  # must not be interpreted by `str.format`
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as raised:
        open_table(TableSettings(), str(path))
    assert raised.value.message.startswith(f"{path}{message}")


def test_read_objects_reads_the_keys_of_all_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "a"}, {"text_pair": "c", "text": "b"}, {"text": "d", "more": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_objects(path)
    assert table.columns == ("text", "text_pair", "more")
    assert table.cells == [["a", "", ""], ["b", "c", ""], ["d", "", "1"]]
    path.write_text('{}\n{"text": "a"}\n')
    assert read_objects(path).cells == [[""], ["a"]]


def test_read_objects_parquet_cells_are_not_quoted(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    price = Decimal("1.50")
    day = date(2024, 5, 1)
    row = {"text": "a\u00e9".encode(), "price": price, "day": day, "days": [day], "pair": {"price": price}, "yes": True}
    pq.write_table(pa.Table.from_pylist([row | {"text": b"\xff"}, row]), tmp_path / "a.parquet")
    first, second = read_objects(tmp_path / "a.parquet").cells
    assert second == ["a\u00e9", "1.50", "2024-05-01", '["2024-05-01"]', '{"price": "1.50"}', "true"]
    assert first[0] == "\ufffd"


@pytest.mark.parametrize("empty", [None, ""])
def test_read_objects_null_ids_have_the_line_number(tmp_path: Path, empty: str | None) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"id": name, "text": "a", "label": label} for name, label in ((empty, "x"), ("q", "y"), (empty, "x"))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_objects(path).ids(0, must_be_unique=True) == ["row 1", "q", "row 3"]


def test_read_text_of_another_encoding_hints_the_conversion(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    japanese = "text\tlabel\n" + "これは日本語です。\tx\n" * 9
    for encoding in ("euc_jp", "iso2022_jp"):
        path.write_bytes(japanese.encode(encoding))
        with pytest.raises(InputError) as raised:
            read_text(path)
        assert encoding.replace("iso", "iso-").replace("_", "-").upper() in str(raised.value.hint)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_read_text_utf16_without_a_mark_is_recognized(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes("text\tlabel\na\tx\n".encode(encoding))
    with pytest.raises(InputError, match=f"is {encoding[:6].upper()}, not UTF-8") as raised:
        read_text(path)
    assert encoding.replace("-le", "le").replace("-be", "be").upper() in str(raised.value.hint)


def test_read_text_nul_character_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"text\tlabel\na\0b\tx\n")
    with pytest.raises(InputError, match=r"a\.tsv:2: a NUL character in the text"):
        read_text(path)


def test_read_text_gzip_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("albert_cli.tasks.data_files._MAX_EXPANDED_BYTES", 1 << 20)
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"a" * (1 << 20)))
    assert len(read_text(path)) == 1 << 20
    path.write_bytes(gzip.compress(b"a" * 32_000_000))
    with memory_below(20e6), pytest.raises(InputError, match=r"a\.tsv\.gz: expands to more than 1 MiB"):
        read_text(path)
