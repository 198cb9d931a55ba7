"""Multiple choice end to end: RACE's files in, a checkpoint that `transformers` reads, scores and predictions out."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from albert_cli import store
from albert_cli.errors import InputError
from albert_cli.inference.predict import predict_file
from albert_cli.model.config import ModelConfig
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.race import RACE as RACE_TASKS
from albert_cli.training import capacity
from tests.helpers.checkpoints import untrained
from tests.helpers.task_runs import evaluate, finetune, prepare

OVERRIDES = (
    "optimizer.lr=1e-2", "schedule.total_steps=40", "schedule.warmup_steps=4", "model.dropout=0.0",
    "train.batch_size=8", "train.micro_batch_size=8", "train.eval_every=20", "train.log_every=20",
    "train.save_every=40",
)  # fmt: skip
SHAPE = ModelConfig(
    vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=64, initializer_range=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    """A checkpoint of random weights."""
    return untrained(tmp_path_factory.mktemp("choose") / "pretrained", SHAPE, tiny_vocabulary)


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of a level a file; right is the option with the word "kra"."""
    folder = tmp_path_factory.mktemp("race")
    rng = random.Random(0)
    for split, passages in (("train", 24), ("dev", 8)):
        for level in ("middle", "high"):
            (folder / split / level).mkdir(parents=True)
            for number in range(passages):
                answers = [rng.choice("ABCD") for _ in range(2)]
                options = [["kra kra" if c == a else rng.choice(["wi", "luma", ""]) for c in "ABCD"] for a in answers]
                record = {
                    "id": f"{level}{number}.txt", "article": "bade figo. " * rng.randint(1, 30), "answers": answers,
                    "questions": ["luma _ ?", "Wi?"], "options": options,
                }  # fmt: skip
                (folder / split / level / f"{number}.txt").write_text(json.dumps(record))
    return folder


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, pretrained: Path, race: Path) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "out"
    finetune(prepare("race", str(pretrained), str(race), OVERRIDES, "cpu"), out, 1)
    return out


def predictions(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_finetune_race_scores_both_levels(tuned: Path, race: Path) -> None:
    result = store.read_json(tuned / "results.json")
    scores = result["scores"]
    assert scores["accuracy"] == pytest.approx((scores["middle_accuracy"] + scores["high_accuracy"]) / 2)
    assert scores["accuracy"] > 0.5 > result["majority"]
    lines = predictions(tuned / "predictions.dev.jsonl")
    examples = RACE_TASKS["race"].read("dev", str(race))
    assert [line["id"] for line in lines] == [e.id for e in examples]
    right = [line["prediction"] == line["label"] for line in lines]
    assert np.mean(right) == scores["accuracy"]
    assert lines[0]["choices"] == list(examples[0].options) and lines[0]["text"] == examples[0].passage


def test_finetune_race_counts_the_memory_of_all_options(
    pretrained: Path, race: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda device: 0)
    capacity._warn_once.cache_clear()
    short = (*OVERRIDES, "schedule.total_steps=1", "schedule.warmup_steps=0")
    finetune(prepare("race", str(pretrained), str(race), short, "cpu"), tmp_path / "run")
    assert "a micro-batch of 32 sequences" in " ".join(capsys.readouterr().err.split())


def test_choice_logits_equal_transformers(tuned: Path, race: Path) -> None:
    model = transformers.AutoModelForMultipleChoice.from_pretrained(tuned).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)
    lines = predictions(tuned / "predictions.dev.jsonl")
    for example, line in zip(RACE_TASKS["race"].read("dev", str(race)), lines, strict=True):
        inputs = tokenizer(
            [example.passage] * 4, example.qa_texts, truncation="only_first", max_length=64, padding=True,
            return_tensors="pt",
        )  # fmt: skip
        with torch.inference_mode():
            logits = model(**{name: value[None] for name, value in inputs.items()}).logits[0]
        printed = [line["probabilities"][letter] for letter in "ABCD"]
        assert np.abs(logits.softmax(-1).numpy() - printed).max() < 2e-5


