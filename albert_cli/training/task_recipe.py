"""The sections of a fine-tuning recipe, their checks, and loading the recipe of a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt, Lt

from albert_cli import config
from albert_cli.config import Fraction, NonNegativeInt, PositiveInt
from albert_cli.errors import ConfigError
from albert_cli.model.config import AttentionForm, GlobalTokens
from albert_cli.model.hub import Checkpoint
from albert_cli.model.informed_init import PositionGrowth, resize_positions
from albert_cli.tasks.glue import GLUE_SCORE_TASKS
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.task import SQUAD
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.token_classification import NER
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from albert_cli.training.task_auto_values import DROPOUT, LEARNING_RATE, choose_epochs

NO_INTERMEDIATE_TASK: Final = "pretrained"  # the task starts from the pretrained checkpoint
PAPER_RECIPES: Final = "finetune"  # the folder of the paper's recipes
_DEFAULT_STEPS: Final = 1000
_ATTENTION_KEYS: Final = ("attention", "attention_window", "attention_block", "attention_global")


@dataclass(frozen=True)
class TaskDataSettings:
    """`[data]` of a fine-tuning recipe.

    `max_seq_length` is the longest input in tokens. Longer inputs are truncated; of two texts, the longer one is
    truncated first. `train_examples` is the number of training examples that the run's seed samples (0: all), for
    learning curves. A larger subset contains the smaller subsets of the same seed. `dev_examples` is the number of
    examples of each dev split that are scored, the same ones for all seeds (0: all), for quick checks. With
    `both_orders` an epoch also has every training pair with its texts swapped, for tasks whose label does not depend on
    the order (STS-B, MRPC, QQP).
    """

    max_seq_length: Annotated[int, Ge(5)] = 512  # room for two texts and their special tokens
    train_examples: NonNegativeInt = 0
    dev_examples: NonNegativeInt = 0
    both_orders: bool = False


@dataclass(frozen=True)
class TaskScheduleSettings:
    """`[schedule]` of a fine-tuning recipe: the length in `total_steps` or in `epochs` (default: 1,000 steps).

    The number of labeled examples determines `epochs = "auto"` (`training/task_auto_values.py`). The keys of the warmup
    mean the same as in `ScheduleSettings`.
    """

    total_steps: PositiveInt | None = None
    epochs: Annotated[float, Gt(0), Lt(math.inf)] | Literal["auto"] | None = None
    warmup_steps: NonNegativeInt | None = None
    warmup_ratio: Fraction = 0.1

    def __post_init__(self) -> None:
        if self.total_steps is not None and self.epochs is not None:
            raise ConfigError("schedule.epochs and schedule.total_steps exclude each other", "remove one of them")
        # With epochs, the number of steps depends on the data, which have not been read yet. Without, the
        # number of items and the batch size do not matter.
        if self.epochs is None:
            self.to_steps(num_items=1, batch_size=1).check()

    def to_steps(self, num_items: int, batch_size: int) -> ScheduleSettings:
        """Convert the length to steps, at least one. An epoch has `num_items` items; `epochs` is not "auto"."""
        assert self.epochs != "auto"
        if self.epochs is not None:
            total_steps = max(1, round(self.epochs * num_items / batch_size))
        elif self.total_steps is not None:
            total_steps = self.total_steps
        else:
            total_steps = _DEFAULT_STEPS
        return ScheduleSettings(total_steps, self.warmup_steps, self.warmup_ratio)


@dataclass(frozen=True)
class TaskModelSettings:
    """`[model]` of a fine-tuning recipe.

    `dropout` applies inside the encoder, `classifier_dropout` before the classifier (Table 14: DR and 0.1).
    `training/task_auto_values.py` has the value for `dropout = "auto"`.

    `weights` are the encoder's initial weights: "pretrained", or one of two controls that show what pretraining
    contributes. "random" samples new weights for the checkpoint's shape and vocabulary. "init" takes the weights at
    step 0 of the checkpoint's run.

    `head`: "new" trains a new head. "checkpoint" continues with the checkpoint's head, which may be that of another
    task (SQuAD 1.1 and 2.0 have the same head under `span.head = "linear"`). "auto" trains a new head, with one
    exception: `albert eval` scores a checkpoint's head for this task without training, unless `weights` or `--retrain`
    requests training. A head whose classes are only called LABEL_0, LABEL_1 and so on may be another task's. With it,
    `albert eval` trains a new head if the task has another number of classes. With the same number it raises an error:
    set `head` or `labels`.

    With `classifier_bias = "labels"` a new head's bias starts at the mean label or at the log class frequencies.
    The values of a table have any size, so their bias always starts at the mean.

    For pairs of texts and small encoders, `overlap_heads` attention heads of each block are initialized to attend to
    the same word in the other text, so that [CLS] receives the fraction of shared words. `overlap_context_heads` more
    heads tell each token how many tokens around it are shared, for tasks on tokens such as SQuAD. A model of the
    intermediate task keeps its heads, also if it was trained without overlap heads. So does a checkpoint with
    `head = "checkpoint"`.

    For texts longer than the checkpoint has positions, set `max_position_embeddings`; `positions` says how the new ones
    are derived from the old. Long texts may also need another `attention`, with its window, block and global tokens.
    Without `max_position_embeddings` or one of the attention keys, the checkpoint's value applies.

    `labels` names the outputs of a checkpoint's classifier in their order, if it calls them LABEL_0, LABEL_1 and so on.
    """

    dropout: Fraction | Literal["auto"] = 0.0
    classifier_dropout: Fraction = 0.1
    weights: Literal["pretrained", "init", "random"] = "pretrained"
    overlap_heads: int = 0
    classifier_bias: Literal["zero", "labels"] = "zero"
    overlap_context_heads: int = 0
    head: Literal["auto", "new", "checkpoint"] = "auto"
    max_position_embeddings: int | None = None
    positions: PositionGrowth = "tile"
    attention: AttentionForm | None = None
    attention_window: int | None = None
    attention_block: int | None = None
    attention_global: GlobalTokens | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.overlap_context_heads and not self.overlap_heads:
            raise ConfigError("model.overlap_context_heads needs model.overlap_heads", "set model.overlap_heads to 1")
        if self.weights == "random" and self.head == "checkpoint":
            raise ConfigError("model.weights is random but model.head is the checkpoint's", "remove one of the two")

    @property
    def encoder_dropout(self) -> float:
        """`dropout` as a number, once it is resolved."""
        assert self.dropout != "auto"
        return self.dropout

    def apply_to_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with this recipe's attention, number of positions and class names.

        Raises `ConfigError` if `labels` has another number of names than the checkpoint has classes.
        """
        if self.labels:
            outputs = len(checkpoint.output_names)
            if len(self.labels) != outputs:
                raise ConfigError(
                    f"model.labels lists {len(self.labels)} classes, {checkpoint.directory} has {outputs}",
                    "name each output of the checkpoint once, in their order",
                )
            id2label = {str(number): name for number, name in enumerate(self.labels)}
            checkpoint = replace(checkpoint, values={**checkpoint.values, "id2label": id2label})
        changes = {key: getattr(self, key) for key in _ATTENTION_KEYS if getattr(self, key) is not None}
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, **changes))
        if self.max_position_embeddings is None:
            return checkpoint
        return resize_positions(checkpoint, self.max_position_embeddings, self.positions)


