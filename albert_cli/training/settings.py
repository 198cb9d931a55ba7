"""The sections that pretraining and fine-tuning recipes have in common."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from albert_cli.config import Fraction, NonNegativeInt, PositiveInt
from albert_cli.errors import ConfigError


@dataclass(frozen=True)
class OptimizerSettings:
    """`[optimizer]`: LAMB (pretraining, §4.1) or AdamW (fine-tuning), as the reference code has them.

    `lr = "auto"` is LAMB's rate for the batch (`resolved`); the resolved recipe has its value.
    `clip_norm` shortens a gradient that is longer (0: never). Other published forms of LAMB have `bias_correction`;
    "nvlamb" also gives LayerNorms and biases a trust ratio (`training/optimizers.py`). fp32 holds numbers below 3.4e38.
    """

    name: Literal["lamb", "nvlamb", "adamw"] = "lamb"
    lr: Annotated[float, Gt(0), Le(1e38)] | Literal["auto"] = 0.00176
    weight_decay: Annotated[float, Ge(0), Le(1e38)] = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Annotated[float, Gt(0), Le(1e38)] = 1e-6
    clip_norm: Annotated[float, Ge(0), Le(1e38)] = 1.0
    bias_correction: bool = False

    def __post_init__(self) -> None:
        if self.lr == "auto" and not self.name.endswith("lamb"):
            raise ConfigError("optimizer.lr is auto", f"it must be a number with {self.name}: the rule is LAMB's")

    @property
    def peak(self) -> float:
        """The rate at the end of warm-up, once a recipe has resolved `lr = "auto"`."""
        assert self.lr != "auto"
        return self.lr

    def resolved(self, batch_size: int) -> OptimizerSettings:
        """The same with a number for `lr = "auto"`: the paper's 0.00176 at 4,096 (§4.1), times the batch's square root.

        The rule of LAMB's authors (You et al., 2019), who also keep the number of warm-up steps: 3,125 for any batch.
        """
        return replace(self, lr=0.00176 * math.sqrt(batch_size / 4096)) if self.lr == "auto" else self


@dataclass(frozen=True)
class ScheduleSettings:
    """`[schedule]`: updates in all, and how many of them warm up (a number, or a share).

    The rate reaches zero at the last step, or at `decay_steps`: a run that is to be continued ends before that
    (`warm_start.continues`). The warm-up is a share of these steps.
    """

    total_steps: PositiveInt = 125_000
    warmup_steps: NonNegativeInt | None = None
    warmup_ratio: Fraction = 0.1
    decay_steps: int | None = None

    def check(self) -> None:
        """Raise `ConfigError` where the rate would still be rising at the last step, or zero before it."""
        if self.decay < self.total_steps:
            raise ConfigError(
                f"schedule.decay_steps is {self.decay:,}: the rate would be zero up to step {self.total_steps:,}",
                f"-s schedule.decay_steps={self.total_steps} or more, or leave it out",
            )
        if self.warmup > self.total_steps:
            fitting = max(1, self.total_steps // 10)
            raise ConfigError(
                f"schedule.warmup_steps is {self.warmup:,} and schedule.total_steps {self.total_steps:,}: "
                "the rate would never reach its peak",
                f"-s schedule.warmup_steps={fitting}; --max-time shortens the warm-up of pretraining by itself",
            )

    @property
    def decay(self) -> int:
        """The step at which the rate reaches zero."""
        return self.total_steps if self.decay_steps is None else self.decay_steps

    @property
    def warmup(self) -> int:
        """The number of warm-up steps: `warmup_steps`, or else `warmup_ratio` of all steps of the decay."""
        return self.warmup_steps if self.warmup_steps is not None else round(self.warmup_ratio * self.decay)

    def rate(self, step: int, peak: float) -> float:
        """The learning rate of the update numbered `step` (from 0): linear warm-up, then linear decay to zero.

        As in the reference code the decay is reckoned from step 0, and warm-up replaces it while `step < warmup`; so
        there is a small step down where warm-up ends, to `peak * (1 - warmup / decay)`.
        """
        if step < self.warmup:
            return peak * step / self.warmup
        return peak * max(0.0, 1 - step / self.decay)


@dataclass(frozen=True)
class TrainSettings:
    """`[train]`: batch, seed, precision, and how often to look and save.

    `batch_size` counts sequences over all processes; a process computes `micro_batch_size` of them at a time.
    `eval_every = 0` evaluates after the last step only, so that in fine-tuning nothing is chosen on dev. Pretraining is
    evaluated on `eval_sequences` held-out sequences. `save_every` is a number of steps or a time such as "10m"; 0 saves
    at the end only. `compile`: fuse the block's operations (auto: on CUDA). `threads`: how many a CPU computes with.
    What "auto" stands for is found at the first start, see `training/device.py`, and kept in the run's recipe.
    `checkpoint_activations`: keep only each block's input and compute the block again in the backward pass, a third
    slower and the same numbers. `deterministic`: on a GPU take only kernels that give the same bits every time, so that
    a run that was resumed ends in the bytes of one that was not; a CPU does so anyway. `communication`: in what
    precision several processes send each other gradients; bf16 is half the bytes, and rounds.
    """

    seed: Annotated[int, Ge(0), Lt(2**62)] = 0  # larger ones draw the held-out examples
    batch_size: PositiveInt = 32
    micro_batch_size: PositiveInt = 32
    log_every: PositiveInt = 50
    eval_every: NonNegativeInt = 500
    eval_sequences: PositiveInt = 1024
    save_every: NonNegativeInt | str = "10m"
    keep: PositiveInt = 2
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    threads: Annotated[int, Ge(1), Le(1024)] | Literal["auto"] = "auto"
    checkpoint_activations: bool = False
    deterministic: bool = False
    communication: Literal["fp32", "bf16"] = "fp32"

    def __post_init__(self) -> None:
        self.save_interval()

    def save_interval(self) -> tuple[int, float]:
        """(steps, seconds) between checkpoints; 0 where that measure is not used."""
        if isinstance(self.save_every, int):
            return self.save_every, 0.0
        return 0, parse_duration(self.save_every, "train.save_every")


# What may be "auto" until a run starts; its recipe then has the value, so that it goes on alike on another machine.
AUTO_KEYS = ("precision", "compile", "threads")

# What may change between a run and its resumption without changing what is computed, but for rounding.
RESUME_SAFE_KEYS = (
    "train.log_every", "train.save_every", "train.keep", "train.checkpoint_activations", "train.threads", "evaluation",
)  # fmt: skip


def parse_duration(text: str, name: str) -> float:
    """Seconds from `90s`, `25m`, `2h` or a bare number of seconds; raises `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{name}: {text!r} is not a length of time", "write it like 90s, 25m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
