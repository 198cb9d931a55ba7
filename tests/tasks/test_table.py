"""One's own table: every form, the defaults, what is discovered, and the errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli.config import validate_recipe
from albert_cli.errors import ConfigError, InputError
from albert_cli.inference.inputs import InputReader
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.table import open_table as open_any_table
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.token_classification import open_token_task


def open_table(table: TableSettings, data: str | None = None) -> Classification:
    """Open a table of texts."""
    task = open_any_table(table, data)
    assert isinstance(task, Classification)
    return task


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def settings(**values: Any) -> TableSettings:
    return validate_recipe(TableSettings, values, "recipe")


def test_open_table_tsv_has_no_quoting(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", 'text\tlabel\n"fine, he said\tpos\nx\u2028y\tneg\n')
    write(tmp_path / "dev.tsv", "label\ttext\nneg\tbad\n")  # the order of columns is each file's own
    task = open_table(settings(), str(tmp_path))
    assert (task.labels, task.inputs, task.metrics[0]) == (("neg", "pos"), 1, "accuracy")
    assert task.read("train") == [TextExample('"fine, he said', None, 1, "2"), TextExample("x\u2028y", None, 0, "3")]
    assert task.read("dev") == [TextExample("bad", None, 0, "2")]


def test_open_table_txt_is_read_as_tsv(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", 'id\tdocument\tlabel\n7\t"so, so\t1\n8\tfine\t0\n')
    write(tmp_path / "dev.txt", "id\tdocument\tlabel\n9\tfine\t0\n")
    task = open_table(settings(text="document"), str(tmp_path))
    assert task.read("train") == [TextExample('"so, so', None, 1, "7"), TextExample("fine", None, 0, "8")]


def test_open_table_finds_endings_in_upper_case(tmp_path: Path) -> None:
    for name in ("train.csv", "dev.CSV", "Test.csv"):
        write(tmp_path / name, f"text,label\n{name},a\nb,b\n")
    task = open_table(settings(), str(tmp_path))
    assert [task.read(split)[0].text_a for split in task.splits] == ["train.csv", "dev.CSV", "Test.csv"]


def test_open_table_csv_quotes_commas_and_line_breaks(tmp_path: Path) -> None:
    content = 'id,Sentence1,sentence2,Label\nq1,"a, ""b""\nc",d,1\nq2,,"e\u2028f",0\n'
    write(tmp_path / "train.csv", content)
    write(tmp_path / "dev.csv", content)
    examples = open_table(settings(), str(tmp_path)).read("dev")
    assert examples == [TextExample('a, "b"\nc', "d", 1, "q1"), TextExample("", "e\u2028f", 0, "q2")]


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "jl"])
def test_open_table_endings_of_json_lines(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"train.{ending}", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    assert [example.text_a for example in open_table(settings(), str(tmp_path)).read("train")]


def test_open_table_only_line_feed_ends_a_quoted_row(tmp_path: Path) -> None:
    rows = b'text,label\r\n"a\rb",x\r\nc,y\r\n'
    (tmp_path / "a.csv").write_bytes(rows)
    task = open_table(settings(), str(tmp_path / "a.csv"))
    assert {example.text_a for split in ("train", "dev") for example in task.read(split)} == {"a\rb", "c"}
    (tmp_path / "b.csv").write_bytes(rows.replace(b'"', b""))
    with pytest.raises(InputError, match=r"b\.csv:2: ") as caught:
        open_table(settings(), str(tmp_path / "b.csv"))
    assert "max-line" not in str(caught.value.hint)


def test_open_table_reads_jsonl(tmp_path: Path) -> None:
    rows = [
        {"text": "a\u2028\n\t", "label": 10},
        {"label": 2, "text": None, "more": []},
        {"text": "c", "label": 10},
    ]
    path = write(tmp_path / "my.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    task = open_table(settings(train=path, dev=path))
    assert task.labels == ("2", "10")
    assert [(e.text_a, e.label) for e in task.read("train")] == [("a\u2028\n\t", 1), ("", 0), ("c", 1)]


@pytest.mark.parametrize("name", ["train.json", "train.csv.gz", "train.jl", "train.json.gz", "TRAIN.TXT.GZ"])
def test_open_table_reads_arrays_and_compressed_files(tmp_path: Path, name: str) -> None:
    rows = [{"text": "a b", "label": "x"}, {"text": "c d", "label": "y"}]
    texts = {
        ".csv": "text,label\na b,x\nc d,y\n",
        ".jl": "".join(json.dumps(row) + "\n" for row in rows),
        ".json": json.dumps(rows, indent=2),
        ".txt": "text\tlabel\na b\tx\nc d\ty\n",
    }
    content = texts[Path(name.lower().removesuffix(".gz")).suffix].encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    (tmp_path / "dev.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = open_table(settings(), str(tmp_path))
    assert [(e.text_a, e.label) for e in task.read("train")] == [("a b", 0), ("c d", 1)]
    assert [(e.text_a, e.label) for e in task.read("dev")] == [("a b", 0), ("c d", 1)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dev.csv", 'text,label\n"a\nb",x\nc,y\nd,x\n'),
        ("dev.jsonl", '{"text": "a", "label": "x"}\n\n{"text": "c", "label": "y"}\n'),
        ("dev.jsonl", '{"choices": ["a", "b"], "question": "Which?", "label": 0}\n' * 2),
        ("dev.jsonl", '{"tokens": ["a", "b"], "tags": ["B-X", "O"]}\n' * 2),
    ],
)
def test_ids_of_scored_and_predicted_rows_are_equal(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path / name.replace("dev", "train"), content)
    path = write(tmp_path / name, content)
    if "tokens" in content:
        task = open_token_task(settings(), str(tmp_path), ())
    else:
        task = open_any_table(settings(), str(tmp_path))
    predicted = [row.example.id for chunk in InputReader(task).read_chunks(path) for row in chunk]
    assert [example.id for example in task.read("dev")] == predicted


def test_open_table_json_of_other_form_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    for content, message in (
        ('{"text": {"0": "a"}, "label": {"0": "x"}}', "an object for each column"),
        ("[1, 2]", "item 1 of the array is not an object"),
        ('[{"text": "a"', "not valid JSON"),
    ):
        with pytest.raises(InputError, match=message):
            open_table(settings(), write(path, content))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"text,label\n")[:-9])
    with pytest.raises(InputError, match=r"b\.csv\.gz: damaged or truncated"):
        open_table(settings(), str(tmp_path / "b.csv.gz"))


def test_open_table_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "my.jsonl", '{"text": "a \\ud83d", "label": "\\ud800"}\n{"text": "b", "label": "x"}\n')
    task = open_table(settings(train=path, dev=path))
    assert task.labels == ("x", "\ufffd")
    assert [e.text_a for e in task.read("train")] == ["a \ufffd", "b"]


def test_open_table_named_columns_and_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "stars;review;reply;text\n5;good;thanks;x\n1;bad;sorry;y\n")
    named = settings(train=path, dev=path, delimiter=";", text="review", label="stars")
    task = open_table(named)
    assert task.read("dev")[0] == TextExample("good", None, 1, "2")
    pair = open_table(settings(train=path, dev=path, delimiter=";", text="review", text_pair="reply", label="stars"))
    assert pair.read("dev")[1] == TextExample("bad", "sorry", 0, "3")


def test_open_table_quoting_can_be_inverted(tmp_path: Path) -> None:
    tsv = write(tmp_path / "a.tsv", 'text\tlabel\n"a\tb"\t1\nc\t0\n')
    assert open_table(settings(train=tsv, dev=tsv, quoting="on")).read("dev")[0].text_a == "a\tb"
    csv = write(tmp_path / "a.csv", 'text,label\n"a,1\nc",0\n')
    assert open_table(settings(train=csv, dev=csv, quoting="off")).read("dev")[0].text_a == '"a'


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["0.5", "3", "1"], "auto", ()),
        (["1.0", "0.0", "1.0"], "auto", ("0.0", "1.0")),  # classes that a spreadsheet turned into floats
        (["1", "2", "10"], "auto", ("1", "2", "10")),
        (["b", "10", "2", "-1"], "auto", ("-1", "2", "10", "b")),
        (["1", "2", "10"], "regression", ()),
        (["0.5", "1.5", "0.5"], "classification", ("0.5", "1.5")),
    ],
)
def test_open_table_infers_kind_and_classes(
    tmp_path: Path, labels: list[str], kind: str, expected: tuple[str, ...]
) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"t\t{label}\n" for label in labels))
    task = open_table(settings(train=path, dev=path, kind=kind))
    assert task.labels == expected
    assert isinstance(task, Classification) and task.is_regression != bool(expected)
    assert task.metrics[0] == ("accuracy" if expected else "pearson")
    result = [e.label for e in task.read("train")]
    assert result == ([expected.index(label) for label in labels] if expected else [float(label) for label in labels])
    assert all(isinstance(label, int if expected else float) for label in result)


def test_open_table_labels_setting_orders_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\nx\tpos\ny\tneg\n")
    assert open_table(settings(train=path, dev=path, labels=["pos", "neg"])).read("dev")[0].label == 0


def test_open_table_without_dev_holds_out_a_tenth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "my.tsv", "text\tlabel\n" + "".join(f"t{i}\t{i % 2}\n" for i in range(40)))
    task = open_table(settings(), path)
    train, dev = task.read("train"), task.read("dev")
    assert (len(train), len(dev)) == (36, 4)
    assert sorted(int(e.text_a[1:]) for e in train + dev) == list(range(40))
    assert "4 of 40 rows are held out" in capsys.readouterr().err
    assert open_table(settings(), path).read("dev") == dev
    assert open_table(settings(holdout_seed=1), path).read("dev") != dev
    assert len(open_table(settings(holdout=0.5), path).read("dev")) == 20


def test_read_table_predicted_ids_are_unique(tmp_path: Path) -> None:
    rows = "id\ttext\tlabel\n" + "".join(f"{i % 39}\tt{i}\t{i % 2}\n" for i in range(40))
    train, dev = write(tmp_path / "my.tsv", rows), write(tmp_path / "dev.tsv", rows[: rows.index("39\t") - 2])
    for task in (open_table(settings(), train), open_table(settings(train=train, dev=train))):
        with pytest.raises(InputError, match=r"my\.tsv:41: the id '0' is already used at .*my\.tsv:2"):
            task.read("dev")
    assert len(open_table(settings(train=train, dev=dev)).read("train")) == 40


def test_read_table_test_rows_may_lack_labels(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "text\tlabel\na\tx\nb\ty\n")
    write(tmp_path / "validation.tsv", "text\tlabel\na\tx\n")
    write(tmp_path / "test.tsv", "text\nq\n")
    task = open_table(settings(), str(tmp_path))
    assert (task.read("dev")[0].label, task.read("test")[0].label) == (0, None)
    labeled = write(tmp_path / "t.csv", "text,label\nq,y\nr,\n")
    task = open_table(settings(test=labeled), str(tmp_path))
    assert [e.label for e in task.read("test")] == [1, None]


def test_open_table_labels_need_no_train(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\nx\tpos\n")
    task = open_table(settings(dev=path, labels=["neg", "pos"]))
    assert (task.splits, task.read("dev")[0].label) == (("dev",), 1)
    with pytest.raises(InputError, match="no training data"):
        open_table(settings(dev=path))


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("a.tsv", "body\tlabel\nx\t1\n", "no column 'text' or 'sentence'", "table.text=COLUMN"),
        (
            "a.tsv",
            "text\tstars\nx\t1\n",
            "for the label (columns: 'text', 'stars'",
            "table.label=COLUMN",
        ),
        ("a.csv", "text|label\nx|1\n", "columns: 'text|label'", "delimiter"),
        ("a.tsv", "text\tlabel\nx\t1\ny\n", "a.tsv:3: 1 field instead of 2", "cut line"),
        ("a.tsv", "text\tlabel\nx\t1\ny\tz\t0\n", "a.tsv:3: 3 fields", "a tab"),
        ("a.tsv", "text\ttext\tlabel\nx\ty\t1\n", "'text' occurs twice", ""),
        ("a.tsv", "text\tlabel\nx\t1\ny\t1\n", "only the label '1', so there is nothing to learn", "two classes"),
        ("a.tsv", "text\tlabel\nx\t1\ny\t\nz\t0\n", "a.tsv:3: the label is empty", ""),
        ("a.tsv", "text\tlabel\nx\t0.5\ny\tnan\n", "a.tsv:3: the label 'nan' is a missing value", ""),
        ("a.tsv", "text\tlabel\n", "holds no examples", ""),
        ("a.tsv", "", "empty", ""),
        ("a.csv", 'text,label\nx,1\n"y,1\nz,0\n', "a.csv:3:", "quote"),
        ("a.csv", "text,label\rx,1\ry,0\r", "a.csv:1: a carriage return outside quotes", "line ends"),
        ("a.tsv", "text\tlabel\ra b\tx\rc d\ty\r", "a.tsv:1: a carriage return", "line ends"),
        ("a.txt", "text\tlabel\ra b\tx\rc d\ty", "a.txt:1: a carriage return", "line ends"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x"}\n', "a.jsonl:2: no key 'label'", ""),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text"\n', "a.jsonl:2: not valid JSON", ""),
        ("a.jsonl", "[1]\n", "a.jsonl:1: not a JSON object", ""),
        ("a.jsonl", "[" * 100_000 + "\n", "a.jsonl:1: not valid JSON", ""),
        ("a.parquet", "x", "a.parquet: not a readable Parquet file", "copy"),
        ("a.xlsx", "x", "or .parquet file", ""),
    ],
)
def test_open_table_bad_table_is_rejected(tmp_path: Path, name: str, content: str, message: str, hint: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        open_table(settings(), path).read("train")
    assert message in caught.value.message
    assert caught.value.hint and hint in caught.value.hint
    assert "\n" not in caught.value.message


def test_read_table_dev_label_missing_in_train_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "text\tlabel\na\tx\nb\ty\n")
    write(tmp_path / "dev.tsv", "text\tlabel\na\tx\nb\tz\n")
    with pytest.raises(InputError, match=r"dev\.tsv:3: label 'z' is not one of x, y"):
        open_table(settings(), str(tmp_path)).read("dev")


def test_open_table_ambiguous_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data"):
        open_table(settings())
    with pytest.raises(InputError, match="no such file"):
        open_table(settings(), str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"holds no train\.tsv"):
        open_table(settings(), str(tmp_path))
    with pytest.raises(InputError, match=r"gone\.tsv: no such file"):
        open_table(settings(train=str(tmp_path / "gone.tsv")))
    write(tmp_path / "train.tsv", "text\tlabel\na\tx\nb\ty\n")
    write(tmp_path / "train.csv", "text,label\na,x\nb,y\n")
    with pytest.raises(InputError, match=r"both train\.csv and train\.tsv"):
        open_table(settings(), str(tmp_path))
    assert open_table(settings(train=str(tmp_path / "train.csv")), str(tmp_path)).labels == ("x", "y")


def test_table_settings_bad_values_are_rejected() -> None:
    for values in (
        {"holdout": 0.0},
        {"holdout": 1.0},
        {"delimiter": "||"},
        {"labels": ["a", "a"]},
        {"labels": ["a"]},
        {"kind": "x"},
        {"label_columns": ["a", "a", "b"]},
        {"choices": ["a", "b", "a"]},
    ):
        with pytest.raises(ConfigError):
            settings(**values)


@pytest.mark.usefixtures("datasets_cache")
def test_open_table_reads_a_hub_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "reviews"
    folder.mkdir()
    write(folder / "train.csv", "text,label\na,x\nb,y\n")
    write(folder / "test.csv", "text,label\nc,y\n")
    task = open_table(settings(dev=str(folder / "test.csv")), f"hf:{folder}")
    assert (task.labels, task.splits) == (("x", "y"), ("train", "dev", "test"))
    assert task.read("train")[0] == TextExample("a", None, 0, "1")
    assert task.read("test")[0].label == 1


# ---------------------------------------------------------------- Parquet, and multiple choice


def test_open_table_parquet_equals_jsonl(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"text": ["a\u2028b", None, "c"], "text_pair": ["x", "y", "z"], "label": [1.5, 2.0, 3.25]}
    for name in ("train", "dev"):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    task = open_table(settings(), str(tmp_path))
    assert isinstance(task, Classification) and (task.is_regression, task.inputs) == (True, 2)
    assert task.read("dev")[:2] == [TextExample("a\u2028b", "x", 1.5, "1"), TextExample("", "y", 2.0, "2")]


def choices(tmp_path: Path, *rows: dict[str, Any], **named: Any) -> list[ChoiceExample]:
    """The examples of a table of JSON lines."""
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    task = open_any_table(settings(train=path, dev=path, **named))
    assert isinstance(task, Choice) and task.metrics == ("accuracy",)
    examples: list[ChoiceExample] = task.read("dev")
    assert task.labels == tuple("ABCDEFGH"[: len(examples[0].options)])
    return examples


@pytest.mark.parametrize("labels", [["A", "c"], [0, 2], [1, 3], ["red", "blue"]])
def test_read_choices_label_by_letter_number_or_text(tmp_path: Path, labels: list[Any]) -> None:
    options = ["red", "", "blue"]
    result = choices(tmp_path, *({"question": "Which?", "choices": options, "answer": label} for label in labels))
    assert [example.label for example in result] == [0, 2]
    assert result[0] == ChoiceExample("1", "", "Which?", ("red", "", "blue"), 0)


def test_read_choices_of_swag_arc_and_race(tmp_path: Path) -> None:
    swag = {"sent1": "He sits.", "sent2": "He", "label": 1} | {f"ending{i}": f"e{i}" for i in range(4)}
    (first,) = choices(tmp_path, swag)
    assert first == ChoiceExample("1", "He sits.", "He", ("e0", "e1", "e2", "e3"), 1)
    arc = {"id": "q", "question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}
    assert choices(tmp_path, arc) == [ChoiceExample("q", "", "Why?", ("a", "b"), 1)]
    race = {"article": "Long.", "question": "_ it?", "options": ["a", "b", "c", "d"], "answer": "D"}
    assert choices(tmp_path, race)[0].label == 3


def test_read_choices_named_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "story;first;second;good\nx, y;a;b;1\nz;c;d;2\n")
    named = {"choices": ("first", "second"), "text": "story", "label": "good", "delimiter": ";"}
    task = open_any_table(settings(train=path, dev=path, kind="choice", **named))
    assert task.read("dev") == [
        ChoiceExample("2", "x, y", "", ("a", "b"), 0),
        ChoiceExample("3", "z", "", ("c", "d"), 1),
    ]


GOOD = {"question": "q", "choices": ["a", "b"], "label": 0}


@pytest.mark.parametrize(
    ("row", "named", "message"),
    [
        ({**GOOD, "label": "C"}, {}, "a.jsonl:2: label 'C' names none of 2 choices"),
        ({**GOOD, "label": 2}, {}, "a.jsonl:2: label '2' names none"),
        ({**GOOD, "label": None}, {}, "a.jsonl:2: label '' names none"),
        ({**GOOD, "choices": ["a"]}, {}, "a.jsonl:2: 'choices' is not a list of two texts or more"),
        ({**GOOD, "choices": "a, b"}, {"kind": "choice"}, "a.jsonl:2: 'choices' is not a list"),
        (GOOD, {"choices": ("x", "y")}, "a.jsonl: no column 'x' for the choices"),
        (GOOD, {"text": "x"}, "a.jsonl: no column 'x' for the text"),
    ],
)
def test_read_choices_bad_row_names_the_line(tmp_path: Path, row: Any, named: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        choices(tmp_path, GOOD, row, **named)
    assert message in raised.value.message


def test_read_choices_of_several_numbers(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", json.dumps(GOOD) + "\n")
    dev = write(tmp_path / "b.jsonl", json.dumps(GOOD | {"choices": ["a", "b", "c"]}) + "\n")
    task = open_any_table(settings(train=train, dev=dev))
    assert task.labels == ("A", "B", "C") and len(task.read("dev")) == 1


def test_open_table_answer_column_is_no_choice(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": t, "answer": "x", "label": t}) + "\n" for t in "ab"))
    assert open_table(settings(train=path, dev=path)).labels
