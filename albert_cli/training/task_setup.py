"""A task made ready to be trained or scored: its recipe, its checkpoint, its examples and features."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from albert_cli import config, console, store
from albert_cli.errors import InputError, MissingDataError
from albert_cli.model import hub
from albert_cli.model.encoder import Encoder
from albert_cli.model.overlap_heads import SAMPLED_POSITIONS, check_overlap_heads, init_overlap_heads
from albert_cli.randomness import epoch_order
from albert_cli.results import Result
from albert_cli.tasks.base import PREDICTIONS, AnyTask, fingerprint_examples
from albert_cli.tasks.features import Features
from albert_cli.tasks.registry import find_task
from albert_cli.tasks.table import open_table
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import run
from albert_cli.training.device import autocast, choose_device, prepare_model, resolve_auto
from albert_cli.training.settings import ScheduleSettings, TrainSettings
from albert_cli.training.task_recipe import PAPER_RECIPES, PRETRAINED, FinetuneRecipe, load_recipe

_SUBSET_EPOCH = 2**64 - 1  # what orders the examples of a part, which no epoch of training does


@dataclass(frozen=True)
class TaskRequest:
    """What a user asked for, whatever the task: how many `runs`, and how many of them at a time.

    `again`: fine-tune a checkpoint of this very task too. `controls`: the weights that the same seeds start from for
    comparison (`evaluation.suite`). `recipes`: whose recipes. `baselines`: whether linear models learn the task too.
    """

    checkpoint: str
    data: str | None
    runs: int = 1
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    nproc: int = 1
    again: bool = False
    controls: tuple[str, ...] = ()
    recipes: str = PAPER_RECIPES
    baselines: bool = True


@dataclass(frozen=True)
class Inputs:
    """The examples of some splits of a task and their features, read and encoded when they are first asked for.

    They are shared by all seeds, and by whatever else reads and encodes the same. Only those of the last few `Inputs`
    are kept in memory, so that a suite or a search does not hold the data of every task. Of the training split (the
    first) a `part` may be taken, drawn by `seed`; `both_orders` has its pairs among the features in either order.
    """

    task: AnyTask
    data: str | None
    splits: tuple[str | None, ...]  # None: data to train on, which the task does not have
    vocabulary: Vocabulary
    max_seq_length: int
    part: int = 0
    seed: int = 0
    both_orders: bool = False

    def __hash__(self) -> int:
        return hash((self.task.name, self.data, self.splits, self.max_seq_length, self.part, self.seed))

    @property
    @lru_cache(maxsize=3)  # noqa: B019  (for all that are equal)
    def examples(self) -> dict[str, list[Any]]:
        """The examples of each split: the training split unless a model is only scored, then every dev split."""
        task, found = self.task, dict[str, list[Any]]()
        for split in self.splits:
            if split is None and (answered_by := task.classifier_of):
                raise InputError(
                    f"{task.title} is not trained on: a model fine-tuned on {find_task(answered_by).title} answers it",
                    f"name one as --checkpoint: albert finetune {answered_by} makes it",
                )
            if split is None:
                raise InputError(f"{task.title} has no training data here", "--data DIR with a train file")
            found[split] = task.read(split, self.data)
        if self.part:
            split, whole = next(iter(found.items()))
            found[split] = [whole[i] for i in epoch_order(len(whole), self.seed, _SUBSET_EPOCH)[: self.part]]
        return found

    @property
    @lru_cache(maxsize=2)  # noqa: B019
    def features(self) -> dict[str, Features]:
        """The examples as tokens."""
        read = dict(self.examples)
        if self.both_orders:
            read[str(self.task.train_split)] = self.train_examples + self.task.swap_pairs(self.train_examples)
        return {split: self.encode(examples) for split, examples in read.items()}

    @property
    @lru_cache(maxsize=64)  # noqa: B019
    def fingerprint(self) -> str:
        """That of all examples."""
        return fingerprint_examples(e for examples in self.examples.values() for e in examples)

    @property
    def train(self) -> Features:
        """The training split as tokens."""
        return self.features[str(self.task.train_split)]

    @property
    def train_examples(self) -> list[Any]:
        """The training split."""
        return self.examples[str(self.task.train_split)]

    @property
    def dev(self) -> Features:
        """The dev split that chooses the checkpoint, as tokens."""
        return self.features[self.task.dev_splits[0]]

    @property
    def dev_examples(self) -> list[Any]:
        """The dev split that chooses the checkpoint."""
        return self.examples[self.task.dev_splits[0]]

    def encode(self, examples: Sequence[Any]) -> Features:
        """Examples as tokens; a note says how many had to be cut."""
        features: Features = self.task.encode(examples, self.vocabulary, self.max_seq_length)
        if features.truncated:
            console.info(
                f"{self.task.title}: {features.truncated:,} of {len(examples):,} "
                f"{self.task.too_long(self.max_seq_length)} and were cut"
            )
        return features


@dataclass(frozen=True)
class PreparedTask:
    """What all seeds of a task have in common: the checkpoint verified once, the data read and encoded once."""

    request: TaskRequest
    recipe: FinetuneRecipe
    checkpoint: hub.Checkpoint
    inputs: Inputs
    device: torch.device
    for_scoring: bool = False
    intermediate: hub.Checkpoint | None = None  # fine-tuned for another task, whose encoder a run starts from
    intermediate_note: str | None = None  # why it is another than the recipe asked for

    @property
    def task(self) -> AnyTask:
        """What is trained or scored."""
        return self.inputs.task

    def for_seed(self, seed: int) -> PreparedTask:
        """What a run with this seed takes: the same, or another part of the training examples."""
        if not self.inputs.part or seed == self.inputs.seed:
            return self
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, seed=seed))

    def new_model(self, seed: int, train: TrainSettings | None = None) -> Any:
        """The encoder of the checkpoint, of step 0 or random (`model.weights`); the head new or the checkpoint's."""
        gc.collect()  # the first optimizer of a process leaves its callers' frames, and so the model, in a cycle
        settings = self.recipe.model
        shape = dataclasses.replace(
            self.checkpoint.config,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            classifier_dropout_prob=settings.classifier_dropout,
        )
        torch.manual_seed(seed)
        model = self.task.new_model(shape)
        if self.intermediate or settings.weights != "random":
            found = self.intermediate or self.checkpoint
            policy = hub.LoadPolicy.ENCODER
            if settings.head == "checkpoint":
                found = self.task.reorder_labels(found)
                policy = hub.LoadPolicy.HEADS
            else:  # a head in the file belongs to another task, whatever its shape
                encoder = {n: t for n, t in found.tensors.items() if n.startswith("encoder.")}
                found = dataclasses.replace(found, tensors=encoder)
            hub.load_weights(model, found, policy)
        check_overlap_heads(settings.overlap_heads, settings.overlap_context_heads, shape)
        assert isinstance(model.encoder, Encoder)
        if self.intermediate is None:  # the intermediate task's run has set these heads already
            word_ids = torch.arange(self.inputs.vocabulary.first_ordinary_id, shape.vocab_size)
            positions = self.recipe.data.max_seq_length if settings.overlap_context_heads else SAMPLED_POSITIONS
            init_overlap_heads(
                model.encoder, settings.overlap_heads, seed=seed,
                cls_id=self.inputs.vocabulary.cls_id, word_ids=word_ids,
                positions=positions, context_heads=settings.overlap_context_heads,
            )  # fmt: skip
        if settings.classifier_bias == "labels":
            self.task.init_bias_from_labels(model, self.inputs.train_examples)
        prepare_model(model, train or self.train_settings, self.device)
        return model

    @cached_property
    def train_settings(self) -> TrainSettings:
        """The recipe's `[train]` with what "auto" stands for here, for inputs of this length."""
        items = self.inputs.dev if self.for_scoring else self.inputs.train
        packed, _ = items.batch(np.arange(min(len(items), self.recipe.train.micro_batch_size)))
        lengths = np.diff(packed.offsets)
        return resolve_auto(
            self.recipe.train, self.checkpoint.config, self.device,
            sequences=len(lengths), length=max(1, round(float(lengths.mean()))),
        )  # fmt: skip

    @cached_property
    def schedule(self) -> ScheduleSettings:
        """The recipe's `[schedule]` in steps; epochs are of the items of training, such as a text's windows.

        Raises `ConfigError` where epochs amount to fewer steps than the warm-up has.
        """
        s = self.recipe.schedule
        found = s.in_steps(len(self.inputs.train) if s.epochs is not None else 1, self.recipe.train.batch_size)
        found.check()
        return found

    @cached_property
    def majority(self) -> float | None:
        """What knowing only the training labels scores on dev; None where there is no training split to read."""
        split = self.task.train_split
        if split is None:
            return None
        try:
            train = self.inputs.examples.get(split) or self.task.read(split, self.request.data)
        except MissingDataError:
            return None
        return self.task.baseline(train, self.inputs.dev_examples)

    def results(self, model: nn.Module, precision: str | None = None) -> tuple[Result, Any]:
        """What every result says (`results.json`): the model's scores on each dev split, and all that decided them.

        Also its outputs on the first of these splits. After training `precision` is what training had, so that the
        score is the one by which the model was kept.
        """
        precision = precision or self.train_settings.precision
        model.eval()
        task = self.task
        scores: dict[str, float] = {}
        thresholds: dict[str, Any] = {}
        outputs: dict[str, Any] = {}
        for split in task.dev_splits:
            with autocast(precision, self.device):
                outputs[split] = task.predict(model, self.inputs.features[split], self.device)
            metrics = task.evaluation(outputs[split], self.inputs.features[split], self.inputs.examples[split])
            further = "" if split == task.dev_splits[0] else split.removeprefix("dev_") + "_"
            scores |= {f"{further}{name}": metrics[name] for name in task.metrics if name in metrics}
            thresholds |= {name: metrics[name] for name in ("best_threshold",) if name in metrics}
        how_long: dict[str, Any] = {"steps": 0}
        if not self.for_scoring:
            steps = self.schedule.total_steps
            passes = float(f"{steps * self.recipe.train.batch_size / len(self.inputs.train):.3g}")
            how_long = {"steps": steps, "epochs": passes, "warmup_steps": self.schedule.warmup}
        record = Result(
            kind="run",
            task=task.name,
            title=task.title,
            metric=task.metrics[0],
            score=scores[task.metrics[0]],
            scores=scores,
            majority=self.majority,
            labels=list(task.labels),
            predictions=PREDICTIONS,
            precision=precision,
            **thresholds,
            **self.provenance,
            **how_long,
        )
        return record, outputs[task.dev_splits[0]]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What decided the numbers, for `results.json`."""
        recipe = self.recipe
        text = config.dump_toml(dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, seed=0)))
        intermediate_task, before = recipe.intermediate_task, self.checkpoint.finetuned_task
        if before and (intermediate_task, recipe.model.weights) == (PRETRAINED, "pretrained") and not self.for_scoring:
            intermediate_task = before.task  # the checkpoint is not a pretrained one
        return {
            "checkpoint": store.fingerprint(self.checkpoint.directory),
            **({"intermediate": store.fingerprint(self.intermediate.directory)} if self.intermediate else {}),
            "intermediate_task": intermediate_task,
            **({"intermediate_note": self.intermediate_note} if self.intermediate_note else {}),
            "weights": recipe.model.weights,
            "head": recipe.model.head,
            "recipe": hashlib.sha256(text.encode()).hexdigest()[:16],
            "data": self.inputs.fingerprint,
            "versions": run.library_versions(),
            "batch_size": recipe.train.batch_size,
            "lr": recipe.optimizer.peak,
            "max_seq_length": recipe.data.max_seq_length,
            "train_examples": recipe.data.train_examples,
            "both_orders": recipe.data.both_orders,
            "dropout": recipe.model.dropout,
            "overlap_heads": recipe.model.overlap_heads,
            "overlap_context_heads": recipe.model.overlap_context_heads,
            "eval_every": recipe.train.eval_every,
            "device": self.device.type,
            "examples": {split: len(e) for split, e in self.inputs.examples.items()},
        }

    @property
    def parents(self) -> dict[str, str]:
        """Fingerprints of what a run was made from; it is resumed from the same alone."""
        return {
            what: str(self.provenance[what])
            for what in ("checkpoint", "intermediate", "data")
            if what in self.provenance
        }


def prepare_task(task: str, request: TaskRequest) -> PreparedTask:
    """Resolve the recipe, verify the checkpoint, and open the task; nothing is trained or written."""
    recipe = load_recipe(task, request.overrides, request.recipes)
    if task in config.shipped_recipes():  # the task that it starts from is of the same folder
        request = dataclasses.replace(request, recipes=task.partition("/")[0])
    directory = (hub.find_init_checkpoint if recipe.model.weights == "init" else hub.find_checkpoint)(
        request.checkpoint
    )
    found, vocabulary = open_checkpoint(directory)
    opened = open_table(recipe.table, request.data, found.labels) if recipe.task == "table" else find_task(recipe.task)
    if not opened.dev_splits:
        raise InputError(f"{opened.title} has no labelled dev data here", "--data DIR with a dev file")
    return prepare_with_recipe(recipe, request, opened, found, vocabulary)


def open_checkpoint(directory: Path) -> tuple[hub.Checkpoint, Vocabulary]:
    """A checkpoint, verified, and its vocabulary; read once for all tasks and combinations that take it."""
    files = [(p.name, p.stat()) for p in sorted(directory.iterdir()) if p.is_file()]
    return _open(directory, tuple((name, s.st_mtime_ns, s.st_size) for name, s in files))


@lru_cache(maxsize=2)
def _open(directory: Path, files: tuple[tuple[str, int, int], ...]) -> tuple[hub.Checkpoint, Vocabulary]:
    found = hub.read_checkpoint(directory)
    return found, hub.load_vocabulary(found)


def prepare_with_recipe(
    recipe: FinetuneRecipe,
    request: TaskRequest,
    task: AnyTask,
    checkpoint: hub.Checkpoint,
    vocabulary: Vocabulary,
    *,
    for_scoring: bool = False,
) -> PreparedTask:
    """A task by its recipe; inputs are never longer than the model has positions."""
    task, checkpoint = task.with_recipe(recipe), recipe.model.shaped(checkpoint)
    recipe = recipe.within(checkpoint.config.max_position_embeddings)
    splits = task.dev_splits if for_scoring else (task.train_split, *task.dev_splits)
    part = 0 if for_scoring else recipe.data.train_examples
    inputs = Inputs(
        task, request.data, splits, vocabulary, recipe.data.max_seq_length, part, recipe.train.seed if part else 0,
        both_orders=recipe.data.both_orders and not for_scoring,
    )  # fmt: skip
    return PreparedTask(request, recipe, checkpoint, inputs, choose_device(request.device), for_scoring)