def test_eval_race_scores_each_level(tuned: Path, race: Path, tmp_path: Path) -> None:
    scored = evaluate("race", str(tuned), str(race), tmp_path / "scored", 1, (), "cpu")
    assert scored["kind"] == "scored"
    assert scored["scores"] == store.read_json(tuned / "results.json")["scores"]
    for level in ("middle", "high"):
        alone = evaluate(f"race_{level}", str(tuned), str(race), tmp_path / level, 1, (), "cpu")
        assert alone["kind"] == "scored" and alone["scores"] == {"accuracy": scored["scores"][f"{level}_accuracy"]}
    short = (*OVERRIDES, "schedule.total_steps=4", "train.eval_every=4", "model.head=new")
    trained = evaluate("race_high", str(tuned), str(race), tmp_path / "trained", 1, short, "cpu")
    assert trained["kind"] == "eval" and list(trained["all_scores"]) == ["accuracy"]


@pytest.mark.parametrize(
    ("model", "task"),
    [("race_middle", "race_high"), ("race_high", "race_middle"), ("race_middle", "race"), ("race_high", "race")],
)
def test_eval_race_model_of_another_level_is_scored(
    tuned: Path, race: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], model: str, task: str
) -> None:
    copy = Path(shutil.copytree(tuned, tmp_path / "model", ignore=shutil.ignore_patterns("manifest.json")))
    values = store.read_json(copy / "config.json")
    (copy / "config.json").write_text(json.dumps(values | {"finetuning_task": model}))
    result = evaluate(task, str(copy), str(race), tmp_path / "out", 5, (), "cpu")
    assert result["kind"] == "scored" and not list((tmp_path / "out").glob("run-*"))
    assert f"was fine-tuned for {model} and is scored on {RACE_TASKS[task].title}" in capfd.readouterr().err


def test_predict_choices_of_any_number(tuned: Path, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"text": "bade figo.", "question": "Wi?", "choices": ["wi", "kra kra"], "id": "x"},
        {"article": "bade", "question": "luma _ ?", "options": ["luma", "wi", "kra kra"]},
        {"question": "Wi?", "choices": ["", "kra kra"]},
    ]
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = predict_file(str(tuned), str(source), out, "cpu")
    assert summary.lines == 3
    result_value = predictions(out)
    assert [(line["id"], line["prediction"]) for line in result_value] == [("x", "B"), ("2", "C"), ("3", "B")]
    assert [list(line["probabilities"]) for line in result_value] == [["A", "B"], ["A", "B", "C"], ["A", "B"]]
    assert all(abs(sum(line["probabilities"].values()) - 1) < 1e-4 for line in result_value)


def test_parse_choice_with_id_null_has_the_number() -> None:
    line = InputLine('{"question": "q", "choices": ["a", "b"], "id": null}', "in.jsonl", 3)
    assert RACE_TASKS["race"].parse_example(line).id == "3"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("text", "not valid JSON"),
        ('{"question": "q"}', '"choices" is not a list'),
        ('{"question": "q", "choices": ["a"]}', '"choices" is not a list'),
        ('{"question": "q", "choices": ["a", {"b": 1}]}', '"choices" is not a list'),
        ('{"choices": ["a", "b"]}', '"text" and "question" must be texts'),
        ('{"question": {"a": 1}, "choices": ["a", "b"]}', '"text" and "question" must be texts'),
        (json.dumps({"question": "q", "choices": ["a"] * 27}), "27 choices"),
    ],
)
def test_predict_choices_bad_line_names_the_number(tuned: Path, tmp_path: Path, line: str, message: str) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"question": "q", "choices": ["a", "b"]}\n' + line + "\n")
    with pytest.raises(InputError, match=r"in\.jsonl:2: ") as raised:
        predict_file(str(tuned), str(source), out, "cpu")
    assert message in raised.value.message and not out.exists()
