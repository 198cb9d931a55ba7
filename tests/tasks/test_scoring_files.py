"""A model is scored on all rows of a file; rows are held out for training only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from albert_cli.errors import InputError, MissingDataError
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.squad.task import SQUAD
from albert_cli.tasks.table import ModelHead, open_table
from albert_cli.tasks.table_layout import TrainedColumns
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.token_classification import open_token_task
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert
from tests.helpers.task_runs import SHAPE

ROWS = 30


def write_table(path: Path) -> Path:
    """Write a table of two classes in the format of the file's ending."""
    rows = [{"text": f"the film {number}", "label": ("bad", "good")[number % 2]} for number in range(ROWS)]
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    lines = [json.dumps(row) for row in rows]
    if path.suffix in (".csv", ".tsv"):
        delimiter = {".csv": ",", ".tsv": "\t"}[path.suffix]
        lines = [f"text{delimiter}label", *(f"{row['text']}{delimiter}{row['label']}" for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sizes(task: AnyTask, data: Path) -> tuple[int, int]:
    """Return the number of dev examples in training and in scoring."""
    return len(task.read("dev", str(data))), len(task.for_scoring().read("dev", str(data)))


@pytest.mark.parametrize("name", ["dev.csv", "train.csv", "mine.tsv", "mine.jsonl", "mine.parquet"])
def test_for_scoring_reads_all_of_a_table(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name)
    task = open_table(TableSettings(), str(path))
    assert sizes(task, path) == (3, ROWS)
    with pytest.raises(MissingDataError, match="scored as a whole"):
        task.for_scoring().read("train", str(path))


@pytest.mark.parametrize("name", ["./mine.csv", ".//mine.csv", "../tables/mine.csv"])
def test_for_scoring_reads_all_of_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "tables").mkdir()
    monkeypatch.chdir(tmp_path / "tables")
    write_table(Path("mine.csv"))
    assert len(open_table(TableSettings(), name).for_scoring().read("dev", name)) == ROWS
    Path("mine.conll").write_text("Bo B-PER\nruns O\n\n" * ROWS)
    words = name.replace("csv", "conll")
    assert len(open_token_task(TableSettings(), words, ()).for_scoring().read("dev", words)) == ROWS


def test_for_scoring_folder_with_train_keeps_the_holdout(tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv")
    assert sizes(open_table(TableSettings(), str(tmp_path)), tmp_path) == (3, 3)
    path = str(write_table(tmp_path / "other.csv"))
    assert sizes(open_table(TableSettings(dev=path), str(tmp_path)), tmp_path) == (ROWS, ROWS)


@pytest.mark.parametrize(("name", "titles"), [("squad1", 20), ("squad2", 20), ("squad1", 1)])
def test_for_scoring_reads_all_of_a_squad_file(tmp_path: Path, name: str, titles: int) -> None:
    paragraphs = [
        {
            "context": f"Bo has {number} cats.",
            "qas": [{"id": str(number), "question": "Who?", "answers": [{"text": "Bo", "answer_start": 0}]}],
        }
        for number in range(20)
    ]
    articles = [{"title": str(t), "paragraphs": paragraphs[t::titles]} for t in range(titles)]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"data": articles}), encoding="utf-8")
    task = SQUAD[name]
    assert len(task.read("dev", str(path))) == 2
    assert len(task.for_scoring().read("dev", str(path))) == 20


def test_eval_scores_all_of_a_single_file(tmp_path: Path, tiny_vocabulary: Path) -> None:
    write_table(tmp_path / "train.csv")
    encoder = untrained(tmp_path / "encoder", SHAPE, tiny_vocabulary)
    albert("finetune", "table", "--checkpoint", encoder, "--data", tmp_path, "--out", tmp_path / "model", *QUICK)
    path = write_table(tmp_path / "new.csv")
    path.write_text(path.read_text(encoding="utf-8").replace("film", "book"), encoding="utf-8")  # not the training data
    call = ["eval", "table", "--checkpoint", tmp_path / "model", "--data", path, "--device", "cpu"]
    result = json.loads(albert(*call, "--out", tmp_path / "scores", "--json").out)
    assert result["examples"] == {"dev": ROWS}
    lines = (tmp_path / "scores" / "predictions.dev.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == ROWS


@pytest.mark.parametrize(
    ("labels", "head", "expected"),
    [
        (["good", "good"], ModelHead(("bad", "good")), ("bad", "good")),
        (["Good", "BAD"], ModelHead(("bad", "good", "mid")), ("BAD", "Good", "mid")),
        (["2", "4"], ModelHead(("score",)), ()),
        (["2", "4"], ModelHead(("4", "2", "1")), ("4", "2", "1")),
        (["good", "new"], ModelHead(("bad", "good")), ("good", "new")),
        (["x", "y"], ModelHead(("score",)), ("x", "y")),
        (["good", "Good"], ModelHead(("bad", "good")), ("Good", "good")),
        (["0", "1"], ModelHead(("-1", "0", "1")), ("-1", "0", "1")),
        (["-1", "0"], ModelHead(("-1", "0", "1")), ("-1", "0", "1")),
        (["A-", "B"], ModelHead(("A", "A-", "B")), ("A", "A-", "B")),
        (["a", "b"], ModelHead(("A", "A-", "B")), ("a", "b")),
        (["a", "b"], ModelHead(("a", "a", "b")), ("a", "b")),
    ],
)
def test_open_table_single_file_takes_the_classes_of_the_model(
    tmp_path: Path, labels: list[str], head: ModelHead, expected: tuple[str, ...]
) -> None:
    (tmp_path / "new.csv").write_text("text,label\n" + "".join(f"a film,{label}\n" for label in labels))
    assert open_table(TableSettings(), str(tmp_path / "new.csv"), head).labels == expected
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"a film,{label}\n" for label in [*labels, "z"]))
    assert "z" in open_table(TableSettings(), str(tmp_path), head).labels, "a folder with train is for training"


