"""Multi-label classification: its tables, its scores, and the same probabilities in Hugging Face's pipeline."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sklearn.metrics
import torch
import transformers

from albert_cli import store
from albert_cli.config import validate_recipe
from albert_cli.errors import CheckpointError, InputError
from albert_cli.model import hub
from albert_cli.tasks import multi_label
from albert_cli.tasks.multi_label import MultiLabelClassification, MultiLabelExample, score_multi_label, sigmoid
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.tasks.table import open_table
from albert_cli.tasks.table_settings import TableSettings
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert
from tests.helpers.task_runs import SHAPE, sentence

LABELS = ("bad", "good", "x")
ROWS: list[tuple[int, ...]] = [(0,), (1, 2), (), (0, 1, 2), (2,), (1,)] * 4


def names(row: Sequence[int]) -> list[str]:
    return [LABELS[index] for index in row]


def write_jsonl(path: Path) -> None:
    rows = [{"text": sentence(number), "label": names(row)} for number, row in enumerate(ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(path: Path, cell: Callable[[Sequence[int]], str], header: str = "label") -> None:
    lines = [f"text,{header}", *(f"{sentence(number)},{cell(row)}" for number, row in enumerate(ROWS))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def open_as(path: Path, **settings: Any) -> MultiLabelClassification:
    task = open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)} | settings, "recipe"))
    assert isinstance(task, MultiLabelClassification)
    return task


def test_read_multi_label_tables_in_every_form(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    write_csv(tmp_path / "bar.csv", lambda row: "|".join(names(row)))
    write_csv(tmp_path / "spaces.csv", lambda row: " | ".join(names(row)))
    write_csv(tmp_path / "list.csv", lambda row: '"' + json.dumps(names(row)).replace('"', '""') + '"')
    write_csv(tmp_path / "python.csv", lambda row: f'"{names(row)}"')
    # A list that pandas read from Parquet is an array, which `to_csv` writes without commas, in lines if it is long.
    write_csv(tmp_path / "numpy.csv", lambda row: f'"{np.array2string(np.array(names(row)), max_line_width=9)}"')
    write_csv(tmp_path / "columns.csv", lambda row: ",".join(str(int(i in row)) for i in range(3)), ",".join(LABELS))
    for path in sorted(tmp_path.iterdir()):
        settings = {"label_columns": LABELS} if path.stem == "columns" else {}
        task = open_as(path, **settings)
        assert (task.labels, task.metrics[0]) == (LABELS, "micro_f1"), path
        assert [example.labels for example in task.read("dev")] == ROWS, path


def test_open_table_multi_label_settings(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", lambda row: "|".join(names(row)))
    task = open_as(tmp_path / "a.csv", labels=["x", "good", "bad"], kind="multi-label")
    assert task.labels == ("x", "good", "bad") and task.read("dev")[1].labels == (0, 1)
    single = validate_recipe(TableSettings, {"train": str(tmp_path / "a.csv"), "kind": "classification"}, "recipe")
    with pytest.raises(InputError, match=r"a\.csv:4: the label is empty"):
        open_table(single)


@pytest.mark.parametrize(
    ("label", "settings", "message"),
    [
        ('["good", {"a": 1}]', {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("[good", {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("[true, false]", {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("[" + "9" * 5000 + "]", {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("[0x" + "f" * 5000 + "]", {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("[{[1]: 2}]", {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("['fine' 2]", {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("['it''s']", {}, "a.jsonl:2: the label .* is not a list of texts"),
        ("['good' 'bad']", {"labels": ("bad", "goodbad"), "kind": "multi-label"}, "label 'good' is not one of"),
        ('["fine"]', {"labels": LABELS, "kind": "multi-label"}, "a.jsonl:2: label 'fine' is not one of"),
        ("good|fine", {"labels": LABELS, "kind": "multi-label"}, "a.jsonl:2: label 'fine' is not one of"),
        ('["bad"]', {}, "fewer than two classes, so there is nothing to learn"),
        ("2", {"label_columns": ("label",)}, "a.jsonl:1: .* is neither 0 nor 1"),
    ],
)
def test_read_multi_label_bad_label_names_the_line(
    tmp_path: Path, label: str, settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "a", "label": ["bad"]}, {"text": "b", "label": label}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        open_as(path, **settings).read("dev")


@pytest.mark.parametrize(
    "rows",
    [
        ([0, 1, 0], [1, 0, 0], [0, 0, 0]),
        ([0, 1], [1, 0]),
        ("[0, 1]", "[1, 1]"),
        ("[0 1 1]", "[ 1\n 0 1]"),
        ("[0, 1]", "NA", "[1, 1]"),
        ([True, False], None, [True, True]),
        ([0, 0.0], [1, 0]),
    ],
)
def test_read_multi_label_vectors_of_0_and_1_are_rejected(tmp_path: Path, rows: Sequence[object]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "label": row}) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"a\.jsonl:1: the label .* looks like a vector of 0 and 1") as raised:
        open_as(path)
    assert "table.label_columns" in str(raised.value.hint)


def test_read_multi_label_arrays_of_numbers_are_read(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", lambda row: f'"{np.array2string(np.array([*row, 12]), max_line_width=9)}"')
    task = open_as(tmp_path / "a.csv", kind="multi-label")
    assert task.labels == ("0", "1", "12", "2")
    index = {0: 0, 1: 1, 2: 3}
    assert [set(example.labels or ()) for example in task.read("dev")] == [
        {2, *(index[i] for i in row)} for row in ROWS
    ]


def test_read_multi_label_classes_0_and_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "label": row}) + "\n" for row in ([0], [1, 0], [])))
    assert [example.labels for example in open_as(path).read("dev")] == [(0,), (0, 1), ()]


def test_read_multi_label_missing_labels(tmp_path: Path) -> None:
    rows = "text,label\na,x|y\nb,NA\nc,\nd,null\ne,x\n"
    (tmp_path / "a.csv").write_text(rows, encoding="utf-8")
    task = open_as(tmp_path / "a.csv", missing="skip")
    assert (task.labels, [example.labels for example in task.read("dev")]) == (("x", "y"), [(0, 1), (), (0,)])
    with pytest.raises(InputError, match=r"a\.csv:5: the label 'null' is a missing value"):
        open_as(tmp_path / "a.csv").read("dev")
    (tmp_path / "b.csv").write_text(rows.replace("null", "x"), encoding="utf-8")
    assert open_as(tmp_path / "b.csv").labels == ("NA", "x", "y")
    named = open_as(tmp_path / "b.csv", missing="skip", labels=["x", "y", "NA"], kind="multi-label")
    assert [example.labels for example in named.read("dev")] == [(0, 1), (2,), (), (0,), (0,)]


def test_read_multi_label_hidden_columns_are_missing(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,a,b\nx,1,0\ny,1,1\n", encoding="utf-8")
    (tmp_path / "test.csv").write_text("text,a,b\nx,-1,-1\ny,0,1\n", encoding="utf-8")
    settings = validate_recipe(TableSettings, {"label_columns": ["a", "b"]}, "recipe")
    task = open_table(settings, str(tmp_path))
    assert isinstance(task, MultiLabelClassification)
    assert [example.labels for example in task.read("test")] == [None, (1,)]
    with pytest.raises(InputError, match=r"test\.csv:2: the label '-1' is a missing value"):
        task.for_scoring("test").read("test")


@pytest.mark.parametrize("label", ["-1", "[-1]"])
def test_read_multi_label_hidden_labels_are_missing(tmp_path: Path, label: str) -> None:
    (tmp_path / "train.csv").write_text("text,label\nx,good|bad\ny,bad\n", encoding="utf-8")
    (tmp_path / "dev.csv").write_text("text,label\nx,bad\n", encoding="utf-8")
    (tmp_path / "test.csv").write_text(f"text,label\nx,{label}\ny,{label}\n", encoding="utf-8")
    task = open_table(TableSettings(), str(tmp_path))
    assert isinstance(task, MultiLabelClassification)
    assert [example.labels for example in task.read("test")] == [None, None]
    with pytest.raises(InputError, match=r"test\.csv:2: the label '-1' is a missing value"):
        task.for_scoring("test").read("test")
    (tmp_path / "test.csv").write_text("text,label\nx,-1\ny,bad\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"test\.csv:2: label '-1' is not one of"):
        open_table(TableSettings(), str(tmp_path)).read("test")


def test_read_multi_label_other_spelling_is_the_class(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nx,Good|bad\ny,bad\n", encoding="utf-8")
    (tmp_path / "dev.csv").write_text("text,label\nx,good\ny,Bad|GOOD\n", encoding="utf-8")
    task = open_table(validate_recipe(TableSettings, {"kind": "multi-label"}, "recipe"), str(tmp_path))
    assert isinstance(task, MultiLabelClassification)
    assert [example.labels for example in task.read("dev")] == [(0,), (0, 1)]


def test_score_multi_label_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        gold = (rng.random((40, 4)) < 0.4).astype(np.float32)
        probabilities = rng.random((40, 4))
        predicted = probabilities > 0.5
        scores = score_multi_label(gold, probabilities)
        f1 = sklearn.metrics.f1_score
        assert scores["micro_f1"] == f1(gold, predicted, average="micro")
        assert scores["macro_f1"] == f1(gold, predicted, average="macro")
        expected = sklearn.metrics.average_precision_score(gold, probabilities, average="macro")
        assert scores["mean_average_precision"] == pytest.approx(expected)


def test_score_multi_label_of_one_class_is_its_f1() -> None:
    gold = np.array([[1], [0], [0], [0]], dtype=np.float32)
    never = score_multi_label(gold, np.full((4, 1), 0.1))
    assert (never["micro_f1"], never["macro_f1"]) == (0.0, 0.0)
    once = score_multi_label(gold, np.array([[0.9], [0.1], [0.8], [0.1]]))  # one true and one false positive
    assert once["micro_f1"] == once["macro_f1"] == pytest.approx(2 / 3)


def test_iter_predictions_of_rare_classes_keeps_the_scores() -> None:
    rng = np.random.default_rng(0)
    gold = (rng.random((200, 2)) < 0.3).astype(np.float32)
    logits = (rng.normal(-13, 0.2, (200, 2)) + 0.2 * gold).astype(np.float32)
    task = MultiLabelClassification(name="t", title="t", metrics=(), labels=("a", "b"))
    examples = [MultiLabelExample("x", None, tuple(np.flatnonzero(row)), str(n)) for n, row in enumerate(gold)]
    lines = [json.loads(line) for line in task.format_predictions(examples, logits, with_details=False)]
    written = np.array([[line["probabilities"][name] for name in task.labels] for line in lines])
    assert score_multi_label(gold, written) == pytest.approx(score_multi_label(gold, sigmoid(logits)), abs=1e-6)


def test_score_majority_and_chance_of_multi_label(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    task = open_as(tmp_path / "a.jsonl")
    examples = task.read("dev")
    gold = np.array([[i in row for i in range(3)] for row in ROWS])
    everything = sklearn.metrics.f1_score(gold, np.ones_like(gold), average="micro")
    assert task.score_majority(examples, examples) == pytest.approx(everything)
    third = np.log(3) - 2 / 3 * np.log(2)  # the entropy of a class that a third of the texts have
    assert task.chance_loss(examples) == pytest.approx((third + 2 * np.log(2)) / 3)
    features_gold = np.array([[1, 0], [0, 1]], dtype=np.float32)
    assert score_multi_label(features_gold, np.array([[0.9, 0.1], [0.2, 0.8]]))["micro_f1"] == 1.0


def test_score_majority_of_many_classes_scores_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A score of each number of classes would take a time that is quadratic in the number of classes."""
    calls: list[str] = []

    def count(gold: Any, predicted: Any, average: Literal["micro", "macro"]) -> float:
        calls.append(average)
        return float(sklearn.metrics.f1_score(gold, predicted, average=average, zero_division=0.0))

    monkeypatch.setattr(multi_label, "_f1", count)
    gold = np.random.default_rng(0).random((200, 50)) < np.linspace(0.01, 0.9, 50)
    task = MultiLabelClassification(name="t", title="t", metrics=(), labels=tuple(map(str, range(50))))
    examples = [MultiLabelExample("x", None, tuple(np.flatnonzero(row)), "0") for row in gold]
    score = task.score_majority(examples, examples)
    assert calls == ["micro"]
    by_frequency = np.argsort(-gold.sum(axis=0), kind="stable")
    predictions = [np.isin(np.arange(50), by_frequency[:k]) for k in range(1, 51)]
    scores = [sklearn.metrics.f1_score(gold, np.tile(row, (200, 1)), average="micro") for row in predictions]
    assert score == pytest.approx(max(scores))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    """A fine-tuned multi-label model."""
    folder = tmp_path_factory.mktemp("multi")
    write_jsonl(folder / "train.jsonl")
    write_jsonl(folder / "dev.jsonl")
    (folder / "test.csv").write_text("text\n" + "\n".join(map(sentence, range(3))) + "\n", encoding="utf-8")
    encoder = untrained(folder / "encoder", SHAPE, tiny_vocabulary)
    call = ["finetune", "table", "--checkpoint", encoder, "--data", folder, "--out", folder / "model"]
    albert(*call, *QUICK, "-s", "optimizer.lr=1e-2", "-s", "schedule.total_steps=12", "-s", "train.eval_every=12")
    return folder / "model"


