"""The layouts of JSON lines with entities, the names of files, and the division of a text into words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.errors import InputError
from albert_cli.tasks.token_data import (
    describe_file,
    find_token_files,
    parse_token_object,
    read_token_file,
    split_words,
)

TEXT = "Ada met Bo."


def write(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in objects))
    return path


def test_read_token_file_rejected_texts_are_left_out(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 3, "token_start": 0, "token_end": 0, "label": "PER"}]
    tokens = [{"text": "Ada", "start": 0, "end": 3, "id": 0, "ws": True}]
    rows: list[dict[str, object]] = [{"text": TEXT, "tokens": tokens, "spans": spans}]
    rows += [{**rows[0], "answer": answer} for answer in ("accept", "reject", "ignore")]
    path = write(tmp_path / "a.jsonl", *rows)
    examples = read_token_file(path)
    assert [(example.id, example.tags) for example in examples] == [(name, ("B-PER", "O", "O", "O")) for name in "12"]
    (note,) = describe_file(path)
    assert "2 rows" in note and "left out" in note
    assert len(read_token_file(path, labeled=False)) == 4
    assert describe_file(write(tmp_path / "b.jsonl", *rows[:2])) == []


def test_parse_token_object_prefers_the_text_to_token_objects() -> None:
    values: dict[str, object] = {"text": TEXT, "tokens": [{"text": "Ada", "start": 0, "end": 3, "id": 0}]}
    assert parse_token_object(values, "0", "a:1", labeled=False).text == TEXT
    del values["text"]
    with pytest.raises(InputError, match="tokens and tags are not lists of texts"):
        parse_token_object(values, "0", "a:1", labeled=False)


@pytest.mark.parametrize(
    "spans",
    [
        {"entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}], "relations": []},  # doccano
        {"label": [{"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}], "annotator": 1},  # Label Studio
    ],
)
def test_read_token_file_reads_exported_spans(tmp_path: Path, spans: dict[str, object]) -> None:
    (example,) = read_token_file(write(tmp_path / "a.jsonl", {"text": TEXT, **spans}))
    assert example.tags == ("B-PER", "O", "O", "O")


def test_read_token_file_tags_that_are_numbers_are_explained(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"tokens": ["EU", "met"], "ner_tags": [3, 0]})
    with pytest.raises(InputError, match=r"a\.jsonl:1: the tags are numbers") as error:
        read_token_file(path)
    assert "int2str" in str(error.value.hint)


def test_split_words_keeps_marks_in_their_words() -> None:
    text = "Cafe\u0301 \u0926\u093f\u0932\u094d\u0932\u0940, ok"
    assert [text[start:end] for start, end in split_words(text)] == [*text.replace(",", " ,").split()]


def test_find_token_files_other_names_are_listed_with_a_remedy(tmp_path: Path) -> None:
    for name in ("train", "eng.testa", "de-ud-test.conllu", "README.md", "train.csv"):
        (tmp_path / name).write_text("Bo B-PER\n")
    with pytest.raises(InputError, match=r"only README\.md, de-ud-test\.conllu, eng\.testa, train, ") as error:
        find_token_files(str(tmp_path))
    renamings = "de-ud-test.conllu to test.conll, eng.testa to dev.conll, train to train.conll"
    assert error.value.hint == f"rename {renamings}"


def test_find_token_files_without_a_split_suggest_a_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no train file") as error:
        find_token_files(str(tmp_path))
    assert "add train.conll" in str(error.value.hint)
