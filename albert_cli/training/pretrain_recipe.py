"""A pretraining recipe: its sections, the numbers of the examples in each step, and loading it for a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from albert_cli import config, store
from albert_cli.config import NonNegativeInt, PositiveInt
from albert_cli.data.pairs import PairSettings
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.informed_init import InformedInit
from albert_cli.randomness import Integers
from albert_cli.training.distill import DistillSettings
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from albert_cli.training.warm_start import WarmStart, find_parent

# Values of [model] with enough positions for any `data.max_seq_length`.
_LONG_MODEL: Final = {"max_position_embeddings": 2**31 - 1}


@dataclass(frozen=True)
class BatchSettings:
    """`[batch]`: the warmup of the batch size, and the size of a micro-batch in tokens.

    Over the first `warmup_steps` updates the batch grows evenly from `warmup_from` sequences to `train.batch_size`. The
    learning rate has its own warmup (`[schedule]`). `micro_tokens` limits the tokens of a micro-batch, special tokens
    included; with 0, `train.micro_batch_size` limits its sequences instead. "auto" is as many tokens as a GPU's memory
    holds, and 0 on a CPU; the first start saves the number in the run's recipe.
    """

    warmup_steps: NonNegativeInt = 0
    warmup_from: PositiveInt = 32
    micro_tokens: NonNegativeInt | Literal["auto"] = 0

    def check(self, batch_size: int, max_seq_length: int) -> None:
        """Raise `ConfigError` if these settings do not fit the rest of the recipe."""
        if self.warmup_steps and self.warmup_from > batch_size:
            raise ConfigError(
                f"batch.warmup_from is {self.warmup_from}, more than train.batch_size ({batch_size})",
                f"use -s batch.warmup_from={max(1, batch_size // 8)}",
            )
        if 0 < self.max_micro_tokens < max_seq_length:
            raise ConfigError(
                f"batch.micro_tokens is {self.micro_tokens}, but one sequence may have {max_seq_length} tokens",
                f"use -s batch.micro_tokens={max_seq_length} or more, or 0 to use train.micro_batch_size",
            )

    @property
    def max_micro_tokens(self) -> int:
        """`micro_tokens` as a number, 0 for no limit; "auto" is 0 until it is resolved."""
        return 0 if self.micro_tokens == "auto" else self.micro_tokens


@dataclass(frozen=True)
class PretrainRecipe:
    """A pretraining recipe; the classes of its sections document their keys.

    `masked_bias` sets the vocabulary bias of the MLM head at step 0: zero as in the paper, or the log unigram
    frequencies of the data, which saves a small model the first hundreds of steps. `evaluation` lists more data
    directories with the same vocabulary, which are scored like the held-out text.

    At step 0 the weights are sampled from `train.seed`, unless `[init]` computes them or `[warm_start]` names a
    checkpoint to copy them from. Then `[init]` is not used, nor is `masked_bias` if the checkpoint has an MLM head.
    `[distill]` names a teacher.
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
        self.batch.check(self.train.batch_size, self.data.max_seq_length)
        if self.warm_start is None:
            self.init.check(self.model)
        self.schedule.check()
        length = self.data.max_seq_length
        positions = self.model.max_position_embeddings
        if length > positions:
            raise ConfigError(
                f"data.max_seq_length is {length}, but the model has only {positions} positions",
                f"use -s data.max_seq_length={positions} or -s model.max_position_embeddings={length}",
            )

    def with_derived_values(self) -> PretrainRecipe:
        """Fill in the values that other keys determine: the learning rate, and the classes of the order head.

        With `[warm_start]` the unused section `[init]` gets its defaults.
        """
        recipe = replace(self, optimizer=self.optimizer.with_lr_for(self.train.batch_size))
        if self.data.sentence_loss == "three-way":
            recipe = replace(recipe, model=replace(self.model, order_labels=3))
        if self.warm_start is not None:
            recipe = replace(recipe, init=InformedInit())
        return recipe

    def examples_before(self, step: int) -> int:
        """Return the number of examples in steps 0 to `step` - 1.

        Step i of the batch warmup has warmup_from + (batch_size - warmup_from) * i // warmup_steps examples.
        """
        batch = self.batch
        full_size = self.train.batch_size
        growing_steps = min(step, batch.warmup_steps)
        growth = (full_size - batch.warmup_from) * np.arange(growing_steps) // max(1, batch.warmup_steps)
        return growing_steps * batch.warmup_from + int(growth.sum()) + (step - growing_steps) * full_size

    def batch_index(self, step: int) -> Integers:
        """Return the indices of the step's examples, int64 [B]; examples are numbered consecutively over all steps."""
        return np.arange(self.examples_before(step), self.examples_before(step + 1), dtype=np.int64)

    @property
    def sequences_per_micro_batch(self) -> int:
        """The largest number of sequences of `data.max_seq_length` tokens that a micro-batch can have."""
        limit = self.train.micro_batch_size
        if self.batch.max_micro_tokens:
            limit = self.batch.max_micro_tokens // self.data.max_seq_length
        return min(limit, self.train.batch_size)

    @property
    def total_sequences(self) -> int:
        """The number of sequences in all steps of this run, without those of a run that it continues."""
        return self.examples_before(self.schedule.total_steps) - self.examples_before(self.first_step)

    @property
    def first_step(self) -> int:
        """The step at which this run begins: the last step of the run that it continues, else 0."""
        if self.warm_start is None or self.warm_start.step is None:
            return 0
        return self.warm_start.step


