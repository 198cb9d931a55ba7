"""Questions with three to five choices in one table, as in ARC."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert
from tests.helpers.task_runs import SHAPE, sentence

CPU = torch.device("cpu")
LETTERS = ("A", "B", "C", "D", "E")
TASK = Choice(name="t", title="t", metrics=("accuracy",), labels=LETTERS)


def questions() -> list[ChoiceExample]:
    counts = (4, 3, 5, 2, 4, 5)
    return [
        ChoiceExample(str(i), sentence(i), "ne?", tuple(sentence(i + k) for k in range(count)), i % count)
        for i, count in enumerate(counts)
    ]


def test_predict_mixed_choices_equals_each_question_alone(tiny_vocabulary: Path) -> None:
    vocabulary = Vocabulary.load(tiny_vocabulary)
    examples = questions()
    torch.manual_seed(0)
    model = TASK.new_model(SHAPE).eval()
    mixed = TASK.encode(examples, vocabulary, 48)
    outputs = TASK.predict(model, mixed, CPU)
    losses = []
    for example, logits in zip(examples, outputs, strict=True):
        (alone,) = TASK.predict(model, TASK.encode([example], vocabulary, 48), CPU)
        count = len(example.options)
        assert logits[:count] == pytest.approx(alone, abs=1e-5) and (logits[count:] < -1e29).all()
        losses.append(float(F.cross_entropy(torch.from_numpy(alone)[None], torch.tensor([example.label]))))
    packed, labels = mixed.batch(np.arange(len(examples)))
    assert labels is not None and labels.shape == (6, 2)
    assert float(TASK.loss_sum(model, packed, labels, CPU).detach()) == pytest.approx(sum(losses), rel=1e-4)
    assert TASK.compute_metrics(outputs, mixed, examples)["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    lines = [json.loads(line) for line in TASK.format_predictions(examples, outputs, with_details=False)]
    assert [len(line["probabilities"]) for line in lines] == [4, 3, 5, 2, 4, 5]
    for line in lines:
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    average = TASK.average([outputs, outputs])
    assert (average.argmax(axis=1) == outputs.argmax(axis=1)).all()
    assert mixed.truncated == sum(TASK.encode([example], vocabulary, 48).truncated for example in examples)


def test_finetune_mixed_choices_of_a_table(tmp_path: Path, tiny_vocabulary: Path) -> None:
    rows = [
        {
            "id": example.id,
            "question": example.question,
            "choices": {"text": list(example.options), "label": list(LETTERS[: len(example.options)])},
            "answerKey": LETTERS[example.label or 0],
        }
        for example in questions()
    ]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    encoder = untrained(tmp_path / "encoder", SHAPE, tiny_vocabulary)
    ended = albert("finetune", "table", "--checkpoint", encoder, "--data", tmp_path, "--out", tmp_path / "out", *QUICK)
    assert "one of 2 to 5 choices, labels are the names of the choices" in ended.err
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.dev.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == [row["answerKey"] for row in rows]
