"""`albert export`: onnxruntime computes what the model and transformers compute, at any batch size and length."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from albert_cli import store
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import (
    BareEncoder,
    MaskedLanguageModel,
    MultipleChoice,
    PretrainingModel,
    QuestionAnswering,
    SequenceClassifier,
    TokenClassifier,
)
from albert_cli.model.packing import pack
from albert_cli.model.padded import INPUT_NAMES, PaddedModel
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.command import albert
from tests.helpers.shapes import ALL_SHAPES, random_batch, shake
from tests.helpers.tokenizers import lines_of_eight_languages, train_wordpiece

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


class Head(NamedTuple):
    """A head: its class in `transformers`, a function that builds our model from a config, its labels and its task."""

    theirs: Any
    ours: Callable[[ModelConfig], nn.Module]
    labels: tuple[str, ...] = ()
    task: hub.FinetunedTask | None = None


HEADS = {
    "ForSequenceClassification": Head(
        transformers.AutoModelForSequenceClassification, lambda config: SequenceClassifier(config, 3), ("a", "b", "c")
    ),
    "ForTokenClassification": Head(
        transformers.AutoModelForTokenClassification, lambda config: TokenClassifier(config, 3), ("O", "B-X", "I-X")
    ),
    "ForPreTraining": Head(transformers.AutoModelForPreTraining, PretrainingModel),
    "ForMaskedLM": Head(transformers.AutoModelForMaskedLM, MaskedLanguageModel),
    "ForQuestionAnswering": Head(transformers.AutoModelForQuestionAnswering, QuestionAnswering),
    "ForMultipleChoice": Head(
        transformers.AutoModelForMultipleChoice, lambda config: MultipleChoice(config, 4),
        task=hub.FinetunedTask("race", inputs=2, max_seq_length=64),
    ),
    "Model": Head(transformers.AutoModel, BareEncoder),
}  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary.load(train_wordpiece(tmp_path_factory.mktemp("words") / "vocabulary", 500))


def save(vocabulary: Vocabulary, head: str, bert: bool, out: Path, *, weight: float | None = None) -> Path:
    """Save a random model with this head; weight: all weights of a classifier, if it is not None."""
    config = ModelConfig(
        vocab_size=vocabulary.size, embedding_size=32 if bert else 16, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, max_position_embeddings=64,
        sharing="none" if bert else "all", hidden_act="gelu" if bert else "gelu_new",
    )  # fmt: skip
    torch.manual_seed(0)
    model = HEADS[head].ours(config)
    shake(model)
    with torch.no_grad():  # larger weights keep the logits of two options apart, so that rounding decides no prediction
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim == 2 else 1)
        if weight is not None:
            nn.init.constant_(model.get_parameter("classifier.weight"), weight)
    with store.commit_directory(out, "task") as staging:
        hub.write_checkpoint(model, staging, head, HEADS[head].labels, HEADS[head].task)
        vocabulary.copy_to(staging, 64)
    return out


# The two families differ in their encoders and, for pretraining, in the names of the outputs.
@pytest.mark.parametrize(
    ("head", "bert"), [*((head, False) for head in HEADS), ("ForPreTraining", True), ("ForTokenClassification", True)]
)
def test_export_equals_transformers_at_other_sizes(
    head: str, bert: bool, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    checkpoint = save(vocabulary, head, bert, tmp_path / "checkpoint")
    result = json.loads(albert("export", checkpoint, "--out", tmp_path / "out", "--json").out)
    full, quantized = result["files"]
    assert full["max_difference"] < 1e-4 and full["equal_predictions"] in (1, None)
    assert quantized["bytes"] < full["bytes"]
    assert store.read_json(tmp_path / "out" / "config.json") == store.read_json(checkpoint / "config.json")
    theirs = HEADS[head].theirs.from_pretrained(checkpoint).eval()
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "onnx" / "model.onnx"))
    lines = lines_of_eight_languages(80)
    for texts in (lines[:1], lines[:7], lines[30:60]):
        batch = dict(fast(texts, padding=True, return_tensors="pt"))
        if head == "ForMultipleChoice":
            batch = {name: tensor[:, None].repeat(1, 3, 1) for name, tensor in batch.items()}  # 3 choices
        with torch.no_grad():
            expected = theirs(**batch)
        outputs = session.run(None, {name: batch[name].numpy() for name in INPUT_NAMES})
        names = [output.name for output in session.get_outputs()]
        assert names == [name.replace("prediction_logits", "logits") for name in expected]  # the name for fill-mask
        mask = batch["attention_mask"].bool()
        for output, reference in zip(outputs, expected.to_tuple(), strict=True):
            if reference.shape[: mask.ndim] == mask.shape:  # an output per token; those of padding may differ
                output, reference = output[mask.numpy()], reference[mask]
            assert np.allclose(output, reference.numpy(), atol=1e-4)


def test_export_of_outputs_that_are_not_finite_is_rejected(vocabulary: Vocabulary, tmp_path: Path) -> None:
    checkpoint = save(vocabulary, "ForSequenceClassification", False, tmp_path / "checkpoint", weight=3e38)
    assert "is not finite" in albert("export", checkpoint, "--out", tmp_path / "out", expect=4).err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ALL_SHAPES)
def test_padded_model_equals_the_packed_one(name: str) -> None:
    model: Any = BareEncoder(ALL_SHAPES[name]).eval()
    shake(model)
    batch = random_batch((9, 9, 9))
    packed = model(pack(batch, torch.device("cpu")))
    inputs = [torch.from_numpy(x.reshape(3, 9)).long() for x in (batch.ids, np.ones(27, np.int64), batch.segment_ids)]
    states_NSH, pooled_NH = PaddedModel(model)(*inputs)
    assert torch.allclose(states_NSH.flatten(0, 1), packed.tokens, atol=1e-5)
    assert torch.allclose(pooled_NH, packed.pooled, atol=1e-5)


def test_export_needs_no_segments_of_pairs(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """The exported model derives them from [SEP], because the tokenizers of transformers.js return none."""
    checkpoint = save(vocabulary, "ForSequenceClassification", False, tmp_path / "checkpoint")
    albert("export", checkpoint, "--out", tmp_path / "out")
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    lines = lines_of_eight_languages(80)
    batch = dict(fast(lines[:20], lines[20:40], padding=True, truncation=True, return_tensors="np"))
    assert batch["token_type_ids"].any()
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "onnx" / "model.onnx"))
    (expected,) = session.run(None, batch)
    (without_segments,) = session.run(None, batch | {"token_type_ids": np.zeros_like(batch["token_type_ids"])})
    assert np.array_equal(expected, without_segments)


def test_export_of_a_sentence_head_is_a_classifier(vocabulary: Vocabulary, tmp_path: Path) -> None:
    shape = transformers.BertConfig(
        vocab_size=vocabulary.size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    theirs = transformers.BertForNextSentencePrediction(shape).eval()
    theirs.save_pretrained(tmp_path / "next")
    vocabulary.copy_to(tmp_path / "next", 64)
    albert("export", tmp_path / "next", "--out", tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert list(config.id2label.values()) == ["next", "other document"]
    assert config.architectures == ["BertForSequenceClassification"]
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = fast(["a text"], ["the next text"], return_tensors="np")
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "onnx" / "model.onnx"))
    (logits,) = session.run(["logits"], dict(batch))
    with torch.no_grad():
        expected = theirs(**batch.convert_to_tensors("pt")).logits
    assert np.allclose(logits, expected.numpy(), atol=1e-4)


def test_export_refuses_what_runtimes_lack(vocabulary: Vocabulary, tmp_path: Path) -> None:
    checkpoint = save(vocabulary, "Model", False, tmp_path / "checkpoint")
    assert "exists already" in albert("export", checkpoint, "--out", tmp_path, expect=6).err
    config = ModelConfig(
        vocab_size=vocabulary.size, embedding_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, attention="window", attention_window=4,
    )  # fmt: skip
    with store.commit_directory(tmp_path / "sparse", "task") as staging:
        hub.write_checkpoint(BareEncoder(config), staging, "Model")
        vocabulary.copy_to(staging, 64)
    assert "sparse attention" in albert("export", tmp_path / "sparse", "--out", tmp_path / "no", expect=4).err
