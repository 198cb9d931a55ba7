"""What every task is, from its files to its predictions.

A kind of task is a subclass of `Task`; a task is an instance of one: a row of `spec.TASKS`, or one's own table. Whoever
trains, scores or predicts knows this class alone: examples, features and outputs are of the kind's own making.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from albert_cli import store
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError, DivergedError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import PackedTokens, pack
from albert_cli.tasks.features import Features, Int64
from albert_cli.tasks.metrics import Array as Array
from albert_cli.tasks.rows import InputLine
from albert_cli.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ExampleT = TypeVar("ExampleT")
FeaturesT = TypeVar("FeaturesT", bound=Features)
OutputsT = TypeVar("OutputsT")

PREDICTIONS = "predictions.dev.jsonl"
EVALUATION_TOKENS = 16_384  # a forward pass without gradients; bounds memory, not the result


class ExampleSource(Protocol):
    """Where the examples of a task come from."""

    def read(self, task: Any, split: str, data: str | None) -> list[Any]:
        """All examples of a split, from `data`: a path, `hf:NAME`, or None for the source's own default.

        Raises `InputError` naming file and line for data that do not fit.
        """


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[ExampleT, FeaturesT, OutputsT]):
    """A task of examples E, encoded as features F, answered by outputs O (of all examples, in their order).

    `labels` name the classes in the order of the logits; the first of `metrics` selects the best checkpoint, and stands
    in the paper's tables (MNLI: matched alone, §4.2.2) unless others are `published` there.
    `dev_splits` and `test_splits` name the further splits after the main one. `classifier_of` names the task whose
    fine-tuned models answer this one too: one without training data of its own, or a part of that task. A task that was
    made of a checkpoint, to predict, has no `source`.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    inputs: int = 2
    source: ExampleSource | None = None
    train_split: str | None = "train"
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    classifier_of: str | None = None
    published: tuple[str, ...] = ()

    # ---------------------------------------------------------------- reading

    @property
    def splits(self) -> tuple[str, ...]:
        return (*((self.train_split,) if self.train_split else ()), *self.dev_splits, *self.test_splits)

    def read(self, split: str, data: str | None = None) -> list[ExampleT]:
        """All examples of a split; `dev` and `test` stand for the first of several. `ConfigError`: no such split."""
        main = {"dev": self.dev_splits[:1], "test": self.test_splits[:1]}.get(split, ())
        split = main[0] if main else split
        if split not in self.splits or self.source is None:
            raise ConfigError(f"{self.name} has no split {split!r}", f"it has {', '.join(self.splits)}")
        return self.source.read(self, split, data)

    def parse_label(self, text: str, where: str) -> int | float:
        """The index of a label in a file, or the value; raises `InputError` beginning with `where` (file and line)."""
        if text not in self.labels:
            hint = "correct the label, or leave the row out"
            raise InputError(f"{where}: label {text!r} is not one of {', '.join(self.labels)}", hint)
        return self.labels.index(text)

    @abstractmethod
    def example(self, line: InputLine) -> ExampleT:
        """A line to predict as an example without a label; raises `InputError` naming file and line."""

    def examples_of_document(self, path: Path) -> list[ExampleT] | None:
        """All examples of a file that is one document, where the kind has such a layout."""
        return None

    # ---------------------------------------------------------------- training

    def with_recipe(self, recipe: Any) -> Self:
        """The task with the settings that a recipe has for its kind."""
        return self

    def overrides_from_checkpoint(self, made_for: hub.FinetunedTask) -> list[str]:
        """Overrides of a recipe by which inputs are made as in the fine-tuning of a checkpoint."""
        return [f"data.max_seq_length={made_for.max_seq_length}"]

    def together(self, examples: Sequence[ExampleT]) -> Iterable[Sequence[ExampleT]]:
        """Cut examples of mixed origin into runs that can each be encoded, in their order."""
        return [examples]

    @abstractmethod
    def encode(self, examples: Sequence[ExampleT], vocabulary: Vocabulary, max_seq_length: int) -> FeaturesT:
        """The examples as tokens, sequences of at most `max_seq_length`."""

    def swap_pairs(self, examples: Sequence[ExampleT]) -> list[ExampleT]:
        """Pairs of texts with the second one first. `ConfigError`: they are no pairs."""
        raise ConfigError(f"data.both_orders: {self.title} has no two texts to exchange", "set it to false")

    def too_long(self, max_seq_length: int) -> str:
        """What is cut, and at which length, for messages."""
        return f"inputs are longer than {max_seq_length} tokens"

    @property
    def output_names(self) -> tuple[str, ...]:
        """The columns of the head's logits by name."""
        return self.labels

    @abstractmethod
    def new_model(self, config: ModelConfig) -> nn.Module:
        """An encoder of this shape with the task's head, weights drawn from torch's generator."""

    @abstractmethod
    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """The loss summed over the items of a batch."""

    def init_bias_from_labels(self, model: nn.Module, examples: Sequence[ExampleT]) -> None:
        """Let the head's bias begin at what the labels of these examples say by themselves, where the kind can."""

    # ---------------------------------------------------------------- scoring

    @abstractmethod
    def predict(self, model: nn.Module, features: FeaturesT, device: torch.device) -> OutputsT:
        """The model's outputs for all examples, without gradients."""

    @abstractmethod
    def evaluation(self, outputs: OutputsT, features: FeaturesT, examples: Sequence[ExampleT]) -> dict[str, float]:
        """Every metric of the task, and whatever else dev can tell, such as the mean loss under `loss`."""

    @abstractmethod
    def baseline(self, train: Sequence[ExampleT], dev: Sequence[ExampleT]) -> float:
        """What the main metric gives to knowing the training labels alone: the commonest, or their mean."""

    def chance_loss(self, train: Sequence[ExampleT]) -> float | None:
        """The loss of a model that knows only how often each label occurs in training; None where it is not known."""
        return None

    @abstractmethod
    def describe_collapse(self, outputs: OutputsT, features: FeaturesT) -> str | None:
        """What the outputs have in common although the labels differ, in words: the model collapsed. Else None."""

    @abstractmethod
    def average(self, outputs: Sequence[OutputsT]) -> OutputsT:
        """The outputs of an ensemble, from those of each of its models on the same examples (§4.9)."""

    @abstractmethod
    def format_predictions(self, examples: Sequence[ExampleT], outputs: OutputsT, *, scored: bool) -> list[str]:
        """One JSON line per example; under `scored` with its text, so that a report can show what is wrong."""

    def write_predictions(self, directory: Path, examples: Sequence[ExampleT], outputs: OutputsT) -> None:
        """Write `PREDICTIONS`, and whatever files the task's own tools expect."""
        store.write_text(directory / PREDICTIONS, "".join(self.format_predictions(examples, outputs, scored=True)))

    # ---------------------------------------------------------------- checkpoints

    @abstractmethod
    def write_model(self, model: nn.Module, directory: Path, made_for: hub.FinetunedTask) -> None:
        """Write the model under the class that reads its head."""

    @abstractmethod
    def has_head(self, found: hub.Checkpoint) -> bool:
        """Whether the checkpoint has a head of its own for this very task, so that it can be scored as it is."""

    def reorder_labels(self, found: hub.Checkpoint) -> hub.Checkpoint:
        """The checkpoint with its head's outputs in the task's order, where it has names for them."""
        return found

    def accepts_checkpoint(self, found: hub.Checkpoint) -> bool:
        """Whether a checkpoint was fine-tuned for this task, or comes from elsewhere."""
        return found.finetuned_task is None or found.finetuned_task.task in (self.name, self.classifier_of)

    def load(self, found: hub.Checkpoint) -> nn.Module:
        """That model, its outputs in the task's order."""
        model = self.new_model(found.config)
        hub.load_weights(model, self.reorder_labels(found), hub.LoadPolicy.HEADS)
        return model

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, found: hub.Checkpoint) -> Self | None:
        """The task that a checkpoint's head answers, to predict with it; None for a head of another kind."""


AnyTask = Task[Any, Any, Any]


def iter_evaluation_batches(features: Features, device: torch.device) -> Iterator[tuple[Int64, PackedTokens]]:
    """Every item once: places in the features [B], and those items on the device."""
    for index in features.eval_batches(EVALUATION_TOKENS):
        yield index, pack(features.batch(index)[0], device)


def check_finite(outputs: Array) -> None:
    """Raise `DivergedError` where a model says something that is no number: it would count as some answer."""
    if not np.isfinite(outputs).all():
        raise DivergedError("the model's predictions are not finite", "lower optimizer.lr, or take other weights")


def fingerprint_examples(examples: Iterable[DataclassInstance]) -> str:
    """16 hexadecimal digits over all that examples say (texts, labels, ids) in order: equal for equal data."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode())
    return digest.hexdigest()[:16]
