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
    """The sections of a recipe that the loop reads."""

    @property
    def train(self) -> TrainSettings:
        """`[train]`."""

    @property
    def optimizer(self) -> OptimizerSettings:
        """`[optimizer]`."""


@dataclass(frozen=True)
class MicroBatch(Generic[BatchT]):
    """A part of a step's batch that one rank computes at once.

    `number`: the micro-batch's index among the step's micro-batches of all ranks. `data`: what `loss_sums` reads.
    `counts`: by name of a loss, the number of items that it sums over (masked positions, pairs, examples). `flops`: the
    FLOPs of the forward and backward pass.
    """

    number: int
    data: BatchT
    counts: Mapping[str, int]
    tokens: int
    flops: float


class TrainingJob(ABC, Generic[BatchT]):
    """A model and its recipe (`settings`), with methods that sample batches, compute losses, evaluate and write."""

    model: nn.Module
    settings: LoopSettings

    @property
    def recipe_toml(self) -> str:
        """The resolved recipe as TOML, saved in every checkpoint."""
        return config.dump_toml(self.settings)

    @property
    @abstractmethod
    def weight_sources(self) -> tuple[str, ...]:
        """The checkpoints whose weights the first step uses; empty if all weights are random."""

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The names of the losses whose sum is minimized."""
        return ("loss",)

    @property
    def extra_metrics(self) -> Mapping[str, str]:
        """The metrics that `loss_sums` returns next to the losses; each maps to the loss whose item count it shares."""
        return {}

    @abstractmethod
    def sample_step(self, step: int, group: RankGroup) -> list[MicroBatch[BatchT]]:
        """Sample this rank's micro-batches of a step: a pure function of (seed, step, rank, world size)."""

    @abstractmethod
    def loss_sums(self, data: BatchT) -> dict[str, Tensor]:
        """Return each loss and each extra metric, summed over the items of a micro-batch, by name."""

    @abstractmethod
    def evaluate(self, group: RankGroup) -> dict[str, float]:
        """Score the current weights in evaluation mode; return {} if there is nothing to score on."""

    @abstractmethod
    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Keep a copy of the weights and record the score in `state`, if `metrics` are the best so far."""

    @abstractmethod
    def write_model(self, directory: Path) -> None:
        """Write the model in Hugging Face's layout into `directory`, which is staged and not yet visible to readers."""


def split_micro_batches(total: int, size: int, group: RankGroup) -> Iterator[tuple[int, int, int]]:
    """Split `total` examples into micro-batches of at most `size`; yield this rank's as (number, start, stop).

    The micro-batches do not depend on the world size. They are assigned to the ranks in turn.
    """
    for number, start in enumerate(range(0, total, size)):
        if number % group.world_size == group.rank:
            yield number, start, min(start + size, total)
