"""Fine-tuning recipes: what a task's run is made of, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from albert_cli import config
from albert_cli.errors import ConfigError
from albert_cli.tasks.spec import SCORED, find_task
from albert_cli.tasks.squad_settings import SpanSettings
from albert_cli.tasks.table import TableSettings
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

PRETRAINED = "pretrained"


@dataclass(frozen=True)
class TaskData:
    """`[data]`: the longest input in pieces; longer ones are cut, the longer of two texts first."""

    max_seq_length: int = 512

    def __post_init__(self) -> None:
        if self.max_seq_length < 5:
            raise ConfigError(
                f"data.max_seq_length is {self.max_seq_length}", "two texts and their special tokens need at least 5"
            )


@dataclass(frozen=True)
class TaskModel:
    """`[model]`: dropout inside the encoder and before the classifier (Table 14's DR and 0.1).

    `initial = "random"` keeps the checkpoint's shape and vocabulary and draws new weights: the control that
    shows what pretraining brought. `matching_heads` is how many heads of each attention block start by comparing
    words whatever they did before, see `model.matching`: for tasks on pairs of texts, where an encoder is too small to
    have learnt it.
    """

    dropout: float = 0.0
    classifier_dropout: float = 0.1
    initial: Literal["pretrained", "random"] = "pretrained"
    matching_heads: int = 0

    def __post_init__(self) -> None:
        for name in ("dropout", "classifier_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}", "a dropout rate lies in [0, 1)")


@dataclass(frozen=True)
class FinetuneRecipe:
    """A fine-tuning recipe; the paper's own stand in `recipes/finetune/` (Table 14).

    `start_from = "mnli"` takes the encoder from a model that was fine-tuned on MNLI first, as the paper does for
    RTE, STS-B and MRPC (footnote 4).
    """

    task: str
    start_from: str = PRETRAINED
    data: TaskData = field(default_factory=TaskData)
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(name="adamw", lr=2e-5))
    schedule: ScheduleSettings = field(default_factory=lambda: ScheduleSettings(total_steps=1000))
    model: TaskModel = field(default_factory=TaskModel)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(eval_every=100))
    table: TableSettings = field(default_factory=TableSettings)
    span: SpanSettings = field(default_factory=SpanSettings)

    def __post_init__(self) -> None:
        if self.start_from not in (PRETRAINED, *SCORED):
            raise ConfigError(f"start_from = {self.start_from!r}: no such start", f"{PRETRAINED}, {', '.join(SCORED)}")
        if self.start_from == self.task or self.model.initial == "random":
            object.__setattr__(self, "start_from", PRETRAINED)
        object.__setattr__(self, "optimizer", self.optimizer.settled(self.train.batch_size))


def resolve(task: str, overrides: Sequence[str]) -> FinetuneRecipe:
    """The recipe of a task, of a shipped recipe's full name, or of a file, with overrides."""
    if task.endswith(".toml") or task in config.shipped_recipes():
        if "task" not in config.read_recipe(task):
            raise ConfigError(f"{task} is no fine-tuning recipe: it names no task", "albert pretrain takes it")
        name = task
    else:
        if task != "table":
            find_task(task)  # says what is wrong with the name
        name = f"finetune/{task}"
    resolved = config.load(FinetuneRecipe, name, overrides)
    resolved.schedule.check()
    return resolved