def test_predict_multi_label_equals_the_pipeline(model: Path, tmp_path: Path) -> None:
    texts = [sentence(number) for number in random.Random(0).sample(range(100), 20)]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    out = tmp_path / "out.jsonl"
    albert("predict", model, "--input", tmp_path / "in.txt", "--out", out, "--device", "cpu")
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert store.read_json(model / "config.json")["problem_type"] == "multi_label_classification"
    pipeline = transformers.pipeline("text-classification", model=str(model), device="cpu")
    for line, scores in zip(lines, pipeline(texts, top_k=None), strict=True):
        expected = {score["label"]: score["score"] for score in scores}
        assert line["probabilities"] == pytest.approx(expected, abs=2e-5)
        assert line["prediction"] == [name for name in LABELS if expected[name] > 0.5]
    assert len({tuple(line["probabilities"].values()) for line in lines}) > 1


def test_finetune_multi_label_predicts_the_test_file(model: Path) -> None:
    lines = (model / "predictions.test.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("text,prediction") and len(lines) == 4


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_predict_multi_label_table_reads_its_text(model: Path, tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / ("in.csv" if delimiter == "," else "in.tsv")
    path.write_text(delimiter.join(["number", "text"]) + "\n" + delimiter.join(["1", sentence(1)]) + "\n")
    albert("predict", model, "--input", path, "--out", tmp_path / "out.jsonl", "--device", "cpu")
    (line,) = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["number"] == "1" and "probabilities" in json.loads(line)


def test_eval_multi_label_scores_the_model(model: Path, tmp_path: Path) -> None:
    call = ["eval", "table", "--checkpoint", model, "--data", model.parent / "dev.jsonl", "--device", "cpu"]
    result = json.loads(albert(*call, "--out", tmp_path / "scores", "--json").out)
    trained = store.read_json(model / "results.json")
    assert result["scores"] == trained["scores"] and result["scores"].keys() >= {"micro_f1", "macro_f1"}
    albert("report", tmp_path / "scores", "--out", tmp_path / "report.html")


def test_reorder_labels_multi_label_follows_the_names(model: Path) -> None:
    checkpoint = hub.read_checkpoint(model)
    task = task_from_checkpoint(checkpoint)
    other = MultiLabelClassification(name="t", title="t", metrics=(), labels=("X", "BAD", "good"))
    rows = other.reorder_labels(checkpoint).tensors["classifier.bias"]
    assert torch.equal(rows, checkpoint.tensors["classifier.bias"][[2, 0, 1]])
    assert task.labels == LABELS and task.has_head(checkpoint)
    with pytest.raises(CheckpointError, match=r"its classes \(bad, good, x\) are not"):
        MultiLabelClassification(name="t", title="t", metrics=(), labels=("a", "b")).reorder_labels(checkpoint)
    named = MultiLabelClassification(name="t", title="t", metrics=(), labels=("a", "b", "c"))
    assert "model.labels" in str(named.wrong_head(checkpoint).hint)
