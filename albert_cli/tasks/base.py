"""Define the interface of a task, from reading its files to writing its predictions.

A kind of task is a subclass of `Task`, for example `Classification`. A task is an instance of a kind: an entry of
`registry.TASKS`, or built from a user's files by `open_table` or `open_token_task`. Training, evaluation and prediction
use only the interface. The subclass decides what an example is, how it is encoded as features, and what a model
outputs for it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from albert_cli import console, store
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, ConfigError, DivergedError, InputError
from albert_cli.model import hub, loading
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import PackedTokens, pack
from albert_cli.tasks.features import Features, Int64
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.label_names import find_label, match_labels
from albert_cli.tasks.metrics import Array as Array
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.text.vocabulary import Vocabulary

TEST_SUFFIX = " (test)"  # of the title of a task that is scored on its test splits
PREDICTIONS = "predictions.dev.jsonl"
EvaluationSplit = Literal["dev", "test"]
EVALUATION_TOKENS = 16_384  # tokens per batch without gradients: a bound on memory, without effect on the results


class Example(Protocol):
    """An example of any kind of task."""

    @property
    def id(self) -> str:
        """The example's name in files of predictions."""


ExampleT = TypeVar("ExampleT", bound=Example)
ExampleT_co = TypeVar("ExampleT_co", bound=Example, covariant=True)
FeaturesT = TypeVar("FeaturesT", bound=Features)
OutputsT = TypeVar("OutputsT")


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """A task's name, labels, metrics and splits.

    * `title` is the name in tables and messages.
    * The first of `metrics` selects the best checkpoint.
    * `labels` name the classes in the order of the logits. Classification without labels is regression.
    * `inputs` is the number of texts in an example: 1 or 2. It is 0, which accepts one text or two, for a task that
      predicts with a checkpoint whose `config.json` does not record the number.
    * `dev_splits` and `test_splits` begin with the main split.
    * `classifier_of` is a task whose models also answer this task: "mnli" for AX, "race" for the levels of RACE.
    * `sibling_tasks` are further tasks whose models are accepted, with a message, because the models are not meant for
      this task: the other levels of RACE.
    * `published` lists the metrics in the paper's tables; if it is empty, they have only the first of `metrics`.
    * `scores_whole_file` is true for scoring: if the data are a single file, all of it is dev data. For training a part
      of the file is held out as dev data.
    * `accepts_any_task` is true for data that may be only for scoring (a single file, or no training file): models of
      all tasks with the same `inputs` are accepted.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    inputs: int = 2
    train_split: str | None = "train"
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    classifier_of: str | None = None
    sibling_tasks: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    scores_whole_file: bool = False
    accepts_any_task: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits: the training split if there is one, then dev and test splits."""
        train = () if self.train_split is None else (self.train_split,)
        return (*train, *self.dev_splits, *self.test_splits)

    def parse_label(self, text: str, where: str) -> int | float:
        """Return the class index of a label, which may be spelled differently, or in a regression its value.

        Raises `InputError` for a label that is no class, or no valid value. The message begins with `where`, which is
        the label's file and line.
        """
        index = find_label(text, self.labels)
        if index is None:
            hint = "correct the label, or remove the row"
            raise InputError(f"{where}: label {text!r} is not one of {', '.join(self.labels)}", hint)
        return index


class ExampleSource(Protocol[ExampleT_co]):
    """A reader of a task's examples, from files or from a data set of the Hub."""

    def read(self, task: TaskInfo, split: str, data: str | None) -> Sequence[ExampleT_co]:
        """Read all examples of a split from `data`: a path, `hf:NAME`, or None for the source's default.

        Raises `InputError` naming file and line if the data do not fit the task.
        """


