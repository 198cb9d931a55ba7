"""Tests of `albert ensemble`: checkpoints whose predictions are averaged."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation import ensemble
from albert_cli.evaluation.ensemble import evaluate_ensemble, predict_dev, select_greedily
from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.tasks.classification import softmax
from albert_cli.tasks.glue import GLUE
from albert_cli.training.task_setup import TaskRequest
from tests.helpers.command import albert
from tests.helpers.task_runs import QUICK, evaluate, finetune, prepare, sentence, write_single_file


def test_select_greedily_stops_without_improvement() -> None:
    score_of_members = {(0, 1): 1.0, (0, 2): 1.0, (0, 1, 2): 1.0}
    assert select_greedily([5 / 6] * 3, lambda members: score_of_members[tuple(members)]) == [0, 1], "two are enough"
    assert select_greedily([0.5, 0.9], lambda members: 0.9) == [1], "a member that does not raise the score is left out"


def test_task_average_is_over_probabilities_or_values() -> None:
    classes = GLUE["sst2"].average([np.log([[0.9, 0.1]]), np.log([[0.2, 0.8]])])
    assert softmax(classes) == pytest.approx(np.array([[0.55, 0.45]]))
    assert GLUE["stsb"].average([np.array([[1.0], [2.0]]), np.array([[3.0], [7.0]])]).tolist() == [[2.0], [4.5]]


def probabilities(directory: Path) -> np.ndarray[Any, Any]:
    rows = [json.loads(line) for line in (directory / "predictions.dev.jsonl").read_text().splitlines()]
    return np.array([list(row["probabilities"].values()) for row in rows])


def test_ensemble_of_runs_averages_probabilities(encoder: Path, glue: Path, tmp_path: Path) -> None:
    runs = evaluate("cola", str(encoder), str(glue), tmp_path / "runs", 3, QUICK, "cpu")
    out = tmp_path / "out"
    printed = albert("ensemble", "cola", tmp_path / "runs", "--data", glue, "--out", out, "--device", "cpu")
    result = json.loads((out / "results.json").read_text())
    assert [m["score"] for m in result["members"]] == list(runs["scores_by_seed"].values())
    chosen = [probabilities(Path(name)) for name in result["chosen"]]
    assert probabilities(out) == pytest.approx(np.mean(chosen, axis=0), abs=2e-5)
    mean_of_all = np.mean([probabilities(tmp_path / "runs" / f"run-{seed}") for seed in range(3)], axis=0)
    labels = (np.arange(12) + 1) % 2
    assert result["scores_of_all"]["accuracy"] == pytest.approx(np.mean(mean_of_all.argmax(1) == labels))
    assert result["gain"]["chosen_over_best"] >= 0
    assert "all 3" in printed.out
    assert "so their score is optimistic" in " ".join(printed.out.split())


def test_ensemble_unfit_members_are_rejected(tuned: Any, glue: Path, tmp_path: Path) -> None:
    both = [str(tuned("cola")), str(tuned("sst2"))]
    request = TaskRequest("", str(glue), 1, (), "cpu")
    with pytest.raises(CheckpointError, match="is not a model of CoLA"):
        evaluate_ensemble("cola", request, both, tmp_path / "out")
    with pytest.raises(ConfigError, match="an ensemble needs two or more checkpoints"):
        evaluate_ensemble("cola", request, both[:1], tmp_path / "one")
    with pytest.raises(CheckpointError, match="nosuch: no such directory"):
        evaluate_ensemble("cola", request, [str(tmp_path / "nosuch")], tmp_path / "one")
    with pytest.raises(ConfigError, match="an ensemble needs one task"):
        evaluate_ensemble("glue", request, both, tmp_path / "glue")


def test_ensemble_keeps_the_result_of_another_command(tuned: Any, glue: Path, tmp_path: Path) -> None:
    scored = evaluate("cola", str(tuned("cola")), str(glue), tmp_path / "out", 1, (), "cpu")
    shutil.copytree(tuned("cola"), tmp_path / "copy")
    call = ["ensemble", "cola", tuned("cola"), tmp_path / "copy", "--data", glue, "--device", "cpu", "--out"]
    assert "contains the result of another command (scored)" in albert(*call, tmp_path / "out", expect=6).err
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == scored
    for _ in range(2):  # the second call repeats the ensemble
        albert(*call, tmp_path / "together")


def test_ensemble_absolute_and_relative_path_are_one_member(
    tuned: Any, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tuned("cola").parent)
    request = TaskRequest("", str(glue), 1, (), "cpu")
    with pytest.raises(ConfigError, match="an ensemble needs two or more checkpoints"):
        evaluate_ensemble("cola", request, ["cola", str(tuned("cola"))], tmp_path / "out")


@pytest.mark.parametrize("task", ["table", "ner", "squad1"])
def test_ensemble_scores_held_out_rows_of_a_single_file(task: str, encoder: Path, tmp_path: Path) -> None:
    path = write_single_file(tmp_path, task)
    overrides = (*QUICK, *(("span.max_query_length=6", "span.doc_stride=4") if task == "squad1" else ()))
    runs = evaluate(task, str(encoder), str(path), tmp_path / "runs", 2, overrides, "cpu")
    call = ["ensemble", task, tmp_path / "runs", "--device", "cpu", "--data"]
    printed = albert(*call, path, "--out", tmp_path / "same").err
    result = json.loads((tmp_path / "same" / "results.json").read_text())
    assert (result["examples"], result["data"]) == (runs["examples"], runs["data"])
    assert [member["score"] for member in result["members"]] == list(runs["scores_by_seed"].values())
    assert "examples are scored" not in printed
    other = tmp_path / f"other{path.suffix}"
    other.write_text(path.read_text().replace("figo", "luma"))
    printed = albert(*call, other, "--out", tmp_path / "other").err
    assert json.loads((tmp_path / "other" / "results.json").read_text())["examples"] == {"dev": 30}
    assert "all 30 examples are scored" in printed


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("table", ("data.train_examples=8",)),
        ("table", ("table.holdout=0.4", "table.holdout_seed=3", "data.dev_examples=4")),
        ("ner", ("table.holdout=0.4",)),
    ],
)
def test_ensemble_scores_rows_held_out_by_the_recipe(
    task: str, settings: tuple[str, ...], encoder: Path, tmp_path: Path
) -> None:
    path = write_single_file(tmp_path, task)
    runs = evaluate(task, str(encoder), str(path), tmp_path / "runs", 2, (*QUICK, *settings), "cpu")
    members = [tmp_path / "runs" / "run-1", tmp_path / "runs" / "run-0"]
    albert("ensemble", task, *members, "--device", "cpu", "--data", path, "--out", tmp_path / "both")
    result = json.loads((tmp_path / "both" / "results.json").read_text())
    assert result["examples"] == runs["examples"]
    assert [m["score"] for m in result["members"]] == list(runs["scores_by_seed"].values())[::-1]


def test_ensemble_finds_runs_of_evaluations_and_suites(tuned: Any, glue: Path, tmp_path: Path) -> None:
    for name in ("suite/cola/run-0", "suite/cola/run-10", "suite/cola/run-9", "alone/run-old"):
        shutil.copytree(tuned("cola"), tmp_path / name)
    call = ["--data", glue, "--device", "cpu", "--out"]
    albert("ensemble", "cola", tmp_path / "suite", *call, tmp_path / "out")
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [Path(m["directory"]).name for m in result["members"]] == ["run-0", "run-9", "run-10"]
    albert("ensemble", "finetune/cola", tmp_path / "suite", *call, tmp_path / "by-recipe")
    by_recipe = json.loads((tmp_path / "by-recipe" / "results.json").read_text())
    assert by_recipe["members"] == result["members"]
    printed = albert("ensemble", "cola", tmp_path / "alone", tuned("cola"), *call, tmp_path / "none", expect=4)
    assert f"{tmp_path / 'alone'}: contains no checkpoint" in printed.err


def write_splits(folder: Path, labels: tuple[str, str], *splits: str) -> Path:
    folder.mkdir()
    for split in splits:
        rows = "".join(f"{sentence(i)}\t{labels[i % 2]}\n" for i in range(12))
        (folder / f"{split}.tsv").write_text(f"text\tlabel\n{rows}")
    return folder


def test_predict_dev_uses_the_label_order_of_the_first_member(encoder: Path, tmp_path: Path) -> None:
    data = str(write_splits(tmp_path / "data", ("no", "yes"), "train", "dev"))
    for name, labels in (("a", '["no", "yes"]'), ("b", '["yes", "no"]')):
        overrides = (*QUICK, f"table.labels={labels}")
        finetune(prepare("table", str(encoder), data, overrides, "cpu"), tmp_path / name, 0)
    dev_only = str(write_splits(tmp_path / "dev", ("no", "yes"), "dev"))
    request = TaskRequest("", dev_only, 1, (), "cpu")
    first, second = (prepare_evaluation("table", replace(request, checkpoint=str(tmp_path / name))) for name in "ab")
    assert (first.task.labels, second.task.labels) == (("no", "yes"), ("yes", "no"))
    logits: Any = predict_dev(second, first, first.load_inputs())
    predicted = softmax(logits)
    assert predicted == pytest.approx(probabilities(tmp_path / "b")[:, ::-1], abs=2e-5)
    assert not np.allclose(predicted, predicted[:, ::-1])
    other_labels = str(write_splits(tmp_path / "other", ("good", "bad"), "train", "dev"))
    finetune(prepare("table", str(encoder), other_labels, QUICK, "cpu"), tmp_path / "c", 0)
    with pytest.raises(CheckpointError, match=r"c: its classes \(bad, good\) differ from .*a \(no, yes\)"):
        evaluate_ensemble("table", request, [str(tmp_path / name) for name in "ac"], tmp_path / "no")
    # With training data, the classes of each member are compared with those of the data.
    request = TaskRequest("", data, 1, (), "cpu")
    with pytest.raises(CheckpointError, match=r"c: its classes \(bad, good\) are not .* \(no, yes\)"):
        evaluate_ensemble("table", request, [str(tmp_path / name) for name in "ac"], tmp_path / "no")


def test_ensemble_names_the_classes_of_multi_label_models(encoder: Path, tmp_path: Path) -> None:
    """The dev file has only the classes that both models share."""

    def write(path: Path, *labels: str) -> str:
        path.mkdir()
        rows = [{"text": sentence(i), "label": [labels[i % len(labels)]]} for i in range(12)]
        (path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    for name in "ab":
        data = write(tmp_path / f"data-{name}", name, "no", "yes")
        shutil.copy(f"{data}/dev.jsonl", f"{data}/train.jsonl")
        finetune(prepare("table", str(encoder), data, QUICK, "cpu"), tmp_path / name, 0)
    request = TaskRequest("", write(tmp_path / "dev", "no", "yes"), 1, (), "cpu")
    with pytest.raises(CheckpointError, match=r"b: its classes \(b, no, yes\) differ from .*a \(a, no, yes\)"):
        evaluate_ensemble("table", request, [str(tmp_path / name) for name in "ab"], tmp_path / "out")


def test_ensemble_predicts_the_test_file_of_a_table(encoder: Path, tmp_path: Path) -> None:
    rows = "".join(f"bade {i},{'ab'[i % 2]}\n" for i in range(12))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + rows)
    (tmp_path / "test.csv").write_text("key,text\nx,bade figo\ny,luma\n")
    options = ["--data", tmp_path, "--device", "cpu"]
    overrides = [word for override in QUICK for word in ("-s", override)]
    call = ["eval", "table", "--checkpoint", encoder, *options, "--runs", 2, "--out", tmp_path / "scores", *overrides]
    albert(*call)
    albert("ensemble", "table", tmp_path / "scores", *options, "--out", tmp_path / "both")
    chosen = json.loads((tmp_path / "both" / "results.json").read_text())["chosen"]
    probabilities_of_a = []
    for directory in chosen:
        call = ["predict", directory, "--input", tmp_path / "test.csv", "--device", "cpu", "--precision", "fp32"]
        probabilities_of_a.append([json.loads(line)["probabilities"]["a"] for line in albert(*call).out.splitlines()])
    with (tmp_path / "both" / "predictions.test.csv").open(newline="") as stream:
        predicted = list(csv.DictReader(stream))
    assert [row["key"] for row in predicted] == ["x", "y"]
    mean = np.mean(probabilities_of_a, axis=0)
    assert [float(row["probability_a"]) for row in predicted] == pytest.approx(mean.tolist(), abs=2e-5)


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("chosen", [[0, 1], [1]])
def test_ensemble_predicts_in_the_first_members_label_order(
    first: str, chosen: list[int], encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(write_splits(tmp_path / "data", ("no", "yes"), "train", "dev"))
    for name, labels in (("a", '["no", "yes"]'), ("b", '["yes", "no"]')):
        finetune(prepare("table", str(encoder), data, (*QUICK, f"table.labels={labels}"), "cpu"), tmp_path / name, 0)
    # Without training data, each member has the label order of its training.
    folder = write_splits(tmp_path / "new", ("no", "yes"), "dev", "test")
    monkeypatch.setattr(ensemble, "select_greedily", lambda scores, score_together: chosen)
    members = [tmp_path / first, tmp_path / ("b" if first == "a" else "a")]
    albert("ensemble", "table", *members, "--data", folder, "--device", "cpu", "--out", tmp_path / "both")
    predicted = []
    for member in (members[i] for i in chosen):
        call = ["predict", member, "--input", folder / "test.tsv", "--device", "cpu", "--precision", "fp32"]
        predicted.append([json.loads(line)["probabilities"]["yes"] for line in albert(*call).out.splitlines()])
    with (tmp_path / "both" / "predictions.test.tsv").open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    expected = np.mean(predicted, axis=0)
    assert not np.allclose(expected, 1 - expected, atol=1e-4)
    assert [float(row["probability_yes"]) for row in rows] == pytest.approx(expected.tolist(), abs=2e-5)


def test_ensemble_of_squad2_without_unanswerable_questions(encoder: Path, tmp_path: Path) -> None:
    answer = {"text": "luma", "answer_start": 10}
    rows = [
        {"id": str(i), "question": "Who figo?", "context": "Bade figo luma wi.", "answers": [answer]} for i in "abc"
    ]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = (*QUICK, "data.max_seq_length=20", "span.max_query_length=8", "span.doc_stride=3")
    call = ("squad2", str(encoder), str(tmp_path), tmp_path / "runs", 2, overrides, "cpu")
    result = evaluate(*call)
    assert "has_answer_em" in result["all_scores"] and "no_answer_em" not in result["all_scores"]
    assert evaluate(*call) == result, "finished runs are resumed"
    request = TaskRequest("", str(tmp_path), 1, (), "cpu")
    together = evaluate_ensemble("squad2", request, [str(tmp_path / "runs")], tmp_path / "both")
    assert set(together.scores) == set(result["all_scores"])
