"""`albert finetune`: one seeded run of one task, from a pretrained checkpoint to a scored task checkpoint (§4.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from albert_cli import config, console, journal, store
from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, DivergedError
from albert_cli.model import card, hub
from albert_cli.ranks import Group
from albert_cli.results import RESULTS, Result
from albert_cli.tasks.base import AnyTask, Array
from albert_cli.training import capacity, checkpoint, run
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.device import use_threads
from albert_cli.training.loop import DIVERGED, Job, Loop, MicroBatch, micro_batches
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.settings import AUTO
from albert_cli.training.task_recipe import FinetuneRecipe, TaskSchedule
from albert_cli.training.task_setup import Prepared

_AT_CHANCE = 0.99  # of the loss of a model that knows only how often each label occurs
_REMEDY = "a lower optimizer.lr, a longer warm-up or another seed may help"


@dataclass
class TaskJob(Job):
    """One fine-tuning run as a job of the loop; the best model so far stands in `out` with its predictions on dev."""

    prepared: Prepared
    settings: FinetuneRecipe  # the task's recipe with the run's seed, and numbers in the place of "auto"
    model: Any
    out: Path

    @property
    def loss_names(self) -> tuple[str, ...]:
        return ("loss",)

    def draw(self, step: int, group: Group) -> list[MicroBatch]:
        settings, train = self.settings.train, self.prepared.inputs.train
        index = train.batch_index(settings.seed, step, settings.batch_size)
        parts = []
        for number, start, stop in micro_batches(settings.batch_size, settings.micro_batch_size, group):
            packed, labels = train.batch(index[start:stop])
            flops = costs.batch_flops(self.model.config, np.diff(packed.offsets), 0)
            parts.append(MicroBatch(number, (packed, labels), {"loss": stop - start}, len(packed.ids), flops))
        return parts

    def loss_sums(self, data: tuple[PackedBatch, Array]) -> dict[str, Tensor]:
        return {"loss": self.prepared.task.loss_sum(self.model, *data, self.prepared.device)}

    def evaluate(self, group: Group) -> dict[str, float]:
        p = self.prepared
        self.outputs = p.task.predict(self.model, p.inputs.dev, p.device)
        return p.task.evaluation(self.outputs, p.inputs.dev, p.inputs.dev_examples)

    def score(self, metrics: Mapping[str, float]) -> float:
        """The task's first metric chooses the checkpoint (§4.2: early stopping on dev)."""
        return metrics[self.prepared.task.metrics[0]]

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Commit the best model so far with its predictions on dev, and delete those that no state refers to."""
        p, directory = self.prepared, _best(self.out, state.step)
        parents = {"checkpoint": str(p.provenance["checkpoint"])}
        # There is one where an attempt ended before its state was saved.
        with store.commit_directory(directory, "task", parents, replace=True) as staging:
            self.write_model(staging)
            named = str(store.read_json(staging / "config.json")["architectures"][0])
            architecture = f"For{named.partition('For')[2]}"
            text = card.finetuned(self.model.config, p.task.title, metrics, self.recipe, architecture)
            store.write_text(staging / "README.md", text)
            p.task.write_predictions(staging, p.inputs.dev_examples, self.outputs)
        steps = (checkpoint.read_state(saved).best_step for saved in store.saved_steps(self.out))
        needed = {directory, *(_best(self.out, step) for step in steps)}
        for old in set(self.out.glob("best-*")) - needed:
            store.remove_directory(old)

    def write_model(self, directory: Path) -> None:
        task = self.prepared.task
        made_for = hub.FinetunedFor(task.name, task.inputs, self.settings.data.max_seq_length)
        task.write_model(self.model, directory, made_for)
        self.prepared.inputs.vocabulary.copy_to(directory, self.model.config.max_position_embeddings)


@dataclass(frozen=True)
class Ended:
    """`diverged.json`: why a run has no score, and what it was made from."""

    message: str
    parents: dict[str, str]


def finetune(
    prepared: Prepared, out: Path, seed: int | None = None, resume: run.Resume = "auto", *, again: bool = True
) -> Result:
    """Train one seed (default: the recipe's) into `out`, keeping the checkpoint that is best on dev.

    Returns its result. A finished run with the same recipe is verified and not repeated. One that diverged goes
    on from its last checkpoint, or, unless `again`, is not repeated either: it raises what it raised then.
    """
    train = prepared.recipe.train if seed is None else dataclasses.replace(prepared.recipe.train, seed=seed)
    prepared = prepared.for_seed(train.seed)
    s = prepared.schedule
    schedule = TaskSchedule(s.total_steps, None, s.warmup_steps, s.warmup_ratio)
    recipe = dataclasses.replace(prepared.recipe, schedule=schedule, train=train)
    with run.reported(out) as status:
        old = run.saved_recipe(out, resume)
        recipe = dataclasses.replace(recipe, train=run.keep_auto(recipe.train, old))
        if old is not None:
            run.check_same(out, old, recipe)
            if (out / RESULTS).is_file():
                done = Result.read(out / RESULTS)
                run.check_parents(out, done.as_json(), prepared.parents)
                store.verify(out, "task")
                if done.score is None or not done.scores.keys() >= set(prepared.task.metrics):
                    raise CheckpointError(f"{out / RESULTS}: damaged, it lacks a score")
                _remove_steps(out)
                status.state, status.total_steps = "done", s.total_steps  # a kill may have left it at "running"
                return done
            if not again and (out / DIVERGED).is_file():
                ended = store.read_record(out / DIVERGED, Ended)
                run.check_parents(out, ended.parents, prepared.parents)
                raise DivergedError(ended.message)
        found = {k: getattr(prepared.train_settings, k) for k in AUTO if getattr(recipe.train, k) == "auto"}
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **found))
        try:
            with use_threads(recipe.train.threads):
                return _train(prepared, recipe, out, status)
        except DivergedError as error:
            if not (out / DIVERGED).is_file():  # seen by an evaluation, not by a step
                store.write_json(out / DIVERGED, {"message": error.message, "parents": dict(prepared.parents)})
            raise


def _train(prepared: Prepared, recipe: FinetuneRecipe, out: Path, status: run.Status) -> Result:
    p, seed, text = prepared, recipe.train.seed, config.dump_toml(recipe)
    length, few = recipe.data.max_seq_length, min(recipe.train.micro_batch_size, recipe.train.batch_size)
    need = capacity.needed(p.checkpoint.config, recipe.train, length, few, p.device)
    capacity.warn(need["memory_bytes_estimated"], few, p.device)
    model = p.new_model(seed, recipe.train)
    job = TaskJob(p, recipe, model, out)
    optimizer = make_optimizer(model, recipe.optimizer)
    store.write_text(out / "recipe.toml", text)
    group = Group()
    _drop_states_without_their_best(out)
    state = run.resume_state(out, model, optimizer, group, p.parents)
    run.running(out, status, state.step, p.schedule.total_steps)
    Loop(job, optimizer, p.schedule, out, group, f"{p.task.title} seed {seed}", p.parents, state).run()
    best = _best(out, state.best_step)
    with store.publish(out, "task", store.verify(best, "task").parents) as staging:
        for path in best.iterdir():
            if path.name != store.MANIFEST:
                store.write_bytes(staging / path.name, path.read_bytes())
    hub.load_into(model, hub.read(out), "all")
    result, outputs = p.results(model, recipe.train.precision)
    collapsed = collapse_reason(p.task, outputs, p.inputs.dev, p.inputs.train_examples, out / journal.JOURNAL, result)
    if collapsed:
        console.warn(f"{p.task.title} seed {seed} collapsed: {collapsed}; {_REMEDY}")
    of_run = {"seed": seed, "best_step": state.best_step, "collapsed": collapsed, "seconds": round(state.seconds, 2)}
    result = result.model_copy(update=of_run)
    result.write(out / RESULTS)  # from here on the run is done
    _remove_steps(out)
    return result


def collapse_reason(
    task: AnyTask, outputs: Any, dev: Any, train: Sequence[Any], log: Path, result: Result
) -> str | None:
    """Why a run counts as collapsed, in a few words: constant predictions, or a loss at chance. None for any other.

    `outputs` are those of the kept model on the features `dev`, `log` is the run's journal.
    Only evaluations are looked at: the training losses of the journal are means since a line or a resumption.
    """
    if same := task.constant_output(outputs, dev):
        return same
    majority, chance = result.majority, task.chance_loss(train)
    if majority is None or result.score is None or result.score > majority or not chance:
        return None
    losses = [float(row["eval"]["loss"]) for row in journal.read(log) if "loss" in row.get("eval", {})]
    if losses and min(losses) >= _AT_CHANCE * chance:
        return f"loss at chance ({min(losses):.3f} at best; the label frequencies alone give {chance:.3f})"
    return None


# ---------------------------------------------------------------- the best model beside the states


def _best(out: Path, step: int) -> Path:
    """Where the model of an evaluation is kept while its run goes on."""
    return out / f"best-{step:08d}"


def _drop_states_without_their_best(out: Path) -> None:
    """Delete states whose best model is not there whole: training then goes on from an older one and finds it anew."""
    for directory in store.saved_steps(out):
        try:
            if step := checkpoint.read_state(directory).best_step:  # 0 before the first evaluation
                store.verify(_best(out, step), "task")
        except CheckpointError as error:
            console.warn(f"{error.message}; {directory.name} is not used to resume")
            store.remove_directory(directory)


def _remove_steps(out: Path) -> None:
    """Delete what only resuming needs; the best model stands in `out` itself."""
    for directory in (*store.saved_steps(out), *out.glob("best-*")):
        store.remove_directory(directory)
