"""Multi-label classification: a text or a pair of texts has any number of classes, also none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import Array, Task
from albert_cli.tasks.classification import comparable_name, encode_pairs, parse_text_line, predict_logits
from albert_cli.tasks.features import PairFeatures
from albert_cli.tasks.input_lines import InputLine
from albert_cli.text.vocabulary import Vocabulary

METRICS = ("micro_f1", "macro_f1", "mean_average_precision")
_THRESHOLD = 0.5  # probability above which a text has a class


@dataclass(frozen=True, slots=True)
class MultiLabelExample:
    """A text or a pair of texts with the indices of its classes, None if they are hidden."""

    text_a: str
    text_b: str | None
    labels: tuple[int, ...] | None
    id: str


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(Task[MultiLabelExample, PairFeatures, Array]):
    """An independent probability for each class, by a linear layer on the pooled [CLS] vector; outputs are logits."""

    def example(self, line: InputLine) -> MultiLabelExample:
        parsed = parse_text_line(line, self.inputs)
        return MultiLabelExample(parsed.text_a, parsed.text_b, None, parsed.id)

    def example_fields(self, example: MultiLabelExample) -> dict[str, object]:
        if example.text_b is None:
            return {"text": example.text_a}
        return {"text": example.text_a, "text_pair": example.text_b}

    def encode(
        self, examples: Sequence[MultiLabelExample], vocabulary: Vocabulary, max_seq_length: int
    ) -> PairFeatures:
        texts = [(example.text_a, example.text_b) for example in examples]
        is_labeled = all(example.labels is not None for example in examples)
        targets = self._targets(examples) if is_labeled else None
        return encode_pairs(texts, targets, vocabulary, max_seq_length)

    def _targets(self, examples: Sequence[MultiLabelExample]) -> NDArray[np.float32]:
        """Return 1 for each class of each example, float32 [N, C]."""
        targets = np.zeros((len(examples), len(self.labels)), dtype=np.float32)
        for row, example in enumerate(examples):
            targets[row, list(example.labels or ())] = 1
        return targets

    def new_model(self, config: ModelConfig) -> SequenceClassifier:
        return SequenceClassifier(config, len(self.labels))

    @torch.no_grad()
    def init_bias_from_labels(self, model: nn.Module, examples: Sequence[MultiLabelExample]) -> None:
        """Set the bias to the log odds of each class."""
        assert isinstance(model, SequenceClassifier)
        counts = self._targets(examples).sum(axis=0) + 0.5  # so that no logarithm is infinite
        odds = counts / (len(examples) + 1 - counts)
        model.classifier.bias.copy_(torch.from_numpy(np.log(odds)))

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        return _summed_loss(model(pack(batch, device)).float(), *to_device([labels], device))

    # ---------------------------------------------------------------- scoring

    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        return predict_logits(model, features, len(self.labels), device)

    def compute_metrics(
        self, outputs: Array, features: PairFeatures, examples: Sequence[MultiLabelExample]
    ) -> dict[str, float]:
        """Compute micro and macro F1 at probability 0.5, mean average precision, and the mean loss."""
        loss = float(_summed_loss(torch.from_numpy(outputs), torch.from_numpy(features.gold))) / len(features)
        return {**score_multi_label(features.gold, sigmoid(outputs)), "loss": loss}

    def score_baseline(self, train: Sequence[MultiLabelExample], dev: Sequence[MultiLabelExample]) -> float:
        """Score the most frequent classes for all texts: as many as have the best micro F1 on train."""
        targets = self._targets(train)
        order = np.argsort(-targets.sum(axis=0), kind="stable")
        constants = np.zeros((len(order), len(order)))
        for count in range(1, len(order) + 1):
            constants[count - 1, order[:count]] = 1
        scores = [_micro_f1(targets, np.broadcast_to(constant, targets.shape)) for constant in constants]
        best = constants[int(np.argmax(scores))]
        gold = self._targets(dev)
        return _micro_f1(gold, np.broadcast_to(best, gold.shape))

    def chance_loss(self, train: Sequence[MultiLabelExample]) -> float:
        """Return the mean entropy of the classes in nats."""
        frequency = self._targets(train).mean(axis=0, dtype=np.float64)
        inside = frequency[(frequency > 0) & (frequency < 1)]
        entropies = -(inside * np.log(inside) + (1 - inside) * np.log(1 - inside))
        return float(entropies.sum() / len(frequency))

    def describe_collapse(self, outputs: Array, features: PairFeatures) -> str | None:
        predicted = outputs > 0
        gold = features.gold
        if (gold == gold[:1]).all() or (predicted != predicted[:1]).any():
            return None
        return "the same classes for all inputs"

    def average(self, outputs: Sequence[Array]) -> Array:
        """Return logits of the models' mean probabilities."""
        mean = np.mean([sigmoid(logits) for logits in outputs], axis=0).clip(1e-7, 1 - 1e-7)
        return np.asarray(np.log(mean / (1 - mean)))

    def format_predictions(self, examples: Sequence[MultiLabelExample], outputs: Array, *, scored: bool) -> list[str]:
        """Return lines with id, gold classes if known, predicted classes, and the probability of each class."""
        lines = []
        for example, probabilities in zip(examples, sigmoid(outputs), strict=True):
            line: dict[str, object] = {"id": example.id}
            if scored:
                line |= self.example_fields(example)
            if example.labels is not None:
                line["label"] = [self.labels[index] for index in example.labels]
            named = dict(zip(self.labels, probabilities.tolist(), strict=True))
            line["prediction"] = [name for name, probability in named.items() if probability > _THRESHOLD]
            line["probabilities"] = {name: round(probability, 5) for name, probability in named.items()}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return lines

    # ---------------------------------------------------------------- checkpoints

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, "ForSequenceClassification", self.labels, finetuned, multi_label=True)

    def has_head(self, checkpoint: hub.Checkpoint) -> bool:
        return self.accepts_checkpoint(checkpoint) and self._head_rows(checkpoint) is not None

    def _head_rows(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        """Return the head's row for each class, by name; None for another head."""
        names = [comparable_name(name) for name in checkpoint.output_names]
        wanted = [comparable_name(name) for name in self.labels]
        if not checkpoint.is_multi_label or sorted(names) != sorted(wanted):
            return None
        return [names.index(name) for name in wanted]

    def reorder_labels(self, checkpoint: hub.Checkpoint) -> hub.Checkpoint:
        """Order the head's rows by the names of the classes; raises `CheckpointError` if they differ."""
        rows = self._head_rows(checkpoint)
        if rows is None:
            classes = ", ".join(checkpoint.output_names) or "none"
            message = (
                f"{checkpoint.directory}: its classes ({classes}) are not {self.title}'s ({', '.join(self.labels)})"
            )
            raise CheckpointError(message, "use a multi-label model of these classes, or -s model.head=new")
        head = {name: tensor[rows] for name, tensor in checkpoint.tensors.items() if name.startswith("classifier.")}
        return dataclasses.replace(checkpoint, tensors=checkpoint.tensors | head)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        if not checkpoint.is_multi_label:
            return None
        finetuned = checkpoint.finetuned_task
        return cls(
            name=finetuned.task if finetuned else "",
            title="predict",
            metrics=(),
            labels=checkpoint.output_names,
            inputs=finetuned.inputs if finetuned else 0,
        )


def _summed_loss(logits_NC: Tensor, targets_NC: Tensor) -> Tensor:
    """Return the binary cross-entropy, averaged over classes and summed over examples."""
    loss = F.binary_cross_entropy_with_logits(logits_NC, targets_NC, reduction="sum")
    return loss / logits_NC.shape[1]


def sigmoid(logits: Array) -> Array:
    """Return the probability of each class, float64 [N, C]."""
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def score_multi_label(gold: Array, probabilities: Array) -> dict[str, float]:
    """Return micro and macro F1 at probability 0.5 and mean average precision, as scikit-learn defines them.

    `gold` and `probabilities` are [N, C]. A class without a positive example has average precision 0.
    """
    from sklearn.metrics import average_precision_score, f1_score

    predicted = probabilities > _THRESHOLD
    has_positive = gold.any(axis=0)
    precisions = np.zeros(gold.shape[1])
    for column in np.flatnonzero(has_positive):
        precisions[column] = average_precision_score(gold[:, column], probabilities[:, column])
    return {
        "micro_f1": _micro_f1(gold, predicted),
        "macro_f1": float(f1_score(gold, predicted, average="macro", zero_division=0.0)),
        "mean_average_precision": float(precisions.mean()),
    }


def _micro_f1(gold: Array, predicted: Array) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, average="micro", zero_division=0.0))
