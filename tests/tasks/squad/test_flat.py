"""SQuAD in the flat layout, and models of SQuAD 2.0 that other programs fine-tuned."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers

from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.tasks.base import as_any_task
from albert_cli.tasks.squad.data import Answer, Question
from albert_cli.tasks.squad.task import SQUAD, SpanAnswering
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.task_recipe import load_recipe
from albert_cli.training.task_setup import OpenCheckpoint, TaskRequest, prepare_with_recipe
from tests.helpers.command import albert
from tests.helpers.task_runs import sentence

CONTEXT = "The boat was late. It rained."


def row(number: int, *texts: str) -> dict[str, Any]:
    answers = {"text": list(texts), "answer_start": [CONTEXT.index(text) for text in texts]}
    return {"id": str(number), "title": "t", "context": CONTEXT, "question": "What was late?", "answers": answers}


def as_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in rows)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("dev.json", lambda rows: json.dumps({"version": "x", "data": rows})),
        ("dev.json", lambda rows: json.dumps({"data": rows}, indent=1)),
        ("dev.json", json.dumps),
        ("dev.jsonl", as_lines),
        ("dev.ndjson", as_lines),
        ("dev.jsonl", lambda rows: as_lines(rows).replace("\n", "\n\n")),
        ("dev.jsonl", lambda rows: as_lines([{k: v for k, v in one.items() if k != "title"} for one in rows])),
    ],
)
def test_read_squad_flat_layout(tmp_path: Path, name: str, write: Callable[[list[dict[str, Any]]], str]) -> None:
    (tmp_path / name).write_text(write([row(0, "The boat"), row(1, "rained", "It rained"), row(2)]), encoding="utf-8")
    questions = SQUAD["squad2"].read("dev", str(tmp_path))
    assert [question.answers for question in questions] == [
        (Answer("The boat", 0),),
        (Answer("rained", 22), Answer("It rained", 19)),
        (),
    ]
    assert questions[0].context == CONTEXT and questions[0].question == "What was late?"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (as_lines([row(0), {"id": "1"}]), r"dev\.jsonl:2: question"),
        (as_lines([row(0), row(0)]), r"dev\.jsonl:2: the id '0' is already used"),
        ("\n", r"dev\.jsonl: holds no questions"),
        ("[1]\n", r"dev\.jsonl:1: the document"),
        (as_lines([row(0) | {"context": " "}]), r"dev\.jsonl:1: context"),
    ],
)
def test_read_squad_flat_bad_line_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "dev.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        SQUAD["squad2"].read("dev", str(tmp_path))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    """A question-answering model as `transformers` saves it."""
    folder = tmp_path_factory.mktemp("foreign") / "model"
    torch.manual_seed(0)
    shape = transformers.AlbertConfig(
        vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=256, initializer_range=0.5,
    )  # fmt: skip
    transformers.AlbertForQuestionAnswering(shape).save_pretrained(folder)
    Vocabulary.load(tiny_vocabulary).copy_to(folder, 256)
    return folder


@pytest.mark.parametrize("threshold", [-4.0, -1.0, 0.0, 1.0, 4.0])
def test_predict_null_threshold_follows_run_qa(foreign: Path, tmp_path: Path, threshold: float) -> None:
    questions = [Question(str(i), sentence(i + 3), f"{sentence(i)} {sentence(i + 7)}") for i in range(12)]
    lines = [json.dumps({"id": q.id, "question": q.question, "context": q.context}) + "\n" for q in questions]
    (tmp_path / "in.jsonl").write_text("".join(lines), encoding="utf-8")
    call = ["predict", foreign, "--input", tmp_path / "in.jsonl", "--device", "cpu", "--out"]
    albert(*call, tmp_path / "out.jsonl", f"--null-threshold={threshold}")
    predicted = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(foreign)
    model = transformers.AlbertForQuestionAnswering.from_pretrained(foreign).eval()
    for question, line in zip(questions, predicted, strict=True):
        encoded = tokenizer(question.question, question.context, return_tensors="pt", return_token_type_ids=True)
        with torch.inference_mode():
            output = model(**encoded)
        start, end = output.start_logits[0], output.end_logits[0]
        inside = [i for i, sequence in enumerate(encoded.sequence_ids(0)) if sequence == 1]
        best = max(float(start[i] + end[j]) for i in inside for j in inside if i <= j < i + 30)
        odds = float(start[0] + end[0]) - best
        assert line["null_odds"] == pytest.approx(odds, abs=2e-4)
        assert (line["prediction"] == "") == (odds > threshold)
    albert(*call, tmp_path / "plain.jsonl")
    assert all(json.loads(line)["prediction"] for line in (tmp_path / "plain.jsonl").read_text().splitlines())


@pytest.mark.parametrize("threshold", ["nan", "inf", "-inf"])
def test_null_threshold_that_is_not_finite_is_refused(foreign: Path, tmp_path: Path, threshold: str) -> None:
    option = f"--null-threshold={threshold}"
    for command in (["predict", foreign, "--input", tmp_path / "in.jsonl"], ["export", foreign]):
        error = albert(*command, "--out", tmp_path / "out.jsonl", option, expect=2).err
        assert f"{threshold} is not a number" in error


@pytest.mark.parametrize("positions", [40, 100, 200, 512])
def test_questions_are_truncated_as_in_scoring(foreign: Path, positions: int) -> None:
    checkpoint = hub.read_checkpoint(foreign)
    shape = dataclasses.replace(checkpoint.config, max_position_embeddings=positions)
    task = SpanAnswering.from_checkpoint(dataclasses.replace(checkpoint, config=shape))
    source = OpenCheckpoint(dataclasses.replace(checkpoint, config=shape), hub.load_vocabulary(checkpoint), "")
    request = TaskRequest(str(foreign), None, device="cpu")
    scored = prepare_with_recipe(load_recipe("squad1", ()), request, as_any_task(SQUAD["squad1"]), source).task
    assert isinstance(task, SpanAnswering) and isinstance(scored, SpanAnswering)
    assert task.settings.max_query_length == scored.settings.max_query_length


def test_read_squad_rows_without_title_stay_together(tmp_path: Path) -> None:
    rows = []
    for number in range(30):
        one = row(number, "The boat") | {"context": f"{CONTEXT} {number // 3}"}
        rows.append(one if number >= 27 else {key: value for key, value in one.items() if key != "title"})
    (tmp_path / "train.jsonl").write_text(as_lines(rows))
    train, dev = (SQUAD["squad1"].read(split, str(tmp_path)) for split in ("train", "dev"))
    assert (len(train), len(dev)) == (27, 3)
    assert not {question.context for question in train} & {question.context for question in dev}


@pytest.mark.parametrize("names", [("train", "validation"), ("train-00000-of-00001", "validation-00000-of-00001")])
@pytest.mark.parametrize("folder", ["", "squad_v2"])
def test_read_squad_parquet_of_the_hub(tmp_path: Path, names: tuple[str, str], folder: str) -> None:
    rows = [row(0, "The boat"), row(1, "rained", "It rained"), row(2)]
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, split_rows in zip(names, (rows, rows[:2]), strict=True):
        pq.write_table(pa.Table.from_pylist(split_rows), tmp_path / folder / f"{name}.parquet")
    train, dev = (SQUAD["squad2"].read(split, str(tmp_path)) for split in ("train", "dev"))
    assert [question.answers for question in train] == [
        (Answer("The boat", 0),),
        (Answer("rained", 22), Answer("It rained", 19)),
        (),
    ]
    assert dev == train[:2]


def test_read_squad_parquet_bad_row_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([row(0, "The boat"), row(0, "rained")]), tmp_path / "dev.parquet")
    with pytest.raises(InputError, match=r"dev\.parquet:2: the id '0' is already used"):
        SQUAD["squad2"].read("dev", str(tmp_path))
