"""The interface of a training job: its model, its micro-batches, its losses and its evaluation.

Pretraining (`objectives`) and fine-tuning (`finetune`) implement it, and `loop` trains any job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from albert_cli import config
from albert_cli.ranks import RankGroup
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.settings import OptimizerSettings, TrainSettings

BatchT = TypeVar("BatchT")


class LoopSettings(Protocol):
    """Sections of a recipe for the loop."""

    @property
    def train(self) -> TrainSettings:
        """`[train]`."""

    @property
    def optimizer(self) -> OptimizerSettings:
        """`[optimizer]`."""


@dataclass(frozen=True)
class MicroBatch(Generic[BatchT]):
    """A part of a step's batch; `number` counts the step's micro-batches over all ranks.

    `counts`: the items over which each loss is averaged (masked positions, pairs, examples). `flops`: FLOPs of the full
    model for it, forward and backward.
    """

    number: int
    data: BatchT
    counts: Mapping[str, int]
    tokens: int
    flops: float = 0.0


class TrainingJob(ABC, Generic[BatchT]):
    """A model, its recipe, and how to compute its losses."""

    model: nn.Module
    settings: LoopSettings

    @property
    def recipe(self) -> str:
        """The resolved recipe as TOML, saved in every checkpoint."""
        return config.dump_toml(self.settings)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The losses whose sum is minimized."""
        return ("loss",)

    @property
    def extra_metrics(self) -> Mapping[str, str]:
        """Metrics that `loss_sums` returns besides the losses, each with the loss by whose count it is averaged."""
        return {}

    @abstractmethod
    def sample_step(self, step: int, group: RankGroup) -> list[MicroBatch[BatchT]]:
        """Sample this rank's micro-batches of a step: a pure function of (seed, step, rank, world size)."""

    @abstractmethod
    def loss_sums(self, data: BatchT) -> dict[str, Tensor]:
        """Return the sums over a micro-batch of each loss (named as in `MicroBatch.counts`) and each extra metric."""

    @abstractmethod
    def evaluate(self, group: RankGroup) -> dict[str, float]:
        """Score the current weights in evaluation mode; return {} if there is nothing to score on."""

    @abstractmethod
    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Save the model after an evaluation, and record it in the state, if it is the best so far."""

    @abstractmethod
    def write_model(self, directory: Path) -> None:
        """Write the model as a Hugging Face directory into a staged directory."""


def split_micro_batches(total: int, size: int, group: RankGroup) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, stop) of this rank's micro-batches; only who gets one depends on the world size."""
    for number, start in enumerate(range(0, total, size)):
        if number % group.world_size == group.rank:
            yield number, start, min(start + size, total)
