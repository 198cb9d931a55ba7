"""Classification and regression of a text or a pair of texts (§4.2)."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli import console
from albert_cli.data.arrays import truncated_lengths
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import Array, Task, check_finite, iter_evaluation_batches
from albert_cli.tasks.features import PairFeatures, TokenSlices, tokenize
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.metrics import scores
from albert_cli.text.vocabulary import Vocabulary


class LabeledExample(Protocol):
    """An example whose label is a class index or a value, or None if it is hidden."""

    @property
    def id(self) -> str:
        """The name under which its prediction is written."""

    @property
    def label(self) -> int | float | None:
        """The class index or value."""


LabeledT = TypeVar("LabeledT", bound=LabeledExample)


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair of texts with its label: a class index, a value, or None if it is hidden."""

    text_a: str
    text_b: str | None
    label: int | float | None
    id: str


class LogitsTask(Task[LabeledT, PairFeatures, Array]):
    """A task whose outputs are logits float32 [N, C], with a column for each class or option."""

    collapse_message: ClassVar[str] = "one class for all inputs"

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        return self.summed_loss(model(pack(batch, device)).float(), *to_device([labels], device))

    def summed_loss(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the cross-entropy, or the squared error of values, summed over N examples."""
        if self.is_regression:
            return F.mse_loss(logits_NC[:, 0], labels_N.float(), reduction="sum")
        return F.cross_entropy(logits_NC, labels_N, reduction="sum")

    @property
    def is_regression(self) -> bool:
        """True if the task predicts a value."""
        return not self.labels

    @abstractmethod
    def example_fields(self, example: LabeledT) -> dict[str, object]:
        """Return the example's own fields in a line of predictions."""

    def output_labels(self, example: LabeledT) -> tuple[str, ...]:
        """Return the labels of an example's logits."""
        return self.labels

    def mean_loss(self, outputs: Array, features: PairFeatures) -> float:
        """Return the loss per example."""
        return float(self.summed_loss(torch.from_numpy(outputs), torch.from_numpy(features.gold))) / len(features)

    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        """Return logits [N, C] in the order of the features."""
        columns = features.group if features.group > 1 else len(self.output_names)
        return predict_logits(model, features, columns, device)

    def average(self, outputs: Sequence[Array]) -> Array:
        """Return mean values, or logits whose softmax is the mean of the models' probabilities (§4.9)."""
        if self.is_regression:
            return np.asarray(np.mean(outputs, axis=0))
        return np.asarray(np.log(np.mean([softmax(logits) for logits in outputs], axis=0) + 1e-30))

    def predictions_from_logits(self, logits: Array) -> Array:
        """Return the class indices [N] of logits [N, C], or values [N]."""
        return logits[:, 0] if self.is_regression else logits.argmax(axis=1)

    def score_baseline(self, train: Sequence[LabeledT], dev: Sequence[LabeledT]) -> float:
        """Score the most frequent class (the first of equally frequent ones), or the mean of the values."""
        labels = np.array([example.label for example in train])
        gold = np.array([example.label for example in dev])
        guess = float(labels.mean()) if self.is_regression else int(np.bincount(labels).argmax())
        metric = self.metrics[0]
        return scores([metric], np.full(len(gold), guess), gold)[metric]

    def describe_collapse(self, outputs: Array, features: PairFeatures) -> str | None:
        """Return `collapse_message`; values are constant if they differ by less than a thousandth of their size."""
        predicted = self.predictions_from_logits(outputs)
        tolerance = 1e-3 * np.abs(predicted).max() if self.is_regression else 0
        if np.ptp(features.gold) == 0 or np.ptp(predicted) > tolerance:
            return None
        return "one value for all inputs" if self.is_regression else self.collapse_message

    def format_predictions(self, examples: Sequence[LabeledT], outputs: Array, *, scored: bool) -> list[str]:
        """Return lines with id, gold label if known, prediction, and the probabilities of classes by label."""
        lines = []
        for example, logits, probabilities in zip(examples, outputs, softmax(outputs), strict=True):
            line: dict[str, object] = {"id": example.id}
            if scored:
                line |= self.example_fields(example)
            if example.label is not None:
                line["label"] = example.label if self.is_regression else self.labels[int(example.label)]
            if self.is_regression:
                line["prediction"] = round(float(logits[0]), 5)
            else:
                line["prediction"] = self.labels[int(logits.argmax())]
                # A multiple-choice task that predicts has labels for more options than a question has.
                named = zip(self.output_labels(example), probabilities, strict=False)
                line["probabilities"] = {name: round(float(probability), 5) for name, probability in named}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return lines


@dataclass(frozen=True, kw_only=True)
class Classification(LogitsTask[TextExample]):
    """Classification by a linear layer on the pooled [CLS] vector; regression if there are no `labels`."""

    value_range: tuple[float, float] = (-math.inf, math.inf)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.labels or ("score",)

    def parse_label(self, text: str, where: str) -> int | float:
        if not self.is_regression:
            return super().parse_label(text, where)
        hint = "correct the label, or remove the row"
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{where}: label {text!r} is not a number", hint) from None
        low, high = self.value_range
        if not math.isfinite(value) or not low <= value <= high:
            allowed = "finite" if low == -math.inf else f"from {low:g} to {high:g}"
            raise InputError(f"{where}: label {text!r} is not {allowed}", hint)
        return value

    def example(self, line: InputLine) -> TextExample:
        return parse_text_line(line, self.inputs)

    def swap_pairs(self, examples: Sequence[TextExample]) -> list[TextExample]:
        if any(example.text_b is None for example in examples):
            return super().swap_pairs(examples)
        return [TextExample(e.text_b or "", e.text_a, e.label, e.id) for e in examples]

    def encode(self, examples: Sequence[TextExample], vocabulary: Vocabulary, max_seq_length: int) -> PairFeatures:
        texts = [(example.text_a, example.text_b) for example in examples]
        return encode_pairs(texts, label_array([e.label for e in examples]), vocabulary, max_seq_length)

    def new_model(self, config: ModelConfig) -> SequenceClassifier:
        return SequenceClassifier(config, len(self.output_names))

    @torch.no_grad()
    def init_bias_from_labels(self, model: nn.Module, examples: Sequence[TextExample]) -> None:
        """Set the bias to the mean of the values, or to the logarithms of the classes' frequencies."""
        assert isinstance(model, SequenceClassifier)
        labels = np.array([example.label for example in examples])
        if self.is_regression:
            bias = labels.mean(keepdims=True)
        else:
            counts = np.bincount(labels, minlength=len(self.labels)) + 1  # so that no logarithm is infinite
            bias = np.log(counts / counts.sum())
        model.classifier.bias.copy_(torch.from_numpy(bias))

    def compute_metrics(
        self, outputs: Array, features: PairFeatures, examples: Sequence[TextExample]
    ) -> dict[str, float]:
        predictions = self.predictions_from_logits(outputs)
        return {**scores(self.metrics, predictions, features.gold), "loss": self.mean_loss(outputs, features)}

    def chance_loss(self, train: Sequence[TextExample]) -> float:
        """Return the entropy of the labels in nats, or the variance of the values."""
        labels = np.array([example.label for example in train])
        if self.is_regression:
            return float(np.var(labels.astype(np.float64)))
        frequencies = np.unique(labels, return_counts=True)[1] / len(labels)
        return float(-(frequencies * np.log(frequencies)).sum())

    def example_fields(self, example: TextExample) -> dict[str, object]:
        if example.text_b is None:
            return {"text": example.text_a}
        return {"text": example.text_a, "text_pair": example.text_b}

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, "ForSequenceClassification", self.output_names, finetuned)

    def has_head(self, checkpoint: hub.Checkpoint) -> bool:
        """Compare the labels in any order and case; of Hugging Face's default names only the number counts."""
        has_default_names = checkpoint.has_unnamed_labels and len(checkpoint.labels) == len(self.output_names)
        return self.accepts_checkpoint(checkpoint) and (has_default_names or self._head_rows(checkpoint) is not None)

    def reorder_labels(self, checkpoint: hub.Checkpoint) -> hub.Checkpoint:
        """Order the head's rows by the names of the classes; unnamed ones are in the task's order already.

        Raises `CheckpointError` if the names are not the names of the task's labels.
        """
        if checkpoint.has_unnamed_labels and len(checkpoint.labels) == len(self.output_names):
            return checkpoint
        rows = self._head_rows(checkpoint)
        if rows is None:
            raise self._wrong_head(checkpoint)
        head = {name: tensor[rows] for name, tensor in checkpoint.tensors.items() if name.startswith("classifier.")}
        return dataclasses.replace(checkpoint, tensors=checkpoint.tensors | head)

    def _head_rows(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        """Return the head's row for each of the task's outputs, by name; None if the names differ."""
        if self.is_regression:
            return [0] if len(checkpoint.labels) == 1 else None
        if sorted(checkpoint.labels) == sorted(self.labels):
            return [checkpoint.labels.index(name) for name in self.labels]
        head_names = [comparable_name(name) for name in checkpoint.labels]
        names = [comparable_name(name) for name in self.labels]
        if sorted(head_names) != sorted(names) or len(set(names)) < len(names):
            return None
        return [head_names.index(name) for name in names]

    def _wrong_head(self, checkpoint: hub.Checkpoint) -> CheckpointError:
        """Return the error for a head whose outputs are not the task's."""
        wanted = ", ".join(self.output_names)
        if not checkpoint.labels:
            message = f'{checkpoint.directory}: has no classifier, but model.head is "checkpoint"'
            return CheckpointError(message, "fine-tune it first, or use -s model.head=new")
        message = (
            f"{checkpoint.directory}: its classes ({', '.join(checkpoint.labels)}) are not {self.title}'s ({wanted})"
        )
        hint = "use -s model.head=new"
        if len(checkpoint.labels) == len(self.output_names):
            hint = f"use -s 'model.labels=[…]' to call its outputs {wanted} in their order, or -s model.head=new"
        return CheckpointError(message, hint)

    def load(self, checkpoint: hub.Checkpoint) -> nn.Module:
        if checkpoint.has_unnamed_labels and self.labels not in ((), checkpoint.labels):
            names = ", ".join(self.labels)
            console.info(f"{checkpoint.directory}: labels have no names; reading them as {self.title}'s: {names}")
        return super().load(checkpoint)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        """Derive the task from the configuration's labels; a file that does not name its class may have them too."""
        if not checkpoint.labels:
            return None
        is_regression = checkpoint.values.get("problem_type") == "regression" or len(checkpoint.labels) == 1
        if is_regression and len(checkpoint.labels) > 1:
            message = f"{checkpoint.directory}: predicts {len(checkpoint.labels)} values for a text"
            raise CheckpointError(message, "use a model that predicts one value")
        finetuned = checkpoint.finetuned_task
        return cls(
            name=finetuned.task if finetuned else "",
            title="predict",
            metrics=(),
            labels=() if is_regression else checkpoint.labels,
            inputs=finetuned.inputs if finetuned else 0,
        )


def comparable_name(label: str) -> str:
    """Return a class name for comparison: without case, blanks, hyphens and underscores (NOT-ENTAILMENT)."""
    return re.sub(r"[\s_-]+", "", label.casefold()) or label


@torch.inference_mode()
def predict_logits(model: nn.Module, features: PairFeatures, columns: int, device: torch.device) -> Array:
    """Return logits float32 [N, columns] in the order of the features; batches are grouped by length."""
    logits = np.empty((len(features), columns), dtype=np.float32)
    for index, tokens in iter_evaluation_batches(features, device):
        logits[index] = model(tokens).float().cpu().numpy()
    check_finite(logits)
    return logits


def parse_text_line(line: InputLine, inputs: int) -> TextExample:
    """Parse a text, or two texts separated by a tab; JSON has `text` (`text_a`), `text_pair` (`text_b`) and `id`.

    The number of texts must be `inputs`; if that is 0, it may be one or two. Raises `InputError` naming the line.
    """
    text, pair, identifier = line.fields(("text", "text_a"), ("text_pair", "text_b"))
    if not isinstance(text, str) or not isinstance(pair, str | None):
        raise InputError(f'{line.where}: no string "text"', 'write {"text": "…", "text_pair": "…"}')
    if inputs == 1 and pair is not None:
        hint = "remove the tab, which begins a second text; only .jsonl can have one inside a text"
        raise InputError(f"{line.where}: two texts, but the model was fine-tuned on single texts", hint)
    if inputs == 2 and pair is None:
        hint = "separate two texts by a tab, or write text and text_pair in .jsonl; a text may be empty"
        raise InputError(f"{line.where}: one text, but the model was fine-tuned on pairs", hint)
    return TextExample(text, pair, None, identifier)


def encode_pairs(
    texts: Sequence[tuple[str, str | None]], labels: Array | None, vocabulary: Vocabulary, max_seq_length: int
) -> PairFeatures:
    """Encode `[CLS] A [SEP]`, in pairs with `B [SEP]`, cut to `max_seq_length` tokens.

    The longer of two texts loses its last token first, text B if they are equally long, as in the reference.
    """
    size = len(texts)
    ids, slices = tokenize([a for a, _ in texts] + [b or "" for _, b in texts], vocabulary)
    first = slices.select(np.arange(size))
    second = slices.select(size + np.arange(size))
    is_pair = np.fromiter((b is not None for _, b in texts), dtype=bool, count=size)
    room = max_seq_length - 2 - is_pair
    length_a, length_b = truncated_lengths(first.length, second.length, room)
    return PairFeatures(
        ids=ids,
        first=TokenSlices(first.start, length_a),
        second=TokenSlices(second.start, length_b),
        is_pair=is_pair,
        labels=labels,
        truncated=int(np.count_nonzero(first.length + second.length > room)),
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
    )


def label_array(labels: Sequence[int | float | None]) -> Array | None:
    """Return class indices as int64 [N] and values as float32 [N]; None if any label is hidden."""
    if None in labels:
        return None
    is_value = any(isinstance(label, float) for label in labels)
    return np.array(labels, dtype=np.float32 if is_value else np.int64)


def softmax(logits: Array) -> Array:
    """Return the softmax of logits [N, C] over the classes."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))
