"""`albert finetune`: one seeded run of one task, from a pretrained checkpoint to a scored task checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from albert_cli import config, console, store
from albert_cli.errors import CheckpointError, DivergedError, InputError, MissingData
from albert_cli.model import hub
from albert_cli.model.encoder import Encoder
from albert_cli.model.heads import SequenceClassifier
from albert_cli.model.matching import PLACES, check_count_heads, check_heads, compare_words, count_words
from albert_cli.ranks import Group
from albert_cli.tasks.encode import epoch_order
from albert_cli.tasks.spec import find_task, fingerprint
from albert_cli.tasks.squad import SquadFiles
from albert_cli.tasks.table import open_table
from albert_cli.tasks.task import Task
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import collapse, run
from albert_cli.training.classify import PREDICTIONS, start_at_labels
from albert_cli.training.device import autocast, choose_device, place, resolve_auto, use_threads
from albert_cli.training.divergence import DIVERGED
from albert_cli.training.kinds import TaskKind, kind_of
from albert_cli.training.loop import Loop, LoopSettings
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.settings import AUTO, ScheduleSettings, TrainSettings
from albert_cli.training.task_job import TaskJob
from albert_cli.training.task_recipe import PAPER, FinetuneRecipe, TaskSchedule, resolve

RESULTS = "results.json"
_NO_EPOCH = 2**64 - 1  # what orders the examples of a part, which no epoch of training does
_REMEDY = "a lower optimizer.lr, a longer warm-up or another seed may help"


@dataclass(frozen=True)
class Start:
    """A model fine-tuned for another task whose encoder a run starts from: footnote 4 of the paper."""

    task: str
    checkpoint: hub.Checkpoint

    @property
    def fingerprint(self) -> str:
        """What tells it from any other."""
        return store.fingerprint(self.checkpoint.directory)


@dataclass
class Prepared:
    """What all seeds of a task have in common: the data read and encoded once, the checkpoint verified once."""

    recipe: FinetuneRecipe
    task: Task
    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    data: str | None
    device: torch.device
    recipes: str = PAPER  # where those of other tasks are, should one start from them
    for_scoring: bool = False
    start: Start | None = None
    start_note: str | None = None  # why the start is another than the recipe asked for

    @cached_property
    def examples(self) -> dict[str, list[Any]]:
        """Every dev split, and the training split before them unless a model is only scored."""
        splits = list(self.task.dev_splits)
        if not self.for_scoring:
            if self.task.train_split is None:
                raise _without_training_data(self.task)
            splits.insert(0, self.task.train_split)
        found = {split: self.task.read(split, self.data) for split in splits}
        if (wanted := self.recipe.data.train_examples) and not self.for_scoring:
            everything = found[splits[0]]
            order = epoch_order(len(everything), self.recipe.train.seed, _NO_EPOCH)
            found[splits[0]] = [everything[i] for i in order[:wanted]]
        return found

    def for_seed(self, seed: int) -> Prepared:
        """What a run with this seed takes: the same, or another part of the training examples."""
        if not self.recipe.data.train_examples or seed == self.recipe.train.seed:
            return self
        train = dataclasses.replace(self.recipe.train, seed=seed)
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, train=train))

    @cached_property
    def features(self) -> dict[str, Any]:
        """The same splits as token ids, the kind's `TaskFeatures`."""
        return {split: self.encode(examples) for split, examples in self.examples.items()}

    def take_inputs_of(self, other: Prepared) -> None:
        """Take what `other` has read and encoded for the same task, settings and vocabulary, to do it only once."""
        if self.vocabulary.fingerprint == other.vocabulary.fingerprint:
            self.__dict__ |= {k: v for k, v in other.__dict__.items() if k in ("examples", "features")}

    @property
    def train(self) -> Any:
        """The training split."""
        return self.features[str(self.task.train_split)]

    @property
    def dev(self) -> Any:
        """The dev split that chooses the checkpoint."""
        return self.features[self.task.dev_splits[0]]

    @property
    def dev_examples(self) -> list[Any]:
        """The same as examples."""
        return self.examples[self.task.dev_splits[0]]

    @property
    def kind(self) -> TaskKind:
        """How the task's kind is handled."""
        return kind_of(self.task)

    def encode(self, examples: Sequence[Any]) -> Any:
        """Encode examples as the recipe says, saying so when that cuts some."""
        features = self.kind.encode(self.task, examples, self.vocabulary, self.recipe)
        if features.truncated:
            console.note(
                f"{self.task.title}: {features.truncated:,} of {len(features):,} inputs are longer than "
                f"{self.recipe.data.max_seq_length} pieces and were cut"
            )
        return features

    def new_model(self, seed: int, train: TrainSettings | None = None) -> Any:
        """The encoder from the checkpoint (or of step 0, or anew, by `model.initial`) with a new head or the file's."""
        settings = self.recipe.model
        shape = dataclasses.replace(
            self.checkpoint.config,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            classifier_dropout_prob=settings.classifier_dropout,
        )
        torch.manual_seed(seed)
        model = self.kind.new_model(self.task, shape, self.recipe)
        is_fresh = settings.initial == "random"
        if not is_fresh:
            found, heads = self.start.checkpoint if self.start else self.checkpoint, []
            if settings.head == "checkpoint":
                heads = [name for name, _ in model.named_children() if name != "encoder"]
            else:  # a head in the file belongs to another task, whatever its shape
                encoder = {n: t for n, t in found.tensors.items() if n.startswith("encoder.")}
                found = dataclasses.replace(found, tensors=encoder)
            hub.load_into(model, found, heads)
        check_heads("model.matching_heads", settings.matching_heads, shape)
        check_count_heads(settings.count_heads, settings.spreading_heads, shape)
        assert isinstance(model.encoder, Encoder)
        if is_fresh or self.start is None:  # a start was made with the same settings, and has trained its heads
            compare_words(model.encoder, settings.matching_heads, seed=seed, is_fresh=is_fresh)
            cls_id, word_ids = self.vocabulary.cls_id, torch.arange(self.vocabulary.first_ordinary_id, shape.vocab_size)
            places = self.recipe.data.max_seq_length if settings.spreading_heads else PLACES
            count_words(
                model.encoder, settings.count_heads, seed=seed, cls_id=cls_id, word_ids=word_ids,
                places=places, spreading=settings.spreading_heads,
            )  # fmt: skip
        if settings.classifier_bias == "labels" and type(model) is SequenceClassifier:
            start_at_labels(self.task, model.classifier, self.examples[str(self.task.train_split)])
        place(model, train or self.train_settings, self.device)
        return model

    @cached_property
    def train_settings(self) -> TrainSettings:
        """The recipe's `[train]` with what "auto" stands for here, for inputs of this length."""
        items = self.dev if self.for_scoring else self.train
        packed, _ = items.batch(np.arange(min(len(items), self.recipe.train.micro_batch_size)))
        lengths = np.diff(packed.offsets)
        return resolve_auto(
            self.recipe.train, self.checkpoint.config, self.device,
            sequences=len(lengths), length=max(1, round(float(lengths.mean()))),
        )  # fmt: skip

    @cached_property
    def schedule(self) -> ScheduleSettings:
        """The recipe's `[schedule]` in steps; epochs are of the items of training, such as a text's windows."""
        s = self.recipe.schedule
        return s.in_steps(len(self.train) if s.epochs is not None else 1, self.recipe.train.batch_size)

    @cached_property
    def majority(self) -> float | None:
        """What knowing only the training labels scores on dev; None where there is no training split to read."""
        split = self.task.train_split
        if split is None:
            return None
        try:
            train = self.examples[split] if split in self.examples else self.task.read(split, self.data)
        except MissingData:
            return None
        return self.kind.baseline(self.task, train, self.dev_examples)

    def results(self, model: nn.Module, precision: str | None = None) -> tuple[dict[str, Any], Any]:
        """What every result says (`results.json`): the model's scores on each dev split, and all that decided them.

        Also its outputs on the first of these splits. The default precision is what training would have; after
        training it is what training had, so that the score is the one by which the model was kept.
        """
        precision = precision or self.train_settings.precision
        model.eval()
        task = self.task
        scores: dict[str, float] = {}
        thresholds: dict[str, float] = {}
        outputs: dict[str, Any] = {}
        for split in task.dev_splits:
            with autocast(precision, self.device):
                outputs[split] = self.kind.predict(task, model, self.features[split], self.device)
            metrics = self.kind.evaluation(task, outputs[split], self.features[split], self.examples[split])
            further = "" if split == task.dev_splits[0] else split.removeprefix("dev_") + "_"
            scores |= {f"{further}{name}": metrics[name] for name in task.metrics if name in metrics}
            thresholds |= {name: metrics[name] for name in ("best_threshold",) if name in metrics}
        record = {
            "kind": "run",
            "task": task.name,
            "title": task.title,
            "metric": task.metrics[0],
            "score": scores[task.metrics[0]],
            "scores": scores,
            **thresholds,
            "majority": self.majority,
            "labels": list(task.labels),
            "predictions": PREDICTIONS,
            **self.provenance,
            **self._length,
            "precision": precision,
        }
        return record, outputs[task.dev_splits[0]]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What decided the numbers, for `results.json`."""
        text = config.dump_toml(dataclasses.replace(self.recipe, train=dataclasses.replace(self.recipe.train, seed=0)))
        joined = [e for examples in self.examples.values() for e in examples]
        return {
            "checkpoint": store.fingerprint(self.checkpoint.directory),
            **({"start": self.start.fingerprint} if self.start else {}),
            "start_from": self.recipe.start_from,
            **({"start_note": self.start_note} if self.start_note else {}),
            "initial": self.recipe.model.initial,
            "head": self.recipe.model.head,
            "recipe": hashlib.sha256(text.encode()).hexdigest()[:16],
            "data": fingerprint(joined),
            "versions": run.versions(),
            "batch_size": self.recipe.train.batch_size,
            "lr": self.recipe.optimizer.peak,
            "max_seq_length": self.recipe.data.max_seq_length,
            "train_examples": self.recipe.data.train_examples,
            "dropout": self.recipe.model.dropout,
            "matching_heads": self.recipe.model.matching_heads,
            "count_heads": self.recipe.model.count_heads,
            "spreading_heads": self.recipe.model.spreading_heads,
            "eval_every": self.recipe.train.eval_every,
            "device": self.device.type,
            "examples": {split: len(e) for split, e in self.examples.items()},
        }

    @property
    def _length(self) -> dict[str, Any]:
        """How long a run trains; nothing of it where a model is only scored."""
        if self.for_scoring:
            return {"steps": 0}
        steps, size = self.schedule.total_steps, self.recipe.train.batch_size
        passes = float(f"{steps * size / len(self.train):.3g}")
        return {"steps": steps, "epochs": passes, "warmup_steps": self.schedule.warmup}

    @property
    def parents(self) -> dict[str, str]:
        """Fingerprints of what a run was made from; it is resumed from the same alone."""
        return {what: str(self.provenance[what]) for what in ("checkpoint", "start", "data") if what in self.provenance}


def _without_training_data(task: Task) -> InputError:
    if task.train_split is None and task.classifier_of:
        model = find_task(task.classifier_of).title
        hint = f"name one as --checkpoint: albert finetune {task.classifier_of} makes it"
        return InputError(f"{task.title} is not trained on: a model fine-tuned on {model} answers it", hint)
    return InputError(f"{task.title} has no training data here", "--data DIR with a train file")


def prepare(
    task: str, checkpoint_name: str, data: str | None, overrides: Sequence[str], device: str, recipes: str = PAPER
) -> Prepared:
    """Resolve the recipe, verify the checkpoint, and open the task; nothing is trained or written."""
    recipe = resolve(task, overrides, recipes)
    found = hub.read((hub.find_start if recipe.model.initial == "start" else hub.find)(checkpoint_name))
    row = open_table(recipe.table, data, found.labels) if recipe.task == "table" else find_task(recipe.task)
    if not row.dev_splits:
        raise InputError(f"{row.title} has no labelled dev data here", "--data DIR with a dev file")
    prepared = Prepared(recipe, row, found, hub.vocabulary_of(found), data, choose_device(device), recipes)
    return with_recipe(prepared, recipe)


def with_recipe(prepared: Prepared, recipe: FinetuneRecipe) -> Prepared:
    """The same by another recipe of its task; inputs are never longer than the checkpoint has positions."""
    task, limit = prepared.task, prepared.checkpoint.config.max_position_embeddings
    if isinstance(task.source, SquadFiles):
        task = dataclasses.replace(task, source=dataclasses.replace(task.source, holdout=recipe.span.holdout))
    if recipe.data.max_seq_length > limit:
        # The paper's 512 is a ceiling, not a wish: a small model simply sees less of a long input.
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, max_seq_length=limit))
    return dataclasses.replace(prepared, recipe=recipe, task=task)


def finetune(
    prepared: Prepared, out: Path, seed: int | None = None, resume: run.Resume = "auto", *, again: bool = True
) -> dict[str, Any]:
    """Train one seed (default: the recipe's) into `out`, keeping the checkpoint that is best on dev.

    Returns its `results.json`. A finished run with the same recipe is verified and not repeated. One that diverged goes
    on from its last checkpoint, or, unless `again`, is not repeated either: it raises what it raised then.
    """
    if seed is not None:
        prepared = prepared.for_seed(seed)
    s = prepared.schedule
    recipe = dataclasses.replace(
        prepared.recipe, schedule=TaskSchedule(s.total_steps, None, s.warmup_steps, s.warmup_ratio)
    )
    if seed is not None:
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, seed=seed))
    with run.reported(out) as status:
        old = run.saved_recipe(out, resume)
        recipe = dataclasses.replace(recipe, train=run.keep_auto(recipe.train, old))
        if old is not None:
            run.check_same(out, old, recipe)
            if (out / RESULTS).is_file():
                done = store.read_json(out / RESULTS)
                run.check_parents(out, done, prepared.parents)
                store.verify(out, "task")
                _remove_steps(out)
                return done
            if not again:
                _raise_if_diverged(out, prepared.parents)
        found = {k: getattr(prepared.train_settings, k) for k in AUTO if getattr(recipe.train, k) == "auto"}
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **found))
        try:
            with use_threads(recipe.train.threads):
                return _Run(prepared, recipe, out).train(status)
        except DivergedError as error:
            if not (out / DIVERGED).is_file():  # seen by an evaluation, not by a step
                store.write_json(out / DIVERGED, {"message": error.message, "parents": dict(prepared.parents)})
            raise


def _raise_if_diverged(out: Path, parents: Mapping[str, str]) -> None:
    """Raise what an earlier start ended with, where it diverged."""
    record = store.read_json(out / DIVERGED) if (out / DIVERGED).is_file() else {}
    if "message" in record:
        run.check_parents(out, record["parents"], parents)
        raise DivergedError(record["message"])


@dataclass
class _Run:
    prepared: Prepared
    recipe: FinetuneRecipe
    out: Path

    def train(self, status: run.Status) -> dict[str, Any]:
        """The run from its newest checkpoint, if it has one, to its results."""
        p, recipe, total = self.prepared, self.recipe, self.prepared.schedule.total_steps
        text = config.dump_toml(recipe)
        settings = recipe.train
        model = p.new_model(settings.seed, settings)
        limit = recipe.data.max_seq_length
        self.job = TaskJob(
            model, p.task, p.train, p.dev, p.dev_examples, p.vocabulary, settings, p.device, text, limit, self._keep
        )
        optimizer = make_optimizer(model, recipe.optimizer)
        store.write_text(self.out / "recipe.toml", text)
        group, parents = Group(), p.parents
        _drop_states_without_their_best(self.out)
        state = run.resume_state(
            self.out, optimizer, lambda d: hub.load_into(model, hub.read(d), "all"), group, parents
        )
        run.running(self.out, status, state.step, total)
        loop = Loop(
            self.job, optimizer, LoopSettings(recipe.optimizer, p.schedule, settings), self.out, group,
            f"{p.task.title} seed {recipe.train.seed}", parents, state,
        )  # fmt: skip
        loop.run()
        self._publish(_best(self.out, state.best_step))
        hub.load_into(model, hub.read(self.out), "all")
        results, outputs = p.results(model, settings.precision)
        results |= {"seed": recipe.train.seed, "best_step": state.best_step}
        train = p.examples[str(p.task.train_split)]
        results["collapsed"] = collapse.reason(p.task, outputs, p.dev, train, self.out / "metrics.jsonl", results)
        if results["collapsed"]:
            console.warn(f"{p.task.title} seed {recipe.train.seed} collapsed: {results['collapsed']}; {_REMEDY}")
        results["seconds"] = round(state.seconds, 2)
        store.write_json(self.out / RESULTS, results)  # from here on the run is done
        _remove_steps(self.out)
        return results

    def _keep(self, step: int, metrics: Mapping[str, float], outputs: Any) -> None:
        """Commit the best model so far with its predictions on dev, and delete those that no state refers to."""
        directory = _best(self.out, step)
        if directory.exists():  # of an attempt that ended before its state was saved
            store.remove_directory(directory)
        parents = {"checkpoint": str(self.prepared.provenance["checkpoint"])}
        with store.commit_directory(directory, "task", parents) as staging:
            self.job.write_model(staging)
            self.job.write_card(staging, metrics)
            p = self.prepared
            p.kind.write_predictions(staging, p.task, outputs, p.dev, p.dev_examples)
        needed = {directory, *(_best(self.out, _best_step(saved)) for saved in store.saved_steps(self.out))}
        for old in set(self.out.glob("best-*")) - needed:
            store.remove_directory(old)

    def _publish(self, best: Path) -> None:
        """Make a committed model the run's own."""
        manifest = store.verify(best, "task")
        with store.publish(self.out, "task", manifest.parents) as staging:
            for path in best.iterdir():
                if path.name != store.MANIFEST:
                    store.write_bytes(staging / path.name, path.read_bytes())


# ---------------------------------------------------------------- the best model beside the states


def _best(out: Path, step: int) -> Path:
    """Where the model of an evaluation is kept while its run goes on."""
    return out / f"best-{step:08d}"


def _best_step(directory: Path) -> int:
    """The best evaluation as a saved state knows it; 0 before the first."""
    return int(store.read_json(directory / "state.json").get("best_step", 0))


def _drop_states_without_their_best(out: Path) -> None:
    """Delete states whose best model is not there whole: training then goes on from an older one and finds it anew."""
    for directory in store.saved_steps(out):
        try:
            if step := _best_step(directory):
                store.verify(_best(out, step), "task")
        except CheckpointError as error:
            console.warn(f"{error.message}; {directory.name} is not gone on from")
            store.remove_directory(directory)


def _remove_steps(out: Path) -> None:
    """Delete what only resuming needs; the best model stands in `out` itself."""
    for directory in (*store.saved_steps(out), *out.glob("best-*")):
        store.remove_directory(directory)
