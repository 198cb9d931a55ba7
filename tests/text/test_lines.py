from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.errors import InputError
from albert_cli.text.corpus import read_part
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import TextSource
from tests.helpers.memory import memory_below
from tests.helpers.text_files import iter_parts, read_texts


@pytest.mark.parametrize("bad", [b"caf\xe9 ab", b"a\0b", b"\xc0\xafab", b"\xed\xa0\x80ab"])  # NUL, overlong, surrogate
def test_bad_bytes_are_rejected_with_line_or_replaced(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(bad)
    with pytest.raises(InputError, match=r"bad.txt:1: "):
        read_texts(path)
    (text,) = read_texts(path, on_bad_bytes="replace")
    assert text.endswith("ab")
    text.encode()


def long_lines(path: Path) -> list[str]:
    lines = [b"Short.\n", b"x" * 5000 + b"\n", b"Next.\r\n", b"y" * 4096 + b"\r\n", b"z" * 4097]
    path.write_bytes(b"\n".join(lines))
    return ["Short.", "Next.", "y" * 4096]


def test_long_line_is_rejected_with_number_or_skipped(tmp_path: Path) -> None:
    expected = long_lines(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"a\.txt:3: longer than 0\.00390625 MiB") as raised:
        read_texts(tmp_path / "a.txt", max_line=4096)
    assert "--on-long-line skip" in str(raised.value.hint)
    assert read_texts(tmp_path / "a.txt", max_line=4096, on_long_line="skip") == expected
    counter = ReadCounter()
    part = SourcePart(TextSource(str(tmp_path / "a.txt"), "text"))
    assert len(list(read_part(part, ReadSettings(max_line=4096, on_long_line="skip"), counter))) == 3
    assert (counter.counts.too_long, counter.size) == (2, (tmp_path / "a.txt").stat().st_size)


def test_long_line_end_counts_as_part_of_a_long_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 4096 + b"\r\r\n" + b"caf\xe9")
    with pytest.raises(InputError, match=r"a\.txt:2: invalid UTF-8"):
        read_texts(path, max_line=4096, on_long_line="skip")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b""])
def test_byte_order_mark_is_not_part_of_the_line_length(tmp_path: Path, line_end: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"x" * 4096 + line_end)
    assert read_texts(path, max_line=4096) == ["x" * 4096]
    path.write_bytes(b"\xef\xbb\xbf" + b"x" * 4097 + line_end)
    with pytest.raises(InputError, match=r"a\.txt:1: longer than"):
        read_texts(path, max_line=4096)


def test_skipped_long_line_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as stream:
        for _ in range(60):
            stream.write(b"word " * 200_000)
        stream.write(b"\n\nThe end.\n")
    with memory_below(8e6):  # the file has 60 MB
        assert read_texts(path, max_line=1 << 20, on_long_line="skip") == ["The end."]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("수정가능: 예\n오늘 영화는 정말 좋았고 배우들의 연기도 훌륭했습니다.\n", "CP949"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.\n", "WINDOWS-1251"),
        ("人民银行今天宣布下调利率,市场反应积极。\n", "GB18030"),
    ],
)
def test_error_names_the_encoding_of_a_legacy_text(text: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"An ASCII line.\n" + (text * 20).encode(encoding))
    with pytest.raises(InputError, match=r"a\.txt:2: invalid UTF-8 at byte 15") as caught:
        read_texts(path)
    assert f"iconv -f {encoding} -t UTF-8" in str(caught.value.hint)


def test_iso_2022_jp_is_rejected_unless_bytes_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"An ASCII line.\n" + "これは日本語です。\n".encode("iso2022_jp"))
    with pytest.raises(InputError, match=r"a\.txt:2: is ISO-2022-JP") as raised:
        read_texts(path)
    assert "iconv -f ISO-2022-JP" in str(raised.value.hint)
    assert read_texts(path, on_bad_bytes="replace")
    path.write_bytes(b"A \x1b[1mbold\x1b[0m word.\n")  # escapes of a terminal
    assert read_texts(path)


def test_error_in_later_part_names_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"One.\n\n" * 500 + b"caf\xe9\n\n" + b"Two.\n\n" * 500)
    with pytest.raises(InputError, match=r"a\.txt:1001: invalid UTF-8 at byte 3003"):
        for part in iter_parts(path, "text", 1000):
            list(read_part(part, ReadSettings(), ReadCounter()))
