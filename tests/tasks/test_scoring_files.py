"""A model is scored on all rows of a file; rows are held out for training only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli.errors import MissingDataError
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.squad.task import SQUAD
from albert_cli.tasks.table import ModelHead, open_table
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
    task = open_table(settings, str(path), ModelHead(("the text", "x"), text_columns=("text",)))
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