def validate_pretrain_recipe(
    values: Mapping[str, object], origin: str, overrides: Sequence[str] = ()
) -> PretrainRecipe:
    """Check the values of a recipe and fill in the derived ones.

    Raises `ConfigError` for a wrong value; its message begins with `origin`, the name or path of the recipe, or with
    the one of `overrides`, which `values` include, that has set the value.
    """
    return config.validate_recipe(PretrainRecipe, values, origin, overrides=overrides).with_derived_values()


def load_pretrain_recipe(
    recipe: str, overrides: Sequence[str], vocab_size: int | None, out: Path | None = None
) -> PretrainRecipe:
    """Load a recipe with overrides, and set `model.vocab_size` to `vocab_size` unless that is None.

    A recipe without `model.hidden_size` has the shape of the checkpoint in `[warm_start]`, changed by the keys that its
    [model] has. If the run `out` has saved its recipe and a step, it has the shape of the run, which then no longer
    needs that checkpoint. Without `[warm_start]`, the keys of [model] change the default shape.

    vocab_size: the size of the data's vocabulary, None without data. Raises `ConfigError` if the recipe is no
    pretraining recipe, has a wrong value, or has another vocabulary size.
    """
    values = _read_pretrain_values(recipe)
    # Both depend on the recipe alone: an override of one key does not set the shape.
    is_partial = _lacks_size(values)
    has_section = "model" in values
    values = config.apply_overrides(values, overrides, PretrainRecipe)
    config.check_sections(PretrainRecipe, values, recipe, overrides)
    overridden_keys = values.setdefault("model", {})
    if is_partial and ("warm_start" in values or not has_section):
        if out is not None and store.saved_steps(out) and (out / "recipe.toml").is_file():
            shape = _read_saved_shape(out)
        else:
            shape = _read_parent_shape(values, recipe, overrides, vocab_size)
        values["model"] = shape | overridden_keys
    if vocab_size is not None:
        recipe_size = values["model"].setdefault("vocab_size", vocab_size)
        if recipe_size != vocab_size:
            raise ConfigError(
                f"the recipe's model.vocab_size is {recipe_size}, the data's vocabulary has {vocab_size} pieces",
                f"use -s model.vocab_size={vocab_size}, or build the data with another vocabulary",
            )
    return validate_pretrain_recipe(values, recipe, overrides)


