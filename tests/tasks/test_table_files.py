"""The files of a custom table: named by the settings, in a folder, or in the layout of the Hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_cli.errors import InputError
from albert_cli.tasks.table import open_table
from albert_cli.tasks.table_settings import TableSettings
from tests.helpers.recordings import write_recordings

ROWS = "text,label\na b,x\nc d,y\n"


@pytest.mark.parametrize("folder", ["", "data"])
def test_open_table_reads_the_layout_of_the_hub(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        table = pa.table({"text": [f"{name} a", f"{name} b"], "label": ["x", "y"]})
        pq.write_table(table, tmp_path / folder / f"{name}.parquet")
    task = open_table(TableSettings(), str(tmp_path))
    assert [len(task.read(split)) for split in ("train", "dev")] == [4, 2]


def test_open_table_parquet_repeated_column_is_rejected(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a", "b"])] * 3, names=["text", "label", "text"])
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(InputError, match=r"train\.parquet: the column 'text' occurs twice"):
        open_table(TableSettings(), str(tmp_path))


@pytest.mark.parametrize("path", ["train.parquet", "data/train-00000-of-00001.parquet"])
def test_open_table_class_numbers_become_names(tmp_path: Path, path: str) -> None:
    import datasets

    label = datasets.ClassLabel(names=["pos", "neg"])
    columns = {"text": datasets.Value("string"), "label": label, "labels": datasets.List(label)}
    columns["meta"] = {"a": datasets.Value("string")}
    texts = [f"a text {number}" for number in range(6)]
    rows = {"text": texts, "label": [0, 1, -1] * 2, "labels": [[0], [1, 0], []] * 2}
    rows["meta"] = [{"a": "b"}] * 6
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_dict(rows, datasets.Features(columns)).to_parquet(tmp_path / path)
    task = open_table(TableSettings(label="label", missing="skip", holdout=0.5), str(tmp_path))
    assert task.labels == ("neg", "pos")
    assert len(task.read("train")) + len(task.read("dev")) == 4
    assert open_table(TableSettings(label="labels", kind="multi-label"), str(tmp_path)).labels == ("neg", "pos")


def test_open_table_hub_splits_of_other_names_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"text": [f"a text {number}" for number in range(4)], "label": ["x", "y"] * 2})
    (tmp_path / "data").mkdir()
    for name in ("first", "second"):
        pq.write_table(table, tmp_path / "data" / f"{name}-00000-of-00001.parquet")
    source = f"hf:{tmp_path}"
    for data in (source, str(tmp_path)):
        with pytest.raises(InputError, match="first, second") as raised:
            open_table(TableSettings(), data)
        assert f"-s table.train={source}#first" in str(raised.value.hint)
    task = open_table(TableSettings(train=f"{source}#first"), source)
    assert len(task.read("train")) + len(task.read("dev")) == 4
    assert "not read: second;" in capsys.readouterr().err


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_open_table_leaves_out_recordings(tmp_path: Path, prefix: str) -> None:
    write_recordings(tmp_path / "train.parquet", ["a b", "c d"] * 4, label=["x", "y"] * 4)
    task = open_table(TableSettings(), f"{prefix}{tmp_path}")
    assert len(task.read("train")) + len(task.read("dev")) == 8


@pytest.mark.parametrize(("marker", "split"), [("state.json", ""), ("dataset_dict.json", "['train']")])
def test_saved_to_disk_folder_names_the_conversion(tmp_path: Path, marker: str, split: str) -> None:
    (tmp_path / marker).write_text("{}")
    for data in (str(tmp_path), f"hf:{tmp_path}"):
        with pytest.raises(InputError, match="save_to_disk") as raised:
            open_table(TableSettings(), data)
        assert f"load_from_disk('{tmp_path}'){split}.to_parquet('train.parquet')" in str(raised.value.hint)


def test_named_file_is_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "reviews.csv").write_text(ROWS)
    (tmp_path / "other.csv").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    task = open_table(TableSettings(train="reviews.csv", dev="other.csv"), "data")
    assert [len(task.read(split)) for split in ("train", "dev")] == [2, 2]
    with pytest.raises(InputError, match=r"gone\.csv: no such file in the working directory or in data"):
        open_table(TableSettings(train="gone.csv"), "data")


@pytest.mark.parametrize("data", [None, "train.csv", "folder"])
def test_named_file_that_is_missing_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str | None
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "train.csv").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    for name in ("tset.csv", "folder"):  # a folder is no file
        with pytest.raises(InputError, match=f"{name}: no such file"):
            open_table(TableSettings(train="train.csv", test=name), data)


ANSWERS = ("accept", "reject", "ignore")


def write_answers(path: Path, answers: Sequence[object], **column: str) -> Path:
    """Write rows as Prodigy's `db-out` does, two for each answer; `column` replaces the column of labels."""
    names = column or {"label": "SPORT"}
    rows = [{"text": f"text {number}", **names, "answer": answer} for number, answer in enumerate([*answers] * 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_open_table_rejected_rows_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_answers(tmp_path / "train.jsonl", ANSWERS)
    settings = TableSettings(train=str(path), dev=str(path), labels=("OTHER", "SPORT"))
    for kind in ("classification", "multi-label"):
        task = open_table(replace(settings, kind=kind))
        assert [example.id for example in task.read("train")] == ["1", "4"]
        assert "4 rows with the answer reject or ignore" in capsys.readouterr().err
    write_answers(path, ("accept", "reject", None))
    assert len(open_table(settings).read("train")) == 4


def test_open_table_with_rejected_rows_only_is_an_error(tmp_path: Path) -> None:
    train = write_answers(tmp_path / "train.jsonl", ("accept",))
    dev = write_answers(tmp_path / "dev.jsonl", ("reject", "ignore"))
    task = open_table(TableSettings(train=str(train), dev=str(dev), labels=("OTHER", "SPORT")))
    with pytest.raises(InputError, match=r"dev\.jsonl: every row has the answer reject or ignore") as raised:
        task.read("dev")
    assert raised.value.hint == "accept some rows, or remove the column answer"


@pytest.mark.parametrize("answers", [("accept", "reject", "maybe"), ("accept", "accept"), ("a1", "a2", "a3")])
def test_open_table_answers_of_another_kind_remain(tmp_path: Path, answers: Sequence[str]) -> None:
    path = write_answers(tmp_path / "train.jsonl", answers)
    settings = TableSettings(train=str(path), dev=str(path), labels=("OTHER", "SPORT"))
    assert len(open_table(settings).read("train")) == 2 * len(answers)


def test_open_table_label_called_answer_remains(tmp_path: Path) -> None:
    path = write_answers(tmp_path / "train.jsonl", ANSWERS, title="x")
    task = open_table(TableSettings(train=str(path), dev=str(path), label="answer"))
    assert task.labels == ("accept", "ignore", "reject") and len(task.read("dev")) == 6
    path.write_text(json.dumps({"text": "a b", "choices": ["accept", "reject"], "answer": "reject"}), encoding="utf-8")
    assert len(open_table(TableSettings(train=str(path), dev=str(path))).read("dev")) == 1
