"""A pretraining recipe: its sections, and how it is fitted to a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from albert_cli import config
from albert_cli.config import NonNegativeInt, PositiveInt
from albert_cli.data.pairs import PairSettings
from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.informed_init import InformedInit
from albert_cli.randomness import Integers
from albert_cli.training.distill import DistillSettings
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from albert_cli.training.warm_start import WarmStart


@dataclass(frozen=True)
class BatchSettings:
    """`[batch]`: a batch that grows, and micro-batches of tokens.

    Over the first `warmup_steps` updates the batch grows evenly from `warmup_from` sequences to `train.batch_size`; the
    learning rate keeps its own schedule. `micro_tokens` (0: not used) bounds the tokens of a micro-batch, special ones
    included, where `train.micro_batch_size` would bound its sequences. "auto" is as many as a GPU's memory holds, and 0
    on a CPU; found at the first start and kept in the run's recipe.
    """

    warmup_steps: NonNegativeInt = 0
    warmup_from: PositiveInt = 32
    micro_tokens: NonNegativeInt | Literal["auto"] = 0

    def check(self, batch_size: int, max_seq_length: int) -> None:
        """Raise `ConfigError` where these settings do not fit the rest of the recipe."""
        if self.warmup_steps and self.warmup_from > batch_size:
            raise ConfigError(
                f"batch.warmup_from is {self.warmup_from}, more than the train.batch_size of {batch_size} to grow to",
                f"-s batch.warmup_from={max(1, batch_size // 8)}",
            )
        if 0 < self.tokens < max_seq_length:
            raise ConfigError(
                f"batch.micro_tokens is {self.micro_tokens}, but one sequence may have {max_seq_length}",
                f"-s batch.micro_tokens={max_seq_length} is the least, 0 goes by train.micro_batch_size",
            )

    @property
    def tokens(self) -> int:
        """`micro_tokens` as a number; "auto" is 0 until it is resolved."""
        return 0 if self.micro_tokens == "auto" else self.micro_tokens

    def sequences(self, train: TrainSettings, max_seq_length: int) -> int:
        """How many sequences of full length a micro-batch holds at most."""
        return min(self.tokens // max_seq_length or train.micro_batch_size, train.batch_size)


@dataclass(frozen=True)
class PretrainRecipe:
    """A pretraining recipe; its sections are documented by their own classes.

    `masked_bias` starts the vocabulary bias of the masked-word head at zero, as the paper does, or at the log
    unigram frequencies of the data, which saves a small model the first hundreds of steps. `init`: what else the
    first weights hold; without it they are drawn from `train.seed`. `warm_start` names a checkpoint whose weights the
    run starts from instead, so that `init` does not apply. `evaluation` names further data directories, made with the
    same vocabulary, whose scores stand beside those of the held-out text. `distill` names a teacher.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: PairSettings = field(default_factory=PairSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    masked_bias: Literal["zero", "unigram"] = "zero"
    init: InformedInit = field(default_factory=InformedInit)
    evaluation: tuple[str, ...] = ()
    warm_start: WarmStart | None = None
    distill: DistillSettings | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", self.optimizer.resolved(self.train.batch_size))
        self.batch.check(self.train.batch_size, self.data.max_seq_length)
        if self.data.sentence_loss == "three-way":
            object.__setattr__(self, "model", replace(self.model, order_labels=3))
        if self.warm_start is not None:
            object.__setattr__(self, "init", InformedInit())
        self.init.check(self.model)
        self.schedule.check()
        longest, positions = self.data.max_seq_length, self.model.max_position_embeddings
        if longest > positions:
            raise ConfigError(
                f"data.max_seq_length is {longest}, but the model has only {positions} positions",
                f"-s data.max_seq_length={positions} or -s model.max_position_embeddings={longest}",
            )

    def examples_before(self, step: int) -> int:
        """How many examples all steps before this one (from 0) take; the number of its own first example."""
        full, batch, growing = self.train.batch_size, self.batch, min(step, self.batch.warmup_steps)
        more = (full - batch.warmup_from) * np.arange(growing) // max(1, batch.warmup_steps)
        return growing * batch.warmup_from + int(more.sum()) + (step - growing) * full

    def examples_of(self, step: int) -> Integers:
        """The numbers of the step's examples, int64: over all steps none comes twice, and none is left out."""
        return np.arange(self.examples_before(step), self.examples_before(step + 1), dtype=np.int64)

    @property
    def micro_batch(self) -> int:
        """Sequences of full length in a micro-batch."""
        return self.batch.sequences(self.train, self.data.max_seq_length)

    @property
    def sequences(self) -> int:
        """How many the whole run takes, from its first step on."""
        return self.examples_before(self.schedule.total_steps) - self.examples_before(self.first_step)

    @property
    def first_step(self) -> int:
        """The number of steps that were done before this run, by one that it continues."""
        return (self.warm_start.step or 0) if self.warm_start else 0


def load_pretrain_recipe(recipe: str, overrides: Sequence[str], vocab_size: int) -> PretrainRecipe:
    """The recipe with overrides, fitted to a vocabulary; raises `ConfigError` where they do not fit."""
    values: dict[str, Any] = config.read_recipe(recipe)
    if "task" in values:
        raise ConfigError(f"{recipe} is a fine-tuning recipe, for {values['task']}", "albert finetune takes it")
    if "variants" in values:
        raise ConfigError(f"{recipe} is an experiment", "albert reproduce takes it")
    values = config.apply_overrides(values, overrides)
    asked = values.setdefault("model", {}).setdefault("vocab_size", vocab_size)
    if asked != vocab_size:
        raise ConfigError(
            f"the recipe's model.vocab_size is {asked}, the data's vocabulary has {vocab_size} pieces",
            f"-s model.vocab_size={vocab_size}, or data made with another vocabulary",
        )
    return config.validate_recipe(PretrainRecipe, values, recipe)
