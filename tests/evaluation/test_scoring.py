"""Tests of predictions with the runs of an evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_cli import store
from albert_cli.errors import ConfigError
from albert_cli.evaluation.scoring import (
    checkpoint_for_test_set,
    predict_examples,
    predict_with_run,
    prepare_evaluation,
)
from albert_cli.training.task_setup import TaskRequest
from tests.helpers.command import albert
from tests.helpers.results import evaluation_result
from tests.helpers.task_runs import QUICK, evaluate, finetune, prepare, sentence, write_foreign, write_single_file


def test_test_set_is_predicted_with_the_best_runs_precision(
    tuned: Any, encoder: Path, glue: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tuned("cola"), tmp_path / "run-1"))
    store.write_json(run / "results.json", store.read_json(run / "results.json") | {"precision": "bf16"})
    prepared = prepare("cola", str(encoder), str(glue), QUICK, "cpu")
    examples = prepared.task.read("dev", str(glue))
    scored = prepare("cola", str(run), str(glue), QUICK, "cpu")
    expected = {name: np.asarray(predict_examples(scored, examples, precision=name)) for name in ("fp32", "bf16")}
    assert not np.array_equal(expected["fp32"], expected["bf16"])
    assert np.array_equal(np.asarray(predict_with_run(prepared, run)(examples)), expected["bf16"])
    result = evaluation_result([0.5, 0.7])
    assert checkpoint_for_test_set(result, tmp_path, TaskRequest("", None, 2, (), "cpu")) == (str(run), "bf16")


def write_labeled(folder: Path, task: str) -> str:
    """Write a train and a dev file of named entities, of texts with sets of classes, or of texts with values."""
    folder.mkdir()
    words = [sentence(i).replace(" ", " O\n") for i in range(9)]
    rows = {
        "ner": ("conll", "".join(f"{lines} O\nbo B-X\nde I-X\n\n" for lines in words)),
        "multi-label": ("csv", "text,label\n" + "".join(f"{sentence(i)},{('a|b', 'b')[i % 2]}\n" for i in range(9))),
        "regression": ("csv", "text,label\n" + "".join(f"{sentence(i)},{i / 2}\n" for i in range(9))),
    }
    ending, text = rows[task]
    for split in ("train", "dev"):
        (folder / f"{split}.{ending}").write_text(text)
    return str(folder)


@pytest.mark.parametrize("task", ["ner", "multi-label"])
def test_eval_unnamed_labels_of_any_head_are_refused(
    task: str, encoder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "ner" if task == "ner" else "table"
    data = write_labeled(tmp_path / "data", task)
    overrides = QUICK if task == "ner" else (*QUICK, "table.kind=multi-label")
    trained = finetune(prepare(name, str(encoder), data, overrides, "cpu"), tmp_path / "run", 0)
    labels = tuple(trained["labels"])
    unnamed = tuple(f"LABEL_{number}" for number in range(len(labels)))
    foreign = str(write_foreign(tmp_path / "run", tmp_path / "foreign", unnamed))
    with pytest.raises(ConfigError, match=r"the classes have no names \(LABEL_0, LABEL_1") as raised:
        evaluate(name, foreign, data, tmp_path / "out", 1, overrides, "cpu")
    assert "model.labels" in str(raised.value.hint) and "model.head=new" in str(raised.value.hint)
    request = TaskRequest(foreign, data, overrides=overrides, device="cpu")
    with pytest.raises(ConfigError) as raised:
        prepare_evaluation(name, request, can_train=False)
    assert "model.head=new" not in str(raised.value.hint)
    names = ", ".join(f'"{label}"' for label in labels)
    for number, setting in enumerate((f"model.labels=[{names}]", "model.head=checkpoint")):
        result = evaluate(name, foreign, data, tmp_path / f"out-{number}", 1, (*overrides, setting), "cpu")
        assert result["kind"] == "scored" and result["scores"] == trained["scores"]
    assert f"labels have no names; reading them as {trained['title']}'s" in capfd.readouterr().err


def test_eval_unnamed_value_is_scored(encoder: Path, tmp_path: Path) -> None:
    data = write_labeled(tmp_path / "data", "regression")
    trained = finetune(prepare("table", str(encoder), data, QUICK, "cpu"), tmp_path / "run", 0)
    foreign = str(write_foreign(tmp_path / "run", tmp_path / "foreign", ("LABEL_0",)))
    assert evaluate("table", foreign, data, tmp_path / "out", 1, QUICK, "cpu")["scores"] == trained["scores"]


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("table", ()),
        ("ner", ()),
        ("squad1", ("span.max_query_length=6", "span.doc_stride=4")),
        ("table", ("data.train_examples=8",)),
        ("table", ("table.holdout=0.4", "table.holdout_seed=3", "data.dev_examples=4")),
    ],
)
def test_eval_scores_held_out_rows_of_a_single_file(
    task: str, settings: tuple[str, ...], encoder: Path, tmp_path: Path
) -> None:
    path = write_single_file(tmp_path, task)
    trained = finetune(prepare(task, str(encoder), str(path), (*QUICK, *settings), "cpu"), tmp_path / "run", 0)
    call = ["eval", task, "--checkpoint", tmp_path / "run", "--device", "cpu", "--data"]
    printed = albert(*call, path, "--out", tmp_path / "same").err
    scored = store.read_json(tmp_path / "same" / "results.json")
    for key in ("examples", "data", "scores", "majority"):
        assert scored[key] == trained[key], key
    assert f"the {scored['examples']['dev']} examples that training held out are scored" in printed
    other = tmp_path / f"other{path.suffix}"
    other.write_text(path.read_text().replace("figo", "luma"))
    printed = albert(*call, other, "--out", tmp_path / "other").err
    assert store.read_json(tmp_path / "other" / "results.json")["examples"] == {"dev": 30}
    assert "all 30 examples are scored" in printed