@dataclass(frozen=True)
class FinetuneRecipe:
    """A fine-tuning recipe; the paper's recipes are in `recipes/finetune/` (Table 14).

    `intermediate_task = "mnli"` takes the encoder from a model that is fine-tuned on MNLI first, as the paper does for
    RTE, STS-B and MRPC (footnote 4). The controls ("random" and "init" as `model.weights`) are fine-tuned on MNLI first
    too.
    """

    task: str
    intermediate_task: str = NO_INTERMEDIATE_TASK
    data: TaskDataSettings = field(default_factory=TaskDataSettings)
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(name="adamw", lr=2e-5))
    schedule: TaskScheduleSettings = field(default_factory=TaskScheduleSettings)
    model: TaskModelSettings = field(default_factory=TaskModelSettings)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(eval_every=100))
    table: TableSettings = field(default_factory=TableSettings)
    span: SpanSettings = field(default_factory=SpanSettings)

    def __post_init__(self) -> None:
        choices = (NO_INTERMEDIATE_TASK, *GLUE_SCORE_TASKS)
        if self.intermediate_task not in choices:
            raise ConfigError(
                f"intermediate_task = {self.intermediate_task!r}: no such task", f"choose from {', '.join(choices)}"
            )
        if self.task in SQUAD:
            self.span.check(self.data.max_seq_length)

    def with_derived_values(self) -> FinetuneRecipe:
        """Fill in the values that other keys determine: the default steps and LAMB's learning rate.

        A task that is its own intermediate task starts from the pretrained checkpoint.
        """
        recipe = self
        if recipe.schedule.epochs is None and recipe.schedule.total_steps is None:
            recipe = replace(recipe, schedule=replace(recipe.schedule, total_steps=_DEFAULT_STEPS))
        if recipe.intermediate_task == recipe.task:
            recipe = replace(recipe, intermediate_task=NO_INTERMEDIATE_TASK)
        if recipe.optimizer.name != "adamw":  # `with_auto_values` replaces AdamW's "auto"
            recipe = replace(recipe, optimizer=recipe.optimizer.with_lr_for(recipe.train.batch_size))
        return recipe

    def with_auto_values(self, num_examples: int) -> FinetuneRecipe:
        """Replace "auto" epochs, learning rate and dropout by the values of `training/task_auto_values.py`.

        num_examples: number of labeled training examples, which determines the epochs. Scoring has none; the epochs
        are then those for one example.
        """
        recipe = self
        if recipe.schedule.epochs == "auto":
            recipe = replace(recipe, schedule=replace(recipe.schedule, epochs=choose_epochs(max(1, num_examples))))
        if recipe.optimizer.lr == "auto":
            recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=LEARNING_RATE))
        if recipe.model.dropout == "auto":
            recipe = replace(recipe, model=replace(recipe.model, dropout=DROPOUT))
        return recipe

    def clamp_to_positions(self, positions: int) -> FinetuneRecipe:
        """Shorten `max_seq_length` to a model's number of positions, and SQuAD's questions to half of the positions."""
        if self.data.max_seq_length <= positions:
            return self
        data = replace(self.data, max_seq_length=positions)
        return replace(self, data=data, span=self.span.clamp_to_positions(positions))


