from __future__ import annotations

import bz2
import gzip
import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from albert_cli.errors import ConfigError, InputError
from albert_cli.text.corpus import read_part
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import resolve_sources
from albert_cli.text.work_units import split_sources
from tests.helpers.memory import memory_below
from tests.helpers.text_files import read_texts

ARTICLE = '<doc id="1" url="https://example.org/?curid=1" title="One">\nOne\n\nFirst. Second.\n\nThird.\n</doc> \n'
RECORDS = [{"id": 1, "text": "One."}, {"id": 2, "text": None}, {"id": 3, "text": ["Two.", "Three."]}]


@pytest.mark.parametrize("name", ["AA/wiki_00", "AA/wiki_01.bz2"])
@pytest.mark.parametrize("kind", ["doc", "json"])
def test_wikiextractor_output_is_read_as_it_comes(tmp_path: Path, name: str, kind: str) -> None:
    text = ARTICLE + ARTICLE.replace("One", "Two")
    if kind == "json":
        record = {"text": "One\n\nFirst. Second.\n\nThird."}
        text = json.dumps(record) + "\n" + json.dumps(record).replace("One", "Two") + "\n"
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(bz2.compress(text.encode()) if name.endswith("bz2") else text.encode())
    (tmp_path / "AA" / "other").write_text("not read")
    for source in (path, tmp_path):
        texts = [" ".join(document.split()) for document in read_texts(source)]
        assert texts == ["One First. Second. Third.", "Two First. Second. Third."]


@pytest.mark.parametrize("kind", ["doc", "json"])
def test_wikiextractor_entities_are_characters(tmp_path: Path, kind: str) -> None:
    escaped = "AT&amp;T &lt;i&gt; &amp;lt; &quot;"
    doc = f'<doc id="1" url="" title="One">\n{escaped}\n</doc>\n'
    (tmp_path / "wiki_00").write_text(doc if kind == "doc" else json.dumps({"text": escaped}))
    assert [text.strip() for text in read_texts(tmp_path)] == ["AT&T <i> &lt; &quot;"]


def test_wikiextractor_output_named_txt_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(ARTICLE if name == "a.txt" else "<doc> is a tag.\n")
    read_texts(tmp_path)
    assert capsys.readouterr().err.count("use --format wiki") == 1
    read_texts(tmp_path / "a.txt", format="wiki")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", [ARTICLE[:-8], ARTICLE[:-8] + ARTICLE, "Stray text.\n" + ARTICLE])
def test_wikiextractor_truncated_output_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "wiki_00").write_text(text)
    with pytest.raises(InputError, match=r"wiki_00:1: "):
        read_texts(tmp_path / "wiki_00")


JSON_FILES = {
    "array": json.dumps(RECORDS),
    "indented array": json.dumps(RECORDS, indent=2),
    "lines": "\n".join(map(json.dumps, RECORDS)),
    "lines after a blank one": "\n" + "\n".join(map(json.dumps, RECORDS)),
    "array of texts": json.dumps(["One.", None, "Two.\nThree."]),
}


@pytest.mark.parametrize("content", JSON_FILES.values(), ids=JSON_FILES)
def test_json_file_may_be_an_array_or_lines(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    assert read_texts(path) == ["One.", "Two.\nThree."]
    assert read_texts(tmp_path) == ["One.", "Two.\nThree."]


def test_json_file_with_one_object_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"content": {"text": "One."}}, indent=1))
    assert read_texts(path, text_field="content.text") == ["One."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "record 1 is neither"),
        ('[{"text": "x"}, {"body": "x"}]', "record 2: no text in field 'text'"),
        ('[{"text": "x"}', "not valid JSON"),
        ("3", "record 1 is neither"),
    ],
)
def test_json_file_of_another_shape_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_texts(path)


LONG = "x" * 2000
LONG_RECORD_FILES = {
    "array on one line": ("a.json", json.dumps([{"text": "One."}, {"text": LONG}, {"text": "Two."}])),
    "indented array": ("a.json", json.dumps([{"text": "One."}, {"text": LONG}, {"text": "Two."}], indent=1)),
    "lines": ("a.json", f'{{"text": "One."}}\n{{"text": "{LONG}"}}\n{{"text": "Two."}}\n'),
    "long first line": ("a.json", f'{{"text": "{LONG}"}}\n{{"text": "One."}}\n{{"text": "Two."}}\n'),
    "text in UTF-8": ("a.json", json.dumps(["One.", "é" * 600, "Two."])),
    "article": ("wiki_00", f"<doc id='1'>\nOne.\n</doc>\n<doc>\nA\n{LONG}\nB\n</doc>\n<doc>\nTwo.\n</doc>\n"),
    "end of an article": ("wiki_00", f"<doc>\nOne.\n</doc>\n<doc>\nA\n{LONG}</doc>\n<doc>\nTwo.\n</doc>\n"),
    "article as JSON": ("wiki_00", f'{{"text": "One."}}\n{{"text": "{LONG}"}}\n{{"text": "Two."}}\n'),
}


@pytest.mark.parametrize(("name", "content"), LONG_RECORD_FILES.values(), ids=LONG_RECORD_FILES)
def test_long_record_is_rejected_or_skipped_whole(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match="longer than"):
        read_texts(path, max_line=1024)
    counter = ReadCounter()
    settings = ReadSettings(max_line=1024, on_long_line="skip")
    (source,) = resolve_sources([str(path)])
    assert [document.text.strip() for document in read_part(SourcePart(source), settings, counter)] == ["One.", "Two."]
    assert counter.counts.too_long == 1


