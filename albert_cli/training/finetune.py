"""`albert finetune`: one seeded run of one task, from a pretrained checkpoint to a scored task checkpoint (§4.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from albert_cli import config, console, journal, store
from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, DivergedError
from albert_cli.model import card, hub
from albert_cli.ranks import RankGroup
from albert_cli.results import RESULTS, Result
from albert_cli.tasks.base import AnyTask, Array
from albert_cli.training import capacity, checkpoint, run
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.device import use_threads
from albert_cli.training.loop import DIVERGED_FILE, Loop, MicroBatch, TrainingJob, split_micro_batches
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.settings import AUTO_KEYS
from albert_cli.training.task_recipe import FinetuneRecipe, TaskScheduleSettings
from albert_cli.training.task_setup import PreparedTask

_BEST_WEIGHTS = "best.safetensors"  # of a step's directory
_CHANCE_FRACTION = 0.99  # of the loss of a model that knows only how often each label occurs
_COLLAPSE_HINT = "a lower optimizer.lr, a longer warm-up or another seed may help"

TaskBatch = tuple[PackedBatch, Array]  # a packed batch and its labels


@dataclass
class FinetuneJob(TrainingJob[TaskBatch]):
    """One fine-tuning run as a job of the loop; `best` has the weights of its best evaluation so far, on the host."""

    prepared: PreparedTask
    settings: FinetuneRecipe  # the task's recipe with the run's seed, and numbers in the place of "auto"
    model: Any
    best: dict[str, Tensor] = field(default_factory=dict)

    def sample_step(self, step: int, group: RankGroup) -> list[MicroBatch[TaskBatch]]:
        settings, train = self.settings.train, self.prepared.inputs.train
        index = train.batch_index(settings.seed, step, settings.batch_size)
        parts: list[MicroBatch[TaskBatch]] = []
        for number, start, stop in split_micro_batches(settings.batch_size, settings.micro_batch_size, group):
            packed, labels = train.batch(index[start:stop])
            assert labels is not None
            flops = costs.batch_flops(self.model.config, np.diff(packed.offsets), 0)
            parts.append(MicroBatch(number, (packed, labels), {"loss": stop - start}, len(packed.ids), flops))
        return parts

    def loss_sums(self, data: TaskBatch) -> dict[str, Tensor]:
        return {"loss": self.prepared.task.loss_sum(self.model, *data, self.prepared.device)}

    def evaluate(self, group: RankGroup) -> dict[str, float]:
        p = self.prepared
        outputs = p.task.predict(self.model, p.inputs.dev, p.device)
        return p.task.evaluation(outputs, p.inputs.dev, p.inputs.dev_examples)

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Copy the weights where the task's first metric is greater than ever (§4.2: early stopping on dev)."""
        score = metrics[self.prepared.task.metrics[0]]
        if state.best_score is None or score > state.best_score:
            state.best_score, state.best_step = score, state.step
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def write_model(self, directory: Path) -> None:
        """The model as it is and, for the run to go on with, the best so far beside it."""
        task = self.prepared.task
        made_for = hub.FinetunedTask(task.name, task.inputs, self.settings.data.max_seq_length)
        task.write_model(self.model, directory, made_for)
        self.prepared.inputs.vocabulary.copy_to(directory, self.model.config.max_position_embeddings)
        if self.best:
            save_file(self.best, directory / _BEST_WEIGHTS)

    def publish(self, out: Path, scores: Mapping[str, float], outputs: Any) -> None:
        """Make `out` the task checkpoint of the model as it is, with its card and its predictions on dev."""
        p, self.best = self.prepared, {}
        with store.publish(out, "task", {"checkpoint": str(p.provenance["checkpoint"])}) as staging:
            self.write_model(staging)
            named = str(store.read_json(staging / "config.json")["architectures"][0])
            architecture = f"For{named.partition('For')[2]}"
            shape = self.model.config
            parameters = costs.count_parameters(shape).with_pooler
            text = card.finetuning_card(shape, parameters, p.task.title, scores, self.recipe, architecture)
            store.write_text(staging / "README.md", text)
            p.task.write_predictions(staging, p.inputs.dev_examples, outputs)


@dataclass(frozen=True)
class DivergedRun:
    """`diverged.json`: why a run has no score, and what it was made from."""

    message: str
    parents: dict[str, str]