def load_recipe(task: str, overrides: Sequence[str], recipes: str = PAPER_RECIPES) -> FinetuneRecipe:
    """Load the recipe of a task, with overrides; raises `ConfigError` if there is none or its values do not fit.

    task: a task's name, the full name of a shipped recipe (`mini/rte`), or a file. recipes: the folder that has a
    task's recipe `TASK.toml`, either a folder of shipped recipes or another directory.
    """
    if config.is_recipe_file(task) or task in config.shipped_recipes():
        if "task" not in config.read_recipe(task):
            raise ConfigError(
                f"{task}: is not a fine-tuning recipe, because it names no task", "use it with `albert pretrain`"
            )
        path = task
    else:
        path = _find_recipe(task, recipes)
    return config.load_recipe(FinetuneRecipe, path, overrides).with_derived_values()


def _find_recipe(task: str, recipes: str) -> str:
    """Return the name or the path of a task's recipe in a folder.

    Raises `ConfigError` for an unknown task, and if the folder has no recipe for the task.
    """
    # The tasks "table" and "ner" are trained on the user's files, so `find_task` does not know them.
    has_training_data = task in ("table", NER) or find_task(task).train_split is not None
    if not has_training_data:  # such a task is only scored, and only the folder of the paper has its recipe
        recipes = PAPER_RECIPES
    name = f"{recipes}/{task}"
    if name in config.shipped_recipes():
        return name
    path = Path(recipes, f"{task}.toml")
    if not path.is_file():
        raise ConfigError(
            f"--recipes {recipes}: found no recipe for {task}",
            f"use {PAPER_RECIPES}, mini, or a folder with {task}.toml",
        )
    return str(path)