def test_open_table_single_file_of_a_multi_label_model(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text,label\na film,good\nb film,bad\nc film,\n")
    head = ModelHead(("bad", "good", "long"), is_multi_label=True)
    task = open_table(TableSettings(), str(tmp_path / "new.csv"), head)
    assert isinstance(task, MultiLabelClassification) and task.labels == head.labels
    assert [example.labels for example in task.for_scoring().read("dev")] == [(1,), (0,), ()]


def test_open_table_multi_label_model_in_other_spelling(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text,label\na film,Bad|good\nb film,Bad\n")
    head = ModelHead(("bad", "good", "long"), is_multi_label=True)
    task = open_table(TableSettings(), str(tmp_path / "new.csv"), head)
    assert isinstance(task, MultiLabelClassification) and task.labels == head.labels
    assert [example.labels for example in task.for_scoring().read("dev")] == [(0, 1), (0,)]


def test_open_table_test_file_alone_of_a_multi_label_model(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("text,label\na film,bad|good\nb film,bad\nc film,\n")
    head = ModelHead(("bad", "good", "long"), is_multi_label=True)
    task = open_table(TableSettings(), str(tmp_path), head)
    assert isinstance(task, MultiLabelClassification) and task.labels == head.labels
    assert [example.labels for example in task.for_scoring("test").read("dev")] == [(0, 1), (0,), ()]
    assert not isinstance(open_table(TableSettings(kind="classification"), str(tmp_path), head), type(task))


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        (TableSettings(), ("the text", None)),
        (TableSettings(text="reply"), ("the reply", None)),
        (TableSettings(text_pair="reply"), ("the text", "the reply")),
        (TableSettings(label="text"), ("the other", "the reply")),
    ],
)
def test_open_table_settings_precede_the_models_columns(
    tmp_path: Path, settings: TableSettings, texts: tuple[str, str | None]
) -> None:
    path = tmp_path / "new.csv"
    path.write_text("text,label,reply,query,passage\n" + "the text,x,the reply,the other,the reply\n" * 3)
    task = open_table(settings, str(path), ModelHead(("the text", "x"), columns=TrainedColumns(text="text")))
    example: Any = task.for_scoring().read("dev")[0]
    assert (example.text_a, example.text_b) == texts


@pytest.mark.parametrize("task", ["table", "sst2"])
def test_eval_scores_a_file_with_one_class(tmp_path: Path, tiny_vocabulary: Path, task: str) -> None:
    rows = "".join(f"the film {number}\t{number % 2}\n" for number in range(ROWS))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("sentence\tlabel\n" + rows)
    encoder = untrained(tmp_path / "encoder", SHAPE, tiny_vocabulary)
    albert("finetune", task, "--checkpoint", encoder, "--data", tmp_path, "--out", tmp_path / "model", *QUICK)
    (tmp_path / "new.csv").write_text("text,label\n" + "the film,1\n" * 5)
    call = ["eval", "table", "--checkpoint", tmp_path / "model", "--data", tmp_path / "new.csv", "--device", "cpu"]
    result = json.loads(albert(*call, "--out", tmp_path / "scores", "--json").out)
    assert result["kind"] == "scored" and result["examples"] == {"dev": 5} and result["labels"] == ["0", "1"]


def test_open_table_reads_the_models_choice_columns(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text(
        "question,ask,choice1,choice2,yes,no,label\n" + "usual,the question,a,b,c,d,1\nusual,it,a,b,c,d,2\n" * 3
    )
    head = ModelHead(columns=TrainedColumns(question="ask", choices=["yes", "no"]))
    settings = TableSettings(kind="choice", choice_labels="numbers-from-1")
    example: Any = open_table(settings, str(path), head).for_scoring().read("dev")[0]
    assert (example.question, example.options) == ("the question", ("c", "d"))
    named: Any = open_table(replace(settings, question="question"), str(path), head).for_scoring().read("dev")[0]
    assert (named.question, named.options) == ("usual", ("a", "b"))


@pytest.mark.parametrize("columns", ["text,label,Review", "REVIEW,label,text", "Review,label,review"])
def test_open_table_finds_the_models_text_in_any_case(tmp_path: Path, columns: str) -> None:
    row = {"Review": "the text", "REVIEW": "the text", "review": "the text", "text": "usual", "label": "x"}
    cells = [row[name] for name in columns.split(",")]
    if columns == "Review,label,review":  # of two columns that differ in case, the one with exactly the name is read
        cells[0] = "other"
    (tmp_path / "new.csv").write_text(f"{columns}\n" + f"{','.join(cells)}\n" * 3)
    head = ModelHead(("x", "y"), columns=TrainedColumns(text="review"))
    example: Any = open_table(TableSettings(), str(tmp_path / "new.csv"), head).for_scoring().read("dev")[0]
    assert example.text_a == "the text"


def test_for_scoring_single_token_file_has_no_train(tmp_path: Path) -> None:
    path = tmp_path / "mine.conll"
    path.write_text("Bo B-PER\nruns O\n\n" * ROWS)
    with pytest.raises(MissingDataError, match="scored as a whole"):
        open_token_task(TableSettings(), str(path), ()).for_scoring().read("train", str(path))


@pytest.mark.parametrize(
    ("kind", "labels", "head", "expected"),
    [
        ("classification", ["good", "good"], ModelHead(("bad", "good")), ("bad", "good")),
        ("multi-label", ["bad", ""], ModelHead(("bad", "good", "long"), True), ("bad", "good", "long")),
        ("classification", ["1", "2"], ModelHead(("score",)), ("1", "2")),
    ],
)
def test_open_table_named_kind_takes_the_models_classes(
    tmp_path: Path, kind: Any, labels: list[str], head: ModelHead, expected: tuple[str, ...]
) -> None:
    (tmp_path / "dev.csv").write_text("text,label\n" + "".join(f"a film,{label}\n" for label in labels))
    settings = TableSettings(kind=kind)
    assert open_table(settings, str(tmp_path / "dev.csv"), head).labels == expected
    if len(head.labels) > 1:
        assert open_table(settings, str(tmp_path), head).labels == expected


def test_open_table_dev_alone_may_spell_classes_otherwise(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text("text,label\na film,Good\nb film,BAD\n")
    task = open_table(TableSettings(), str(tmp_path), ModelHead(("bad", "good", "mid")))
    examples: list[Any] = task.for_scoring().read("dev")
    assert task.labels == ("BAD", "Good", "mid") and [example.label for example in examples] == [1, 0]


@pytest.mark.parametrize(
    ("settings", "rows", "test"),
    [
        (TableSettings(label="stars"), "text,stars\na,x\nb,y\n", "text\nc\n"),
        (TableSettings(label="stars"), "text,stars\na,x|y\nb,y\n", "text\nc\n"),
        (
            TableSettings(label="key"),
            "question,option_a,option_b,key\nq,a,b,A\nq,a,b,B\n",
            "question,option_a,option_b\nq,a,b\n",
        ),
    ],
)
def test_read_test_may_lack_the_named_label(tmp_path: Path, settings: TableSettings, rows: str, test: str) -> None:
    for split, content in (("train", rows), ("dev", rows), ("test", test)):
        (tmp_path / f"{split}.csv").write_text(content)
    task = open_table(settings, str(tmp_path))
    (example,) = task.read("test")
    assert getattr(example, "labels" if isinstance(task, MultiLabelClassification) else "label") is None
    (tmp_path / "dev.csv").write_text(test)
    with pytest.raises(InputError, match=f"no column '{settings.label}'"):
        open_table(settings, str(tmp_path)).read("dev")


@pytest.mark.parametrize("label", ["2", ""])
def test_open_table_test_alone_decides_label_reading(tmp_path: Path, label: str) -> None:
    rows = f"q,a,b,c,{label}\nq,a,b,c,3\n"
    (tmp_path / "test.csv").write_text("question,choice1,choice2,choice3,label\n" + rows)
    if label:
        examples: list[Any] = open_table(TableSettings(), str(tmp_path)).for_scoring("test").read("dev")
        assert [example.label for example in examples] == [1, 2]
    else:
        with pytest.raises(InputError, match="label '' names none"):
            open_table(TableSettings(), str(tmp_path))
