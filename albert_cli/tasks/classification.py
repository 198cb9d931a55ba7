"""Classification and regression of a text or a pair of texts (§4.2), and tools for other kinds of task.

`LogitsTask` is the base class of classification and multiple choice. The functions at the end read a checkpoint's
record of its task, parse and encode texts, and compute logits. Shapes: N examples, C classes or options.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli.data.arrays import truncated_lengths
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, InputError
from albert_cli.formatting import round_prediction
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import ScaledLinear, SequenceClassifier
from albert_cli.model.packing import pack, to_device
from albert_cli.tasks.base import Array, Example, Task, check_finite, iter_evaluation_batches
from albert_cli.tasks.features import PairFeatures, TokenSlices, tokenize
from albert_cli.tasks.input_lines import InputLine, text_fields
from albert_cli.tasks.label_names import match_outputs
from albert_cli.tasks.metrics import scores
from albert_cli.text.vocabulary import Vocabulary


class LabeledExample(Example, Protocol):
    """An example with a single label."""

    @property
    def label(self) -> int | float | None:
        """The class index, or the value in a regression; None if it is hidden."""


_ANY_VALUE = (-math.inf, math.inf)
_MAX_FP32 = float(np.finfo(np.float32).max)
LabeledT = TypeVar("LabeledT", bound=LabeledExample)


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair of texts, with its label as in `LabeledExample`; `text_b` is None for a single text."""

    text_a: str
    text_b: str | None
    label: int | float | None
    id: str


