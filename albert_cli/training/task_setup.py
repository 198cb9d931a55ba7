"""Prepare a task for training or scoring, from the options of a command.

`prepare_task` loads the recipe, opens and verifies the checkpoint with its vocabulary, and opens the task.
`PreparedTask` holds them and loads the task's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from albert_cli import config
from albert_cli.array_jobs import ArrayJob
from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.tasks.base import AnyTask, EvaluationSplit
from albert_cli.tasks.features import PairFeatures
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.table import NO_HEAD, ModelHead, open_table
from albert_cli.tasks.table_layout import TableLayout
from albert_cli.tasks.token_classification import NER, open_token_task, tag_names
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device
from albert_cli.training.task_inputs import Inputs, InputSettings, load_inputs, read_examples, require_training_data
from albert_cli.training.task_recipe import NO_INTERMEDIATE_TASK, PAPER_RECIPES, FinetuneRecipe, load_recipe
from albert_cli.training.text_match import read_token_counts, warn_about_mismatch


@dataclass(frozen=True)
class TaskRequest:
    """Options of a command that trains or scores a task."""

    checkpoint: str  # a directory, a run or a Hub id
    data: str | None  # the task's files: a path, `hf:NAME`, or None for the task's default source
    runs: int = 1  # the number of seeds
    overrides: tuple[str, ...] = ()  # `-s KEY=VALUE`
    device: str = "auto"
    nproc: int = 1  # runs at the same time
    retrain: bool = False  # fine-tune a checkpoint of the same task instead of scoring it
    controls: tuple[str, ...] = ()  # values of `model.weights` ("random", "init") with which to repeat all seeds
    recipes: str = PAPER_RECIPES  # the folder of the task's recipe
    baselines: bool = True  # also train linear models
    array_job: ArrayJob | None = None  # fine-tune only the runs of this array job
    split: EvaluationSplit = "dev"  # the labeled split on which a finished checkpoint is scored


@dataclass(frozen=True)
class OpenCheckpoint:
    """A verified checkpoint and its vocabulary."""

    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary


OpenCheckpoints = dict[Path, OpenCheckpoint]  # by directory, so that a command reads each checkpoint once


@dataclass(frozen=True)
class PreparedTask:
    """A task, its recipe and its checkpoint, which the runs of all seeds share.

    `load_inputs` loads the inputs of one seed. `needs_training` is False if the checkpoint is only scored.
    `intermediate` is the checkpoint of the intermediate task, whose encoder replaces the encoder of `checkpoint`. If
    the recipe's intermediate task was skipped, `intermediate_note` has the reason.
    """

    request: TaskRequest
    recipe: FinetuneRecipe
    task: AnyTask
    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    device: torch.device
    needs_training: bool = True
    intermediate: hub.Checkpoint | None = None
    intermediate_note: str | None = None

    @property
    def starts_from_intermediate_model(self) -> bool:
        """True if the checkpoint was already fine-tuned on the recipe's intermediate task, and its weights are used.

        The checkpoint has the intermediate task's head, with named classes. A head without names may be another task's.
        The controls do not have the checkpoint's weights.
        """
        name = self.recipe.intermediate_task
        if name == NO_INTERMEDIATE_TASK or self.recipe.model.weights != "pretrained":
            return False
        return find_task(name).has_head(self.checkpoint) and not self.checkpoint.has_unnamed_labels

    @property
    def has_trained_overlap_heads(self) -> bool:
        """True if an earlier fine-tuning run has already trained the encoder's overlap heads, if it has any.

        The earlier run is that of the intermediate task, or the run whose head this run continues with. A new head for
        the checkpoint's task (`--retrain`) starts the recipe again, with new overlap heads.
        """
        has_trained_head = self.recipe.model.head == "checkpoint"
        return has_trained_head or self.intermediate is not None or self.starts_from_intermediate_model

    def input_settings(self, seed: int | None = None) -> InputSettings:
        """Return the settings that determine a seed's inputs; the default seed is the recipe's."""
        data = self.recipe.data
        settings = InputSettings(
            train_split=None,
            dev_splits=self.task.dev_splits,
            max_seq_length=data.max_seq_length,
            dev_examples=data.dev_examples,
        )
        if not self.needs_training:
            return settings
        train_split = require_training_data(self.task)
        settings = replace(settings, train_split=train_split, both_orders=data.both_orders)
        if data.train_examples == 0:  # every seed trains on all examples, so the inputs do not depend on the seed
            return settings
        if seed is None:
            seed = self.recipe.train.seed
        return replace(settings, train_examples=data.train_examples, seed=seed)

    def load_inputs(self, seed: int | None = None) -> Inputs:
        """Read and encode the inputs of a seed; raises `InputError` for missing or damaged files."""
        return load_inputs(self.task, self.request.data, self.vocabulary, self.input_settings(seed))

    def warn_about_text(self, inputs: Inputs) -> None:
        """Print a warning if the training texts differ much from the text that the checkpoint was pretrained on.

        The texts of named entity recognition and of question answering with answer spans are not compared.
        """
        if isinstance(inputs.train, PairFeatures):
            counts = read_token_counts(self.checkpoint.directory)
            warn_about_mismatch(self.task.title, self.vocabulary, inputs.train.ids, counts)

    def check_inputs(self) -> None:
        """Read the task's files to check them; raises `InputError` if one is missing or damaged."""
        read_examples(self.task, self.request.data, self.input_settings())


