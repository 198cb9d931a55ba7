"""The kinds of task, a row each: how examples become tokens, which head reads them, and how its outputs are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli.data.batches import PackedBatch
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.tasks.task import Kind, Task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.choose import Choice
from albert_cli.training.classify import Classification
from albert_cli.training.spans import SpanAnswering
from albert_cli.training.task_recipe import FinetuneRecipe

Array = NDArray[Any]


class TaskFeatures(Protocol):
    """N encoded items (examples, or windows of examples) that training draws from; see `tasks.encode.Features`."""

    truncated: int

    def __len__(self) -> int: ...

    def batch(self, index: Array) -> tuple[PackedBatch, Array | None]:
        """The items at `index` [B], packed in that order, and what is to be predicted (None where it is hidden)."""

    def batch_index(self, seed: int, step: int, batch_size: int) -> Array:
        """The items of a training step, int64 [batch_size], a function of (seed, step)."""


class TaskKind(Protocol):
    """What one training loop, one protocol and one report need to know of a kind of task.

    `examples` are what the task's source reads, `outputs` what the head says of all of them (in the order of the
    examples); both are of the kind's own making and nothing outside looks into them.
    """

    def encode(self, task: Task, examples: Sequence[Any], vocabulary: Vocabulary, recipe: FinetuneRecipe) -> Any:
        """The examples as `TaskFeatures`."""

    def new_model(self, task: Task, config: ModelConfig, recipe: FinetuneRecipe) -> nn.Module:
        """An encoder of this shape with the task's head, weights drawn from torch's generator."""

    def loss_sum(self, task: Task, model: nn.Module, batch: PackedBatch, labels: Array, device: torch.device) -> Tensor:
        """The loss summed over the items of a batch."""

    def predict(self, task: Task, model: nn.Module, features: Any, device: torch.device) -> Any:
        """The model's outputs for all examples, without gradients."""

    def evaluation(self, task: Task, outputs: Any, features: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Every metric of the task, and whatever else dev can tell, such as the mean loss under `loss`."""

    def baseline(self, task: Task, train: Sequence[Any], dev: Sequence[Any]) -> float:
        """What the task's main metric gives to knowing the training labels alone: the commonest, or their mean."""

    def chance_loss(self, task: Task, train: Sequence[Any]) -> float | None:
        """The loss of a model that knows only how often each label occurs in training; None where it is not known."""

    def one_answer(self, task: Task, outputs: Any, features: Any) -> str | None:
        """What the outputs say of every example although their labels differ, in words: the model collapsed."""

    def average(self, task: Task, outputs: Sequence[Any]) -> Any:
        """The outputs of an ensemble, from those of each of its models on the same examples."""

    def write_predictions(
        self, directory: Path, task: Task, outputs: Any, features: Any, examples: Sequence[Any]
    ) -> None:
        """Write `PREDICTIONS`, a JSON line an example, and whatever files the task's own tools expect."""

    def write_model(self, model: nn.Module, directory: Path, task: Task, made_for: hub.FinetunedFor) -> None:
        """Write the model under the class that reads its head."""

    def has_head(self, task: Task, found: hub.Checkpoint) -> bool:
        """Whether the checkpoint has a head of its own for this very task, so that it can be scored as it is."""

    def load(self, task: Task, found: hub.Checkpoint) -> nn.Module:
        """That model, its outputs in the task's order."""


KINDS: Mapping[Kind, TaskKind] = {
    "classification": Classification(),
    "regression": Classification(),
    "choice": Choice(),
    "span": SpanAnswering(),
}


def kind_of(task: Task) -> TaskKind:
    """How a task's kind is handled."""
    return KINDS[task.kind]
