"""Labels of multiple-choice tables are read in one way for the whole table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli.config import validate_recipe
from albert_cli.errors import InputError
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.table import open_table
from albert_cli.tasks.table_settings import TableSettings

TEXTS = ["one", "two", "three", "four"]


def read_labels(folder: Path, rows: list[tuple[Any, Any]], **settings: Any) -> list[int | None]:
    """Return the indices that (choices, label) rows are read as."""
    path = folder / "a.jsonl"
    lines = [json.dumps({"question": "q", "choices": choices, "label": label}) for choices, label in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    values = {"train": str(path), "dev": str(path)} | settings
    task = open_table(validate_recipe(TableSettings, values, "recipe"))
    assert isinstance(task, Choice)
    return [example.label for example in task.read("dev")]


def arc(names: list[str]) -> dict[str, list[str]]:
    return {"text": TEXTS, "label": names}


@pytest.mark.parametrize(
    ("rows", "expected", "reading"),
    [
        ([(["7", "3", "5", "2"], "3"), (["9", "7", "8", "0"], "7")], [1, 1], "the texts of the choices"),
        ([(TEXTS, label) for label in (0, 1, 3)], [0, 1, 3], "numbers from 0"),
        ([(TEXTS, label) for label in (1, 2, 4)], [0, 1, 3], "numbers from 1"),
        ([(TEXTS, label) for label in "BAD"], [1, 0, 3], "letters"),
        ([(TEXTS, label) for label in "bad"], [1, 0, 3], "letters"),
        ([(TEXTS, "two"), (TEXTS, "four")], [1, 3], "the texts of the choices"),
        ([(arc(list("1234")), "1"), (arc(list("1234")), "3")], [0, 2], "the names of the choices"),
        ([(arc(list("ABCD")), "B"), (arc(list("DCBA")), "D")], [1, 0], "the names of the choices"),
        ([(arc(["i", "ii", "iii", "iv"]), "iii")], [2], "the names of the choices"),
        ([(["10", "20", "30", "40"], 20), (["1", "2", "3", "4"], 4)], [1, 3], "the texts of the choices"),
    ],
)
def test_decide_label_reading_reads_a_table_in_one_way(
    tmp_path: Path, rows: list[tuple[Any, Any]], expected: list[int], reading: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert read_labels(tmp_path, rows) == expected
    assert f"labels are {reading}" in capfd.readouterr().err


def test_read_choice_rows_hidden_labels_of_test(tmp_path: Path) -> None:
    for split, label in (("train", 1), ("dev", 0), ("test", -1)):
        lines = [json.dumps({"question": "q", "choices": TEXTS, "label": number}) for number in (label, label)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    assert isinstance(task, Choice)
    assert [[example.label for example in task.read(split)] for split in task.splits] == [[1, 1], [0, 0], [None, None]]


def test_read_choice_rows_hidden_labels_with_option_minus_1(tmp_path: Path) -> None:
    rows = [
        {"question": "3 - 4", "choices": ["-1", "1"], "label": -1},
        {"question": "q", "choices": TEXTS, "label": -1},
    ]
    lines = [json.dumps({"question": "q", "choices": TEXTS, "label": number}) for number in (0, 1)]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    task = open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    assert isinstance(task, Choice)
    assert [example.label for example in task.read("test")] == [None, None]


@pytest.mark.parametrize(
    ("rows", "ways"),
    [
        ([(TEXTS, label) for label in (1, 2, 3)], "numbers from 0 or numbers from 1"),
        ([(TEXTS, 1)], "numbers from 0 or numbers from 1"),
        ([(["3", "1", "2", "0"], label) for label in (0, 1, 3)], "numbers from 0 or the texts of the choices"),
        ([(["2", "1"], "1"), (["1", "3"], "1")], "numbers from 0 or numbers from 1 or the texts of the choices"),
        ([(["B", "A", "D", "C"], "A")], "letters or the texts of the choices"),
    ],
)
def test_decide_label_reading_two_readings_are_rejected(tmp_path: Path, rows: list[tuple[Any, Any]], ways: str) -> None:
    with pytest.raises(InputError) as raised:
        read_labels(tmp_path, rows)
    assert f"a.jsonl:1: the labels may be {ways}" in raised.value.message
    assert "table.choice_labels=" in str(raised.value.hint)


def test_choice_labels_setting_decides(tmp_path: Path) -> None:
    rows = [(TEXTS, label) for label in (1, 2, 3)]
    assert read_labels(tmp_path, rows, choice_labels="numbers-from-0") == [1, 2, 3]
    assert read_labels(tmp_path, rows, choice_labels="numbers-from-1") == [0, 1, 2]
    with pytest.raises(InputError, match=r"a\.jsonl:1: label '1' names none of 4 choices"):
        read_labels(tmp_path, rows, choice_labels="letters")


def test_decide_label_reading_numbered_columns_count_from_0(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sent1,sent2,ending0,ending1,ending2,label\na,b,c,d,e,1\n", encoding="utf-8")
    task = open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)}, "recipe"))
    assert isinstance(task, Choice) and task.read("dev")[0].label == 1


def read_table(path: Path, content: str, **settings: Any) -> list[ChoiceExample]:
    """Return the questions of a table with this content."""
    path.write_text(content, encoding="utf-8")
    values = {"train": str(path), "dev": str(path)} | settings
    task = open_table(validate_recipe(TableSettings, values, "recipe"))
    assert isinstance(task, Choice)
    return task.read("dev")


def test_find_choice_columns_blanks_and_order_of_names(tmp_path: Path) -> None:
    header = "question, option_b, Option_A, label\n"
    (question,) = read_table(tmp_path / "a.csv", header + "Who?,Bo,Ada,A\n")
    assert (question.options, question.label) == (("Ada", "Bo"), 0)


def test_find_choice_columns_one_column_is_encoded_once(tmp_path: Path) -> None:
    content = '{"%s": "Who?", "choices": ["Ada", "Bo"], "label": "B"}\n'
    (question,) = read_table(tmp_path / "a.jsonl", content % "text", question="text")
    assert (question.passage, question.question) == ("", "Who?")
    (question,) = read_table(tmp_path / "b.jsonl", content % "question", text="question")
    assert (question.passage, question.question) == ("Who?", "")


def test_read_choice_rows_drops_empty_options_at_the_end(tmp_path: Path) -> None:
    content = "question,option_a,option_b,option_c,label\nq,x,y,,B\nq,,y,z,C\nq,x,,,A\n"
    options = [("x", "y"), ("", "y", "z"), ("x", "")]
    assert [question.options for question in read_table(tmp_path / "a.csv", content)] == options
    choices: list[Any] = [["x", "y", None], ["", "y", "z"], {"text": ["x", "", ""], "label": ["A", "B", "C"]}]
    rows = [{"question": "q", "choices": row, "label": label} for row, label in zip(choices, "BCA", strict=True)]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    assert [question.options for question in read_table(tmp_path / "a.jsonl", content)] == options
    line = InputLine('{"question": "q", "choices": ["x", "y", null]}', "a.jsonl", 1)
    assert Choice(name="", title="", metrics=()).parse_example(line).options == ("x", "y")


def test_read_choice_table_skips_missing_labels(tmp_path: Path) -> None:
    content = "question,option_a,option_b,label\np,none,all,none\nq,none,all,\nr,one,two,NA\ns,none,all,all\n"
    examples = read_table(tmp_path / "a.csv", content, missing="skip")
    assert [(example.question, example.label) for example in examples] == [("p", 0), ("s", 1)]
    with pytest.raises(InputError, match=r"a\.csv:3: "):
        read_table(tmp_path / "a.csv", content)
    with pytest.raises(InputError, match="no row has a label"):
        read_table(tmp_path / "b.csv", "question,option_a,option_b,label\nq,one,two,\n", missing="skip")


def test_read_choices_empty_label_is_no_blank_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label '' names none"):
        read_labels(tmp_path, [(["a", "", "c"], ""), (["a", "b", "c"], "c")])
    with pytest.raises(InputError, match="label '' names none"):
        read_labels(tmp_path, [({"text": ["a", "b"], "label": ["x", ""]}, ""), (arc(list("abcd")), "c")])


def test_find_choice_columns_sorts_more_than_9_by_number(tmp_path: Path) -> None:
    names = [f"choice{number}" for number in range(1, 13)]
    rows = [dict.fromkeys(sorted(names), "") | {name: name for name in names} | {"question": "q", "label": "choice10"}]
    (question,) = read_table(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert (question.options, question.label) == (tuple(names), 9)


def test_find_choice_columns_letters_to_z_but_no_plurals(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    header = ",".join(["question", "answers", *(f"option_{letter}" for letter in letters)])
    content = f"{header}\nq,K,{','.join(letters)}\n"
    (question,) = read_table(tmp_path / "a.csv", content, label="answers", choice_labels="letters")
    assert (question.options, question.label) == (tuple(letters), 10)
    (question,) = read_table(tmp_path / "b.csv", "question,answers,optionI,optionH,label\nq,x,i,h,B\n")
    assert question.options == ("h", "i")


def test_read_choice_rows_more_than_26_columns_rejected(tmp_path: Path) -> None:
    names = [f"choice{number}" for number in range(27)]
    with pytest.raises(InputError, match=r"a\.csv:2: 27 choices"):
        read_table(tmp_path / "a.csv", f"question,label,{','.join(names)}\nq,1,{','.join(names)}\n")


def test_decide_label_reading_column_10_does_not_count_from_0(tmp_path: Path) -> None:
    content = "question,choice10,choice11,label\nq,a,b,1\n"
    with pytest.raises(InputError, match="numbers from 0 or numbers from 1"):
        read_table(tmp_path / "a.csv", content)


def test_find_choice_columns_reads_published_nested_layout(tmp_path: Path) -> None:
    choices = [{"label": name, "text": text} for name, text in zip("ABCD", TEXTS, strict=True)]
    row = {"answerKey": "C", "id": "1", "question": {"stem": "Which?", "question_concept": "x", "choices": choices}}
    (question,) = read_table(tmp_path / "a.jsonl", json.dumps(row) + "\n")
    assert (question.question, question.options, question.label) == ("Which?", tuple(TEXTS), 2)