BOMBS = {  # name, first bytes, repeated bytes, message
    "array on one line": ("a.json.gz", b'["', b"a", "expands to more than 1 MiB"),
    "indented array": ("a.json.gz", b"[\n", b'"' + b"a" * 1000 + b'",\n', "expands to more than 1 MiB"),
    "JSON line": ("a.json.gz", b'{"text": "', b"a", "expands to more than 1 MiB"),
    "article": ("wiki_00.gz", b"<doc>\n", b"a" * 1000 + b"\n", "a <doc> without"),
    "line of an article": ("wiki_00.gz", b"<doc>\n", b"a", "expands to more than 1 MiB"),
}


@pytest.mark.parametrize(("name", "start", "repeated", "message"), BOMBS.values(), ids=BOMBS)
def test_compressed_bomb_takes_limited_memory(
    tmp_path: Path, name: str, start: bytes, repeated: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(start + repeated * (24_000_000 // len(repeated))))
    with memory_below(20e6), pytest.raises(InputError, match=message):
        read_texts(path, max_line=1 << 16)


def test_compressed_blank_lines_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"\n" * 100_000 + b'["One."]'))
    with memory_below(8e6):
        assert read_texts(path, max_line=1 << 16) == ["One."]


def test_json_error_after_blank_lines_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("\n\n[1,\n2")
    with pytest.raises(InputError, match=r"a\.json:4: not valid JSON"):
        read_texts(path)


def test_json_record_with_a_nul_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n\n\n"One.",\n{"text": "a\\u0000b"}]')
    with pytest.raises(InputError, match=r"a\.json: record 2: a NUL character"):
        read_texts(path)


@pytest.mark.parametrize("open_writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_file_of_either_format_is_read(tmp_path: Path, open_writer: object) -> None:
    table = pa.table({"id": [1, 2, 3], "text": ["One.", None, "Two."], "meta": [{"t": "A."}, None, {"t": "B."}]})
    path = tmp_path / "data-00000-of-00001.arrow"
    with pa.OSFile(str(path), "wb") as sink, open_writer(sink, table.schema) as writer:  # type: ignore[operator]
        writer.write_table(table)
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text("{}")
    assert read_texts(path) == read_texts(tmp_path) == ["One.", "Two."]
    assert read_texts(path, text_field="meta.t") == ["A.", "B."]
    with pytest.raises(InputError, match=r"arrow: no text in field 'body' \(fields: id, text, meta\)"):
        read_texts(path, text_field="body")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="not a readable Arrow file"):
        read_texts(path)


@pytest.mark.parametrize(
    ("file_format", "content", "expected"),
    [
        ("jsonl", '{"text": "One."}\n', ["One."]),
        ("json", '[{"text": "One."}]', ["One."]),
        ("csv", 'id,text\n1,"One, two."\n', ["One, two."]),
        ("tsv", "id\ttext\n1\tOne.\n", ["One."]),
        ("text", "One.\n\nTwo.\n", ["One.", "Two."]),
        ("wiki", ARTICLE, ["One\n\nFirst. Second.\n\nThird."]),
    ],
)
def test_format_is_chosen_for_files_folders_and_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, content: str, expected: list[str]
) -> None:
    path = tmp_path / "part-00000"
    path.write_text(content)
    with pytest.raises(InputError, match="unknown kind of file"):
        read_texts(path)
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(content.encode())))
    monkeypatch.setattr(sys, "stdin", stream)
    for source in (path, tmp_path, "-"):
        assert [text.strip() for text in read_texts(source, format=file_format)] == expected


BOOK = "A title\n\nThe first line of a\nparagraph that is wrapped.\n\n  The second one,\nalso wrapped.\n"
PARAGRAPHS = ["A title", "The first line of a paragraph that is wrapped.", "The second one, also wrapped."]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_document_rules_and_joined_lines(tmp_path: Path, line_end: str) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(BOOK.replace("\n", line_end).encode())
    joined = "\n".join(PARAGRAPHS)
    lines = [line for line in BOOK.split("\n") if line]
    assert read_texts(tmp_path, join_lines=True) == PARAGRAPHS * 2
    assert read_texts(tmp_path, join_lines=True, document="file") == [joined] * 2
    assert read_texts(tmp_path, document="file") == ["\n".join(lines)] * 2
    assert read_texts(tmp_path, document="line") == lines * 2
    with pytest.raises(ConfigError, match="contradicts"):
        ReadSettings(join_lines=True, document="line")


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_joined_lines_apply_to_the_texts_of_records(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    quoted = BOOK.replace('"', '""')
    path.write_text(json.dumps({"text": BOOK}) if ending == ".jsonl" else f'text\n"{quoted}"\n')
    assert read_texts(path, join_lines=True) == ["\n".join(PARAGRAPHS)]


def test_document_file_is_never_split_into_work_units(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One line.\n\n" * 1000)
    assert len(split_sources([str(path)], ReadSettings(), unit_bytes=2000)) > 3
    assert len(split_sources([str(path)], ReadSettings(document="file"), unit_bytes=2000)) == 1
