import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.errors import InputError
from albert_cli.text.corpus import read_documents
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.sources import resolve_sources
from albert_cli.text.work_units import split_sources


def texts(*sources: object, **options: object) -> list[str]:
    return [d.text for d in read_documents([str(s) for s in sources], ReadSettings(**options))]  # type: ignore[arg-type]


def test_blank_lines_end_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\n \t\nThree\xe2\x80\xa8still three.\rFour.")
    assert texts(path) == ["One.\nTwo.", "Three\u2028still three.\nFour."]


def test_folders_and_globs_are_sorted_and_named_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.jsonl", "sub/ignored.md", ".hidden/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "c"}\n' if name.endswith("jsonl") else name)
    assert texts(tmp_path) == ["a.txt", "b.txt", "c"]
    assert texts(f"{tmp_path}/*.txt", tmp_path / "a.txt") == ["a.txt", "b.txt"]
    found = [source.name for source in resolve_sources(["docs:", f"{tmp_path}/**/*.jsonl"])]
    assert found == ["docs:", str(tmp_path / "sub" / "c.jsonl")]


@pytest.mark.parametrize("bad", [b"caf\xe9 ab", b"a\0b", b"\xc0\xafab", b"\xed\xa0\x80ab"])  # NUL, overlong, surrogate
def test_bad_bytes_are_refused_with_their_place_or_replaced(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(bad)
    with pytest.raises(InputError, match=r"bad.txt:1: "):
        texts(path)
    (text,) = texts(path, on_bad_bytes="replace")
    assert text.endswith("ab")
    text.encode()


def test_bad_characters_out_of_json_escapes(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "ok"}\n{"text": "x\\ud800y\\u0000z"}\n')
    with pytest.raises(InputError, match=r"bad.jsonl:2: "):
        texts(path)
    assert texts(path, on_bad_bytes="replace") == ["ok", "x\ufffdyz"]


def test_another_text_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n')
    assert texts(path, text_field="body") == ["x"]


@pytest.mark.parametrize("source", ["absent.txt", "*.nothing", "docs:other", "hf:", "hf:a:b:c:d"])
def test_a_source_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        texts(source)
    assert refused.value.message.startswith(source)


def test_empty_files_and_blank_documents_give_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("\n \n" * 100_000)
    (tmp_path / "c.jsonl").write_text('{"text": " "}\n\n')
    assert texts(tmp_path) == []


def test_an_endless_line_comes_in_parts_within_little_memory(tmp_path: Path) -> None:
    words, solid = tmp_path / "words.txt", tmp_path / "solid.txt"
    words.write_text("word " * 3_000_000)
    solid.write_text("é" * 4_000_000)
    tracemalloc.start()
    parts = [d.text.count("word") for d in read_documents([str(words)])]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(parts) == 3_000_000
    assert peak < 40e6  # the file has 15 MB; a document, its lines and the decoded text are held
    assert "".join(texts(solid)).replace("\n", "") == "é" * 4_000_000


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"), min_size=1)))
def test_text_files_keep_every_line(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes("\n".join(lines).encode())
    read = [line for text in texts(path) for line in text.split("\n")]
    assert read == [line for line in lines if line.strip()]


def test_a_description_changes_with_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    (first,) = split_sources([str(path)])
    before = first.sha256()
    path.write_text("two")
    (second,) = split_sources([str(path)])
    assert first.sources == second.sources
    assert first.size == second.size == 3
    assert before != second.sha256()


def test_rows_of_the_hub_are_joined_to_documents(tmp_path: Path) -> None:
    """Books of a sentence a row: documents of one sentence have no order to learn."""
    books = [("a", "One."), ("a", "Two."), ("a", None), ("b", "Three."), ("b", "Four."), ("a", "Five.")]
    rows = "".join(json.dumps({"text": text, "book": book}) + "\n" for book, text in books)
    (tmp_path / "train.jsonl").write_text(rows)
    found = [
        texts(f"hf:{tmp_path}{options}") for options in ("", "?rows=2", "?rows=99", "?document=book", "::train?rows=2")
    ]
    assert found == [
        ["One.", "Two.", "Three.", "Four.", "Five."],
        ["One.\nTwo.", "Three.", "Four.\nFive."],
        ["One.\nTwo.\nThree.\nFour.\nFive."],
        ["One.\nTwo.", "Three.\nFour.", "Five."],
        ["One.\nTwo.", "Three.", "Four.\nFive."],
    ]
    # A local folder goes the same way through `datasets` as a name; a name without a network is one line.
    for source, reason in (
        (f"hf:{tmp_path}?document=author", r"no field 'author' .*book"),
        ("hf:nobody/nothing", "nobody/nothing: cannot be read from the Hub"),
        (f"hf:{tmp_path}::test", "::test: cannot be read from the Hub"),
    ):
        with pytest.raises(InputError, match=reason) as refused:
            list(read_documents([source]))
        assert "\n" not in refused.value.message


@pytest.mark.parametrize("options", ["?rows=0", "?rows=x", "?row=2", "?rows=2&document=book", ":a:b:c"])
def test_what_no_data_set_is_called_is_refused(options: str) -> None:
    with pytest.raises(InputError, match=r"not of the form hf:NAME"):
        list(read_documents([f"hf:books{options}"]))