def validate_without_data(recipe: str) -> config.RecipeValues:
    """Check a recipe; return it with its defaults, but without the values that a run takes from other sources.

    They are the size of the data's vocabulary and, if the recipe sets no size of the model, the rest of the shape,
    which may be a checkpoint's.

    Raises `ConfigError` if it is no pretraining recipe, or if a value is wrong.
    """
    values = _read_pretrain_values(recipe)
    shape = values.get("model", {})
    if not _lacks_size(values):
        resolved = config.to_toml_values(validate_pretrain_recipe(values, recipe))
        if "vocab_size" not in shape:
            del resolved["model"]["vocab_size"]
        return resolved
    resolved = config.to_toml_values(validate_pretrain_recipe({**values, "model": _LONG_MODEL | shape}, recipe))
    del resolved["model"]
    return {"model": shape} | resolved if shape else resolved


def load_sampling_recipe(recipe: str) -> PretrainRecipe:
    """Load the sections of a recipe that determine the examples of its steps: [data], [batch] and [train].

    The other sections have their defaults, so the recipe needs no [model], and it fits a vocabulary of any size.

    Raises `ConfigError` if it is no pretraining recipe, or if a value in these sections is wrong.
    """
    values = _read_pretrain_values(recipe)
    sections: config.RecipeValues = {key: values[key] for key in ("data", "batch", "train") if key in values}
    sections["model"] = _LONG_MODEL
    return validate_pretrain_recipe(sections, recipe)


def _read_pretrain_values(recipe: str) -> config.RecipeValues:
    """Read the values of a pretraining recipe; raise `ConfigError` if it is another kind of recipe."""
    values = config.read_recipe(recipe)
    if "task" in values:
        raise ConfigError(f"{recipe} is a fine-tuning recipe, for {values['task']}", "use it with `albert finetune`")
    if "variants" in values:
        raise ConfigError(f"{recipe} is an experiment", "use it with `albert reproduce`")
    return values


def _read_saved_shape(directory: Path) -> config.RecipeValues:
    """Return the shape of a pretraining run, or of one of its steps, as the values of a [model] section.

    They are from the saved recipe, because config.json can have other values for the same shape, such as a group for
    each layer if no weights are shared. A checkpoint without a pretraining recipe has only config.json.
    """
    path = directory / "recipe.toml"
    if path.is_file():
        values = store.read_toml(path)
        if "task" not in values:
            section = values.get("model")
            if not isinstance(section, dict):  # a cut-off file must not set the default shape
                raise CheckpointError(f"{path}: has no section [model]", "restore the file")
            return section
    return config.to_toml_values(ModelConfig.read(directory / "config.json"))


def _lacks_size(values: Mapping[str, object]) -> bool:
    """Return True if a recipe has no [model], or one that changes only some keys of another shape."""
    section = values.get("model", {})
    return isinstance(section, Mapping) and "hidden_size" not in section


def _read_parent_shape(
    values: config.RecipeValues, origin: str, overrides: Sequence[str], vocab_size: int | None
) -> config.RecipeValues:
    """Return the shape of the checkpoint in `[warm_start]` as the values of a [model] section.

    Raises `ConfigError`, which names `origin` or one of `overrides`, if `[warm_start]` is wrong or missing, and if the
    checkpoint has another vocabulary size than `vocab_size`, the data's (None without data), and `values` set none.
    """
    if "warm_start" not in values:
        raise ConfigError(
            f"{origin}: has neither a [model] section nor a checkpoint to start from",
            "name a checkpoint, and the model takes its shape: -s warm_start.checkpoint=CHECKPOINT",
        )
    warm_start = config.validate_recipe(WarmStart, values["warm_start"], origin, "warm_start", overrides)
    directory = find_parent(warm_start)
    if warm_start.continues is not None:  # the changes since the continued run are compared with its recipe
        shape = _read_saved_shape(directory)
    else:
        shape = config.to_toml_values(ModelConfig.read(directory / "config.json"))
    if vocab_size is None or "vocab_size" in values.get("model", {}):
        return shape
    size = shape.get("vocab_size", vocab_size)
    if size != vocab_size:
        hint = f"build the data with that vocabulary: albert data … --vocab {directory}"
        if size > vocab_size:
            hint += f"; if you did, `albert convert {directory} --out NEW` removes the rows without a token"
        raise ConfigError(f"{directory}: has a vocabulary of {size} tokens, the data's has {vocab_size}", hint)
    return shape
