"""The layouts of JSON lines with entities, the names of files, and the division of a text into words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from albert_cli.errors import InputError
from albert_cli.tasks.token_data import (
    TokenExample,
    describe_file,
    example_from_tokens,
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
    with pytest.raises(InputError, match=r"c\.jsonl: every row has the answer reject or ignore"):
        read_token_file(write(tmp_path / "c.jsonl", *rows[2:]))
    assert describe_file(write(tmp_path / "b.jsonl", *rows[:2])) == []


def test_read_token_file_absent_spans_are_no_entities(tmp_path: Path) -> None:
    span = {"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}
    rows: list[dict[str, object]] = [{"text": TEXT, "label": [span]}, {"text": TEXT}]
    path = write(tmp_path / "a.jsonl", *rows)  # Label Studio leaves out the key of a text without entities
    for objects in (rows, rows[::-1]):
        write(path, *objects)
        tags = [example.tags for example in read_token_file(path)]
        assert sorted(map(str, tags)) == sorted(map(str, [("B-PER", "O", "O", "O"), ("O",) * 4]))
        (note,) = describe_file(path)
        assert "1 text without" in note
    write(path, *rows, {"text": TEXT, "answer": "reject"})
    assert "1 text without" in describe_file(path)[1]
    assert describe_file(path, labeled=False) == describe_file(path)[:1]
    write(path, *rows, {"text": TEXT, "label": None})
    with pytest.raises(InputError, match=r"a\.jsonl:3: no list of entities"):
        read_token_file(path)
    with pytest.raises(InputError, match=r"a\.jsonl:1: no list of entities"):
        read_token_file(write(path, *rows[1:], {"tokens": ["Ada"], "labels": ["B-PER"]}))


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


def test_read_token_file_offsets_must_fit_the_spans_text(tmp_path: Path) -> None:
    text = "😀😀😀 Ada\nLi met Bo."

    def read(start: int, end: int) -> list[TokenExample]:
        span = {"start": start, "end": end, "text": "Ada\\nLi", "labels": ["PER"]}  # Label Studio escapes the line end
        return read_token_file(write(tmp_path / "a.jsonl", {"text": text, "label": [span]}))

    assert read(4, 10)[0].tags == ("O", "O", "O", "B-PER", "I-PER", "O", "O", "O")
    with pytest.raises(InputError, match="characters 7 to 13 are") as raised:
        read(7, 13)  # in UTF-16 units
    assert "UTF-16" in str(raised.value.hint)


def test_read_token_file_tags_that_are_numbers_are_explained(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"tokens": ["EU", "met"], "ner_tags": [3, 0]})
    with pytest.raises(InputError, match=r"a\.jsonl:1: the tags are numbers") as error:
        read_token_file(path)
    assert "int2str" in str(error.value.hint)


def test_split_words_keeps_marks_in_their_words() -> None:
    text = "Cafe\u0301 \u0926\u093f\u0932\u094d\u0932\u0940, ok"
    assert [text[start:end] for start, end in split_words(text)] == [*text.replace(",", " ,").split()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ソニーは大阪、", "ソ ニ ー は 大 阪 、"),
        ("iPhone15を買う", "iPhone15 を 買 う"),
        ("か\u3099", "か\u3099"),
        ("น้ำ", "น้ ำ"),
        ("김철수는 Pro를", "김 철 수 는 Pro 를"),
        ("\u1100\u1175\u11b7\u110e\u1165\u11af", "\u1100\u1175\u11b7 \u110e\u1165\u11af"),  # Hangul in NFD
        ("يعمل محمد، في بيروت.", "يعمل محمد ، في بيروت ."),
        ("Änne reist nach Köln.", "Änne reist nach Köln ."),
    ],
)
def test_split_words_in_every_script(text: str, words: str) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words.split(" ")


@pytest.mark.parametrize(
    ("text", "entity"),
    [
        ("田中太郎は東京で働く。", "東京"),
        ("김철수는 서울에서 일한다.", "서울"),
        ("يعمل محمد في بيروت.", "بيروت"),
        ("Die Berlinreise", "Berlin"),
    ],
)
def test_parse_token_object_labels_do_not_move_words(text: str, entity: str) -> None:
    start = text.index(entity)
    values: dict[str, object] = {"text": text, "entities": [[start, start + len(entity), "LOC"]]}
    labeled = parse_token_object(values, "0", "a:1", labeled=True)
    assert labeled.words == parse_token_object({"text": text}, "0", "a:1", labeled=False).words
    assert labeled.tags is not None and labeled.tags.count("B-LOC") == 1


def test_read_token_file_entity_covers_its_words(tmp_path: Path) -> None:
    spans = [[0, 3, "X"], [3, 13, "Y"], [14, 17, "X"], [17, 18, "Y"]]
    path = write(tmp_path / "a.jsonl", {"text": "NewYork-based firm", "entities": spans})
    (example,) = read_token_file(path)
    assert [example.text[start:end] for start, end in example.words] == ["NewYork", "-", "based", "firm"]
    assert example.tags == ("B-X", "B-Y", "I-Y", "B-X")  # a word with two entities has the first one
    (note,) = describe_file(path)
    assert "4 spans" in note and "whole words" in note
    assert describe_file(path, labeled=False) == []


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["ソ", "ニ", "ー", "の"], "ソニーの"),
        (["田中", "さん", "は", "iPhone", "を"], "田中さんは iPhone を"),
        (["我", "，", "在", "2", "0", "年"], "我，在20年"),
        (["서", "울"], "서 울"),
        (["서", "울", " ", "시"], "서울 시"),
        (["New", "York", "."], "New York ."),
    ],
)
def test_example_from_tokens_joins_unspaced_scripts(tokens: list[str], text: str) -> None:
    example = example_from_tokens(tokens, None, "0", "a:1", has_blanks=" " in tokens)
    assert example.text == text
    assert [text[start:end] for start, end in example.words] == [token for token in tokens if token != " "]


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
    assert "add train.conll" in str(error.value.hint) and "to_json" in str(error.value.hint)


@pytest.mark.parametrize("name", ["train.parquet", "ner.csv", "ner.csv.gz", "NER.XLSX"])
def test_find_token_files_table_of_another_format_is_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=rf"{name}: not a file of tagged words \(\.jsonl, .*\.conll, ") as error:
        find_token_files(str(path))
    assert 'to_json(…, orient="records", lines=True)' in str(error.value.hint)


@pytest.mark.parametrize("name", ["eng.train", "words.iob2", "ner.conll.gz"])
def test_find_token_files_file_of_an_unknown_ending_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as stream:
        stream.write(b"Ada B-PER\n")
    assert find_token_files(str(path)) == {"train": str(path)}
    assert read_token_file(path)[0].tags == ("B-PER",)


def test_read_token_file_reads_compressed_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl.gz"
    row = {"text": TEXT, "entities": [[0, 3, "PER"]]}
    path.write_bytes(
        gzip.compress("".join(json.dumps({**row, "answer": x}) + "\n" for x in ("accept", "reject")).encode())
    )
    assert find_token_files(str(path)) == {"train": str(path)}
    assert [example.tags for example in read_token_file(path)] == [("B-PER", "O", "O", "O")]
    assert "1 row" in describe_file(path)[0]
