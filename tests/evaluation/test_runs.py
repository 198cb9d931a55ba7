"""Tests of `albert eval` on small GLUE files: checkpoints are scored or fine-tuned."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from albert_cli import store
from albert_cli.errors import BusyError, ConfigError, InputError
from albert_cli.evaluation import suite
from albert_cli.model import hub, loading
from albert_cli.model.heads import SequenceClassifier
from albert_cli.tasks.registry import average_score, find_task
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.approximate import approximate
from tests.helpers.command import albert
from tests.helpers.results import evaluation_result, run_result, scored_result
from tests.helpers.task_runs import (
    QUICK,
    SHAPE,
    as_text,
    build_model,
    evaluate,
    finetune,
    prepare,
    sentence,
    summarize,
    write_foreign,
)

Tuned = Callable[[str], Path]


# ---------------------------------------------------------------- scored or trained from


def test_eval_checkpoint_of_another_task_is_trained(
    tuned: Tuned, glue: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = evaluate("sst2", str(tuned("cola")), str(glue), tmp_path / "out", 2, QUICK, "cpu")
    assert (result["kind"], result["seeds"], result["protocol"]["steps"]) == ("eval", [0, 1], 6)
    assert result["checkpoint"] == store.fingerprint(tuned("cola"))
    assert "was fine-tuned for cola (0, 1); SST-2 is trained from its encoder" in capfd.readouterr().err


def test_eval_note_names_classes_of_another_program(
    tuned: Tuned, glue: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The task's classes are also named, if they are others than the checkpoint's."""
    several = write_foreign(tuned("cola"), tmp_path / "a", ("no", "yes"), problem_type="multi_label_classification")
    evaluate("cola", str(several), str(glue), tmp_path / "out", 1, QUICK, "cpu")
    note = "is a classifier of another program (no, yes); CoLA (0, 1) is trained from its encoder"
    assert note in capfd.readouterr().err
    same = write_foreign(tuned("cola"), tmp_path / "b", ("0", "1"))
    evaluate("cola", str(same), str(glue), tmp_path / "same", 1, (*QUICK, "model.head=new"), "cpu")
    assert "is a classifier of another program (0, 1); CoLA is trained" in capfd.readouterr().err


