"""Fine-tuning recipes: what a task's run is made of, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt

from albert_cli import config
from albert_cli.config import Fraction, NonNegativeInt, PositiveInt
from albert_cli.errors import ConfigError
from albert_cli.model.config import AttentionForm, GlobalTokens
from albert_cli.model.hub import Checkpoint
from albert_cli.model.informed_init import PositionGrowth, resize_positions
from albert_cli.tasks.registry import GLUE_SCORE_TASKS, find_task
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.task import SQUAD
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

PRETRAINED = "pretrained"
PAPER_RECIPES = "finetune"  # the folder of the paper's own recipes


@dataclass(frozen=True)
class TaskDataSettings:
    """`[data]`: the longest input in tokens; longer ones are cut, the longer of two texts first.

    `train_examples` is how many of the training examples a run learns from, drawn by its seed (0: all): for curves by
    the number of labels. A seed's smaller part lies within its larger one. `both_orders`: every training pair is learnt
    from a second time with its texts exchanged, for tasks that ask the same of either order (STS-B, MRPC, QQP). An
    epoch has both.
    """

    max_seq_length: Annotated[int, Ge(5)] = 512  # two texts and their special tokens
    train_examples: NonNegativeInt = 0
    both_orders: bool = False


@dataclass(frozen=True)
class TaskScheduleSettings:
    """`[schedule]`: `total_steps` (1,000 where nothing is said), or `epochs`: passes over the training examples."""

    total_steps: PositiveInt | None = None
    epochs: Annotated[float, Gt(0), Lt(math.inf)] | None = None
    warmup_steps: NonNegativeInt | None = None
    warmup_ratio: Fraction = 0.1

    def __post_init__(self) -> None:
        if self.total_steps is not None and self.epochs is not None:
            raise ConfigError("schedule.epochs and schedule.total_steps are both given", "leave one of them out")
        if self.total_steps is None and self.epochs is None:
            object.__setattr__(self, "total_steps", 1000)

    def in_steps(self, examples: int, batch_size: int) -> ScheduleSettings:
        """As a number of steps: for epochs the one that comes nearest to them, at least one."""
        total = self.total_steps
        if total is None:
            assert self.epochs is not None
            total = max(1, round(self.epochs * examples / batch_size))
        return ScheduleSettings(total, self.warmup_steps, self.warmup_ratio)


@dataclass(frozen=True)
class TaskModelSettings:
    """`[model]`: dropout inside the encoder and before the classifier (Table 14's DR and 0.1).

    Controls show what pretraining brought: `weights = "random"` keeps the checkpoint's shape and vocabulary and draws
    new weights, `weights = "init"` takes the weights at step 0 of the run that the checkpoint belongs to (`[init]` of
    its recipe). For tasks on pairs of texts, where an encoder is too small to have learnt it, `overlap_heads`
    heads of every block are rewritten to look for each word in the other text, and [CLS] gets the share that is found
    (`model.matching`); beside these the last `overlap_context_heads` tell each token how many of those around
    it were found, for tasks on tokens such as SQuAD. `classifier_bias = "labels"` lets the classifier's bias begin at
    what the training labels say by themselves: the mean value, or the logarithms of the classes' shares.

    `head`: "new" trains a new head, "checkpoint" goes on with the checkpoint's own, of this task or of one with the
    same head (SQuAD 1.1's is that of 2.0 under `span.head = "linear"`). "auto" is "new", but that `eval` scores a
    checkpoint that has the task's head as it is, and asks where its classes have no names.

    For texts longer than the checkpoint's: `max_position_embeddings`, made of its own as `positions` says, and another
    `attention`, with its `attention_window`, `attention_block` and `attention_global`; else they are the checkpoint's.

    `labels` names the outputs of a checkpoint's classifier in their order, if it calls them LABEL_0, LABEL_1 and so on.
    """

    dropout: Fraction = 0.0
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

    def shaped(self, found: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the requested attention, positions and names of its classes.

        Raises `ConfigError` if `labels` has another number of names than the checkpoint has classes.
        """
        if self.labels:
            if len(self.labels) != len(found.labels):
                problem = f"model.labels lists {len(self.labels)} classes, {found.directory} has {len(found.labels)}"
                raise ConfigError(problem, "name each output of the checkpoint once, in their order")
            id2label = {str(number): name for number, name in enumerate(self.labels)}
            found = replace(found, values=found.values | {"id2label": id2label})
        names = ("attention", "attention_window", "attention_block", "attention_global")
        asked: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        found = replace(found, config=replace(found.config, **asked))
        if self.max_position_embeddings is None:
            return found
        return resize_positions(found, self.max_position_embeddings, self.positions)

    def __post_init__(self) -> None:
        if self.overlap_context_heads and not self.overlap_heads:
            raise ConfigError(
                "model.overlap_context_heads hand on what model.overlap_heads find", "set overlap_heads to 1, say"
            )
        if self.weights == "random" and self.head == "checkpoint":
            raise ConfigError("model.head is the checkpoint's, model.weights is random", "leave out one of the two")


@dataclass(frozen=True)
class FinetuneRecipe:
    """A fine-tuning recipe; the paper's own stand in `recipes/finetune/` (Table 14).

    `intermediate_task = "mnli"` takes the encoder from a model that was fine-tuned on MNLI first, as the paper does for
    RTE, STS-B and MRPC (footnote 4). A control's model is fine-tuned on that task first too.
    """

    task: str
    intermediate_task: str = PRETRAINED
    data: TaskDataSettings = field(default_factory=TaskDataSettings)
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(name="adamw", lr=2e-5))
    schedule: TaskScheduleSettings = field(default_factory=TaskScheduleSettings)
    model: TaskModelSettings = field(default_factory=TaskModelSettings)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(eval_every=100))
    table: TableSettings = field(default_factory=TableSettings)
    span: SpanSettings = field(default_factory=SpanSettings)

    def __post_init__(self) -> None:
        if self.intermediate_task not in (PRETRAINED, *GLUE_SCORE_TASKS):
            choices = ", ".join((PRETRAINED, *GLUE_SCORE_TASKS))
            raise ConfigError(f"intermediate_task = {self.intermediate_task!r}: no such task", f"choose from {choices}")
        if self.intermediate_task == self.task:
            object.__setattr__(self, "intermediate_task", PRETRAINED)
        object.__setattr__(self, "optimizer", self.optimizer.with_lr(self.train.batch_size))
        if self.schedule.total_steps is not None:
            self.schedule.in_steps(1, 1).check()
        if self.task in SQUAD:
            self.span.check(self.data.max_seq_length)

    def within(self, positions: int) -> FinetuneRecipe:
        """The recipe for a model of so many positions: 512 is a ceiling, and a question takes half at most."""
        if self.data.max_seq_length <= positions:
            return self
        span = replace(self.span, max_query_length=min(self.span.max_query_length, positions // 2))
        return replace(self, data=replace(self.data, max_seq_length=positions), span=span)


def load_recipe(task: str, overrides: Sequence[str], recipes: str = PAPER_RECIPES) -> FinetuneRecipe:
    """The recipe of a task, of a shipped recipe's full name, or of a file, with overrides.

    `recipes` says whose: the name of a folder of shipped recipes, or a folder of one's own with a `TASK.toml`.
    """
    if task.endswith(".toml") or task in config.shipped_recipes():
        if "task" not in config.read_recipe(task):
            raise ConfigError(f"{task} is no fine-tuning recipe: it names no task", "albert pretrain takes it")
        name = task
    else:
        is_trained = task == "table" or find_task(task).train_split is not None  # says what is wrong with the name
        name = f"{recipes}/{task}" if is_trained else f"{PAPER_RECIPES}/{task}"  # what is only scored has no protocol
        if name not in config.shipped_recipes():
            name = str(Path(recipes, f"{task}.toml"))
            if not Path(name).is_file():
                hint = f"{PAPER_RECIPES}, mini, or a folder with {task}.toml"
                raise ConfigError(f"--recipes {recipes}: there is no recipe for {task}", hint)
    return config.load_recipe(FinetuneRecipe, name, overrides)
