"""One rule for null, empty and missing texts in every format, with counts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_cli.errors import InputError
from albert_cli.text.corpus import read_part
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import resolve_sources

TEXTS = ["One.", None, "", " ", "Two."]


def read_with_counts(source: object, settings: ReadSettings) -> tuple[list[str], LineCounts]:
    counter = ReadCounter()
    (resolved,) = resolve_sources([str(source)])
    texts = [document.text for document in read_part(SourcePart(resolved), settings, counter)]
    return texts, counter.counts


def send(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))


def write_rows(folder: Path, ending: str) -> Path:
    path = folder / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table({"text": TEXTS}), path)
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    else:
        separator = "," if ending == ".csv" else "\t"
        rows = [separator.join([str(index), text or ""]) for index, text in enumerate(TEXTS)]
        path.write_text("\n".join([separator.join(["id", "text"]), *rows]) + "\n")
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_rows_without_text_are_left_out_and_counted(tmp_path: Path, ending: str) -> None:
    texts, counts = read_with_counts(write_rows(tmp_path, ending), ReadSettings())
    assert texts == ["One.", "Two."]
    assert counts == LineCounts(without_text=3)


def test_tsv_row_of_only_tabs_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tid\nOne.\t1\n\t\n\n   \nTwo.\t2\n")
    texts, counts = read_with_counts(tmp_path / "a.tsv", ReadSettings())
    assert texts == ["One.", "Two."]
    assert counts == LineCounts(without_text=1)


def test_hub_rows_without_text_are_left_out_and_counted(tmp_path: Path) -> None:
    write_rows(tmp_path, ".jsonl").rename(tmp_path / "train.jsonl")
    texts, counts = read_with_counts(f"hf:{tmp_path}", ReadSettings())
    assert texts == ["One.", "Two."]
    assert counts == LineCounts(without_text=3)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ('{"text": NaN}', None),
        ('{"text": ["One.", "Two."]}', "One.\nTwo."),
        ('{"text": ["One.", null, "Two."]}', "One.\nTwo."),
        ('{"text": []}', None),
        ('{"text": [null]}', None),
        ('{"meta": 1, "content": {"text": "Three."}}', "Three."),
        ('{"content": null}', None),
        ('{"content.text": "Four.", "content": {"text": "no"}}', "Four."),
    ],
)
def test_json_text_may_be_a_list_or_nested(tmp_path: Path, record: str, text: str | None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(record + "\n")
    field = "content.text" if "content" in record else "text"
    texts, counts = read_with_counts(path, ReadSettings(text_field=field))
    assert texts == ([] if text is None else [text])
    assert counts.without_text == (text is None)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ('{"txt": "x"}', r"no text in field 'text' \(fields: txt\)"),
        ('{"text": 3}', "field 'text' is a number"),
        ('{"text": {"a": 1, "b": 2}}', "field 'text' is an object with the keys a, b"),
        ('{"text": ["a", 1]}', "field 'text' is a list with a number"),
        ('{"text": true}', "field 'text' is true or false"),
        ('{"text": [["a", "b"]]}', "field 'text' is a list with a list of texts"),
        ('{"text": {}}', "field 'text' is an empty obj"),
    ],
)
def test_json_without_a_text_is_rejected(tmp_path: Path, record: str, problem: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n' + record + "\n")
    with pytest.raises(InputError, match=rf"a\.jsonl:2: {problem}") as raised:
        read_with_counts(path, ReadSettings())
    assert ("--text-field text.a" in str(raised.value.hint)) == ("object" in problem)


def test_parquet_value_of_another_type_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [None, b"One."]}), path)
    with pytest.raises(InputError, match=r"a\.parquet: record 2: field 'text' is binary"):
        read_with_counts(path, ReadSettings())


def test_parquet_text_may_be_a_list_or_nested(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"content": [{"text": "One."}, None, {"text": None}], "more": [["A.", "B."], [], None]}), path
    )
    assert read_with_counts(path, ReadSettings(text_field="content.text")) == (["One."], LineCounts(without_text=2))
    assert read_with_counts(path, ReadSettings(text_field="more")) == (["A.\nB."], LineCounts(without_text=2))


def test_replaced_and_long_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9\n\nfine\n\na\0b\n\n" + b"x" * 2000 + b"\n")
    settings = ReadSettings(on_bad_bytes="replace", max_line=1024, on_long_line="skip")
    texts, counts = read_with_counts(path, settings)
    assert texts == ["caf\ufffd", "fine", "ab"]
    assert counts == LineCounts(too_long=1, replaced=2)
    assert counts.format() == [
        "1 long line left out",
        "invalid bytes or characters replaced in 2 lines",
    ]


STDIN = {
    "byte order mark": b'\xef\xbb\xbf{"text": "One."}\n{"text": "Two."}\n',
    "blank first lines": b'\n \n{"text": "One."}\n{"text": "Two."}\n',
    "leading space": b' {"text": "One."}\n\t{"text": "Two."}\n',
    "all of them": b'\xef\xbb\xbf\r\n  {"text": "One."}\r\n{"text": "Two."}',
    "text": b"One.\n\nTwo.\n",
    "text that begins with a bracket": b"[Music]\n\n[Two, 2]\n",
    "text with carriage returns": b"One.\r\rTwo.\r",
}


@pytest.mark.parametrize("data", STDIN.values(), ids=STDIN)
def test_stdin_kind_is_that_of_the_first_line_with_text(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    send(monkeypatch, data)
    texts, _ = read_with_counts("-", ReadSettings())
    assert texts == (["[Music]", "[Two, 2]"] if data.startswith(b"[") else ["One.", "Two."])


@pytest.mark.parametrize("data", [b'[{"text": "One."}]', b'\xef\xbb\xbf [\n{"text": "One."}\n]\n', b"[ {", b"[{}]"])
def test_stdin_array_is_rejected_with_the_conversion(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    send(monkeypatch, data)
    with pytest.raises(InputError, match="JSON array") as error:
        read_with_counts("-", ReadSettings())
    assert "jq -c '.[]'" in str(error.value.hint)


def test_json_lines_array_is_rejected_with_the_conversion(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('[{"text": "One."}]\n')
    with pytest.raises(InputError, match=r"a\.jsonl:1: not a JSON object") as error:
        read_with_counts(path, ReadSettings())
    assert "jq -c '.[]'" in str(error.value.hint)


def test_json_lines_array_over_lines_has_the_conversion(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('[\n  {"text": "One."}\n]\n')
    with pytest.raises(InputError, match=r"a\.jsonl:1: begins a JSON array") as error:
        read_with_counts(path, ReadSettings())
    assert "jq -c '.[]'" in str(error.value.hint)


def test_json_lines_array_of_values_has_no_conversion(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('["One.", {"entities": [[0, 3, "PER"]]}]\n')  # spaCy's pair of a text and its entities
    with pytest.raises(InputError, match=r"a\.jsonl:1: not a JSON object") as error:
        read_with_counts(path, ReadSettings())
    assert "jq" not in str(error.value.hint)


TEXT = "Some words of a text.\n\nMore words follow here, and then the end.\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", [TEXT, "Это русский текст, а не английский.\n" * 3, "日本語 の 文章 です 。\n" * 9])
def test_wide_encoding_is_named_with_the_conversion(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    family = encoding[:6].upper()
    with pytest.raises(InputError, match=f"is {family}, not UTF-8") as error:
        read_with_counts(path, ReadSettings())
    hint = str(error.value.hint)
    assert f"iconv -f {family}" in hint
    if not encoding.endswith(("16", "32")):
        assert f"-f {encoding.upper().replace('-LE', 'LE').replace('-BE', 'BE')} " in hint


@pytest.mark.parametrize("line_end", ["\r", "\r\n", "\n"])
def test_blank_line_ends_a_document_for_every_line_end(tmp_path: Path, line_end: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(line_end.join(["One.", "Two.", "", "Three.", " ", "Four.", ""]).encode())
    texts, _ = read_with_counts(path, ReadSettings())
    assert texts == ["One.\nTwo.", "Three.", "Four."]
