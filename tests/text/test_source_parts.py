from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli.errors import InputError
from albert_cli.text import lines, source_parts
from albert_cli.text.corpus import read_documents, read_part
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart, file_signature, next_record_start
from albert_cli.text.sources import TextSource
from tests.helpers.text_files import COMPRESS_BY_ENDING, iter_parts, read_texts
from tests.helpers.unprivileged import print_as_nobody


def test_zstd_file_with_a_long_window_is_not_damaged(tmp_path: Path) -> None:
    window_2_to_28 = bytes([(28 - 10) << 3])  # as RFC 8878 encodes it
    last_block = (5 << 3 | 1).to_bytes(3, "little") + b"One.\n"
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\0" + window_2_to_28 + last_block)
    with pytest.raises(InputError, match="window of the zstd file is too large") as raised:
        read_texts(path)
    assert f"zstd -dc --long=31 {path} |" in str(raised.value.hint)


def test_closed_stdin_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python does after `<&-`
    with pytest.raises(InputError, match="-: standard input is closed"):
        source_parts.open_source(TextSource("-", "text"))


def test_non_blocking_stdin_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb"):
        monkeypatch.setattr(sys, "stdin", stdin)
        part = SourcePart(TextSource("-", "text"))
        with (
            pytest.raises(InputError, match="-: standard input is non-blocking"),
            source_parts.open_part(part, ReadCounter()) as stream,
        ):
            stream.read()


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_members_are_read_truncated_rejected(tmp_path: Path, compression: str) -> None:
    compress = COMPRESS_BY_ENDING[compression]
    whole = tmp_path / f"whole.txt{compression}"
    truncated = tmp_path / f"truncated.txt{compression}"
    whole.write_bytes(compress(b"One.\n\n") + compress(b"Two.\n"))
    assert read_texts(whole) == ["One.", "Two."]
    for content in (compress(os.urandom(5000).hex().encode())[:1000], b""):
        truncated.write_bytes(content)
        with pytest.raises(InputError, match="damaged or truncated compressed file"):
            read_texts(truncated)


PARAGRAPHS = st.lists(st.lists(st.sampled_from(["One.", "A longer line here.", "é", "x" * 40]), min_size=1, max_size=4))


@settings(deadline=None)  # files on a disk that may be busy
@given(documents=PARAGRAPHS, blank=st.sampled_from(["\n\n", "\n \n", "\r\n\r\n", "\n\n\n\n"]), size=st.integers(1, 90))
def test_parts_of_text_contain_each_document_once(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]], blank: str, size: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    path.write_bytes(blank.join("\n".join(lines) for lines in documents).encode())
    texts = [d.text for part in iter_parts(path, "text", size) for d in read_part(part, ReadSettings(), ReadCounter())]
    assert texts == read_texts(path) == ["\n".join(lines) for lines in documents]


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 60)), size=st.integers(1, 90))
def test_parts_of_records_contain_each_record_once(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in lengths))
    counters = []
    documents = []
    for part in iter_parts(path, "jsonl", size):
        counters.append(ReadCounter())
        documents += [len(d.text) for d in read_part(part, ReadSettings(), counters[-1])]
    assert documents == lengths
    assert sum(counter.size for counter in counters) == path.stat().st_size


def test_parts_without_blank_lines_split_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("albert_cli.text.source_parts._BLANK_LINE_SEARCH_BYTES", 1000)
    path = tmp_path / "a.txt"
    path.write_text("A line of text.\n" * 1000)
    parts = list(iter_parts(path, "text", 4000))
    assert [next_record_start(part, part.start) for part in parts] == [0, 4000, 8000, 12000]
    documents = [d.text for part in parts for d in read_part(part, ReadSettings(), ReadCounter())]
    assert "\n".join(documents) + "\n" == path.read_text()


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_line_over_many_parts_is_scanned_a_few_times(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.{kind}"
    size = 1000
    first, middle, last = (json.dumps({"text": text}) for text in ("One.", "x" * 100_000, "Two."))
    path.write_text(f"{first}\n\n{middle}\n\n{last}\n")
    skipped_bytes = [0]
    skip_line = source_parts.skip_line

    def count_skipped(stream: Any) -> tuple[int, int]:
        size, quotes = skip_line(stream)
        skipped_bytes.append(size)
        return size, quotes

    monkeypatch.setattr(source_parts, "skip_line", count_skipped)
    monkeypatch.setattr(lines, "skip_line", count_skipped)
    source = TextSource(str(path), kind)
    read_settings = ReadSettings(max_line=1024, on_long_line="skip")
    starts = range(0, path.stat().st_size, size)
    counter = ReadCounter()
    parts = [SourcePart(source, s, s + size if s < starts[-1] else None, file_signature(path)) for s in starts]
    read = [document.text for part in parts for document in read_part(part, read_settings, counter)]
    assert read == (["One.", "Two."] if kind == "jsonl" else [first, last])
    assert counter.counts.too_long == 1
    assert counter.size == path.stat().st_size
    assert sum(skipped_bytes) < 3 * path.stat().st_size


@pytest.mark.parametrize("how", ["grows", "is rewritten", "is replaced", "vanishes"])
def test_file_changed_during_reading_is_rejected(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One.\n\nTwo.\n\nThree.\n")
    documents = read_documents([str(path)])
    assert next(documents).text == "One."
    if how == "grows":
        with path.open("a") as stream:
            stream.write("\nFour.\n")
    elif how == "is rewritten":
        os.utime(path, ns=(1, 1))
    elif how == "is replaced":
        (tmp_path / "b.txt").write_text(path.read_text())
        (tmp_path / "b.txt").replace(path)
    else:
        path.unlink()
    with pytest.raises(InputError, match=r"a\.txt: (changed|vanished) while it was read"):
        list(documents)


def test_file_changed_since_planning_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One.\n")
    part = SourcePart(TextSource(str(path), "text"), signature=file_signature(path))
    path.write_text("One, and more.\n")
    with pytest.raises(InputError, match="changed while it was read"):
        list(read_part(part, ReadSettings(), ReadCounter()))


def test_file_without_permission_is_rejected(tmp_path: Path) -> None:
    """Read in a process that does not run as root, which may read everything."""
    path = tmp_path / "a.txt"
    path.write_text("x")
    path.chmod(0)
    imports = """
import sys
from pathlib import Path
from albert_cli.errors import InputError
from albert_cli.text.corpus import read_part
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart, file_signature
from albert_cli.text.sources import TextSource

part = SourcePart(TextSource(sys.argv[1], "text"), signature=file_signature(Path(sys.argv[1])))
"""
    code = """
try:
    list(read_part(part, ReadSettings(), ReadCounter()))
except InputError as error:
    print(error.message)
"""
    assert "a.txt: cannot be read (Permission denied)" in print_as_nobody(imports, code, path)