def prepare_task(
    name: str, request: TaskRequest, opened: OpenCheckpoints | None = None, *, may_be_scored: bool = False
) -> PreparedTask:
    """Load the recipe, verify the checkpoint and open the task; nothing is trained or written.

    name: a task, or a recipe as in `load_recipe`. opened: the checkpoints that this command has already read; this
    function adds the ones that it reads. may_be_scored: if True, a table's texts are read from the columns of the
    checkpoint's training, because the checkpoint may be scored without training. If `may_be_scored` is True, or if the
    recipe continues with the checkpoint's head, this head may decide the kind and the classes of a single file, and of
    data without train. Raises `InputError` if dev is to be scored and the task has no dev data.
    """
    recipe = load_recipe(name, request.overrides, request.recipes)
    if name in config.shipped_recipes():
        # `name` is FOLDER/TASK. The recipe of an intermediate task is loaded later, from the same folder.
        request = replace(request, recipes=name.partition("/")[0])
    # The weights "init" are those of step 0 of the checkpoint's run, which are in a separate directory.
    find_directory = hub.find_init_checkpoint if recipe.model.weights == "init" else hub.find_checkpoint
    source = open_checkpoint(find_directory(request.checkpoint), opened)
    # With the recipe's class names and positions. `opened` keeps the unchanged checkpoint for other recipes.
    source = replace(source, checkpoint=recipe.model.apply_to_checkpoint(source.checkpoint))
    uses_head = may_be_scored or recipe.model.head == "checkpoint"
    if recipe.task == "table":
        head = _read_head(source.checkpoint, may_be_scored) if uses_head else NO_HEAD
        task: AnyTask = open_table(recipe.table, request.data, head)
    elif recipe.task == NER:
        tags = tag_names(source.checkpoint) if uses_head else ()
        task = open_token_task(recipe.table, request.data, tags)
    else:
        task = find_task(recipe.task)
    if not task.dev_splits and request.split == "dev":
        raise InputError(f"{task.title}: found no labeled dev data", "add a dev file to the --data directory")
    return prepare_with_recipe(recipe, request, task, source)


def _read_head(checkpoint: hub.Checkpoint, with_columns: bool) -> ModelHead:
    """Return the class names and, if requested, the columns that a checkpoint records from fine-tuning."""
    finetuned = checkpoint.finetuned_task if with_columns else None
    layout = TableLayout.from_finetuned(finetuned)
    labels = checkpoint.output_names if checkpoint.is_multi_label else checkpoint.labels
    return ModelHead(labels, checkpoint.is_multi_label, layout.columns)


def prepare_with_recipe(
    recipe: FinetuneRecipe, request: TaskRequest, task: AnyTask, source: OpenCheckpoint, *, needs_training: bool = True
) -> PreparedTask:
    """Apply a recipe to a task and a checkpoint, and limit the length of the inputs to the model's positions.

    needs_training: if False, the task is prepared to score the finished checkpoint on `request.split`, without training
    data.
    """
    checkpoint = recipe.model.apply_to_checkpoint(source.checkpoint)
    if not needs_training:
        task = task.for_scoring(request.split)
    recipe = recipe.clamp_to_positions(checkpoint.config.max_position_embeddings)
    task = task.with_span_settings(recipe.span)
    device = choose_device(request.device)
    return PreparedTask(request, recipe, task, checkpoint, source.vocabulary, device, needs_training)


def open_checkpoint(directory: Path, opened: OpenCheckpoints | None = None) -> OpenCheckpoint:
    """Return a checkpoint and its vocabulary from `opened`; if they are not in it, read them and add them to it."""
    if opened is None:
        opened = {}
    if directory not in opened:
        checkpoint = hub.read_checkpoint(directory)
        opened[directory] = OpenCheckpoint(checkpoint, hub.load_vocabulary(checkpoint))
    return opened[directory]
