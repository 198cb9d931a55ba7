"""Columns of tables, by the names of published data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from albert_cli.config import validate_recipe
from albert_cli.errors import InputError
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.table import open_table
from albert_cli.tasks.table_settings import TableSettings


def open_columns(folder: Path, columns: list[str], **settings: str) -> Classification:
    """Open a TSV file of two rows in which every column but the label holds a text."""
    cells: dict[str, str] = {}
    path = folder / "a.tsv"
    lines = ["\t".join(columns)]
    for label in ("good", "bad"):
        cells |= dict.fromkeys(LABELS, label) | dict.fromkeys(("id", "idx", "index"), label)
        lines.append("\t".join(cells.get(name.lower(), f"the {name}") for name in columns))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)} | settings, "recipe"))
    assert isinstance(task, Classification)
    return task


LABELS = ("label", "gold_label", "is_duplicate", "quality", "class")


@pytest.mark.parametrize(
    ("columns", "texts"),
    [
        (["index", "question", "sentence", "label"], ("question", "sentence")),  # QNLI
        (["question", "sentence", "label"], ("question", "sentence")),
        (["idx", "premise", "hypothesis", "label"], ("premise", "hypothesis")),  # MNLI on the Hub
        (["gold_label", "sentence1", "sentence2"], ("sentence1", "sentence2")),  # SNLI
        (["Quality", "#1 String", "#2 String"], ("#1 String", "#2 String")),  # MRPC
        (["id", "question1", "question2", "is_duplicate"], ("question1", "question2")),  # QQP
        (["passage", "question", "label"], ("question", "passage")),  # BoolQ
        (["sentence", "label"], ("sentence",)),  # SST-2
        (["Text", "Label"], ("Text",)),
        (["text_b", "text_a", "class"], ("text_a", "text_b")),
    ],
)
def test_find_text_columns_of_published_data_sets(tmp_path: Path, columns: list[str], texts: tuple[str, ...]) -> None:
    task = open_columns(tmp_path, columns)
    example = task.read("dev")[0]
    assert task.inputs == len(texts)
    assert (example.text_a, example.text_b) == (f"the {texts[0]}", f"the {texts[1]}" if len(texts) == 2 else None)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (["question", "answer"], {"label": "answer"}),
        (["premise", "hypothesis"], {"label": "hypothesis"}),
        (["text", "text_pair", "label"], {"id": "text_pair"}),
        (["text", "sentence2"], {"label": "sentence2"}),
        (["text", "idx"], {"label": "idx"}),
        (["Question", "Answer", "other"], {"label_columns": ["Answer", "other"]}),
    ],
)
def test_find_text_columns_ignores_labels_and_ids(tmp_path: Path, columns: list[str], named: dict[str, Any]) -> None:
    path = tmp_path / "a.csv"
    cells = [["the first", "1", "0"], ["the second", "0", "1"], ["the third", "1", "1"]]
    path.write_text("\n".join(",".join(row[: len(columns)]) for row in [columns, *cells]) + "\n")
    if "id" in named:
        path.write_text("\n".join([",".join(columns), "the first,a,x", "the second,b,y"]) + "\n")
    task = open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)} | named, "recipe"))
    example: Any = task.read("dev")[0]
    assert (example.text_a, example.text_b) == ("the first", None)


@pytest.mark.parametrize(
    ("columns", "unused"),
    [
        (["text", "reply", "label"], "'reply'"),
        (["sentence", "context", "label"], "'context'"),
        (["title", "text", "label"], "'title'"),
        (["sentence1", "sentence2", "sentence1_parse", "gold_label"], "'sentence1_parse'"),
        (["a", "b", "text", "label"], "'a', 'b'"),
    ],
)
def test_open_table_warns_of_unused_texts(
    tmp_path: Path, columns: list[str], unused: str, capfd: pytest.CaptureFixture[str]
) -> None:
    open_columns(tmp_path, columns)
    assert f" {unused} with text will not be used; use -s table.text=COLUMN" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("reply", "is_text"),
    [
        ("昨日届きましたが、すぐに壊れてしまいました。", True),
        ("我昨天收到了这本书，读起来非常有意思。", True),
        ("หนังสือเล่มนี้สนุกมาก", True),
        ("東京都千代田区", False),
        ("Donaudampfschifffahrtsgesellschaft", False),
    ],
)
def test_open_table_warns_of_texts_without_spaces(
    tmp_path: Path, reply: str, is_text: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text,reply,label\na b,{reply},good\nc d,{reply},bad\n", encoding="utf-8")
    open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)}, "recipe"))
    assert ("the column 'reply' with text will not be used" in capfd.readouterr().err) == is_text


def test_open_table_used_texts_need_no_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_columns(tmp_path, ["id", "question", "sentence", "label"])
    assert "warning" not in capfd.readouterr().err
    open_columns(tmp_path, ["question", "sentence", "label"], text="sentence")
    assert "column 'question' with text will not be used" in capfd.readouterr().err


def test_read_table_dev_takes_the_columns_of_train(tmp_path: Path) -> None:
    train = tmp_path / "train.tsv"
    dev = tmp_path / "dev.tsv"
    train.write_text("sentence\tlabel\na b\tgood\nc d\tbad\n", encoding="utf-8")
    dev.write_text("question\tsentence\tlabel\nwhy so\ta b\tgood\n", encoding="utf-8")
    task = open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    assert isinstance(task, Classification)
    assert [example.text_a for example in task.read("dev")] == ["a b"]
    train.write_text("question\tsentence\tlabel\nq r\ta b\tgood\ns t\tc d\tbad\n", encoding="utf-8")
    dev.write_text("sentence\tlabel\na b\tgood\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"dev\.tsv: no column"):
        open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path)).read("dev")


def test_table_id_none_numbers_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text,label\n" + "7,a b,good\n7,c d,bad\n" * 4, encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.csv:3: the id '7' is already used") as raised:
        open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)}, "recipe")).read("dev")
    assert "table.id=none" in str(raised.value.hint)
    values = {"train": str(path), "dev": str(path), "id": "none"}
    task = open_table(validate_recipe(TableSettings, values, "recipe"))
    assert [example.id for example in task.read("dev")] == [str(line) for line in range(2, 10)]


def test_open_table_empty_texts_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label\na,x\n ,y\nb,y\n")
    open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    assert f"{path}:3: no text in 'text'; 1 of 3 rows are empty" in capfd.readouterr().err
    path.write_text("text,label\n,x\n,y\n")
    with pytest.raises(InputError, match="the column 'text' has no text in any row"):
        open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))


def test_open_table_incomplete_pairs_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,text_pair,label\na,b,x\na,,y\nb,c,y\n,d,x\n")
    open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    assert f"{path}:3: no text in 'text' or 'text_pair'; 2 of 4 rows are incomplete" in capfd.readouterr().err


def test_missing_column_hint_names_the_header(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a good film,1\na bad film,0\n")
    with pytest.raises(InputError) as raised:
        open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    assert "if the first row is no header, add one" in str(raised.value.hint)


def test_missing_label_hint_lists_columns_of_classes(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,toxic,insult,n\na,1,0,5\nb,0,1,6\n")
    with pytest.raises(InputError) as raised:
        open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    assert """-s 'table.label_columns=["toxic", "insult"]'""" in str(raised.value.hint)


@pytest.mark.parametrize("name", ["dev.xlsx", "validation.ods", "test.csv.bz2", "dev.tab", "test.zip"])
def test_open_table_warns_of_files_to_convert(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    for path in (tmp_path / name, tmp_path / "train.py"):
        path.write_text("")
    open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    printed = capfd.readouterr().err
    assert f"{name}: not read" in printed and "train.py" not in printed


def test_match_text_columns_pair_for_single_texts_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "dev.csv").write_text("premise,hypothesis,label\na,b,x\n")
    task = open_table(validate_recipe(TableSettings, {}, "recipe"), str(tmp_path))
    with pytest.raises(InputError, match="but the model reads single texts"):
        task.read("dev")


@pytest.mark.parametrize(
    ("columns", "pair", "texts"),
    [
        (["question", "sentence", "label"], "sentence", ("question", "sentence")),
        (["question", "sentence", "label"], "question", ("sentence", "question")),
        (["text", "premise", "hypothesis", "label"], "hypothesis", ("premise", "hypothesis")),
        (["query", "passage", "label"], "passage", ("query", "passage")),
    ],
)
def test_find_text_columns_named_pair_is_read_once(
    tmp_path: Path, columns: list[str], pair: str, texts: tuple[str, str]
) -> None:
    example = open_columns(tmp_path, columns, text_pair=pair).read("dev")[0]
    assert (example.text_a, example.text_b) == (f"the {texts[0]}", f"the {texts[1]}")


def test_find_text_columns_pair_alone_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="for the text "):
        open_columns(tmp_path, ["sentence", "label"], text_pair="sentence")


@pytest.mark.parametrize("further", ['"label": "x"', '"choices": ["a", "b"], "label": "B"'])
def test_open_table_text_column_of_objects_is_rejected(tmp_path: Path, further: str) -> None:
    line = '{"question": {"en": "Who?", "de": "Wer?"}, ' + further + "}\n"
    (tmp_path / "a.jsonl").write_text(line + line.replace('"x"', '"y"'))
    with pytest.raises(InputError, match=r"a\.jsonl: the column 'question' contains JSON objects"):
        open_table(TableSettings(), str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("columns", "named", "settings"),
    [
        (["text", "label"], {"text": "label"}, ("text", "label")),
        (["text", "label"], {"text_pair": "label"}, ("text_pair", "label")),
        (["text", "label"], {"text": "text", "label": "text"}, ("text", "label")),
        (["text", "label"], {"text": "text", "text_pair": "text"}, ("text", "text_pair")),
        (["text", "a", "b"], {"text": "a", "label_columns": ["a", "b"]}, ("text", "label_columns")),
        (["text", "id", "label"], {"text": "id", "id": "id"}, ("text", "id")),
        (["question", "option_a", "option_b", "label"], {"text": "label"}, ("text", "label")),
        (["question", "option_a", "option_b", "label"], {"text": "option_a"}, ("text", "choices")),
        (["q", "option_a", "option_b", "label"], {"text": "q", "question": "q"}, ("text", "question")),
    ],
)
def test_open_table_column_with_two_roles_is_rejected(
    tmp_path: Path, columns: list[str], named: dict[str, Any], settings: tuple[str, str]
) -> None:
    path = tmp_path / "train.csv"
    path.write_text("\n".join([",".join(columns), *(",".join([cell] * len(columns)) for cell in "01")]) + "\n")
    with pytest.raises(InputError) as raised:
        open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)} | named, "recipe"))
    assert all(f"table.{role}" in raised.value.message for role in settings)


def test_open_table_text_may_have_a_usual_name_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("target,a,b\nbade figo,0,1\nluma wi,1,0\n")
    values = {"train": str(path), "dev": str(path), "text": "target", "label_columns": ["a", "b"]}
    task = open_table(validate_recipe(TableSettings, values, "recipe"))
    assert len(task.read("train")) == 2


def test_missing_column_that_is_the_label_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    with pytest.raises(InputError, match="'text' is already the label"):
        open_table(validate_recipe(TableSettings, {"label": "text"}, "recipe"), str(tmp_path))


@pytest.mark.parametrize(
    ("texts", "label", "other"),
    [("text", "label", "score"), ("question,choice1,choice2", "label", "answer"), ("text", "tags", "label")],
)
def test_label_column_of_train_is_that_of_all_files(tmp_path: Path, texts: str, label: str, other: str) -> None:
    cells = ",".join("ab cd" for _ in texts.split(","))
    rows = f"{cells},1,A\n{cells},2,B\n"
    for split, spelling in (("train", label), ("dev", label.upper())):
        (tmp_path / f"{split}.csv").write_text(f"{texts},{other},{spelling}\n{rows}")
    (tmp_path / "test.csv").write_text(f"{texts},{other}\n{cells},1\n")
    settings = TableSettings(label="tags" if label == "tags" else "")
    task = open_table(settings, str(tmp_path))
    dev: list[Any] = task.read("dev")
    test: list[Any] = task.read("test")
    assert [[example.label for example in examples] for examples in (dev, test)] == [[0, 1], [None]]
    (tmp_path / "dev.csv").write_text((tmp_path / "test.csv").read_text())
    with pytest.raises(InputError, match=rf"dev\.csv: no column '{label}' for the label"):
        open_table(settings, str(tmp_path)).read("dev")


@pytest.mark.parametrize(
    ("content", "settings", "labels"),
    [
        (",text,label\n0,a b,x\n1,c d,y\n", {}, ("x", "y")),
        (",text,x,y\n0,a b,0,1\n1,c d,1,0\n", {"label_columns": ("x", "y")}, ("x", "y")),
        (",question,choice1,choice2,label\n0,a b,c,d,0\n1,e f,g,h,1\n", {}, ("A", "B")),
    ],
)
def test_reject_shared_columns_ignores_an_unnamed_column(
    tmp_path: Path, content: str, settings: dict[str, Any], labels: tuple[str, ...]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    recipe = {"train": str(path), "dev": str(path)} | settings
    assert open_table(validate_recipe(TableSettings, recipe, "recipe")).labels == labels