@dataclass(frozen=True, kw_only=True)
class Task(TaskInfo, ABC, Generic[ExampleT, FeaturesT, OutputsT]):
    """A task: how to read its examples, to encode them as features, and to use a model's outputs for them.

    `predict` returns the outputs for all examples, in their order. `source` is None for a task that `from_checkpoint`
    derives, which only predicts.
    """

    source: ExampleSource[ExampleT] | None = None

    # ---------------------------------------------------------------- reading

    def read(self, split: str, data: str | None = None) -> list[ExampleT]:
        """Read all examples of a split; "dev" and "test" mean the main dev or test split.

        Raises `ConfigError` for a split that the task does not have.
        """
        if split == "dev" and self.dev_splits:
            split = self.dev_splits[0]
        if split == "test" and self.test_splits:
            split = self.test_splits[0]
        if split not in self.splits or self.source is None:
            raise ConfigError(f"{self.name} has no split {split!r}", f"choose one of {', '.join(self.splits)}")
        return list(self.source.read(self, split, data))

    @abstractmethod
    def parse_example(self, line: InputLine) -> ExampleT:
        """Parse an unlabeled example; raises `InputError` naming file and line."""

    @abstractmethod
    def example_fields(self, example: ExampleT) -> dict[str, object]:
        """Return the example's texts by their keys in a file of predictions, for example "text" and "text_pair"."""

    def with_splits(self, available: Container[str]) -> Self:
        """Return the task with the splits that have files; without a dev file, dev is held out of train.

        available: the names of the splits that have a file: "train", "dev" and "test".
        """
        return dataclasses.replace(
            self,
            train_split="train" if "train" in available else None,
            dev_splits=("dev",) if "train" in available or "dev" in available else (),
            test_splits=("test",) if "test" in available else (),
        )

    # ---------------------------------------------------------------- training

    def with_span_settings(self, settings: SpanSettings) -> Self:
        """Return the task with the settings of the section `[span]`, if it answers questions by spans."""
        return self

    def for_scoring(self, split: EvaluationSplit = "dev") -> Self:
        """Return the task for scoring on dev or test; with "test", the test splits take the place of the dev splits.

        Raises `InputError` for "test" if the task has no test split.
        """
        scored = dataclasses.replace(self, scores_whole_file=True)
        if split == "dev":
            return scored
        if not self.test_splits:
            raise InputError(f"{self.title}: found no test data", "add a labeled test file to the --data directory")
        title = self.title + TEST_SUFFIX
        return dataclasses.replace(scored, title=title, dev_splits=self.test_splits, test_splits=())

    def overrides_from_checkpoint(self, finetuned: hub.FinetunedTask) -> list[str]:
        """Return recipe overrides (`key=value`) that encode inputs as in the fine-tuning that `finetuned` records."""
        return [f"data.max_seq_length={finetuned.max_seq_length}"]

    def group_for_encoding(self, examples: Sequence[ExampleT]) -> Iterable[Sequence[ExampleT]]:
        """Split examples into consecutive groups, each for one call of `encode`.

        For multiple choice, all questions of a group have the same number of options, so that `encode` adds no padding.
        """
        return [examples]

    @abstractmethod
    def encode(self, examples: Sequence[ExampleT], vocabulary: Vocabulary, max_seq_length: int) -> FeaturesT:
        """Tokenize examples into sequences of at most `max_seq_length` tokens."""

    def swap_pairs(self, examples: Sequence[ExampleT]) -> list[ExampleT]:
        """Return the examples with their two texts exchanged; raises `ConfigError` if the examples are not pairs."""
        raise ConfigError(f"data.both_orders: {self.title} has no pairs of texts", "set it to false")

    def describe_truncation(self, max_seq_length: int) -> str:
        """Describe truncation in the words that follow the number of truncated examples in a message."""
        return f"inputs are longer than {max_seq_length} tokens"

    def with_null_threshold(self, threshold: float) -> Self:
        """Return the task with another threshold: the null score above which a question is left unanswered.

        Raises `ConfigError` for a task that does not answer questions by spans.
        """
        raise ConfigError("--null-threshold is for models that answer questions", "leave it out")

    @property
    def null_threshold(self) -> float | None:
        """The null score above which a question is left unanswered; None if the task leaves none unanswered."""
        return None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the head's logits."""
        return self.labels

    @abstractmethod
    def new_model(self, config: ModelConfig) -> nn.Module:
        """Return an encoder of this shape with the task's head, with weights sampled from torch's global generator."""

    @abstractmethod
    def loss_sum(self, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """Return the loss, summed over the items (examples or windows) of a batch: a scalar.

        `labels` are those that the features' method `batch` returns with the batch.
        """

    @property
    def sequences_per_item(self) -> int:
        """The number of sequences of an item of the features (an example or a window)."""
        return 1

    def scale_to_labels(self, model: nn.Module, examples: Sequence[ExampleT]) -> None:
        """Scale a new head to the size of the training labels, if the task predicts values of any size.

        This method is called before weights are loaded.
        """

    def init_bias_from_labels(self, model: nn.Module, examples: Sequence[ExampleT]) -> None:
        """Initialize the head's bias from the labels' frequencies, if this kind of head has such a bias."""

    # ---------------------------------------------------------------- scoring

    @abstractmethod
    def predict(self, model: nn.Module, features: FeaturesT, device: torch.device) -> OutputsT:
        """Compute the model's outputs for all examples, without gradients."""

    @abstractmethod
    def compute_metrics(self, outputs: OutputsT, features: FeaturesT, examples: Sequence[ExampleT]) -> dict[str, float]:
        """Return the task's metrics by name; all kinds except span answering add the mean loss as `loss`."""

    @abstractmethod
    def score_majority(self, train: Sequence[ExampleT], dev: Sequence[ExampleT]) -> float:
        """Return the first metric on dev of simple predictions that need no model.

        The subclass derives them from the labels of train, for example the most frequent class for all examples.
        """

    def chance_loss(self, train: Sequence[ExampleT]) -> float | None:
        """Return the loss of a model that does not read the texts.

        It knows only the label frequencies, or in a regression the labels' mean, or guesses uniformly among options.
        Returns None if the kind of task defines none.
        """
        return None

    @abstractmethod
    def describe_collapse(self, outputs: OutputsT, features: FeaturesT) -> str | None:
        """Describe outputs that are the same for all inputs although the labels differ; return None for others."""

    @abstractmethod
    def average(self, outputs: Sequence[OutputsT]) -> OutputsT:
        """Average the outputs of an ensemble's models on the same examples (§4.9)."""

    @abstractmethod
    def iter_predictions(
        self, examples: Sequence[ExampleT], outputs: OutputsT, *, with_details: bool
    ) -> Iterator[dict[str, object]]:
        """Yield the fields of each example's line in a file of predictions.

        `with_details` adds texts, gold answers and scores for a report on mistakes.
        """

    def format_predictions(self, examples: Sequence[ExampleT], outputs: OutputsT, *, with_details: bool) -> list[str]:
        """Return a JSON line per example, with the fields of `iter_predictions`."""
        predictions = self.iter_predictions(examples, outputs, with_details=with_details)
        return [json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions]

    def write_predictions(self, directory: Path, examples: Sequence[ExampleT], outputs: OutputsT) -> None:
        """Write `PREDICTIONS`, and the files that the task's official tools read."""
        lines = self.format_predictions(examples, outputs, with_details=True)
        store.write_text(directory / PREDICTIONS, "".join(lines))

    # ---------------------------------------------------------------- checkpoints

    @abstractmethod
    def write_model(self, model: nn.Module, directory: Path, finetuned: hub.FinetunedTask) -> None:
        """Write a checkpoint; its `config.json` names a model class of `transformers` if that has such a head."""

    @abstractmethod
    def match_head(self, checkpoint: hub.Checkpoint) -> list[int] | None:
        """Return the classifier's row for each of `output_names`; None if the checkpoint's head is not for this task.

        The list is empty for a head whose outputs have no names, and so no order.
        """

    @abstractmethod
    def wrong_head(self, checkpoint: hub.Checkpoint) -> CheckpointError:
        """Return the error for a checkpoint whose head is missing or not for this task."""

    def has_head(self, checkpoint: hub.Checkpoint) -> bool:
        """Return True if the checkpoint's head answers this task, so that the checkpoint needs no training."""
        return self.accepts_checkpoint(checkpoint) and self.match_head(checkpoint) is not None

    def reorder_labels(self, checkpoint: hub.Checkpoint) -> hub.Checkpoint:
        """Return the checkpoint with the head's outputs in the order of `output_names`.

        Raises `CheckpointError` if the head is not for this task.
        """
        rows = self.match_head(checkpoint)
        if rows is None:
            raise self.wrong_head(checkpoint)
        if not rows:
            return checkpoint
        head = {name: tensor[rows] for name, tensor in checkpoint.tensors.items() if name.startswith("classifier.")}
        return dataclasses.replace(checkpoint, tensors=checkpoint.tensors | head)

    def accepts_checkpoint(self, checkpoint: hub.Checkpoint) -> bool:
        """Return True if the checkpoint's task is one whose models are accepted, or if the checkpoint names no task."""
        finetuned = checkpoint.finetuned_task
        if finetuned is None or finetuned.task in (self.name, self.classifier_of, *self.sibling_tasks):
            return True
        return self.accepts_any_task and finetuned.inputs == self.inputs

    def load(self, checkpoint: hub.Checkpoint) -> nn.Module:
        """Load the checkpoint's model, with the head's outputs in the order of `output_names`.

        Print the class names that replace the head's default names LABEL_0 and so on.
        """
        head = self.reorder_labels(checkpoint)
        if checkpoint.has_unnamed_labels and self.labels and match_labels(self.labels, checkpoint.output_names) is None:
            names = ", ".join(self.labels)
            console.info(f"{checkpoint.directory}: labels have no names; reading them as {self.title}'s: {names}")
        model = self.new_model(checkpoint.config)
        loading.load_weights(model, head, loading.LoadPolicy.HEADS)
        return model

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, checkpoint: hub.Checkpoint) -> Self | None:
        """Derive the task that a checkpoint's head answers, to predict with it; None for a head of another kind."""


