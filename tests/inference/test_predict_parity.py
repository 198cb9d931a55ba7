"""To and fro with `transformers`: its checkpoints are fine-tuned here, ours predict the same there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from albert_cli import store
from albert_cli.inference.convert import convert
from albert_cli.inference.predict import predict_file
from albert_cli.tasks.glue import GLUE
from albert_cli.text import build_vocabulary
from albert_cli.text.build_vocabulary import VocabularySettings
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.task_runs import finetune, prepare
from tests.helpers.tokenizers import train_byte_level, train_wordpiece

QUICK = (
    "optimizer.lr=1e-3", "schedule.total_steps=20", "schedule.warmup_steps=4", "train.batch_size=8",
    "train.micro_batch_size=8", "train.eval_every=20", "train.log_every=20", "train.save_every=20",
)  # fmt: skip
PAIRS = 100  # the first pairs of dev, which the pipeline reads one by one


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """A model and a tokenizer as `transformers` saves them, the vocabulary made of MRPC's own sentences."""
    work = tmp_path_factory.mktemp("theirs")
    pairs = GLUE["mrpc"].read("dev", str(shared_data / "glue"))
    (work / "text.txt").write_text("\n".join(text for e in pairs for text in (e.text_a, str(e.text_b))))
    build_vocabulary.build_vocabulary([str(work / "text.txt")], work / "vocabulary", VocabularySettings(size=1000))
    torch.manual_seed(0)
    shape = transformers.AlbertConfig(
        vocab_size=1000, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=256, initializer_range=0.5, classifier_dropout_prob=0.0,
    )  # fmt: skip
    transformers.AlbertForPreTraining(shape).save_pretrained(work / "model")
    Vocabulary.load(work / "vocabulary").copy_to(work / "model", 256)
    transformers.AutoTokenizer.from_pretrained(work / "model").save_pretrained(work / "model")
    return work / "model"


def test_predict_mrpc_equals_transformers_pipeline(theirs: Path, shared_data: Path, tmp_path: Path) -> None:
    glue = str(shared_data / "glue")
    result = finetune(prepare("mrpc", str(theirs), glue, QUICK, "cpu"), tmp_path / "ours", 0)
    assert store.read_manifest(theirs) is None and result["protocol"]["weights"] == "pretrained"
    pairs = GLUE["mrpc"].read("dev", glue)[:PAIRS]
    lines = [json.dumps({"text": e.text_a, "text_pair": e.text_b, "id": e.id}) + "\n" for e in pairs]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    summary = predict_file(str(tmp_path / "ours"), str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", "cpu")
    # What is too long is cut by the reference's rule here, by the tokenizer's own there.
    assert summary.truncated == 0
    ours = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in (tmp_path / "ours" / "predictions.dev.jsonl").read_text().splitlines()]
    assert len(expected) == 408
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "ours"), device="cpu")
    printed = pipeline([{"text": e.text_a, "text_pair": e.text_b} for e in pairs], top_k=None)
    assert len(ours) == len(printed) == len(pairs) == PAIRS
    likely = [line["probabilities"]["1"] for line in ours]
    assert max(likely) - min(likely) > 0.05  # the texts matter, so that the comparison says something
    for line, scored, guesses in zip(ours, expected[:PAIRS], printed, strict=True):
        probabilities = {guess["label"]: guess["score"] for guess in guesses}
        assert max(probabilities, key=probabilities.__getitem__) == line["prediction"] == scored["prediction"]
        assert line["probabilities"] == pytest.approx(probabilities, abs=2e-5)


def write_classifier(directory: Path, tokenizer: str, segments: int) -> Path:
    """Write a classifier as `transformers` saves it; tokenizer: one without segment ids, or a class of transformers."""
    train = train_byte_level if tokenizer == "RobertaTokenizer" else train_wordpiece
    loader = getattr(transformers, tokenizer)
    fast = loader.from_pretrained(train(directory))
    torch.manual_seed(1)
    shape = transformers.AlbertConfig(
        vocab_size=len(fast), embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128, type_vocab_size=segments, initializer_range=0.5,
        num_labels=3,
    )  # fmt: skip
    transformers.AlbertForSequenceClassification(shape).save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory


def their_probabilities(directory: Path, pairs: list[tuple[str, str]]) -> list[list[float]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.inference_mode():
        return [model(**tokenizer(*pair, return_tensors="pt")).logits.softmax(-1)[0].tolist() for pair in pairs]


def our_probabilities(directory: Path, pairs: list[tuple[str, str]], work: Path) -> list[list[float]]:
    (work / "in.jsonl").write_text("".join(json.dumps({"text": a, "text_pair": b}) + "\n" for a, b in pairs))
    predict_file(str(directory), str(work / "in.jsonl"), work / f"{directory.name}.jsonl", "cpu")
    lines = (work / f"{directory.name}.jsonl").read_text().splitlines()
    return [list(json.loads(line)["probabilities"].values()) for line in lines]


@pytest.mark.parametrize(
    ("tokenizer", "segments"), [("BertTokenizer", 2), ("BertTokenizer", 3), ("AutoTokenizer", 2), ("AutoTokenizer", 1)]
)
def test_predict_pairs_have_the_segments_of_transformers(tokenizer: str, segments: int, tmp_path: Path) -> None:
    theirs = write_classifier(tmp_path / "theirs", tokenizer, segments)
    pairs = [("Die Brücke", "ein Fass"), ("Das Haus ist alt.", "Der Hund")]
    expected = [pytest.approx(row, abs=2e-5) for row in their_probabilities(theirs, pairs)]
    assert our_probabilities(theirs, pairs, tmp_path) == expected
    convert(str(theirs), tmp_path / "converted")
    assert our_probabilities(tmp_path / "converted", pairs, tmp_path) == expected
    assert their_probabilities(tmp_path / "converted", pairs) == expected


def test_predict_other_separators_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = write_classifier(tmp_path / "theirs", "RobertaTokenizer", 2)
    our_probabilities(theirs, [("Die Brücke", "ein Fass")], tmp_path)
    assert capsys.readouterr().err.count("2 special tokens between two texts") == 1