class LogitsTask(Task[LabeledT, PairFeatures, Array]):
    """A task whose outputs are logits float32 [N, C], with a column for each class or option, or a single value."""

    collapse_message: ClassVar[str] = "one class for all inputs"  # printed if all predictions are the same

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        (labels_N,) = to_device([labels], device)
        return self.loss_from_logits(model(pack(batch, device)).float(), labels_N)

    def loss_from_logits(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the cross-entropy, or the squared error in a regression, summed over N examples."""
        if self.is_regression:
            return F.mse_loss(logits_NC[:, 0], labels_N.float(), reduction="sum")
        return F.cross_entropy(logits_NC, labels_N, reduction="sum")

    @property
    def is_regression(self) -> bool:
        """True if the task predicts a value instead of a class."""
        return not self.labels

    def output_labels(self, example: LabeledT) -> tuple[str, ...]:
        """Return the labels of an example's logits in order: all, or in multiple choice one per option."""
        return self.labels

    def mean_loss(self, outputs: Array, features: PairFeatures) -> float:
        """Return the loss per example; `outputs` are logits [N, C]."""
        if self.is_regression:  # in float64, because the squared errors of large values overflow fp32
            return float(np.mean((outputs[:, 0].astype(np.float64) - features.gold) ** 2))
        loss_sum = self.loss_from_logits(torch.from_numpy(outputs), torch.from_numpy(features.gold))
        return float(loss_sum) / len(features)

    def predict(self, model: nn.Module, features: PairFeatures, device: torch.device) -> Array:
        """Return logits [N, C] in the order of the features."""
        return predict_logits(model, features, len(self.output_names), device)

    def average(self, outputs: Sequence[Array]) -> Array:
        """Return the models' mean values, or logits whose softmax is the mean of their probabilities (§4.9)."""
        if self.is_regression:
            return np.asarray(np.mean(outputs, axis=0))
        probabilities = np.mean([softmax(logits) for logits in outputs], axis=0)
        return np.asarray(np.log(probabilities + 1e-30))  # a probability of 0 becomes a finite logit

    def predictions_from_logits(self, logits: Array) -> Array:
        """Return the most likely class indices, int64 [N], or in a regression the values, float32 [N]."""
        return logits[:, 0] if self.is_regression else logits.argmax(axis=1)

    def score_majority(self, train: Sequence[LabeledT], dev: Sequence[LabeledT]) -> float:
        """Return the first metric on dev of always predicting train's most frequent class, or in a regression its mean.

        Of equally frequent classes the first is predicted.
        """
        labels = np.array([example.label for example in train])
        gold = np.array([example.label for example in dev])
        prediction = float(labels.mean()) if self.is_regression else int(np.bincount(labels).argmax())
        metric = self.metrics[0]
        return scores([metric], np.full(len(gold), prediction), gold)[metric]

    def describe_collapse(self, outputs: Array, features: PairFeatures) -> str | None:
        """Describe predictions that are the same for all examples, unless the labels are the same, too.

        Predicted values count as the same if they differ by at most a thousandth of the range of the labels.
        """
        predicted = self.predictions_from_logits(outputs).astype(np.float64)  # the range of large values overflows fp32
        label_range = np.ptp(features.gold.astype(np.float64))
        tolerance = 1e-3 * label_range if self.is_regression else 0
        if label_range == 0 or np.ptp(predicted) > tolerance:
            return None
        return "one value for all inputs" if self.is_regression else self.collapse_message

    def iter_predictions(
        self, examples: Sequence[LabeledT], outputs: Array, *, with_details: bool
    ) -> Iterator[dict[str, object]]:
        """Yield id, gold label unless it is hidden, prediction, and in classification each class's probability.

        `with_details` adds the texts.
        """
        for example, logits, probabilities in zip(examples, outputs, softmax(outputs), strict=True):
            line: dict[str, object] = {"id": example.id}
            if with_details:
                line |= self.example_fields(example)
            if example.label is not None:
                line["label"] = example.label if self.is_regression else self.labels[int(example.label)]
            if self.is_regression:
                line["prediction"] = round_prediction(float(logits[0]))
            else:
                line["prediction"] = self.labels[int(logits.argmax())]
                # Not strict: a question with fewer options than others has more logits than labels; the last ones are
                # padding.
                label_probabilities = zip(self.output_labels(example), probabilities, strict=False)
                line["probabilities"] = {name: round_prediction(float(value)) for name, value in label_probabilities}
            yield line


@dataclass(frozen=True, kw_only=True)
class Classification(LogitsTask[TextExample]):
    """Classification by a linear layer on the pooled [CLS] vector; regression if there are no `labels`.

    `value_range` is the lowest and the highest value that a regression accepts as a label. Without a range, the values
    may have any size, so the head is a `ScaledLinear`.
    """

    value_range: tuple[float, float] = _ANY_VALUE

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
        if not abs(value) <= _MAX_FP32:  # also true for NaN
            raise InputError(f"{where}: label {text!r} is not finite in fp32", hint)
        low, high = self.value_range
        if not low <= value <= high:
            raise InputError(f"{where}: label {text!r} is not from {low:g} to {high:g}", hint)
        return value

    def parse_example(self, line: InputLine) -> TextExample:
        return parse_text_line(line, self.inputs)

    def swap_pairs(self, examples: Sequence[TextExample]) -> list[TextExample]:
        swapped = []
        for example in examples:
            if example.text_b is None:
                return super().swap_pairs(examples)  # raises the error for single texts
            swapped.append(TextExample(example.text_b, example.text_a, example.label, example.id))
        return swapped

    def encode(self, examples: Sequence[TextExample], vocabulary: Vocabulary, max_seq_length: int) -> PairFeatures:
        texts = [(example.text_a, example.text_b) for example in examples]
        return encode_pairs(texts, label_array([e.label for e in examples]), vocabulary, max_seq_length)

    def new_model(self, config: ModelConfig) -> SequenceClassifier:
        has_values_of_any_size = self.is_regression and self.value_range == _ANY_VALUE
        layer = ScaledLinear if has_values_of_any_size else nn.Linear
        return SequenceClassifier(config, len(self.output_names), layer=layer)

    def scale_to_labels(self, model: nn.Module, examples: Sequence[TextExample]) -> None:
        """Set a `ScaledLinear` head's scale to about the labels' standard deviation, and its bias to their mean."""
        if not isinstance(model.classifier, ScaledLinear):
            return
        labels = np.array([example.label for example in examples], dtype=np.float64)
        if len(np.unique(labels.astype(np.float32))) > 1:  # the loss compares fp32 values
            model.classifier.scale = 2.0 ** round(math.log2(labels.std()))
        self.init_bias_from_labels(model, examples)

    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        head = model.classifier
        if not isinstance(head, ScaledLinear):
            return super().loss_sum(model, batch, labels, device)
        (labels_N,) = to_device([labels], device)
        # In units of the labels too, so that the size of the gradients does not depend on the size of the labels.
        return self.loss_from_logits(model(pack(batch, device)) / head.scale, labels_N / head.scale)

    @torch.no_grad()
    def init_bias_from_labels(self, model: nn.Module, examples: Sequence[TextExample]) -> None:
        """Set the bias to the mean of the values, or to the logarithms of the classes' frequencies."""
        assert isinstance(model, SequenceClassifier)
        labels = np.array([example.label for example in examples])
        if self.is_regression:
            scale = model.classifier.scale if isinstance(model.classifier, ScaledLinear) else 1
            bias = labels.mean(keepdims=True) / scale
        else:
            counts = np.bincount(labels, minlength=len(self.labels)) + 1  # so that no count is 0, with logarithm -inf
            bias = np.log(counts / counts.sum())
        model.classifier.bias.copy_(torch.from_numpy(bias))

    def compute_metrics(
        self, outputs: Array, features: PairFeatures, examples: Sequence[TextExample]
    ) -> dict[str, float]:
        predictions = self.predictions_from_logits(outputs)
        return {**scores(self.metrics, predictions, features.gold), "loss": self.mean_loss(outputs, features)}

    def chance_loss(self, train: Sequence[TextExample]) -> float:
        """Return the entropy of the labels in nats, or in a regression the variance of the values."""
        labels = np.array([example.label for example in train])
        if self.is_regression:
            return float(np.var(labels.astype(np.float64)))
        frequencies = np.unique(labels, return_counts=True)[1] / len(labels)
        return float(-(frequencies * np.log(frequencies)).sum())

    def example_fields(self, example: TextExample) -> dict[str, object]:
        return text_fields(example.text_a, example.text_b)

    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        hub.write_checkpoint(model, directory, "ForSequenceClassification", self.output_names, finetuned)

    def match_head(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        """Return the head's row for each of `output_names`; None if the head is not for this task.

        The classes match in any order and spelling. A head with the default names LABEL_0, LABEL_1, … only needs the
        same number of classes if the task's classes have other names.
        """
        if self.is_regression:
            return [0] if len(checkpoint.labels) == 1 else None
        return match_outputs(self.labels, checkpoint.labels, are_unnamed=checkpoint.has_unnamed_labels)

    def wrong_head(self, checkpoint: hub.Checkpoint) -> CheckpointError:
        wanted = ", ".join(self.output_names)
        if not checkpoint.labels:
            message = f"{checkpoint.directory}: has no classifier with one class per input"
            return CheckpointError(message, "fine-tune it first, or use -s model.head=new")
        message = (
            f"{checkpoint.directory}: its classes ({', '.join(checkpoint.labels)}) are not {self.title}'s ({wanted})"
        )
        hint = "use -s model.head=new"
        if len(checkpoint.labels) == len(self.output_names):
            hint = f"use -s 'model.labels=[…]' to call its outputs {wanted} in their order, or -s model.head=new"
        return CheckpointError(message, hint)

    @classmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        """Derive the task from the labels of a sequence classifier; a head with a single output is a regression.

        Raises `CheckpointError` for a regression of several values.
        """
        labels = checkpoint.labels
        if not labels:
            return None
        if checkpoint.values.get("problem_type") == "regression" and len(labels) > 1:
            message = f"{checkpoint.directory}: predicts {len(labels)} values for a text"
            raise CheckpointError(message, "use a model that predicts one value")
        name, inputs = name_and_inputs(checkpoint)
        classes = () if len(labels) == 1 else labels
        return cls(name=name, title="predict", metrics=(), labels=classes, inputs=inputs)


# ---------------------------------------------------------------- classifier heads


def name_and_inputs(checkpoint: hub.Checkpoint) -> tuple[str, int]:
    """Return a checkpoint's task and the task's number of texts; ("", 0) if `config.json` does not record them."""
    finetuned = checkpoint.finetuned_task
    if finetuned is None:
        return "", 0
    return finetuned.task, finetuned.inputs


# ---------------------------------------------------------------- texts and logits


@torch.inference_mode()
def predict_logits(model: nn.Module, features: PairFeatures, columns: int, device: torch.device) -> Array:
    """Return logits float32 [N, columns] in the order of the features; raises `DivergedError` if any is not finite."""
    logits = np.empty((len(features), columns), dtype=np.float32)
    for index, tokens in iter_evaluation_batches(features, device):
        logits[index] = model(tokens).float().cpu().numpy()
    check_finite(logits)
    return logits


def parse_text_line(line: InputLine, inputs: int) -> TextExample:
    """Parse a text, or two texts separated by a tab; a record has `text` (`text_a`), `text_pair` (`text_b`) and `id`.

    Raises `InputError` naming the line if the number of texts is not `inputs`; `inputs` 0 accepts one text or two.
    """
    text, pair, identifier = line.fields(("text", "text_a"), ("text_pair", "text_b"))
    if not isinstance(text, str) or not isinstance(pair, str | None):
        raise InputError(f'{line.where}: no string "text"', 'write {"text": "…", "text_pair": "…"}')
    if inputs == 1 and pair is not None:
        hint = "remove the tab, which begins a second text; a text that contains a tab needs .jsonl"
        raise InputError(f"{line.where}: two texts, but the model reads single texts", hint)
    if inputs == 2 and pair is None:
        hint = "separate two texts by a tab, or write text and text_pair in .jsonl; a text may be empty"
        raise InputError(f"{line.where}: one text, but the model reads pairs of texts", hint)
    return TextExample(text, pair, None, identifier)


def encode_pairs(
    texts: Sequence[tuple[str, str | None]], labels: Array | None, vocabulary: Vocabulary, max_seq_length: int
) -> PairFeatures:
    """Encode texts as `[CLS] A [SEP]` and pairs as `[CLS] A [SEP] B [SEP]`, of at most `max_seq_length` tokens.

    A pair that is too long is truncated as in ALBERT's released code: the longer text loses its last token, text B if
    both are equally long, until the pair fits.
    """
    size = len(texts)
    texts_a = [a for a, _ in texts]
    texts_b = ["" if b is None else b for _, b in texts]
    ids, slices = tokenize(texts_a + texts_b, vocabulary)
    first = slices.select(np.arange(size))
    second = slices.select(size + np.arange(size))
    is_pair = np.fromiter((b is not None for _, b in texts), dtype=bool, count=size)
    max_text_tokens = max_seq_length - 2 - is_pair  # without [CLS], [SEP] and the second [SEP] of a pair
    length_a, length_b = truncated_lengths(first.length, second.length, max_text_tokens)
    return PairFeatures(
        ids=ids,
        first=TokenSlices(first.start, length_a),
        second=TokenSlices(second.start, length_b),
        is_pair=is_pair,
        labels=labels,
        truncated=int(np.count_nonzero(first.length + second.length > max_text_tokens)),
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
    )


def label_array(labels: Sequence[int | float | None]) -> Array | None:
    """Return class indices as int64 [N], or values as float32 [N]; None if any label is hidden."""
    if None in labels:
        return None
    has_values = any(isinstance(label, float) for label in labels)
    return np.array(labels, dtype=np.float32 if has_values else np.int64)


def softmax(logits: Array) -> Array:
    """Return the softmax of logits [N, C] over the classes."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))
