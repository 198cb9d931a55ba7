"""`albert finetune`: one seeded run of one task, from a pretrained checkpoint to a scored task checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from albert_cli import config, console, store
from albert_cli.distributed import Group
from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.heads import SequenceClassifier
from albert_cli.tasks.encode import Features, encode
from albert_cli.tasks.metrics import majority
from albert_cli.tasks.spec import find_task, fingerprint
from albert_cli.tasks.table import TableSettings, open_table
from albert_cli.tasks.task import Example, Task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import checkpoint, run
from albert_cli.training.classify import (
    Array,
    ClassificationJob,
    evaluation,
    predict_logits,
    predictions_of,
    write_task_card,
)
from albert_cli.training.loop import Loop
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

RESULTS = "results.json"
PREDICTIONS = "predictions.dev.jsonl"


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
    shows what pretraining brought.
    """

    dropout: float = 0.0
    classifier_dropout: float = 0.1
    initial: Literal["pretrained", "random"] = "pretrained"

    def __post_init__(self) -> None:
        for name in ("dropout", "classifier_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}", "a dropout rate lies in [0, 1)")


@dataclass(frozen=True)
class FinetuneRecipe:
    """A fine-tuning recipe; the paper's own stand in `recipes/finetune/` (Table 14)."""

    task: str
    data: TaskData = field(default_factory=TaskData)
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(name="adamw", lr=2e-5))
    schedule: ScheduleSettings = field(default_factory=lambda: ScheduleSettings(total_steps=1000))
    model: TaskModel = field(default_factory=TaskModel)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(eval_every=100))
    table: TableSettings = field(default_factory=TableSettings)


def resolve(task: str, overrides: Sequence[str]) -> FinetuneRecipe:
    """The recipe of a task, of a shipped recipe's full name, or of a file, with overrides."""
    if task.endswith(".toml") or task in config.shipped_recipes():
        return config.load(FinetuneRecipe, task, overrides)
    if task != "table" and find_task(task).train_split is None:  # also says what is wrong with the name
        raise ConfigError(f"{task} has no training data", "score it with a checkpoint fine-tuned on mnli")
    return config.load(FinetuneRecipe, f"finetune/{task}", overrides)


