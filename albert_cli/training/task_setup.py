"""Prepare a task for training or scoring, from the options of a command.

`prepare_task` loads the recipe, opens and verifies the checkpoint with its vocabulary, and opens the task.
`PreparedTask` holds them and loads the task's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from albert_cli import config, store
from albert_cli.array_jobs import ArrayJob
from albert_cli.errors import ConfigError, InputError
from albert_cli.model import hub
from albert_cli.tasks.base import AnyTask, EvaluationSplit
from albert_cli.tasks.features import PairFeatures
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.table import NO_HEAD, ModelHead, open_table
from albert_cli.tasks.table_layout import TableLayout
from albert_cli.tasks.token_classification import NER, open_token_task, tag_names
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device
from albert_cli.training.task_inputs import Inputs, InputSettings, load_inputs, read_examples, require_train_split
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
    """A verified checkpoint, its vocabulary and its fingerprint.

    They need the directory no longer, because pretraining may delete a step while the step's weights are fine-tuned.
    """

    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    fingerprint: str


OpenCheckpoints = dict[Path, OpenCheckpoint]  # by directory, so that a command reads each checkpoint once


@dataclass(frozen=True)
class PreparedTask:
    """A task, its recipe and its checkpoint, which the runs of all seeds share.

    `load_inputs` loads the inputs of one seed. `needs_training` is False if the checkpoint is only scored.
    `intermediate` is the checkpoint of the intermediate task, whose encoder replaces the encoder of `checkpoint`. If
    the recipe's intermediate task was skipped, `intermediate_note` has the reason. `fingerprints` has those of
    "checkpoint" and, if there is one, "intermediate".
    """

    request: TaskRequest
    recipe: FinetuneRecipe
    task: AnyTask
    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    fingerprints: Mapping[str, str]
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
        train_split = require_train_split(self.task)
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
        if isinstance(inputs.train_features, PairFeatures):
            counts = read_token_counts(self.checkpoint.directory)
            warn_about_mismatch(self.task.title, self.vocabulary, inputs.train_features.ids, counts)

    def check_inputs(self) -> None:
        """Read the task's files to check them; raises `InputError` if one is missing or damaged."""
        read_examples(self.task, self.request.data, self.input_settings())


def resolve_checkpoint(request: TaskRequest) -> TaskRequest:
    """Return the request with the newest step of a run in place of the run; other checkpoints do not change.

    Call it once per command: the newest step changes while the run trains, and all tasks and seeds of a command must
    start from the same step.
    """
    if not Path(request.checkpoint).is_dir():  # a Hub id, which each machine of a cluster downloads itself
        return request
    return replace(request, checkpoint=str(hub.find_checkpoint(request.checkpoint)))


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
    is_own_file = config.is_recipe_file(name) and request.recipes == PAPER_RECIPES  # without another --recipes
    if name in config.shipped_recipes() or is_own_file:
        # The recipe of an intermediate task is loaded later, from the folder of the recipe or of the recipe it extends.
        request = replace(request, recipes=config.find_shipped_folder(name) or request.recipes)
    directory = Path(request.checkpoint)
    if directory not in (opened or {}):  # the directory of an opened checkpoint may have been deleted since
        directory = hub.find_checkpoint(request.checkpoint)
    if recipe.model.weights == "init":  # the weights of step 0 of the checkpoint's run, in a separate directory
        directory = _find_init_checkpoint(directory)
    source = open_checkpoint(directory, opened)
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


def _find_init_checkpoint(directory: Path) -> Path:
    """Return the directory with the step-0 weights of a checkpoint's run; raise `ConfigError` if there is none."""
    init = directory.parent / hub.INIT_DIRECTORY
    is_of_run = directory.name == hub.INIT_DIRECTORY or directory.name.startswith("step-")
    if not is_of_run or not init.is_dir():
        hint = "name a run of `albert pretrain` or one of its steps; its recipe must set something in [init]"
        path = directory / "recipe.toml"
        warm_start = store.read_toml(path).get("warm_start") if path.is_file() else None
        if isinstance(warm_start, dict):
            parent = warm_start.get("continues") or warm_start.get("checkpoint")
            hint = f"a run that starts from a checkpoint has none; use its parent instead: --checkpoint {parent}"
        raise ConfigError(f"{directory}: there are no weights of step 0 ({init})", hint)
    return init


def _read_head(checkpoint: hub.Checkpoint, with_columns: bool) -> ModelHead:
    """Return the class names and, if requested, the columns that a checkpoint records from fine-tuning."""
    finetuned = checkpoint.finetuned_task if with_columns else None
    layout = TableLayout.from_finetuned(finetuned)
    labels = checkpoint.output_names if checkpoint.is_multi_label else checkpoint.labels
    return ModelHead(labels, checkpoint.is_multi_label, layout.columns)


def prepare_with_recipe(
    recipe: FinetuneRecipe, request: TaskRequest, task: AnyTask, source: OpenCheckpoint, *, needs_training: bool = True
) -> PreparedTask:
    """Apply a recipe to a task, and limit the length of the inputs to the checkpoint's positions.

    `source` already has the recipe's attention, positions and class names. needs_training: if False, the task is
    prepared to score the finished checkpoint on `request.split`, without training data.
    """
    checkpoint = source.checkpoint
    if not needs_training:
        task = task.for_scoring(request.split)
    recipe = recipe.clamp_to_positions(checkpoint.config.max_position_embeddings)
    task = task.with_span_settings(recipe.span)
    device = choose_device(request.device)
    fingerprints = {"checkpoint": source.fingerprint}
    return PreparedTask(request, recipe, task, checkpoint, source.vocabulary, fingerprints, device, needs_training)


def open_checkpoint(directory: Path, opened: OpenCheckpoints | None = None) -> OpenCheckpoint:
    """Return the checkpoint of a directory from `opened`; if it is not in it, read it and add it to it."""
    if opened is None:
        opened = {}
    if directory not in opened:
        checkpoint = hub.read_checkpoint(directory)
        opened[directory] = OpenCheckpoint(checkpoint, hub.load_vocabulary(checkpoint), store.fingerprint(directory))
    return opened[directory]
