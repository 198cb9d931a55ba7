"""Classifiers and regressors: how a class or a value is predicted from a text or a pair of texts (§4.2)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli import console, store
from albert_cli.data.batches import PackedBatch
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.tasks.choice import ChoiceFeatures
from albert_cli.tasks.encode import Features, Tokenizer, encode
from albert_cli.tasks.metrics import majority, scores
from albert_cli.tasks.task import Example, Task
from albert_cli.training.task_recipe import FinetuneRecipe

Array = NDArray[Any]
PREDICTIONS = "predictions.dev.jsonl"
EVALUATION_TOKENS = 16_384  # a forward pass without gradients; bounds memory, not the result


class Classification:
    """The kinds `classification` and `regression` (`kinds.TaskKind`): one linear layer on the pooled [CLS] vector.

    Outputs are logits [N, C] float32, one column a class, or the value alone.
    """

    def encode(
        self, task: Task, examples: Sequence[Example], vocabulary: Tokenizer, recipe: FinetuneRecipe
    ) -> Features:
        """A text or two, cut to the recipe's length."""
        return encode(examples, vocabulary, recipe.data.max_seq_length)

    def new_model(self, task: Task, config: ModelConfig, recipe: FinetuneRecipe) -> SequenceClassifier:
        """The encoder with a fresh classifier."""
        return SequenceClassifier(config, len(task.output_names))

    def loss_sum(self, task: Task, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Summed cross-entropy over the labels, or squared error for a regression."""
        logits = model(pack(batch, device)).float()
        return summed_loss(task, logits, torch.from_numpy(labels).to(device))

    def predict(self, task: Task, model: nn.Module, features: Features, device: torch.device) -> Array:
        """Logits [N, C] in the order of the features."""
        return predict_logits(model, features, len(task.output_names), device)

    def evaluation(
        self, task: Task, outputs: Array, features: Features, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Every metric of the task, and the mean loss."""
        assert features.labels is not None, "only labelled splits are scored"
        labels = torch.from_numpy(features.labels)
        loss = float(summed_loss(task, torch.from_numpy(outputs), labels)) / len(features)
        return {**scores(task.metrics, predictions_of(task, outputs), features.labels), "loss": loss}

    def baseline(self, task: Task, train: Sequence[Example], dev: Sequence[Example]) -> float:
        """The commonest class, or the mean for a regression."""
        labels = [[e.label for e in examples] for examples in (train, dev)]
        return majority(task, *labels)[task.metrics[0]]  # type: ignore[arg-type]

    def chance_loss(self, task: Task, train: Sequence[Example]) -> float:
        """The entropy of the labels in nats, or the variance of the values."""
        labels = [e.label for e in train]
        if task.kind == "regression":
            return float(np.var(np.array(labels, np.float64)))
        shares = np.unique(np.array(labels), return_counts=True)[1] / len(labels)
        return float(-(shares * np.log(shares)).sum())

    def one_answer(self, task: Task, outputs: Array, features: Features) -> str | None:
        """One class for all inputs, or values that differ by less than a thousandth of their size."""
        assert features.labels is not None, "only labelled splits are judged"
        predicted, is_value = predictions_of(task, outputs), task.kind == "regression"
        if np.ptp(features.labels) == 0 or np.ptp(predicted) > (1e-3 * np.abs(predicted).max() if is_value else 0):
            return None
        return f"one {'value' if is_value else 'class'} for all inputs"

    def average(self, task: Task, outputs: Sequence[Array]) -> Array:
        """The mean of the values, or logits whose softmax is the mean of the models' probabilities (§4.9)."""
        if task.kind == "regression":
            return np.asarray(np.mean(outputs, axis=0))
        return averaged(outputs)

    def write_predictions(
        self, directory: Path, task: Task, outputs: Array, features: Features, examples: Sequence[Example]
    ) -> None:
        """One JSON line an example, with its text, so that a report can show what is wrong."""
        store.write_text(directory / PREDICTIONS, "".join(prediction_lines(task, outputs, examples, with_text=True)))

    def write_model(self, model: nn.Module, directory: Path, task: Task, made_for: hub.FinetunedFor) -> None:
        """The encoder and its classifier with its labels."""
        hub.write(model, directory, "ForSequenceClassification", task.output_names, made_for)

    def has_head(self, task: Task, found: hub.Checkpoint) -> bool:
        """Whether the checkpoint's classifier is this task's."""
        return bool(_outputs(found, task))

    def load(self, task: Task, found: hub.Checkpoint) -> SequenceClassifier:
        """The checkpoint's model with its outputs in the task's order."""
        order, names = _outputs(found, task), task.output_names
        if found.has_nameless_labels and found.labels != names:
            console.note(f"{found.directory}: names no labels; they are taken for {task.title}'s: {', '.join(names)}")
        head = {n: t[order] for n, t in found.tensors.items() if n.startswith("classifier.")}
        model = SequenceClassifier(found.config, len(names))
        hub.load_into(model, dataclasses.replace(found, tensors=found.tensors | head), ["classifier"])
        return model


def _outputs(found: hub.Checkpoint, task: Task) -> list[int]:
    """Which of the checkpoint's outputs stands for each of the task's; none when its classifier is not this task's.

    Labels decide for a classifier from elsewhere, in any order; where it has Hugging Face's default names
    instead, their number does.
    """
    wanted = task.output_names
    if found.finetuned_for is not None and found.finetuned_for.task not in (task.name, task.classifier_of):
        return []
    if sorted(found.labels) == sorted(wanted):
        return [found.labels.index(name) for name in wanted]
    return list(range(len(wanted))) if found.has_nameless_labels and len(found.labels) == len(wanted) else []


@torch.no_grad()
def start_at_labels(task: Task, classifier: nn.Linear, examples: Sequence[Example]) -> None:
    """Set the classifier's bias to the mean of the labels, or to the logarithms of the classes' shares among them."""
    labels = np.array([e.label for e in examples])
    if task.kind == "regression":
        bias = labels.mean(keepdims=True)
    else:
        counts = np.bincount(labels, minlength=len(task.labels)) + 1  # of a class that is not there: a small share
        bias = np.log(counts / counts.sum())
    classifier.bias.copy_(torch.from_numpy(bias))


def summed_loss(task: Task, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Cross-entropy, or squared error on the raw values, summed over N examples."""
    if task.kind == "regression":
        return F.mse_loss(logits_NC[:, 0], labels_N.float(), reduction="sum")
    return F.cross_entropy(logits_NC, labels_N, reduction="sum")


@torch.inference_mode()
def predict_logits(model: nn.Module, features: Features | ChoiceFeatures, columns: int, device: torch.device) -> Array:
    """Logits [N, columns] float32 in the order of the features; batches are grouped by length."""
    logits = np.empty((len(features), columns), dtype=np.float32)
    for index in features.eval_batches(EVALUATION_TOKENS):
        packed, _ = features.batch(index)
        logits[index] = model(pack(packed, device)).float().cpu().numpy()
    return logits


def predictions_of(task: Task, logits: Array) -> Array:
    """What the logits [N, C] say: class indices [N], or values [N] for a regression."""
    return logits[:, 0] if task.kind == "regression" else logits.argmax(axis=1)


def probabilities(logits: Array) -> Array:
    """The softmax of logits [N, C] over the classes."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def averaged(outputs: Sequence[Array]) -> Array:
    """Logits [N, C] whose softmax is the mean of several models' probabilities."""
    return np.asarray(np.log(np.mean([probabilities(logits) for logits in outputs], axis=0) + 1e-30))


def prediction_lines(task: Task, logits: Array, examples: Iterable[Example], *, with_text: bool = False) -> list[str]:
    """One JSON line an example: id, perhaps its text, gold label where known, prediction, probabilities by label."""
    predicted = predictions_of(task, logits)
    if task.kind == "regression":
        found: list[dict[str, Any]] = [{"prediction": round(float(value), 5)} for value in predicted]
    else:
        found = [
            {
                "prediction": task.labels[int(label)],
                "probabilities": {n: round(float(q), 5) for n, q in zip(task.labels, row, strict=True)},
            }
            for label, row in zip(predicted, probabilities(logits), strict=True)
        ]
    lines = []
    for example, entry in zip(examples, found, strict=True):
        gold: dict[str, Any] = {}
        if with_text:
            gold |= {"text": example.text_a} | ({} if example.text_b is None else {"text_pair": example.text_b})
        if example.label is not None:
            gold["label"] = task.labels[int(example.label)] if task.kind == "classification" else example.label
        lines.append(json.dumps({"id": example.id, **gold, **entry}, ensure_ascii=False) + "\n")
    return lines