def test_eval_random_weights_trains_a_task_checkpoint(
    tuned: Tuned, glue: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = (*QUICK, "model.weights=random")
    result = evaluate("cola", str(tuned("cola")), str(glue), tmp_path / "out", 1, overrides, "cpu")
    assert (result["kind"], result["protocol"]["weights"]) == ("eval", "random")
    assert "its encoder" not in capfd.readouterr().err


def test_eval_foreign_classifier_keeps_its_label_order(tuned: Tuned, glue: Path, tmp_path: Path) -> None:
    ours = evaluate("mnli", str(tuned("mnli")), str(glue), tmp_path / "ours", 1, QUICK, "cpu")
    assert set(ours["scores"]) == {"accuracy", "mismatched_accuracy"}
    order = [2, 0, 1]
    labels = tuple(find_task("mnli").labels[i] for i in order)
    foreign = write_foreign(tuned("mnli"), tmp_path / "foreign", labels)
    model = SequenceClassifier(SHAPE, 3)
    loading.load_weights(model, hub.read_checkpoint(tuned("mnli")), loading.LoadPolicy.EVERYTHING)
    with torch.no_grad():
        for parameter in (model.classifier.weight, model.classifier.bias):
            parameter.copy_(parameter[order].clone())
    values = store.read_json(foreign / "config.json")
    hub.write_checkpoint(model, foreign, "ForSequenceClassification", labels)
    store.write_json(foreign / "config.json", values)
    theirs = evaluate("mnli", str(foreign), str(glue), tmp_path / "theirs", 1, QUICK, "cpu")
    assert theirs["scores"] == ours["scores"]
    lines = [(tmp_path / name / "predictions.dev.jsonl").read_text() for name in ("ours", "theirs")]
    assert lines[0] == lines[1]
    # Training from this head also reorders its classes.
    trained = build_model(prepare("mnli", str(foreign), str(glue), (*QUICK, "model.head=checkpoint"), "cpu"), 0)
    assert torch.equal(trained.classifier.weight, hub.read_checkpoint(tuned("mnli")).tensors["classifier.weight"])


def test_eval_unnamed_labels_need_model_head(
    tuned: Tuned, glue: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two classes without names may be those of any task with two classes."""
    foreign = write_foreign(tuned("cola"), tmp_path / "other", ("LABEL_0", "LABEL_1"))
    for task in ("cola", "sst2"):
        with pytest.raises(ConfigError, match=r"the classes have no names \(LABEL_0, LABEL_1\)") as raised:
            evaluate(task, str(foreign), str(glue), tmp_path / "out", 1, QUICK, "cpu")
        assert "model.head=checkpoint" in str(raised.value.hint)
    trained = evaluate("cola", str(foreign), str(glue), tmp_path / "new", 1, (*QUICK, "model.head=new"), "cpu")
    assert trained["kind"] == "eval"
    result = evaluate("cola", str(foreign), str(glue), tmp_path / "out", 1, (*QUICK, "model.head=checkpoint"), "cpu")
    assert result["scores"] == store.read_json(tuned("cola") / "results.json")["scores"]
    assert f"{foreign}: labels have no names; reading them as CoLA's: 0, 1\n" in capfd.readouterr().err
    foreign = write_foreign(tuned("cola"), tmp_path / "another", ("no", "yes"))
    assert evaluate("cola", str(foreign), str(glue), tmp_path / "trained", 1, QUICK, "cpu")["kind"] == "eval"


def test_eval_truncates_like_fine_tuning(encoder: Path, glue: Path, tmp_path: Path) -> None:
    overrides = (*QUICK, "data.max_seq_length=6")
    finetune(prepare("cola", str(encoder), str(glue), overrides, "cpu"), tmp_path / "short", 0)
    scored = evaluate("cola", str(tmp_path / "short"), str(glue), tmp_path / "out", 1, (), "cpu")
    lines = [(d / "predictions.dev.jsonl").read_text() for d in (tmp_path / "short", tmp_path / "out")]
    assert lines[0] == lines[1]
    assert scored["scores"] == store.read_json(tmp_path / "short" / "results.json")["scores"]


def test_eval_scoring_needs_no_training_data(tuned: Tuned, glue: Path, tmp_path: Path) -> None:
    (tmp_path / "CoLA").mkdir()
    shutil.copy(glue / "CoLA" / "dev.tsv", tmp_path / "CoLA")
    result = evaluate("cola", str(tuned("cola")), str(tmp_path), tmp_path / "out", 1, QUICK, "cpu")
    assert "majority" not in result
    assert result["examples"] == {"dev": 12}
    assert "majority" not in as_text(result)
    with pytest.raises(InputError, match=r"SST-2/train\.tsv"):
        evaluate("sst2", str(tuned("cola")), str(tmp_path), tmp_path / "other", 1, QUICK, "cpu")


def test_eval_table_without_train_uses_model_labels(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "dev-only").mkdir()
    rows = "text\tlabel\n" + "".join(f"{sentence(i)}\t{'no' if i % 2 else 'yes'}\n" for i in range(12))
    for name in ("all/train.tsv", "all/dev.tsv", "dev-only/dev.tsv"):
        (tmp_path / name).write_text(rows)
    finetune(prepare("table", str(encoder), str(tmp_path / "all"), QUICK, "cpu"), tmp_path / "run", 0)
    results = [
        evaluate("table", str(tmp_path / "run"), str(tmp_path / data), tmp_path / f"of-{data}", 1, QUICK, "cpu")
        for data in ("all", "dev-only")
    ]
    assert results[0]["scores"] == results[1]["scores"]
    with pytest.raises(InputError, match="no training data"):
        evaluate("table", str(encoder), str(tmp_path / "dev-only"), tmp_path / "no", 1, QUICK, "cpu")


def test_eval_table_without_train_uses_named_classes(encoder: Path, tmp_path: Path) -> None:
    """The labels of `model.labels` name the classes of another program's model."""
    rows = "text\tlabel\n" + "".join(f"{sentence(i)}\t{'no' if i % 2 else 'yes'}\n" for i in range(12))
    (tmp_path / "dev.tsv").write_text(rows)
    model = tmp_path / "model"
    with store.commit_directory(model, "checkpoint") as staging:
        hub.write_checkpoint(SequenceClassifier(SHAPE, 2), staging, "ForSequenceClassification", ("LABEL_0", "LABEL_1"))
        Vocabulary.load(encoder).copy_to(staging, SHAPE.max_position_embeddings)
    overrides = (*QUICK, 'model.labels=["yes", "no"]')
    result = evaluate("table", str(model), str(tmp_path), tmp_path / "out", 1, overrides, "cpu")
    assert result["examples"] == {"dev": 12}


def test_eval_table_reads_the_text_column_of_training(encoder: Path, tmp_path: Path) -> None:
    rows = "".join(f"{sentence(i)}\t{'no' if i % 2 else 'yes'}\n" for i in range(12))
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        (tmp_path / name).write_text("document\tlabel\n" + rows)
    overrides = (*QUICK, "table.text=document")
    finetune(prepare("table", str(encoder), str(tmp_path), overrides, "cpu"), tmp_path / "run", 0)
    arguments = ("table", str(tmp_path / "run"), str(tmp_path), tmp_path / "out", 1, QUICK, "cpu")
    assert evaluate(*arguments)["examples"] == {"dev": 12}
    (tmp_path / "test.tsv").unlink()
    for name in ("train.tsv", "dev.tsv"):  # without the column `document`, the default name is read
        (tmp_path / name).write_text("text\tlabel\n" + rows)
    other = ("table", str(tmp_path / "run"), str(tmp_path), tmp_path / "other", 1, QUICK, "cpu")
    assert evaluate(*other)["examples"] == {"dev": 12}


@pytest.mark.parametrize("command", [("finetune",), ("eval", "--runs", 1)])
def test_table_training_ignores_the_columns_of_the_checkpoint(
    encoder: Path, tmp_path: Path, command: tuple[object, ...]
) -> None:
    for name, columns, labels in (("a", "text,label", ("no", "yes")), ("b", "text,text_pair,reply,label", ("x", "y"))):
        (tmp_path / name).mkdir()
        texts = ",".join(["bade figo"] * columns.count(","))
        rows = "".join(f"{texts} {i},{labels[i % 2]}\n" for i in range(12))
        for split in ("train", "dev"):
            (tmp_path / name / f"{split}.csv").write_text(f"{columns}\n{rows}")
    finetune(prepare("table", str(encoder), str(tmp_path / "a"), QUICK, "cpu"), tmp_path / "model", 0)
    for overrides in ((), ("-s", "table.text_pair=reply")):
        out = tmp_path / f"out{len(overrides)}"
        settings = [*overrides, *(word for override in QUICK for word in ("-s", override))]
        call = [*command, "table", "--checkpoint", tmp_path / "model", "--data", tmp_path / "b", "--out", out]
        albert(*call, "--device", "cpu", *settings)
        config = json.loads(next(out.rglob("config.json")).read_text())
        expected = {"text": "text", "text_pair": "reply" if overrides else "text_pair"}
        assert config["albert_task"]["settings"]["columns"] == expected


# ---------------------------------------------------------------- where results are written


def test_eval_scoring_rejects_an_out_with_other_files(tuned: Tuned, glue: Path, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in tuned("cola").iterdir() if p.is_file()}
    with pytest.raises(BusyError, match="holds other files") as raised:
        evaluate("cola", str(tuned("cola")), str(glue), tuned("cola"), 1, QUICK, "cpu")
    assert raised.value.exit_code == 6
    assert {p.name: p.read_bytes() for p in tuned("cola").iterdir() if p.is_file()} == before
    out = tmp_path / "out"
    first = evaluate("cola", str(tuned("cola")), str(glue), out, 1, QUICK, "cpu")
    assert evaluate("cola", str(tuned("cola")), str(glue), out, 1, QUICK, "cpu") == first
    with pytest.raises(ConfigError, match="was started with another task"):
        evaluate("sst2", str(tuned("sst2")), str(glue), out, 1, QUICK, "cpu")
    with pytest.raises(BusyError, match="holds other files"):
        evaluate("sst2", str(tuned("cola")), str(glue), out, 1, QUICK, "cpu")


# ---------------------------------------------------------------- the suite


def test_suite_mean_counts_trained_and_scored_tasks(tuned: Tuned, glue: Path, tmp_path: Path) -> None:
    result = evaluate("glue", str(tuned("mnli")), str(glue), tmp_path / "out", 2, QUICK, "cpu")
    assert list(result["tasks"]) == ["cola", "sst2", "mnli"]
    assert len(result["left_out"]) == 6
    kinds = {name: task["kind"] for name, task in result["tasks"].items()}
    assert kinds == {"cola": "eval", "sst2": "eval", "mnli": "scored"}
    mnli = statistics.fmean(result["tasks"]["mnli"]["scores"].values())
    trained = {"cola": "mcc", "sst2": "accuracy"}
    medians = [statistics.median(result["tasks"][name]["all_scores"][metric]) for name, metric in trained.items()]
    assert result["mean_of_tasks"] == pytest.approx(np.mean([mnli, *medians]))
    assert "glue_score" not in result
    assert result["tasks_scored"] == 3
    rows = [line for line in as_text(result).splitlines() if line.startswith("mean of 3 of 9 tasks")]
    assert len(rows) == 1
    assert f"{100 * result['mean_of_tasks']:.1f}" in rows[0]
    assert "Left out, without data: MRPC, STS-B, QQP, QNLI, RTE, WNLI." in " ".join(as_text(result).split())
    (tmp_path / "out" / "notes.txt").write_text("x")
    with pytest.raises(BusyError):
        evaluate("glue", str(tuned("mnli")), str(glue), tmp_path / "out", 2, QUICK, "cpu")


def test_glue_metrics_counts_cola_by_mcc_alone() -> None:
    scores_by_task = {
        "mrpc": {"accuracy": [0.5, 0.9, 0.6], "f1": [0.8, 0.1, 0.7]},
        "cola": {"mcc": [0.3], "accuracy": [0.9]},
    }
    counted = {
        name: suite.glue_metrics(evaluation_result(task=name, all_scores=all_scores))
        for name, all_scores in scores_by_task.items()
    }
    assert average_score(counted) == pytest.approx(((0.6 + 0.7) / 2 + 0.3) / 2)


def test_format_result_of_all_tasks_has_the_glue_score() -> None:
    result = {"kind": "suite", "tasks": {"a": scored_result().to_json()}, "glue_score": 0.715, "tasks_scored": 9}
    assert as_text(result).splitlines()[-1].split() == ["GLUE", "score", "71.5"]


# ---------------------------------------------------------------- seeds


def test_finetune_seed_option_overrides_the_recipe(encoder: Path, glue: Path, tmp_path: Path) -> None:
    call = ["finetune", "cola", "--checkpoint", encoder, "--data", glue, "--device", "cpu", "--json"]
    call += [word for override in (*QUICK, "train.seed=5") for word in ("-s", override)]
    assert json.loads(albert(*call, "--out", tmp_path / "recipe").out)["seed"] == 5
    assert json.loads(albert(*call, "--seed", 0, "--out", tmp_path / "named").out)["seed"] == 0
    result = evaluate("cola", str(encoder), str(glue), tmp_path / "eval", 2, (*QUICK, "train.seed=5"), "cpu")
    assert result["seeds"] == [5, 6]


# ---------------------------------------------------------------- questions


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one file with three articles; the dev split is held out from it."""
    rows = [
        {"id": str(i), "question": "Who figo?", "answers": [{"text": "luma", "answer_start": 10}]} for i in range(9)
    ]
    articles = [
        {"title": f"t{n}", "paragraphs": [{"context": f"Bade figo luma wi. {'Kra ne. ' * n}", "qas": rows[n::3]}]}
        for n in range(3)
    ]
    folder = tmp_path_factory.mktemp("questions")
    (folder / "train.json").write_text(json.dumps({"data": articles}))
    return folder


def test_eval_squad_encodes_like_fine_tuning(encoder: Path, questions: Path, tmp_path: Path) -> None:
    overrides = ("data.max_seq_length=20", "span.max_query_length=8", "span.doc_stride=3", "span.holdout=0.5")
    prepared = prepare("squad1", str(encoder), str(questions), (*QUICK, *overrides), "cpu")
    trained = finetune(prepared, tmp_path / "model", 0)
    assert trained["examples"]["dev"] == 6
    call = ("squad1", str(tmp_path / "model"), str(questions), tmp_path / "out", 1)
    result = evaluate(*call, (), "cpu")
    assert result["examples"] == {"dev": 6}
    assert result["scores"] == trained["scores"]
    lines = [(tmp_path / name / "predictions.dev.jsonl").read_text().splitlines() for name in ("out", "model")]
    assert list(map(json.loads, lines[0])) == approximate(list(map(json.loads, lines[1])))
    for name in ("predictions.json", "nbest_predictions.json"):
        scored, predicted = store.read_json(tmp_path / "out" / name), store.read_json(tmp_path / "model" / name)
        assert scored == approximate(predicted)
    assert evaluate(*call, (), "cpu") == result
    other = evaluate(*call[:3], tmp_path / "other", 1, ("span.holdout=0.34",), "cpu")
    assert other["examples"] == {"dev": 3}


def test_eval_with_the_head_has_no_note_on_the_encoder(
    encoder: Path, questions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = (*QUICK, "data.max_seq_length=20", "span.max_query_length=8", "span.doc_stride=3", "span.head=linear")
    finetune(prepare("squad1", str(encoder), str(questions), overrides, "cpu"), tmp_path / "model", 0)
    call = ("squad2", str(tmp_path / "model"), str(questions))
    result = evaluate(*call, tmp_path / "continued", 1, (*overrides, "model.head=checkpoint"), "cpu")
    assert result["protocol"]["intermediate_task"] == "squad1"
    assert "its encoder" not in capfd.readouterr().err
    evaluate(*call, tmp_path / "new", 1, (*overrides, "model.head=new"), "cpu")
    assert "SQuAD 2.0 is trained from its encoder" in capfd.readouterr().err


def test_summarize_runs_computes_the_standard_error() -> None:
    runs = [run_result(score, seed).to_json() for seed, score in enumerate((0.5, 0.6, 0.7))]
    result = summarize(runs)
    assert result.standard_error == pytest.approx(0.1 / 3**0.5)
    assert result.stdev == pytest.approx(0.1)
    printed = as_text(result.to_json())
    assert "s.e." in printed
    assert " 60.0   5.8 " in printed
    single = summarize(runs[:1])
    assert single.standard_error is None
    assert "s.e." not in as_text(single.to_json())


def test_summarize_runs_majority_is_the_median() -> None:
    """With `data.train_examples` each seed samples its own training examples."""
    majorities = (0.50, 0.40, 0.42, None)
    runs = [run_result(0.6, seed, majority=majority).to_json() for seed, majority in enumerate(majorities)]
    assert summarize(runs).majority == 0.42
    assert summarize(runs[3:]).majority is None
