"""Classifiers and regressors: how a class or a value is predicted from a text or a pair of texts (§4.2)."""

from __future__ import annotations

import dataclasses
import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli import console
from albert_cli.data.arrays import truncated_lengths
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import Array, Task, check_finite, iter_evaluation_batches
from albert_cli.tasks.features import PairFeatures, TokenSlices, tokenize
from albert_cli.tasks.metrics import scores
from albert_cli.tasks.rows import InputLine
from albert_cli.text.vocabulary import Vocabulary

_INPUTS = ("a single text", "two texts, with a tab or as text and text_pair")
_REMEDIES = ("a tab begins a second text; in .jsonl it may stand inside one", "give every line both, an empty one too")
LabeledT = TypeVar("LabeledT", bound=Any)  # an example with `id` and `label`


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or pair of texts with its label: a class index, a value, or None where it is hidden."""

    text_a: str
    text_b: str | None
    label: int | float | None
    id: str


class LogitsTask(Task[LabeledT, PairFeatures, Array]):
    """A task whose outputs are logits [N, C] float32, one column a class (an option)."""

    collapse_message: ClassVar[str] = "one class for all inputs"  # of a collapsed run

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        return self.summed_loss(model(pack(batch, device)).float(), *to_device([labels], device))

    def summed_loss(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Cross-entropy, or squared error on the raw values, summed over N examples."""
        if self.is_regression:
            return F.mse_loss(logits_NC[:, 0], labels_N.float(), reduction="sum")
        return F.cross_entropy(logits_NC, labels_N, reduction="sum")

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @abstractmethod
    def texts(self, example: LabeledT) -> dict[str, Any]:
        """What a line of predictions says of the example itself."""

    def mean_loss(self, outputs: Array, features: PairFeatures) -> float:
        return float(self.summed_loss(torch.from_numpy(outputs), torch.from_numpy(features.gold))) / len(features)

    @torch.inference_mode()
    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        """Logits [N, C] in the order of the features; batches are grouped by length."""
        columns = features.group if features.group > 1 else len(self.output_names)
        logits = np.empty((len(features), columns), dtype=np.float32)
        for index, tokens in iter_evaluation_batches(features, device):
            logits[index] = model(tokens).float().cpu().numpy()
        check_finite(logits)
        return logits

    def average(self, outputs: Sequence[Array]) -> Array:
        """The mean of the values, or logits whose softmax is the mean of the models' probabilities (§4.9)."""
        if self.is_regression:
            return np.asarray(np.mean(outputs, axis=0))
        return np.asarray(np.log(np.mean([softmax(logits) for logits in outputs], axis=0) + 1e-30))

    def predictions_from_logits(self, logits: Array) -> Array:
        """Class indices [N] of logits [N, C], or values [N]."""
        return logits[:, 0] if self.is_regression else logits.argmax(axis=1)

    def baseline(self, train: Sequence[LabeledT], dev: Sequence[LabeledT]) -> float:
        """The commonest class (of several the first in the task's order), or the mean of the values."""
        labels, gold = (np.array([e.label for e in examples]) for examples in (train, dev))
        guess = float(labels.mean()) if self.is_regression else int(np.bincount(labels).argmax())
        return scores(self.metrics[:1], np.full(len(gold), guess), gold)[self.metrics[0]]

    def describe_collapse(self, outputs: Array, features: PairFeatures) -> str | None:
        """`collapse_message`, or values that differ by less than a thousandth of their size."""
        predicted = self.predictions_from_logits(outputs)
        least = 1e-3 * np.abs(predicted).max() if self.is_regression else 0
        if np.ptp(features.gold) == 0 or np.ptp(predicted) > least:
            return None
        return "one value for all inputs" if self.is_regression else self.collapse_message

    def format_predictions(self, examples: Sequence[LabeledT], outputs: Array, *, scored: bool) -> list[str]:
        """Id, perhaps the text, gold label where known, prediction, and of classes the probabilities by label."""
        lines = []
        for example, logits, row in zip(examples, outputs, softmax(outputs), strict=True):
            entry: dict[str, Any] = {"id": example.id}
            if scored:
                entry |= self.texts(example)
            if example.label is not None:
                entry["label"] = example.label if self.is_regression else self.labels[int(example.label)]
            if self.is_regression:
                entry["prediction"] = round(float(logits[0]), 5)
            else:
                entry["prediction"] = self.labels[int(logits.argmax())]
                entry["probabilities"] = {n: round(float(q), 5) for n, q in zip(self.labels, row, strict=False)}
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
        return lines


