r"""A lone surrogate, which only a JSON escape such as `\ud800` produces, becomes U+FFFD in the data of every task.

No output file can contain a lone surrogate, and `tokenizers` does not accept it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from albert_cli.tasks.race import RACE
from albert_cli.tasks.squad.data import read_squad_file
from albert_cli.tasks.table import open_table
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.token_data import read_token_file

BAD = "Bo \ud800"
PASSAGE = {"id": "m\ud800", "article": BAD, "questions": [BAD], "options": [[BAD, "b", "c", "d"]], "answers": ["A"]}
ANSWERS = [{"text": BAD, "answer_start": 0}]
QUESTION = {"id": BAD, "question": BAD, "answers": ANSWERS}
FLAT_QUESTION = {**QUESTION, "context": BAD, "title": BAD, "answers": {"text": [BAD], "answer_start": [0]}}


def read_race(path: Path) -> object:
    passage = path / "dev" / "high" / "1.txt"
    passage.parent.mkdir(parents=True)
    passage.write_text(json.dumps(PASSAGE))
    return RACE["race_high"].read("dev", str(path))


def read_squad_document(path: Path) -> object:
    article = {"title": BAD, "paragraphs": [{"context": BAD, "qas": [QUESTION]}]}
    path.write_text(json.dumps({"data": [article]}))
    return read_squad_file(path)


def read_squad_lines(path: Path) -> object:
    path = path.with_suffix(".jsonl")
    path.write_text(json.dumps(FLAT_QUESTION))
    return read_squad_file(path)


def read_tokens(path: Path) -> object:
    path = path.with_suffix(".jsonl")
    path.write_text(json.dumps({"tokens": ["Ada", BAD], "tags": ["O", "B-x\ud800"]}))
    return read_token_file(path)


def read_multi_label_cells(path: Path) -> object:
    path = path.with_suffix(".csv")
    cells = [json.dumps(names).replace('"', '""') for names in ([BAD, "x"], ["x"])]
    path.write_text("text,label\n" + "".join(f'a,"{cell}"\n' for cell in cells))
    task = open_table(TableSettings(train=str(path), dev=str(path), kind="multi-label"))
    return [*task.labels, *task.read("train")]


def read_options(path: Path) -> object:
    path = path.with_suffix(".csv")
    cell = json.dumps([BAD, "y"]).replace('"', '""')
    path.write_text(f'context,question,choices,label\na,b,"{cell}",0\na,b,"{cell}",1\n')
    return open_table(TableSettings(train=str(path), dev=str(path))).read("train")


@pytest.mark.parametrize(
    "read", [read_race, read_squad_document, read_squad_lines, read_tokens, read_multi_label_cells, read_options]
)
def test_lone_surrogate_becomes_a_replacement_character(read: Callable[[Path], object], tmp_path: Path) -> None:
    texts = ascii(read(tmp_path / "data"))
    assert r"Bo \ufffd" in texts and r"\ud8" not in texts
