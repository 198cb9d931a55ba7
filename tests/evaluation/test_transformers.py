"""To and fro with `transformers`: its checkpoints are fine-tuned here, ours predict the same there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from albert_cli import store
from albert_cli.evaluation.predict import predict
from albert_cli.tasks.spec import find_task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.finetune import finetune, prepare

QUICK = (
    "optimizer.lr=3e-3", "schedule.total_steps=40", "schedule.warmup_steps=4", "train.batch_size=8",
    "train.micro_batch_size=8", "train.eval_every=40", "train.log_every=40", "train.save_every=40",
)  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    """A model and a tokenizer as `transformers` saves them."""
    directory = tmp_path_factory.mktemp("theirs")
    torch.manual_seed(0)
    shape = transformers.AlbertConfig(
        vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, initializer_range=0.2, classifier_dropout_prob=0.0,
    )  # fmt: skip
    transformers.AlbertForPreTraining(shape).save_pretrained(directory)
    Vocabulary.load(tiny_vocabulary).copy_to(directory, 64)
    transformers.AutoTokenizer.from_pretrained(directory).save_pretrained(directory)
    return directory


def test_predictions_on_all_of_mrpc_are_those_of_a_pipeline(theirs: Path, shared_data: Path, tmp_path: Path) -> None:
    glue = str(shared_data / "glue")
    result = finetune(prepare("mrpc", str(theirs), glue, QUICK, "cpu"), tmp_path / "ours", 0)
    assert store.read_manifest(theirs) is None and result["initial"] == "pretrained"
    pairs = find_task("mrpc").read("dev", glue)
    lines = [json.dumps({"text": e.text_a, "text_pair": e.text_b, "id": e.id}) + "\n" for e in pairs]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    predict(str(tmp_path / "ours"), str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", "cpu")
    ours = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    known = [json.loads(line) for line in (tmp_path / "ours" / "predictions.dev.jsonl").read_text().splitlines()]
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "ours"), device="cpu")
    said = pipeline(
        [{"text": e.text_a, "text_pair": e.text_b} for e in pairs], top_k=None, truncation=True, max_length=64
    )
    assert len(ours) == len(said) == len(pairs) == 408
    assert len({line["prediction"] for line in ours}) == 2  # both classes, so that the comparison says something
    for line, scored, there in zip(ours, known, said, strict=True):
        probabilities = {found["label"]: found["score"] for found in there}
        assert max(probabilities, key=probabilities.__getitem__) == line["prediction"] == scored["prediction"]
        assert line["probabilities"] == pytest.approx(probabilities, abs=2e-5)
