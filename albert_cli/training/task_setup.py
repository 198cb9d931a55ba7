"""A task prepared for training or scoring: its resolved recipe, its verified checkpoint and its vocabulary."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from albert_cli import config
from albert_cli.array_jobs import ArrayJob
from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.tasks.base import AnyTask, EvaluationSplit
from albert_cli.tasks.features import PairFeatures
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.table import ModelHead, open_table
from albert_cli.tasks.token_classification import NER, open_token_task, tag_names
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device
from albert_cli.training.task_inputs import Inputs, InputSettings, load_inputs, read_examples, require_training_data
from albert_cli.training.task_recipe import PAPER_RECIPES, FinetuneRecipe, load_recipe
from albert_cli.training.text_match import read_token_counts, warn_about_mismatch


@dataclass(frozen=True)
class TaskRequest:
    """Options of a command that trains or scores a task.

    runs: the number of seeds; nproc: the number of runs at a time; retrain: fine-tune a checkpoint of the same task
    instead of scoring it; controls: the initial weights that the same seeds start from for comparison; recipes: the
    folder of recipes; baselines: also train linear models; array_job: fine-tune only the runs of this array job; split:
    the labeled split on which a finished checkpoint is scored.
    """

    checkpoint: str
    data: str | None
    runs: int = 1
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    nproc: int = 1
    retrain: bool = False
    controls: tuple[str, ...] = ()
    recipes: str = PAPER_RECIPES
    baselines: bool = True
    array_job: ArrayJob | None = None
    split: EvaluationSplit = "dev"


@dataclass(frozen=True)
class OpenCheckpoint:
    """A verified checkpoint and its vocabulary."""

    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary


OpenCheckpoints = dict[Path, OpenCheckpoint]  # by directory, so that a command reads each checkpoint once


@dataclass(frozen=True)
class PreparedTask:
    """Everything that the seeds of a task share, except their inputs.

    `intermediate` is the checkpoint of the intermediate task, whose encoder replaces the one of `checkpoint`;
    `intermediate_note` says why the recipe's intermediate task was left out.
    """

    request: TaskRequest
    recipe: FinetuneRecipe
    task: AnyTask
    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    device: torch.device
    for_scoring: bool = False
    intermediate: hub.Checkpoint | None = None
    intermediate_note: str | None = None

    def input_settings(self, seed: int | None = None) -> InputSettings:
        """Return the settings that determine a seed's inputs; the default seed is the recipe's."""
        data = self.recipe.data
        if self.for_scoring:
            return InputSettings(train_split=None, dev_splits=self.task.dev_splits, max_seq_length=data.max_seq_length)
        settings = InputSettings(
            train_split=require_training_data(self.task),
            dev_splits=self.task.dev_splits,
            max_seq_length=data.max_seq_length,
            train_examples=data.train_examples,
            both_orders=data.both_orders,
        )
        return settings.with_seed(self.recipe.train.seed if seed is None else seed)

    def load_inputs(self, seed: int | None = None) -> Inputs:
        """Read and encode the inputs of a seed; raises `InputError` for missing or damaged files."""
        return load_inputs(self.task, self.request.data, self.vocabulary, self.input_settings(seed))

    def warn_about_text(self, inputs: Inputs) -> None:
        """Print a warning if the texts to train on are far from the checkpoint's pretraining text."""
        if isinstance(inputs.train, PairFeatures):
            counts = read_token_counts(self.checkpoint.directory)
            warn_about_mismatch(self.task.title, self.vocabulary, inputs.train.ids, counts)

    def check_inputs(self) -> None:
        """Raise `InputError` for missing or damaged files; the examples are not retained."""
        read_examples(self.task, self.request.data, self.input_settings())


def prepare_task(name: str, request: TaskRequest, opened: OpenCheckpoints | None = None) -> PreparedTask:
    """Resolve the recipe, verify the checkpoint and find the task's files; nothing is trained or written.

    opened: the checkpoints that this command has already read; this function adds the ones that it reads.
    """
    recipe = load_recipe(name, request.overrides, request.recipes)
    if name in config.shipped_recipes():
        # The recipe of its intermediate task is in the same folder.
        request = dataclasses.replace(request, recipes=name.partition("/")[0])
    find_directory = hub.find_init_checkpoint if recipe.model.weights == "init" else hub.find_checkpoint
    source = open_checkpoint(find_directory(request.checkpoint), opened)
    if recipe.task == "table":
        task: AnyTask = open_table(recipe.table, request.data, _model_head(source.checkpoint))
    elif recipe.task == NER:
        task = open_token_task(recipe.table, request.data, tag_names(source.checkpoint))
    else:
        task = find_task(recipe.task)
    if not task.dev_splits and request.split == "dev":
        raise InputError(f"{task.title}: found no labeled dev data", "add a dev file to the --data directory")
    return prepare_with_recipe(recipe, request, task, source)


def _model_head(checkpoint: hub.Checkpoint) -> ModelHead:
    """Return the classes of a checkpoint's classifier of texts."""
    if checkpoint.is_multi_label:
        return ModelHead(checkpoint.output_names, is_multi_label=True)
    return ModelHead(checkpoint.labels)


def prepare_with_recipe(
    recipe: FinetuneRecipe, request: TaskRequest, task: AnyTask, source: OpenCheckpoint, *, for_scoring: bool = False
) -> PreparedTask:
    """Apply a resolved recipe to a task and a checkpoint; clamp the input length to the model's positions."""
    task = task.with_recipe(recipe)
    checkpoint = recipe.model.reshape_checkpoint(source.checkpoint)
    if for_scoring:
        task = task.for_scoring(request.split)
    recipe = recipe.clamp_to_positions(checkpoint.config.max_position_embeddings)
    return PreparedTask(
        request,
        recipe,
        task,
        checkpoint,
        source.vocabulary,
        choose_device(request.device),
        for_scoring,
    )


def open_checkpoint(directory: Path, opened: OpenCheckpoints | None = None) -> OpenCheckpoint:
    """Return a checkpoint and its vocabulary from `opened`, or read them and add them to it."""
    opened = {} if opened is None else opened
    if directory not in opened:
        checkpoint = hub.read_checkpoint(directory)
        opened[directory] = OpenCheckpoint(checkpoint, hub.load_vocabulary(checkpoint))
    return opened[directory]
