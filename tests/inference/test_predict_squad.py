"""`albert predict` with a checkpoint that answers questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from albert_cli import store
from albert_cli.errors import InputError
from albert_cli.inference.predict import predict_file
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import QuestionAnswering
from albert_cli.tasks.squad.head import BeamQuestionAnswering
from albert_cli.text.vocabulary import Vocabulary

SHAPE = ModelConfig(
    vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=48, initializer_range=0.3,
)  # fmt: skip
ASKED = [
    {"id": "x", "question": "Who?", "context": "Bade figo. " * 30 + "Luma népi."},
    {"question": "When?", "text": "zo"},
    {"question": "Where?", "passage": "népi bade"},
    {"question": "Why?", "Paragraph": "figo"},
    {"question": "Nothing here", "context": ""},
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> dict[str, Path]:
    """A checkpoint with each head, of random weights."""
    made = {}
    for task, cls, architecture in (
        ("squad1", QuestionAnswering, "ForQuestionAnswering"),
        ("squad2", BeamQuestionAnswering, "ForBeamQuestionAnswering"),
    ):
        torch.manual_seed(1)
        made[task] = tmp_path_factory.mktemp("answers") / task
        made_for = hub.FinetunedTask(task, 2, 40, {"max_query_length": 12, "doc_stride": 10, "threshold": -100.0})
        with store.commit_directory(made[task], "task") as staging:
            hub.write_checkpoint(cls(SHAPE), staging, architecture, (), made_for)
            Vocabulary.load(tiny_vocabulary).copy_to(staging, 48)
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_predict_squad1_gives_answer_and_offsets(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    questions = tmp_path / "asked.jsonl"
    questions.write_text("".join(json.dumps(value) + "\n" for value in ASKED), encoding="utf-8")
    summary = predict_file(str(checkpoints["squad1"]), str(questions), tmp_path / "out.jsonl", "cpu")
    assert summary is not None
    assert summary.lines == 5
    answers = lines(tmp_path / "out.jsonl")
    assert [line["id"] for line in answers] == ["x", "2", "3", "4", "5"]
    for line, value in zip(answers[:4], ASKED, strict=False):
        context = list(value.values())[-1]
        assert line["prediction"] == context[line["start"] : line["end"]] != ""
        assert 0 < line["probability"] <= 1
    assert answers[4]["prediction"] == ""  # there is nothing to answer with


def test_predict_squad2_may_leave_it_unanswered(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    questions = tmp_path / "asked.txt"
    questions.write_text("Who?\tBade figo.\n", encoding="utf-8")
    predict_file(str(checkpoints["squad2"]), str(questions), tmp_path / "out.jsonl", "cpu")
    (line,) = lines(tmp_path / "out.jsonl")
    assert (line["prediction"], line["start"]) == ("", None)  # any odds exceed its threshold
    assert isinstance(line["null_odds"], float)


def test_predict_squad_counts_truncated_questions(
    checkpoints: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "asked.txt"
    questions.write_text(f"{'Who bade figo? ' * 9}\tBade figo.\nWho?\tBade figo.\n", encoding="utf-8")
    summary = predict_file(str(checkpoints["squad1"]), str(questions), tmp_path / "out.jsonl", "cpu")
    assert summary.truncated == 1
    assert "1 of 2 questions are longer than 12 tokens and were truncated" in capfd.readouterr().err


def test_predict_squad_document_is_read(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    qas = [{"id": 7, "question": "Who?"}, {"id": "q", "question": "When?", "answers": []}]
    questions = tmp_path / "asked.json"
    questions.write_text(
        json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "Bade figo.", "qas": qas}]}]}), encoding="utf-8"
    )
    predict_file(str(checkpoints["squad1"]), str(questions), tmp_path / "out.jsonl", "cpu")
    assert [(line["id"], line["title"], line["question"]) for line in lines(tmp_path / "out.jsonl")] == [
        ("7", "t", "Who?"),
        ("q", "t", "When?"),
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_predict_squad_keeps_the_title_column(checkpoints: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    row = {"id": "x", "title": "Figo", "context": "Bade figo.", "question": "Who?"}
    questions = tmp_path / f"asked{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), questions)
    else:
        questions.write_text(json.dumps(row) + "\n", encoding="utf-8")
    predict_file(str(checkpoints["squad1"]), str(questions), tmp_path / "out.jsonl", "cpu")
    (line,) = lines(tmp_path / "out.jsonl")
    assert line["title"] == "Figo"
    assert line["prediction"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_predict_squad_null_question_is_empty(checkpoints: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    rows = [{"question": question, "passage": "Bade figo."} for question in ("Who?", None)]
    questions = tmp_path / f"asked{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), questions)
    else:
        questions.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    predict_file(str(checkpoints["squad1"]), str(questions), tmp_path / "out.jsonl", "cpu")
    assert [line["question"] for line in lines(tmp_path / "out.jsonl")] == ["Who?", ""]


@pytest.mark.parametrize(
    "text", ["Who?", '{"question": "Who?"}', '{"context": "x"}', '{"question": 3, "context": "x"}']
)
def test_predict_squad_incomplete_line_is_rejected(checkpoints: dict[str, Path], tmp_path: Path, text: str) -> None:
    questions = tmp_path / ("asked.jsonl" if text.startswith("{") else "asked.txt")
    questions.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r":1: no question and context"):
        predict_file(str(checkpoints["squad1"]), str(questions), tmp_path / "out.jsonl", "cpu")
    assert not (tmp_path / "out.jsonl").exists()
