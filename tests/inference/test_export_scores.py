"""`albert export --data`: every kind of task has the scores of `albert eval` in ONNX, and its labels in config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert_cli import store
from tests.helpers.checkpoints import untrained
from tests.helpers.command import albert
from tests.helpers.task_runs import SHAPE, WORDS, sentence, write_single_file

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
# `sentence` repeats after six numbers. If two texts were equal, rounding would decide which one ranks higher.
ROWS = range(6)
QUICK = (
    "-s", "schedule.total_steps=2", "-s", "schedule.warmup_steps=1", "-s", "train.batch_size=4", "-s",
    "train.precision=fp32", "-s", "data.max_seq_length=40", "-s", "optimizer.lr=5e-2", "--device", "cpu",
)  # fmt: skip


def write_lines(path: Path, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_sst2(folder: Path) -> None:
    for split in ("train", "dev"):
        write_lines(folder / "SST-2" / f"{split}.tsv", ["sentence\tlabel", *(f"{sentence(i)}\t{i % 2}" for i in ROWS)])


def write_stsb(folder: Path) -> None:
    rows = ["sentence1\tsentence2\tscore", *(f"{sentence(i)}\t{sentence(i + 3)}\t{i % 6}" for i in ROWS)]
    for split in ("train", "dev"):
        write_lines(folder / "STS-B" / f"{split}.tsv", rows)


def write_multi_label(folder: Path) -> None:
    labels = [["a"], ["b", "c"], [], ["a", "c"]]
    rows = [json.dumps({"text": sentence(i), "label": labels[i % 4]}) for i in ROWS]
    for split in ("train", "dev"):
        write_lines(folder / f"{split}.jsonl", rows)


def write_entities(folder: Path) -> None:
    rows = [json.dumps({"tokens": sentence(i).split()[:3], "tags": ["O", "B-X", "I-X"]}) for i in ROWS]
    for split in ("train", "dev"):
        write_lines(folder / f"{split}.jsonl", rows)


def write_race(folder: Path) -> None:
    for split in ("train", "dev"):
        for level in ("middle", "high"):
            record = {
                "id": level, "article": " ".join(WORDS), "questions": ["wi _ ?", "luma?"], "answers": ["A", "C"],
                "options": [list(WORDS[:4]), list(WORDS[1:5])],
            }  # fmt: skip
            write_lines(folder / split / level / "1.txt", [json.dumps(record)])


def write_squad2(folder: Path) -> None:
    rows = []
    for i in ROWS:
        context = " ".join([*WORDS, *WORDS[::-1]] * 4)
        answers = [{"text": WORDS[i % 6], "answer_start": context.index(WORDS[i % 6])}]
        questions = [{"id": str(i), "question": f"{WORDS[i % 6]}?", "answers": answers if i % 3 else []}]
        rows.append({"title": str(i), "paragraphs": [{"context": context, "qas": questions}]})
    for split in ("train", "dev"):
        write_lines(folder / f"{split}-v2.0.json", [json.dumps({"version": "v2.0", "data": rows})])


SPAN = (
    "-s",
    "span.max_query_length=8",
    "-s",
    "span.doc_stride=8",
    "-s",
    "span.head=linear",
    "-s",
    "span.threshold=0.5",
)
TASKS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "sst2": (write_sst2, ()),
    "stsb": (write_stsb, ("-s", "intermediate_task=pretrained")),
    "table": (write_multi_label, ()),
    "ner": (write_entities, ()),
    "race": (write_race, ()),
    "squad2": (write_squad2, SPAN),
}


@pytest.mark.parametrize("task", TASKS)
def test_export_scores_equal_those_of_eval(task: str, tiny_vocabulary: Path, tmp_path: Path) -> None:
    write_data, overrides = TASKS[task]
    write_data(tmp_path / "data")
    encoder = untrained(tmp_path / "encoder", SHAPE, tiny_vocabulary)
    paths = ("--data", tmp_path / "data")
    albert("finetune", task, "--checkpoint", encoder, *paths, "--out", tmp_path / "task", *QUICK, *overrides)
    scored = json.loads(
        albert(
            "eval", task, "--checkpoint", tmp_path / "task", *paths, "--out", tmp_path / "scored", "--device", "cpu",
            "-s", "train.precision=fp32", "--json",
        ).out
    )  # fmt: skip
    exported: dict[str, Any] = json.loads(
        albert("export", tmp_path / "task", *paths, "--out", tmp_path / "onnx", "--json").out
    )
    full, quantized = exported["files"]
    assert exported["torch"]["scores"] == pytest.approx(scored["scores"], abs=1e-4)
    assert full["scores"] == pytest.approx(scored["scores"], abs=1e-4)
    assert full["max_difference"] < 1e-5
    assert quantized["max_difference"] < 1
    assert full["equal_predictions"] == (None if task == "stsb" else 1)
    values = store.read_json(tmp_path / "onnx" / "config.json")
    assert values["architectures"] == store.read_json(tmp_path / "task" / "config.json")["architectures"]
    assert list(values.get("id2label", {}).values()) == exported["labels"] or task == "stsb"
    assert exported["null_threshold"] == values.get("null_threshold") == (0.5 if task == "squad2" else None)
    assert exported["best_null_threshold"] == scored.get("best_threshold")
    assert store.read_json(tmp_path / "onnx" / "tokenizer_config.json")["model_max_length"] == 40


def test_export_with_overrides_describes_its_model(tiny_vocabulary: Path, tmp_path: Path) -> None:
    write_sst2(tmp_path / "data")
    encoder = untrained(tmp_path / "encoder", SHAPE, tiny_vocabulary)
    paths = ("--data", tmp_path / "data")
    albert("finetune", "sst2", "--checkpoint", encoder, *paths, "--out", tmp_path / "task", *QUICK)
    positions = SHAPE.max_position_embeddings + 8
    call = ("export", tmp_path / "task", *paths)
    albert(*call, "--out", tmp_path / "onnx", "-s", f"model.max_position_embeddings={positions}")
    assert store.read_json(tmp_path / "onnx" / "config.json")["max_position_embeddings"] == positions
    sparse = ("-s", "model.attention=window", "-s", "model.attention_window=8")
    assert "sparse attention" in albert(*call, "--out", tmp_path / "no", *sparse, expect=2).err
    assert not (tmp_path / "no").exists()


def test_export_scores_held_out_rows_of_a_single_file(tiny_vocabulary: Path, tmp_path: Path) -> None:
    data = write_single_file(tmp_path, "table")
    encoder = untrained(tmp_path / "encoder", SHAPE, tiny_vocabulary)
    albert("finetune", "table", "--checkpoint", encoder, "--data", data, "--out", tmp_path / "task", *QUICK)
    exported = json.loads(albert("export", tmp_path / "task", "--data", data, "--out", tmp_path / "onnx", "--json").out)
    trained = store.read_json(tmp_path / "task" / "results.json")
    assert exported["torch"]["scores"] == pytest.approx(trained["scores"], abs=1e-4)
