"""The recipe sections that pretraining and fine-tuning share: `[optimizer]`, `[schedule]` and `[train]`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt, Le, Lt

from albert_cli.config import Fraction, NonNegativeInt, PositiveInt
from albert_cli.errors import ConfigError

_PAPER_LR: Final = 0.00176  # §4.1, at a batch of 4,096
_PAPER_BATCH: Final = 4096


@dataclass(frozen=True)
class OptimizerSettings:
    """`[optimizer]`: LAMB for pretraining (§4.1) or AdamW for fine-tuning, as in ALBERT's released code.

    `lr` is the peak learning rate. With "auto" the batch size determines it for LAMB (`with_lr_for`), and fine-tuning
    with AdamW uses a constant (`training/task_auto_values.py`); the saved recipe has the number. Pretraining with AdamW
    does not support "auto".

    `clip_norm` limits the global norm of the gradient (0: no limit). `bias_correction` is part of other published forms
    of LAMB, and "nvlamb" also gives LayerNorms and biases a trust ratio (`training/optimizers.py`). The upper bounds
    keep every value within fp32, below 3.4e38.
    """

    name: Literal["lamb", "nvlamb", "adamw"] = "lamb"
    lr: Annotated[float, Gt(0), Le(1e38)] | Literal["auto"] = _PAPER_LR
    weight_decay: Annotated[float, Ge(0), Le(1e38)] = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Annotated[float, Gt(0), Le(1e38)] = 1e-6
    clip_norm: Annotated[float, Ge(0), Le(1e38)] = 1.0
    bias_correction: bool = False

    @property
    def peak_lr(self) -> float:
        """The peak learning rate, which the warmup approaches (see `ScheduleSettings.rate`)."""
        assert self.lr != "auto", "recipes replace it when they are loaded or resolved"
        return self.lr

    def with_lr_for(self, batch_size: int) -> OptimizerSettings:
        """Replace `lr = "auto"` by the paper's rate times the square root of `batch_size` / 4,096.

        This is the rule of LAMB's authors (You et al., 2019), who keep 3,125 warmup steps for every batch size. Raises
        `ConfigError` for AdamW, because the rule is not made for it. Fine-tuning with AdamW replaces "auto" by
        `FinetuneRecipe.with_auto_values` instead.
        """
        if self.lr != "auto":
            return self
        if self.name == "adamw":
            raise ConfigError(
                'optimizer.lr is "auto", which pretraining supports only with LAMB', "set optimizer.lr to a number"
            )
        return replace(self, lr=_PAPER_LR * math.sqrt(batch_size / _PAPER_BATCH))


@dataclass(frozen=True)
class ScheduleSettings:
    """`[schedule]`: the number of updates, and how the learning rate rises and falls over them.

    The rate reaches zero at step `decay_steps`, by default `total_steps`. If `decay_steps` is larger, the rate is not
    yet zero at the end, and another run can continue this one (`warm_start.continues`). The warmup has `warmup_steps`
    steps or, if that is None, the fraction `warmup_ratio` of the steps until the rate is zero.
    """

    total_steps: PositiveInt = 125_000
    warmup_steps: NonNegativeInt | None = None
    warmup_ratio: Fraction = 0.1
    decay_steps: int | None = None

    def check(self) -> None:
        """Raise `ConfigError` if the rate would be zero before the last step, or still be rising at it."""
        if self.resolved_decay_steps < self.total_steps:
            raise ConfigError(
                f"schedule.decay_steps is {self.resolved_decay_steps:,}: the learning rate would be zero from there to "
                f"the last step, {self.total_steps:,}",
                f"set schedule.decay_steps to {self.total_steps} or more, or leave it out",
            )
        if self.resolved_warmup_steps > self.total_steps:
            raise ConfigError(
                f"schedule.warmup_steps is {self.resolved_warmup_steps:,} and schedule.total_steps "
                f"{self.total_steps:,}: the learning rate would never reach its peak",
                f"use -s schedule.warmup_steps={max(1, self.total_steps // 10)}, or --max-time, which shortens the "
                "warmup of pretraining",
            )

    @property
    def resolved_decay_steps(self) -> int:
        """The step at which the rate reaches zero: `decay_steps`, or else `total_steps`."""
        return self.total_steps if self.decay_steps is None else self.decay_steps

    @property
    def resolved_warmup_steps(self) -> int:
        """The number of warmup steps: `warmup_steps`, or else `warmup_ratio` of the steps until the rate is zero."""
        if self.warmup_steps is None:
            return round(self.warmup_ratio * self.resolved_decay_steps)
        return self.warmup_steps

    def rate(self, step: int, peak: float) -> float:
        """Return the learning rate of update number `step` (from 0): linear warmup, then linear decay to zero.

        As in ALBERT's released code, the decay is counted from step 0, and during the warmup the linear rise replaces
        it. So the rate drops at the end of the warmup, to `peak * (1 - warmup_steps / decay_steps)`.
        """
        if step < self.resolved_warmup_steps:
            return peak * step / self.resolved_warmup_steps
        return peak * max(0.0, 1 - step / self.resolved_decay_steps)


@dataclass(frozen=True)
class TrainSettings:
    """`[train]`: batch, seed, evaluation, saving, and how to compute.

    `batch_size`: sequences per step, over all processes. In multiple choice, it is the number of questions, which have
    a sequence for each option.
    `micro_batch_size`: sequences, or questions, that one process computes at a time.
    `log_every`: steps per record of `metrics.jsonl`.
    `eval_every`: steps between evaluations; 0 evaluates after the last step only, so no checkpoint is
    selected by its dev score.
    `eval_sequences`: held-out sequences that pretraining is evaluated on.
    `save_every`: steps or a time such as "10m" between checkpoints; 0 saves after the last step only.
    `keep`: number of checkpoints to keep.
    `precision`: of matmuls; weights are always in fp32.
    `compile`: fuse the operations of a block ("auto": on CUDA, unless `deterministic`).
    `matmul`: the library of a CPU's fp32 matmuls (`matmul.py`); `threads`: torch's threads on a CPU.
    `checkpoint_activations`: save only the input of each block, and compute the block again in the backward pass. Steps
    take a third longer, and the numbers are the same.
    `deterministic`: use only GPU kernels whose bits are reproducible, so that a resumed run ends in the same bytes as
    an uninterrupted one. The kernels of a CPU always have reproducible bits. With `compile = "on"` this is not certain,
    because the compiler orders sums by the size of the first batch that it compiles.
    `communication`: precision of the gradients that processes send to each other; bf16 halves the bytes, and rounds.
    `track`: services that show the curves in addition to TensorBoard (`training/trackers.py`).

    The first start replaces each "auto" (`training/device.py`) and saves the value in the run's recipe.
    """

    seed: Annotated[int, Ge(0), Lt(2**62)] = 0  # 2**62 is `objectives.EVALUATION_SEED`, which training must not use
    batch_size: PositiveInt = 32
    micro_batch_size: PositiveInt = 32
    log_every: PositiveInt = 50
    eval_every: NonNegativeInt = 500
    eval_sequences: PositiveInt = 1024
    save_every: NonNegativeInt | str = "10m"
    keep: PositiveInt = 2
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    matmul: Literal["auto", "torch", "onednn"] = "auto"
    threads: Annotated[int, Ge(1), Le(1024)] | Literal["auto"] = "auto"
    checkpoint_activations: bool = False
    deterministic: bool = False
    communication: Literal["fp32", "bf16"] = "fp32"
    track: tuple[Literal["wandb", "mlflow", "trackio"], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.save_every, str):
            parse_duration(self.save_every, "train.save_every")  # raises `ConfigError` if it is no duration

    @property
    def save_steps(self) -> int:
        """Steps between two checkpoints; 0 if `save_every` is a duration."""
        return self.save_every if isinstance(self.save_every, int) else 0

    @property
    def save_seconds(self) -> float:
        """Seconds between two checkpoints; 0 if `save_every` is a number of steps."""
        return 0.0 if isinstance(self.save_every, int) else parse_duration(self.save_every, "train.save_every")

    def with_resolved(self, resolved: TrainSettings) -> TrainSettings:
        """Replace each "auto" by the value in `resolved`."""
        values = {key: getattr(resolved, key) for key in _AUTO_KEYS if getattr(self, key) == "auto"}
        return replace(self, **values)


# Keys of `[train]` that may be "auto" until a run starts. The run's recipe then has their values, and a resumed run
# uses these values even on another machine.
_AUTO_KEYS: Final = ("precision", "compile", "matmul", "threads")

# Recipe keys whose values a resumed run may change, because they change the weights by rounding at most. `evaluation`
# and `distill` are keys of `PretrainRecipe`, `table` is one of `FinetuneRecipe`. `distill.teacher` and the last three
# are only paths: the fingerprints of the teacher (`distill.fingerprint`) and of the examples must not change.
RESUME_SAFE_KEYS: Final = (
    "train.log_every", "train.save_every", "train.keep", "train.checkpoint_activations", "train.matmul",
    "train.threads", "train.track", "evaluation", "distill.teacher", "table.train", "table.dev", "table.test",
)  # fmt: skip
NEW_RUN_NOTE: Final = "a started run then needs a new --out"  # for hints to change a key that is not in this list

_SECONDS_PER_UNIT: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, name: str) -> float:
    """Parse `90s`, `25m`, `2h`, `1d` or a bare number of seconds; return seconds.

    Raises `ConfigError` for any other text and for zero. `name` is the option or key that the error names.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{name}: {text!r} is not a duration", "write it like 90s, 25m or 2h")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]
