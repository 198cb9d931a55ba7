"""`[batch]` of a pretraining recipe: how large a step's batch is, and how it is cut into micro-batches.

With the defaults every step has `train.batch_size` sequences, computed `train.micro_batch_size` at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from albert_cli.config import NotNegative, Positive
from albert_cli.errors import ConfigError
from albert_cli.random import Integers
from albert_cli.training.settings import TrainSettings


@dataclass(frozen=True)
class BatchSettings:
    """`[batch]`: a batch that grows, and micro-batches of tokens.

    Over the first `warmup_steps` updates the batch grows evenly from `warmup_from` sequences to `train.batch_size`; the
    learning rate keeps its own schedule. `micro_tokens` (0: not used) bounds the tokens of a micro-batch, special ones
    included, where `train.micro_batch_size` would bound its sequences. "auto" is as many as a GPU's memory holds, and 0
    on a CPU; found at the first start and kept in the run's recipe.
    """

    warmup_steps: NotNegative = 0
    warmup_from: Positive = 32
    micro_tokens: NotNegative | Literal["auto"] = 0

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


def cut_by_tokens(lengths: Integers, budget: int) -> list[Integers]:
    """The places in `lengths` [B], in groups whose lengths add up to at most `budget`, none of which is greater.

    Longest first: a group's lengths are alike, so that little is padded where attention needs a rectangle, and what
    does not fit into memory fails at once.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    groups, start = [], 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + budget, side="right"))
        groups.append(order[start:stop])
        start = stop
    return groups