def finetune(
    prepared: PreparedTask, out: Path, seed: int | None = None, resume: run.ResumeMode = "auto", *, again: bool = True
) -> Result:
    """Train one seed (default: the recipe's) into `out`, keeping the checkpoint that is best on dev.

    Returns its result. A finished run with the same recipe is verified and not repeated. One that diverged goes
    on from its last checkpoint, or, unless `again`, is not repeated either: it raises what it raised then.
    """
    train = prepared.recipe.train if seed is None else dataclasses.replace(prepared.recipe.train, seed=seed)
    prepared = prepared.for_seed(train.seed)
    s = prepared.schedule
    schedule = TaskScheduleSettings(s.total_steps, None, s.warmup_steps, s.warmup_ratio)
    recipe = dataclasses.replace(prepared.recipe, schedule=schedule, train=train)
    with run.write_run_status(out) as status:
        old = run.load_saved_recipe(out, resume, FinetuneRecipe)
        recipe = dataclasses.replace(
            recipe, train=run.reuse_resolved_auto(recipe.train, None if old is None else old.train)
        )
        if old is not None:
            run.check_same_recipe(out, old, recipe)
            if (out / RESULTS).is_file():
                done = _load_finished(prepared, out)
                status.state, status.total_steps = "done", s.total_steps  # a kill may have left it at "running"
                return done
            if not again and (out / DIVERGED_FILE).is_file():
                ended = store.read_record(out / DIVERGED_FILE, DivergedRun)
                run.check_parents(out, ended.parents, prepared.parents)
                raise DivergedError(ended.message)
        found = {k: getattr(prepared.train_settings, k) for k in AUTO_KEYS if getattr(recipe.train, k) == "auto"}
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **found))
        try:
            with use_threads(recipe.train.threads):
                return _train(prepared, recipe, out, status)
        except DivergedError as error:
            if not (out / DIVERGED_FILE).is_file():  # seen by an evaluation, not by a step
                store.write_json(out / DIVERGED_FILE, {"message": error.message, "parents": dict(prepared.parents)})
            raise


def _load_finished(prepared: PreparedTask, out: Path) -> Result:
    """The result of a run that is done, verified; raises `CheckpointError` where it is damaged or of other parents."""
    done = Result.read(out / RESULTS)
    run.check_parents(out, done.as_json(), prepared.parents)
    store.verify(out, "task")
    if done.score is None or not done.scores.keys() >= set(prepared.task.metrics):
        raise CheckpointError(f"{out / RESULTS}: damaged, it lacks a score")
    _remove_step_checkpoints(out)
    return done


def _train(prepared: PreparedTask, recipe: FinetuneRecipe, out: Path, status: run.RunStatus) -> Result:
    p, seed, text = prepared, recipe.train.seed, config.dump_toml(recipe)
    length, few = recipe.data.max_seq_length, min(recipe.train.micro_batch_size, recipe.train.batch_size)
    capacity.warn_training_memory(
        capacity.estimate_memory(p.checkpoint.config, recipe.train, length, few, p.device), few, p.device
    )
    model = p.new_model(seed, recipe.train)
    job = FinetuneJob(p, recipe, model)
    optimizer = make_optimizer(model, recipe.optimizer)
    store.write_text(out / "recipe.toml", text)
    group = RankGroup()
    state = run.resume_state(out, model, optimizer, group, p.parents)
    if state.best_step:
        job.best = hub.read_tensors(checkpoint.step_directory(out, state.step) / _BEST_WEIGHTS)
    run.mark_running(out, status, state.step, p.schedule.total_steps)
    Loop(job, optimizer, p.schedule, out, group, f"{p.task.title} seed {seed}", p.parents, state).run()
    model.load_state_dict(job.best)
    result, outputs = p.results(model, recipe.train.precision)
    job.publish(out, result.scores, outputs)
    collapsed = collapse_reason(p.task, outputs, p.inputs.dev, p.inputs.train_examples, out / journal.JOURNAL, result)
    if collapsed:
        console.warn(f"{p.task.title} seed {seed} collapsed: {collapsed}; {_COLLAPSE_HINT}")
    of_run = {"seed": seed, "best_step": state.best_step, "collapsed": collapsed, "seconds": round(state.seconds, 2)}
    result = result.model_copy(update=of_run)
    result.write(out / RESULTS)  # from here on the run is done
    _remove_step_checkpoints(out)
    return result


def collapse_reason(
    task: AnyTask, outputs: Any, dev: Any, train: Sequence[Any], log: Path, result: Result
) -> str | None:
    """Why a run counts as collapsed, in a few words: constant predictions, or a loss at chance. None for any other.

    Only evaluations are looked at: the training losses of the journal are means since a line or a resumption.
    """
    if same := task.describe_collapse(outputs, dev):
        return same
    majority, chance = result.majority, task.chance_loss(train)
    if majority is None or result.score is None or result.score > majority or not chance:
        return None
    losses = [float(row["eval"]["loss"]) for row in journal.read_journal(log) if "loss" in row.get("eval", {})]
    if losses and min(losses) >= _CHANCE_FRACTION * chance:
        return f"loss at chance ({min(losses):.3f} at best; the label frequencies alone give {chance:.3f})"
    return None


def _remove_step_checkpoints(out: Path) -> None:
    """Delete what only resuming needs; the best model stands in `out` itself."""
    for directory in store.saved_steps(out):
        store.remove_directory(directory)
