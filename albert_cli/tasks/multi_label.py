"""Multi-label classification: a text or a pair of texts has any number of classes, or none.

Every class is predicted on its own, by a logit and a threshold. Shapes: N examples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError
from albert_cli.formatting import round_prediction
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import Array, Task
from albert_cli.tasks.classification import encode_pairs, name_and_inputs, parse_text_line, predict_logits
from albert_cli.tasks.features import PairFeatures
from albert_cli.tasks.input_lines import InputLine, text_fields
from albert_cli.tasks.label_names import match_outputs
from albert_cli.text.vocabulary import Vocabulary

METRICS = ("micro_f1", "macro_f1", "mean_average_precision")  # the results of `score_multi_label`
_THRESHOLD = 0.5  # a class with a higher probability is predicted


@dataclass(frozen=True, slots=True)
class MultiLabelExample:
    """A text or a pair of texts with the indices of its classes: () for no class, None if the classes are hidden."""

    text_a: str
    text_b: str | None
    labels: tuple[int, ...] | None
    id: str


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(Task[MultiLabelExample, PairFeatures, Array]):
    """Prediction of any number of classes, by a linear layer on the pooled [CLS] vector.

    Outputs are logits float32 [N, C], the log odds of each class.
    """

    def parse_example(self, line: InputLine) -> MultiLabelExample:
        parsed = parse_text_line(line, self.inputs)
        return MultiLabelExample(parsed.text_a, parsed.text_b, None, parsed.id)

    def example_fields(self, example: MultiLabelExample) -> dict[str, object]:
        return text_fields(example.text_a, example.text_b)

    def encode(
        self, examples: Sequence[MultiLabelExample], vocabulary: Vocabulary, max_seq_length: int
    ) -> PairFeatures:
        texts = [(example.text_a, example.text_b) for example in examples]
        targets = None
        if all(example.labels is not None for example in examples):
            targets = self._targets(examples)
        return encode_pairs(texts, targets, vocabulary, max_seq_length)

    def _targets(self, examples: Sequence[MultiLabelExample]) -> NDArray[np.float32]:
        """Return 1 for each class of an example and 0 for the other classes, float32 [N, C]."""
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
        # Half an example with the class and half an example without it are added, so that no logarithm is infinite.
        counts = self._targets(examples).sum(axis=0) + 0.5
        odds = counts / (len(examples) + 1 - counts)
        model.classifier.bias.copy_(torch.from_numpy(np.log(odds)))

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        (targets_NC,) = to_device([labels], device)
        return _summed_loss(model(pack(batch, device)).float(), targets_NC)

    # ---------------------------------------------------------------- scoring

    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        return predict_logits(model, features, len(self.labels), device)

    def compute_metrics(
        self, outputs: Array, features: PairFeatures, examples: Sequence[MultiLabelExample]
    ) -> dict[str, float]:
        """Return micro and macro F1 at probability 0.5, mean average precision, and the mean loss."""
        loss = float(_summed_loss(torch.from_numpy(outputs), torch.from_numpy(features.gold))) / len(features)
        return {**score_multi_label(features.gold, sigmoid(outputs)), "loss": loss}

    def score_majority(self, train: Sequence[MultiLabelExample], dev: Sequence[MultiLabelExample]) -> float:
        """Return micro F1 on dev if the k most frequent classes of train are predicted for every text.

        The number k is the one with the best micro F1 on train.
        """
        counts = self._targets(train).sum(axis=0, dtype=np.float64)
        by_frequency = np.argsort(-counts, kind="stable")
        true_positives = np.cumsum(counts[by_frequency])  # of the k most frequent classes, for each k
        predicted = len(train) * np.arange(1, len(counts) + 1)
        train_f1 = 2 * true_positives / (predicted + counts.sum())
        best = np.zeros(len(counts))
        best[by_frequency[: int(np.argmax(train_f1)) + 1]] = 1
        gold = self._targets(dev)
        return _f1(gold, np.broadcast_to(best, gold.shape), "micro")

    def chance_loss(self, train: Sequence[MultiLabelExample]) -> float:
        """Return the entropy in nats of the presence of a class, averaged over the classes."""
        frequency = self._targets(train).mean(axis=0, dtype=np.float64)
        varying = frequency[(frequency > 0) & (frequency < 1)]  # the other classes have entropy 0
        entropies = -(varying * np.log(varying) + (1 - varying) * np.log(1 - varying))
        return float(entropies.sum() / len(frequency))

    def describe_collapse(self, outputs: Array, features: PairFeatures) -> str | None:
        gold = features.gold
        predicted = outputs > 0  # a logit of 0 is a probability of `_THRESHOLD`
        gold_varies = (gold != gold[:1]).any()
        predictions_vary = (predicted != predicted[:1]).any()
        return "the same classes for all inputs" if gold_varies and not predictions_vary else None

    def average(self, outputs: Sequence[Array]) -> Array:
        """Return the logits of the models' mean probabilities (§4.9)."""
        probabilities = np.mean([sigmoid(logits) for logits in outputs], axis=0)
        probabilities = probabilities.clip(1e-7, 1 - 1e-7)  # so that all logits are finite
        return np.asarray(np.log(probabilities / (1 - probabilities)))

    def iter_predictions(
        self, examples: Sequence[MultiLabelExample], outputs: Array, *, with_details: bool
    ) -> Iterator[dict[str, object]]:
        """Yield id, gold classes unless they are hidden, predicted classes, and each class's probability.

        `with_details` adds the texts.
        """
        for example, probabilities in zip(examples, sigmoid(outputs), strict=True):
            line: dict[str, object] = {"id": example.id}
            if with_details:
                line |= self.example_fields(example)
            if example.labels is not None:
                line["label"] = [self.labels[index] for index in example.labels]
            by_label = dict(zip(self.labels, probabilities.tolist(), strict=True))
            line["prediction"] = [label for label, probability in by_label.items() if probability > _THRESHOLD]
            line["probabilities"] = {label: round_prediction(probability) for label, probability in by_label.items()}
            yield line

    # ---------------------------------------------------------------- checkpoints

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, "ForSequenceClassification", self.labels, finetuned, multi_label=True)

    def match_head(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        if not checkpoint.is_multi_label:
            return None
        return match_outputs(self.labels, checkpoint.output_names, are_unnamed=checkpoint.has_unnamed_labels)

    def wrong_head(self, checkpoint: hub.Checkpoint) -> CheckpointError:
        classes = ", ".join(checkpoint.output_names) or "none"
        wanted = ", ".join(self.labels)
        message = f"{checkpoint.directory}: its classes ({classes}) are not {self.title}'s ({wanted})"
        hint = "use a multi-label model of these classes, or -s model.head=new"
        if checkpoint.is_multi_label and len(checkpoint.output_names) == len(self.labels):
            hint = f"use -s 'model.labels=[…]' to call its outputs {wanted} in their order, or -s model.head=new"
        return CheckpointError(message, hint)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        if not checkpoint.is_multi_label:
            return None
        name, inputs = name_and_inputs(checkpoint)
        return cls(name=name, title="predict", metrics=(), labels=checkpoint.output_names, inputs=inputs)


def _summed_loss(logits_NC: Tensor, targets_NC: Tensor) -> Tensor:
    """Return the binary cross-entropy, averaged over classes and summed over examples."""
    loss = F.binary_cross_entropy_with_logits(logits_NC, targets_NC, reduction="sum")
    return loss / logits_NC.shape[1]


def sigmoid(logits: Array) -> Array:
    """Return the probability of each class, float64 [N, C]."""
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def score_multi_label(gold: Array, probabilities: Array) -> dict[str, float]:
    """Return micro and macro F1 at probability 0.5 and mean average precision, as scikit-learn defines them.

    `gold` (0 or 1) and `probabilities` are [N, C]. A class without a positive example has average precision 0.
    """
    from sklearn.metrics import average_precision_score

    predicted = probabilities > _THRESHOLD
    precisions = np.zeros(gold.shape[1])
    for column in np.flatnonzero(gold.any(axis=0)):
        precisions[column] = average_precision_score(gold[:, column], probabilities[:, column])
    return {
        "micro_f1": _f1(gold, predicted, "micro"),
        "macro_f1": _f1(gold, predicted, "macro"),
        "mean_average_precision": float(precisions.mean()),
    }


def _f1(gold: Array, predicted: Array, average: Literal["micro", "macro"]) -> float:
    """Return the micro or macro F1 of predictions (0 or 1) [N, C]; a class that never occurs has F1 0."""
    from sklearn.metrics import f1_score

    if gold.shape[1] == 1:  # scikit-learn takes a single column for two classes, and averages over both
        return float(f1_score(gold[:, 0], predicted[:, 0], average="binary", zero_division=0.0))
    return float(f1_score(gold, predicted, average=average, zero_division=0.0))
