"""Fine-tuning any task as a job of the loop (§4.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli import store
from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch
from albert_cli.model import card, hub
from albert_cli.model.config import ModelConfig
from albert_cli.ranks import Group
from albert_cli.tasks.task import Task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.kinds import TaskFeatures, kind_of
from albert_cli.training.loop import MicroBatch, micro_batches
from albert_cli.training.settings import TrainSettings

Array = NDArray[Any]


@dataclass
class TaskJob:
    """One fine-tuning run; `keep` is called with the step, dev metrics and outputs whenever dev is best so far."""

    model: nn.Module
    task: Task
    train: TaskFeatures
    dev: TaskFeatures
    dev_examples: Sequence[Any]
    vocabulary: Vocabulary
    settings: TrainSettings
    device: torch.device
    recipe: str
    max_seq_length: int
    keep: Callable[[int, Mapping[str, float], Any], None]

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The one loss of the task."""
        return ("loss",)

    @property
    def extra_metrics(self) -> Mapping[str, str]:
        """Nothing beside the loss: dev says more."""
        return {}

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self.model.config  # type: ignore[return-value]

    def draw(self, step: int, group: Group) -> list[MicroBatch]:
        """This rank's micro-batches of the step."""
        size = self.settings.batch_size
        index = self.train.batch_index(self.settings.seed, step, size)
        parts = []
        for number, start, stop in micro_batches(size, self.settings.micro_batch_size, group):
            packed, labels = self.train.batch(index[start:stop])
            flops = costs.batch_flops(self.config, np.diff(packed.offsets), 0)
            parts.append(MicroBatch(number, (packed, labels), {"loss": stop - start}, len(packed.ids), flops))
        return parts

    def loss_sums(self, data: tuple[PackedBatch, Array]) -> dict[str, Tensor]:
        """The task's loss summed over a micro-batch."""
        packed, labels = data
        return {"loss": kind_of(self.task).loss_sum(self.task, self.model, packed, labels, self.device)}

    def evaluate(self, group: Group) -> dict[str, float]:
        """The task's metrics on dev, and the mean loss."""
        kind = kind_of(self.task)
        self.outputs = kind.predict(self.task, self.model, self.dev, self.device)
        return kind.evaluation(self.task, self.outputs, self.dev, self.dev_examples)

    def score(self, metrics: Mapping[str, float]) -> float:
        """The task's first metric chooses the checkpoint (§4.2: early stopping on dev)."""
        return metrics[self.task.metrics[0]]

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Hand the best weights so far to whoever keeps them."""
        self.keep(state.step, metrics, self.outputs)

    def write_model(self, directory: Path) -> None:
        """The encoder and its head, tokenizer and card."""
        made_for = hub.FinetunedFor(self.task.name, self.task.inputs, self.max_seq_length)
        kind_of(self.task).write_model(self.model, directory, self.task, made_for)
        self.vocabulary.copy_to(directory, self.config.max_position_embeddings)

    def write_card(self, directory: Path, metrics: Mapping[str, float]) -> None:
        """The model card of a task checkpoint."""
        named = str(store.read_json(directory / "config.json")["architectures"][0])
        architecture = f"For{named.partition('For')[2]}"
        card.write(directory, card.finetuned(self.config, self.task.title, metrics, self.recipe, architecture))