# A task of an unknown kind. To callers its examples and outputs are opaque: they only pass them back to the task.
AnyTask = Task[Example, Features, object]


def as_any_task(task: Task[ExampleT, FeaturesT, OutputsT]) -> AnyTask:
    """Return the task under the type `AnyTask`; safe if the caller mixes no examples or outputs of different tasks."""
    return cast("AnyTask", task)


def iter_evaluation_batches(
    features: Features, device: torch.device, max_tokens: int = EVALUATION_TOKENS
) -> Iterator[tuple[Int64, PackedTokens]]:
    """Yield batches that together have every item once: indices of items [B], and the packed items on the device."""
    for index in features.eval_batches(max_tokens):
        batch, _ = features.batch(index)
        yield index, pack(batch, device)


def check_finite(outputs: Array) -> None:
    """Raise `DivergedError` if outputs are not finite; without this check `argmax` would return a class for NaN."""
    if not np.isfinite(outputs).all():
        raise DivergedError("the model's predictions are not finite", "lower optimizer.lr, or use other weights")


def fingerprint_examples(output_names: Sequence[str], examples: Mapping[str, Sequence[object]]) -> str:
    """Return 16 hexadecimal digits of a hash over the names of the outputs and all fields of each split's examples.

    Examples have class indices, whose meaning depends on the names. examples: by split, in order.
    """
    digest = hashlib.sha256(repr(list(output_names)).encode())
    for split, split_examples in examples.items():
        digest.update(repr((split, len(split_examples))).encode())
        for example in split_examples:
            digest.update(repr(example).encode())
    return digest.hexdigest()[:16]
