"""Delimited files as people have them: training and prediction read the same cells."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from albert_cli.errors import InputError
from albert_cli.inference.inputs import InputReader
from albert_cli.tasks.data_files import read_table
from albert_cli.tasks.registry import TASKS
from albert_cli.tasks.table_layout import TableLayout
from albert_cli.tasks.table_settings import TableSettings

Quoting = Literal["auto", "on", "off"]
SINGLE_TEXTS = TASKS["sst2"]


def read_both(path: Path, delimiter: str = "", quoting: Quoting = "auto") -> list[list[str]]:
    """Return the cells that training reads, with the header; prediction must read the same."""
    table = read_table(path, TableSettings(delimiter=delimiter, quoting=quoting))
    layout = TableLayout(delimiter=delimiter, quoting=quoting)
    reader = InputReader(SINGLE_TEXTS, layout)
    rows = [row for chunk in reader.read_chunks(str(path)) for row in chunk]
    assert [list(row.columns.values()) for row in rows] == table.cells
    assert {tuple(row.columns) for row in rows} == {table.columns}
    return [list(table.columns), *table.cells]


@pytest.mark.parametrize(
    ("name", "content", "cells"),
    [
        ("sep.csv", "sep=;\ntext;n\na, b;1\n", [["text", "n"], ["a, b", "1"]]),
        ("sep-quoted.csv", '\ufeff"sep=\t"\r\ntext\tn\r\na, b\t1\r\n', [["text", "n"], ["a, b", "1"]]),
        ("semicolon.csv", "text;n\na, b;1\n", [["text", "n"], ["a, b", "1"]]),
        ("comma.tsv", "text,n\na b,1\n", [["text", "n"], ["a b", "1"]]),
        ("excel.csv", "text,n,,\na,1,,\nb,2, ,\n", [["text", "n"], ["a", "1"], ["b", "2"]]),
        ("index.csv", ",text\n0,a\n1,b\n", [["", "text"], ["0", "a"], ["1", "b"]]),
        ("blank.tsv", "text\tn\na\t1\n\nb\t2\n\n", [["text", "n"], ["a", "1"], ["b", "2"]]),
        ("blank.csv", "text,n\na,1\n\nb,2\n\n", [["text", "n"], ["a", "1"], ["b", "2"]]),
        ("one.tsv", "text\na\n\nb\n", [["text"], ["a"], [""], ["b"]]),
        ("lines.csv", 'text,n\n"two\nlines",1\n', [["text", "n"], ["two\nlines", "1"]]),
        ("pandas.tsv", 'text\tn\n"a ""b"""\t1\nc\t2\n', [["text", "n"], ['a "b"', "1"], ["c", "2"]]),
        ("pandas-lines.tsv", 'text\tn\n"two\nlines"\t1\n', [["text", "n"], ["two\nlines", "1"]]),
        ("r.tsv", '"text"\t"n"\n"a"\t1\n', [["text", "n"], ["a", "1"]]),
        ("glue.tsv", 'text\tn\n"a" b\t1\n"c"\t2\n', [["text", "n"], ['"a" b', "1"], ['"c"', "2"]]),
        ("r-lines.tsv", '"text"\n"two\nlines"\n', [["text"], ["two\nlines"]]),
        ("tab.tsv", 'text\tn\n"a\tb"\t1\nc\t2\n', [["text", "n"], ["a\tb", "1"], ["c", "2"]]),
        ("two.tsv", 'text\tn\n"a b.\t1\nc d."\t2\n', [["text", "n"], ['"a b.', "1"], ['c d."', "2"]]),
        ("two-blank.tsv", 'text\tn\n"a b.\t1\n\nc d."\t2\n', [["text", "n"], ['"a b.', "1"], ['c d."', "2"]]),
        ("inside.tsv", 'text\tn\na "b" c\t1\n"d"\t2\n', [["text", "n"], ['a "b" c', "1"], ['"d"', "2"]]),
        ("glue-open.tsv", 'text\tn\n"a b\t1\nc "d\t2\n', [["text", "n"], ['"a b', "1"], ['c "d', "2"]]),
    ],
)
def test_table_is_read_alike_in_training_and_prediction(
    tmp_path: Path, name: str, content: str, cells: list[list[str]]
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert read_both(tmp_path / name) == cells


def test_table_settings_of_training_apply_to_prediction(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text|n\na, b|1\n")
    assert read_both(tmp_path / "a.csv", delimiter="|") == [["text", "n"], ["a, b", "1"]]
    (tmp_path / "b.csv").write_text('text|n\n"a"|1\n')
    assert read_both(tmp_path / "b.csv", delimiter="|", quoting="off") == [["text", "n"], ['"a"', "1"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,n\na,b,1\n", ":2: 3 fields instead of 2"),
        ("a.csv", "text,n,\na,b,1\n", ":2: 3 fields instead of 2"),
        ("a.csv", "text,n\na\n", ":2: 1 field instead of 2"),
        ("a.csv", "text,text\na,b\n", ":1: the column 'text' occurs twice"),
        ("a.csv", "", ": empty, without a header"),
        ("a.csv", 'text,n\n"a,1\n', ":2: unexpected end of data"),
        ("a.csv", "PK\x03\x04", ": an Excel or LibreOffice workbook"),
        ("a.csv", "\x1f\x8b\x08", ""),
        ("a.tsv", "text\tlabel\ra b\tx\rc d\ty\r", ":1: a carriage return outside quotes"),
        ("a.tsv", "text\ra b\rc d\r", ":1: a carriage return outside quotes"),
    ],
)
def test_bad_table_is_rejected_alike(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as in_training:
        read_table(path, TableSettings())
    with pytest.raises(InputError) as in_prediction:
        list(InputReader(SINGLE_TEXTS).read_chunks(str(path)))
    assert in_training.value.message == in_prediction.value.message
    assert in_training.value.message.startswith(f"{path}{message}") and in_prediction.value.hint


def test_row_with_an_open_quote_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("albert_cli.tasks.delimited._MAX_ROW_BYTES", 1000)
    path = tmp_path / "a.csv"
    path.write_text('text,n\na,1\n"b,1\n' + "c,1\n" * 1000)
    with pytest.raises(InputError, match=r"a\.csv:3: the row is longer than"):
        list(InputReader(SINGLE_TEXTS).read_chunks(str(path)))