@dataclass
class Prepared:
    """What all seeds of a task have in common: the data read and encoded once, the checkpoint verified once."""

    recipe: FinetuneRecipe
    task: Task
    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    data: str | None
    device: torch.device

    @cached_property
    def examples(self) -> dict[str, list[Example]]:
        """The training split and every dev split."""
        assert self.task.train_split is not None
        return {split: self.task.read(split, self.data) for split in (self.task.train_split, *self.task.dev_splits)}

    @cached_property
    def features(self) -> dict[str, Features]:
        """The same splits as token ids."""
        return {split: self.encode(examples) for split, examples in self.examples.items()}

    @property
    def train(self) -> Features:
        """The training split."""
        assert self.task.train_split is not None
        return self.features[self.task.train_split]

    @property
    def dev(self) -> Features:
        """The dev split that chooses the checkpoint."""
        return self.features[self.task.dev_splits[0]]

    def encode(self, examples: Sequence[Example]) -> Features:
        """Encode examples at the recipe's length, saying so when that cuts some."""
        features = encode(examples, self.vocabulary, self.recipe.data.max_seq_length)
        if features.truncated:
            console.note(
                f"{self.task.title}: {features.truncated:,} of {len(features):,} inputs are longer than "
                f"{self.recipe.data.max_seq_length} pieces and were cut"
            )
        return features

    def new_model(self, seed: int) -> SequenceClassifier:
        """The encoder from the checkpoint (or anew, under `initial = "random"`) with a fresh classifier."""
        settings = self.recipe.model
        shape = dataclasses.replace(
            self.checkpoint.config,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            classifier_dropout_prob=settings.classifier_dropout,
        )
        torch.manual_seed(seed)
        model = SequenceClassifier(shape, self.task.num_outputs)
        if settings.initial == "pretrained":
            # A classifier in the file belongs to another task, whatever its shape.
            encoder = {n: t for n, t in self.checkpoint.tensors.items() if not n.startswith("classifier.")}
            hub.load_into(model, dataclasses.replace(self.checkpoint, tensors=encoder))
        return model.to(self.device)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What decided the numbers, for `results.json`."""
        text = config.dump_toml(dataclasses.replace(self.recipe, train=dataclasses.replace(self.recipe.train, seed=0)))
        joined = [e for examples in self.examples.values() for e in examples]
        return {
            "checkpoint": store.fingerprint(self.checkpoint.directory),
            "initial": self.recipe.model.initial,
            "recipe": hashlib.sha256(text.encode()).hexdigest()[:16],
            "data": fingerprint(joined),
            "versions": run.versions(),
            "steps": self.recipe.schedule.total_steps,
            "batch_size": self.recipe.train.batch_size,
            "examples": {split: len(e) for split, e in self.examples.items()},
        }


def prepare(task: str, checkpoint_name: str, data: str | None, overrides: Sequence[str], device: str) -> Prepared:
    """Resolve the recipe, verify the checkpoint, and open the task; nothing is trained or written."""
    recipe = resolve(task, overrides)
    row = open_table(recipe.table, data) if recipe.task == "table" else find_task(recipe.task)
    directory = hub.find(checkpoint_name)
    found = hub.read(directory)
    limit = found.config.max_position_embeddings
    if recipe.data.max_seq_length > limit:
        # The paper's 512 is a ceiling, not a wish: a small model simply sees less of a long input.
        recipe = dataclasses.replace(recipe, data=TaskData(limit))
    vocabulary = Vocabulary.load(directory)
    if vocabulary.size != found.config.vocab_size:
        raise ConfigError(
            f"{directory}: the vocabulary has {vocabulary.size} pieces, the model {found.config.vocab_size}",
            "the tokenizer and the weights of this directory do not belong together",
        )
    return Prepared(recipe, row, found, vocabulary, data, run.choose_device(device))


def finetune(prepared: Prepared, out: Path, seed: int, resume: run.Resume = "auto") -> dict[str, Any]:
    """Train one seed into `out`, keeping the checkpoint that is best on dev; return its `results.json`.

    A finished run with the same recipe is not repeated.
    """
    seeded = dataclasses.replace(prepared.recipe.train, seed=seed)
    recipe = dataclasses.replace(prepared.recipe, train=seeded)
    with run.reported(out) as status:
        old = run.saved_recipe(out, resume)
        if old is not None:
            run.check_same(out, old, recipe)
            if (out / RESULTS).is_file():
                done = store.read_json(out / RESULTS)
                run.check_parents(out, done, {what: prepared.provenance[what] for what in ("checkpoint", "data")})
                return done
        torch.manual_seed(seed)
        return _Run(prepared, recipe, out).train(status)


@dataclass
class _Run:
    prepared: Prepared
    recipe: FinetuneRecipe
    out: Path

    def train(self, status: run.Status) -> dict[str, Any]:
        """The run from its newest checkpoint, if it has one, to its results."""
        started = time.monotonic()
        p, recipe, total = self.prepared, self.recipe, self.recipe.schedule.total_steps
        text = config.dump_toml(recipe)
        model = p.new_model(recipe.train.seed)
        self.job = ClassificationJob(
            model, p.task, p.train, p.dev, p.vocabulary, recipe.train, p.device, text, self._keep
        )
        optimizer = run.make_optimizer(model, recipe.optimizer)
        store.write_text(self.out / "recipe.toml", text)
        group, parents = Group(), {what: str(p.provenance[what]) for what in ("checkpoint", "data")}
        state = run.resume_state(self.out, optimizer, lambda d: hub.load_into(model, hub.read(d)), group, parents)
        run.running(self.out, status, state.step, total)
        loop = Loop(
            self.job, optimizer, recipe.optimizer, recipe.schedule, recipe.train, self.out, text, parents, group,
            p.device, f"{p.task.title} seed {recipe.train.seed}", state,
        )  # fmt: skip
        loop.run()
        results = self._results(state, state.seconds or time.monotonic() - started)
        store.write_json(self.out / RESULTS, results)
        for directory in checkpoint.saved_steps(self.out):
            store.remove_directory(directory)  # only resuming needs them; the best stands in `out` itself
        return results

    def _keep(self, metrics: Mapping[str, float], logits: Array) -> None:
        """Publish the best weights so far as the run's model, with their predictions on dev."""
        parents = {"checkpoint": str(self.prepared.provenance["checkpoint"])}
        with store.publish(self.out, "task", parents) as staging:
            self.job.write_model(staging)
            write_task_card(staging, self.job, metrics)
            examples = self.prepared.examples[self.prepared.task.dev_splits[0]]
            lines = prediction_lines(self.prepared.task, logits, examples)
            store.write_text(staging / PREDICTIONS, "".join(lines))

    def _results(self, state: checkpoint.TrainState, seconds: float) -> dict[str, Any]:
        """`results.json`: the dev scores of the best checkpoint and all that decided them."""
        p, task = self.prepared, self.prepared.task
        records = store.read_journal(self.out / "metrics.jsonl")
        best = next(r["eval"] for r in reversed(records) if "eval" in r and r["step"] == state.best_step)
        scores = {name: best[name] for name in task.metrics}
        if len(task.dev_splits) > 1:
            scores |= self._other_splits()
        assert p.train.labels is not None
        assert p.dev.labels is not None
        return {
            "kind": "run",
            "task": task.name,
            "title": task.title,
            "metric": task.metrics[0],
            "score": scores[task.metrics[0]],
            "scores": scores,
            "seed": self.recipe.train.seed,
            "best_step": state.best_step,
            "majority": majority(task, p.train.labels, p.dev.labels)[task.metrics[0]],
            "labels": list(task.labels),
            "predictions": PREDICTIONS,
            **p.provenance,
            "seconds": round(seconds, 2),
        }

    def _other_splits(self) -> dict[str, float]:
        """Scores of the best checkpoint on the further dev splits (MNLI: mismatched)."""
        p = self.prepared
        hub.load_into(self.job.model, hub.read(self.out))
        self.job.model.eval()
        found: dict[str, float] = {}
        for split in p.task.dev_splits[1:]:
            metrics = evaluation(p.task, predict_logits(self.job.model, p.features[split], p.device), p.features[split])
            found |= {f"{split.removeprefix('dev_')}_{name}": metrics[name] for name in p.task.metrics}
        return found


def prediction_lines(task: Task, logits: Array, examples: Iterable[Example]) -> list[str]:
    """One JSON line an example: id, gold label where known, prediction, and probabilities by label."""
    predicted = predictions_of(task, logits)
    if task.kind == "regression":
        found: list[dict[str, Any]] = [{"prediction": round(float(value), 5)} for value in predicted]
    else:
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        found = [
            {
                "prediction": task.labels[int(label)],
                "probabilities": {n: round(float(q), 5) for n, q in zip(task.labels, row, strict=True)},
            }
            for label, row in zip(predicted, probabilities, strict=True)
        ]
    lines = []
    for example, entry in zip(examples, found, strict=True):
        gold: dict[str, Any] = {}
        if example.label is not None:
            gold["label"] = task.labels[int(example.label)] if task.kind == "classification" else example.label
        lines.append(json.dumps({"id": example.id, **gold, **entry}, ensure_ascii=False) + "\n")
    return lines