@dataclass(frozen=True, kw_only=True)
class Classification(LogitsTask[TextExample]):
    """A class for each text or pair, by one linear layer on the pooled [CLS] vector; without `labels` a value."""

    value_range: tuple[float, float] = (-math.inf, math.inf)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.labels or ("score",)

    def parse_label(self, text: str, where: str) -> int | float:
        if not self.is_regression:
            return super().parse_label(text, where)
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{where}: label {text!r} is not a number", "correct it, or leave the row out") from None
        low, high = self.value_range
        if not math.isfinite(value) or not low <= value <= high:
            limits = "finite" if low == -math.inf else f"from {low:g} to {high:g}"
            raise InputError(f"{where}: label {text!r} is not {limits}", "correct it, or leave the row out")
        return value

    def example(self, line: InputLine) -> TextExample:
        """One text, or two with a tab between; in JSON `text` (`text_a`) and perhaps `text_pair` (`text_b`) and `id`.

        There must be as many texts as `inputs`; where that is 0, one or two.
        """
        text, pair, identifier = line.fields(("text", "text_a"), ("text_pair", "text_b"))
        if not isinstance(text, str) or not isinstance(pair, str | None):
            raise InputError(f'{line.where}: needs a string "text"', 'each line: {"text": "…", "text_pair": "…"}')
        if self.inputs and self.inputs != (1 if pair is None else 2):
            got, wanted = ("one text", "two texts")[pair is not None], _INPUTS[self.inputs - 1]
            hint = _REMEDIES[self.inputs - 1]
            raise InputError(f"{line.where}: {got}, but the model was fine-tuned on {wanted}", hint)
        return TextExample(text, pair, None, identifier)

    def swap_pairs(self, examples: Sequence[TextExample]) -> list[TextExample]:
        if any(e.text_b is None for e in examples):
            return super().swap_pairs(examples)
        return [TextExample(e.text_b or "", e.text_a, e.label, e.id) for e in examples]

    def encode(self, examples: Sequence[TextExample], vocabulary: Vocabulary, max_seq_length: int) -> PairFeatures:
        """`[CLS] A [SEP]`, and for pairs `B [SEP]`, cut to `max_seq_length` tokens.

        The longer of two texts loses its last token first, text B on a tie, as in the reference.
        """
        ids, texts = tokenize([e.text_a for e in examples] + [e.text_b or "" for e in examples], vocabulary)
        size = len(examples)
        is_pair = np.fromiter((e.text_b is not None for e in examples), dtype=bool, count=size)
        first, second = texts.at(np.arange(size)), texts.at(size + np.arange(size))
        room = max_seq_length - 2 - is_pair
        kept_a, kept_b = truncated_lengths(first.length, second.length, room)
        labels = [e.label for e in examples]
        kind = np.float32 if any(isinstance(label, float) for label in labels) else np.int64
        return PairFeatures(
            ids, TokenSlices(first.start, kept_a), TokenSlices(second.start, kept_b), is_pair,
            None if None in labels else np.array(labels, dtype=kind),
            int(np.count_nonzero(first.length + second.length > room)), vocabulary.cls_id, vocabulary.sep_id,
        )  # fmt: skip

    def new_model(self, config: ModelConfig) -> SequenceClassifier:
        return SequenceClassifier(config, len(self.output_names))

    @torch.no_grad()
    def init_bias_from_labels(self, model: nn.Module, examples: Sequence[TextExample]) -> None:
        """Set the bias to the mean of the labels, or to the logarithms of the classes' shares among them."""
        assert isinstance(model, SequenceClassifier)
        labels = np.array([e.label for e in examples])
        if self.is_regression:
            bias = labels.mean(keepdims=True)
        else:
            counts = np.bincount(labels, minlength=len(self.labels)) + 1  # of a class that is not there: a small share
            bias = np.log(counts / counts.sum())
        model.classifier.bias.copy_(torch.from_numpy(bias))

    def evaluation(self, outputs: Array, features: PairFeatures, examples: Sequence[TextExample]) -> dict[str, float]:
        loss = self.mean_loss(outputs, features)
        return {**scores(self.metrics, self.predictions_from_logits(outputs), features.gold), "loss": loss}

    def chance_loss(self, train: Sequence[TextExample]) -> float:
        """The entropy of the labels in nats, or the variance of the values."""
        labels = np.array([e.label for e in train])
        if self.is_regression:
            return float(np.var(labels.astype(np.float64)))
        shares = np.unique(labels, return_counts=True)[1] / len(labels)
        return float(-(shares * np.log(shares)).sum())

    def texts(self, example: TextExample) -> dict[str, Any]:
        return {"text": example.text_a} | ({} if example.text_b is None else {"text_pair": example.text_b})

    def write_model(self, model: nn.Module, directory: Path, made_for: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, "ForSequenceClassification", self.output_names, made_for)

    def has_head(self, found: hub.Checkpoint) -> bool:
        """By its labels, in any order; where they are Hugging Face's default names, their number decides."""
        has_as_many = found.has_unnamed_labels and len(found.labels) == len(self.output_names)
        return self.accepts_checkpoint(found) and (has_as_many or sorted(found.labels) == sorted(self.output_names))

    def reorder_labels(self, found: hub.Checkpoint) -> hub.Checkpoint:
        if sorted(found.labels) != sorted(self.output_names):
            return found
        columns = [found.labels.index(name) for name in self.output_names]
        head = {n: t[columns] for n, t in found.tensors.items() if n.startswith("classifier.")}
        return dataclasses.replace(found, tensors=found.tensors | head)

    def load(self, found: hub.Checkpoint) -> nn.Module:
        if found.has_unnamed_labels and self.labels not in ((), found.labels):
            named = ", ".join(self.labels)
            console.info(f"{found.directory}: names no labels; they are taken for {self.title}'s: {named}")
        return super().load(found)

    @classmethod
    def from_checkpoint(cls, found: hub.Checkpoint) -> Self | None:
        """The task that a classifier's configuration describes; a file that does not say its class may have one too."""
        if not found.labels:
            return None
        is_value = found.values.get("problem_type") == "regression" or len(found.labels) == 1
        made_for = found.finetuned_task
        return cls(
            name=made_for.task if made_for else "",
            title="predict",
            metrics=(),
            labels=() if is_value else found.labels,
            inputs=made_for.inputs if made_for else 0,
        )


def softmax(logits: Array) -> Array:
    """The softmax of logits [N, C] over the classes."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
