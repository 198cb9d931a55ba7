"""`albert finetune`: one run of one task with one seed, from a checkpoint to a scored task checkpoint (§4.2).

`finetune` calls the stages of a run in their order, and `FinetuneJob` is the job that the training loop trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from albert_cli import config, console, journal, store
from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import CheckpointError, DiskError, DivergedError
from albert_cli.model import card, hub, weight_files
from albert_cli.ranks import RankGroup, require_one_process
from albert_cli.results import RESULTS, RunResult, read_result
from albert_cli.tasks.base import AnyTask, Array
from albert_cli.tasks.table_sources import find_layout
from albert_cli.training import capacity, checkpoint, run, task_model
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.device import use_threads
from albert_cli.training.job import MicroBatch, TrainingJob, split_micro_batches
from albert_cli.training.loop import DIVERGED_FILE, DivergenceReport, Loop
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.settings import ScheduleSettings
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_provenance import hash_recipe, parent_fingerprints, training_protocol
from albert_cli.training.task_recipe import FinetuneRecipe
from albert_cli.training.task_setup import PreparedTask

_BEST_WEIGHTS = "best.safetensors"  # in a step's directory: the weights of the best evaluation so far
_CHANCE_FRACTION = 0.99  # a run is at chance if its dev loss is at least this fraction of the loss at chance
_COLLAPSE_HINT = "try a lower optimizer.lr, a longer warmup or another seed"

TaskBatch = tuple[PackedBatch, Array]  # a batch, its sequences concatenated without padding, and its labels


@dataclass
class FinetuneJob(TrainingJob[TaskBatch]):
    """A fine-tuning run as a job of the training loop.

    `settings` is the recipe that the run trains with: the task's recipe (`prepared.recipe`) with the run's seed, and
    with a value for every "auto". `best` holds a copy of the weights at the best evaluation so far, in host memory; it
    is empty before the first evaluation.
    """

    prepared: PreparedTask
    inputs: Inputs
    settings: FinetuneRecipe
    model: Any  # a class of `model/heads.py`; the task determines which one
    best: dict[str, Tensor] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The run's name in progress lines and warnings."""
        return f"{self.prepared.task.title} seed {self.settings.train.seed}"

    @property
    def weight_sources(self) -> tuple[str, ...]:
        """The directory of the checkpoint that is fine-tuned."""
        return (str(self.prepared.checkpoint.directory),)

    def sample_step(self, step: int, group: RankGroup) -> list[MicroBatch[TaskBatch]]:
        """Return this rank's micro-batches of a step."""
        train = self.settings.train
        index = self.inputs.train_features.batch_index(train.seed, step, train.batch_size)
        micro_batches: list[MicroBatch[TaskBatch]] = []
        for number, start, stop in split_micro_batches(train.batch_size, train.micro_batch_size, group):
            packed, labels = self.inputs.train_features.batch(index[start:stop])
            assert labels is not None, "training examples have labels"
            flops = costs.batch_flops(self.model.config, np.diff(packed.offsets), masked=0)
            counts = {"loss": stop - start}
            micro_batches.append(MicroBatch(number, (packed, labels), counts, len(packed.ids), flops))
        return micro_batches

    def loss_sums(self, data: TaskBatch) -> dict[str, Tensor]:
        """Return the loss of a micro-batch, summed over its examples."""
        packed, labels = data
        return {"loss": self.prepared.task.loss_sum(self.model, packed, labels, self.prepared.device)}

    def evaluate(self, group: RankGroup) -> dict[str, float]:
        """Compute every metric on the first dev split, which selects the best weights."""
        task = self.prepared.task
        outputs = task.predict(self.model, self.inputs.dev_features, self.prepared.device)
        return task.compute_metrics(outputs, self.inputs.dev_features, self.inputs.dev_examples)

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Copy the weights if the task's first metric is the highest so far (§4.2: early stopping on dev)."""
        score = metrics[self.prepared.task.metrics[0]]
        if state.best_score is None or score > state.best_score:
            state.best_score = score
            state.best_step = state.step
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def write_model(self, directory: Path) -> None:
        """Write the current model and, so that the run can be resumed, the weights of the best evaluation."""
        task = self.prepared.task
        layout = find_layout(task.source).to_settings()
        finetuned = hub.FinetunedTask(task.name, task.inputs, self.settings.data.max_seq_length, layout)
        task.write_model(self.model, directory, finetuned)
        hub.write_vocabulary(self.prepared.vocabulary, directory, self.model.config.max_position_embeddings)
        if self.best:
            save_file(self.best, directory / _BEST_WEIGHTS)

    def publish(self, out: Path, scores: Mapping[str, float], outputs: object) -> None:
        """Turn `out` into the task checkpoint of the current model, with a model card and the predictions on dev."""
        self.best = {}  # the published weights are the best ones, so `write_model` need not add them
        task = self.prepared.task
        with store.publish(out, "task", {"checkpoint": self.prepared.fingerprints["checkpoint"]}) as staging:
            self.write_model(staging)
            class_name = str(store.read_json(staging / "config.json")["architectures"][0])
            architecture = f"For{class_name.partition('For')[2]}"  # "AlbertForX" or "BertForX" becomes "ForX"
            shape = self.model.config
            parameters = costs.count_parameters(shape).with_pooler
            text = card.finetuning_card(shape, parameters, task.title, scores, self.recipe_toml, architecture)
            store.write_text(staging / "README.md", text)
            task.write_predictions(staging, self.inputs.dev_examples, outputs)


def finetune(
    prepared: PreparedTask,
    inputs: Inputs,
    out: Path,
    seed: int | None = None,
    resume: run.ResumeMode = "auto",
    *,
    retry_diverged: bool = True,
) -> RunResult:
    """Train one seed (default: the recipe's) and publish the model that is best on dev as the task checkpoint `out`.

    An unfinished run in `out` resumes. A finished run with the same recipe is verified and not repeated. A diverged run
    continues from its last checkpoint or, without `retry_diverged`, raises its `DivergedError` again. Raises
    `ConfigError` in a process that is one of several ranks.
    """
    require_one_process("fine-tuning", "start the command alone; `albert eval --nproc` trains several seeds at a time")
    prepared = replace(prepared, recipe=prepared.recipe.with_auto_values(inputs.num_training_examples))
    schedule = task_model.resolve_schedule(prepared, inputs)
    parents = parent_fingerprints(prepared, inputs)
    recipe = _recipe_with_steps(prepared.recipe, schedule, seed)
    with run.write_run_status(out) as status:
        saved = run.load_saved_recipe(out, resume, FinetuneRecipe)
        if saved is not None:
            recipe = _resume_recipe(out, saved, recipe, parents)
        schedule.check()  # after the comparison with the saved recipe, whose error is more specific
        if saved is not None:
            finished = _load_finished(prepared, out)
            if finished is not None:
                # A killed run may have left "running" in `status.json`. `write_run_status` replaces it, unless the
                # state is still "starting".
                status.state = "done"
                status.total_steps = schedule.total_steps
                return finished
            if not retry_diverged:
                _raise_saved_divergence(out)
        resolved_train = task_model.resolve_train_settings(prepared, inputs)
        recipe = replace(recipe, train=recipe.train.with_resolved(resolved_train))
        with use_threads(recipe.train.threads), _record_divergence(parents, out):
            job = _create_job(prepared, inputs, recipe)
            optimizer = make_optimizer(job.model, recipe.optimizer)
            store.write_text(out / "recipe.toml", config.dump_toml(recipe))
            group = RankGroup()
            state = run.resume_state(out, job.model, optimizer, group, parents) or TrainState()
            if state.best_step:
                path = checkpoint.step_directory(out, state.step) / _BEST_WEIGHTS
                # Copies, because tensors that stay mapped would keep NFS from deleting the file.
                job.best = {name: tensor.clone() for name, tensor in weight_files.read_tensors(path).items()}
            run.mark_running(out, status, state.step, schedule.total_steps)
            report_step = partial(run.write_step, out, status)
            Loop(job, optimizer, schedule, out, group, job.title, parents, state, report_step=report_step).run()
            return _publish_best(job, out, state, parents, schedule)


def check_run(prepared: PreparedTask, inputs: Inputs, out: Path, seed: int) -> None:
    """Raise `ConfigError` if `finetune` could not resume the run in `out`; do nothing if there is no run.

    The run must have been started from the same checkpoints, data and recipe.
    """
    saved = run.load_saved_recipe(out, "auto", FinetuneRecipe)
    if saved is not None:
        prepared = replace(prepared, recipe=prepared.recipe.with_auto_values(inputs.num_training_examples))
        recipe = _recipe_with_steps(prepared.recipe, task_model.resolve_schedule(prepared, inputs), seed)
        _resume_recipe(out, saved, recipe, parent_fingerprints(prepared, inputs))  # for its errors


def _recipe_with_steps(recipe: FinetuneRecipe, schedule: ScheduleSettings, seed: int | None) -> FinetuneRecipe:
    """Return the recipe that a run saves: with steps instead of epochs, and with the run's seed."""
    recipe = replace(recipe, schedule=replace(recipe.schedule, total_steps=schedule.total_steps, epochs=None))
    if seed is None:
        return recipe
    return replace(recipe, train=replace(recipe.train, seed=seed))


def _resume_recipe(
    out: Path, saved: FinetuneRecipe, recipe: FinetuneRecipe, parents: Mapping[str, str]
) -> FinetuneRecipe:
    """Return the recipe with which a saved run resumes: `recipe` with the saved value for every "auto".

    Raises `ConfigError` if the run in `out` was started from other checkpoints or data, or with another recipe.
    """
    saved_parents = read_parents(out)
    # The parents are compared first, because other data may also change the number of steps.
    if saved_parents is not None:
        run.check_parents(out, saved_parents, parents)
    recipe = replace(recipe, train=recipe.train.with_resolved(saved.train))
    run.check_same_recipe(out, saved, recipe)
    return recipe


def read_parents(out: Path) -> Mapping[str, str] | None:
    """Return the parents of the run in `out`, from its result, its divergence or its newest readable checkpoint.

    Returns None if the run has none of these files yet.
    """
    if (out / RESULTS).is_file():
        return _read_run_result(out).parents
    if (out / DIVERGED_FILE).is_file():
        return store.read_record(out / DIVERGED_FILE, DivergenceReport).parents
    for directory in reversed(store.saved_steps(out)):
        try:
            manifest = store.read_manifest(directory)
        except DiskError:
            raise
        except CheckpointError:  # training resumes from an older checkpoint
            continue
        if manifest is not None:
            return manifest.parents
    return None


def _create_job(prepared: PreparedTask, inputs: Inputs, recipe: FinetuneRecipe) -> FinetuneJob:
    """Create the job of a run with the model that the run starts from; warn first if the memory may not suffice."""
    train = recipe.train
    shape = prepared.checkpoint.config
    sequences = min(train.micro_batch_size, train.batch_size) * inputs.train_features.sequences_per_item
    estimate = capacity.estimate_memory(shape, train, recipe.data.max_seq_length, sequences, prepared.device)
    capacity.warn_training_memory(estimate, sequences, prepared.device)
    return FinetuneJob(prepared, inputs, recipe, task_model.build_model(prepared, inputs, train.seed, train))


def _publish_best(
    job: FinetuneJob, out: Path, state: TrainState, parents: Mapping[str, str], schedule: ScheduleSettings
) -> RunResult:
    """Score the best weights, publish them as the task checkpoint `out`, and write and return the run's result."""
    prepared = job.prepared
    inputs = job.inputs
    task = prepared.task
    precision = job.settings.train.precision
    job.model.load_state_dict(job.best)
    scored = task_model.score_model(prepared, inputs, job.model, precision)
    job.publish(out, scored.scores, scored.outputs)
    score = scored.scores[task.metrics[0]]
    majority = task_model.score_majority(prepared, inputs)
    beats_majority = majority is None or score > majority
    collapsed = find_collapse(task, scored.outputs, inputs, out / journal.JOURNAL, beats_majority=beats_majority)
    if collapsed is not None:
        console.warn(f"{job.title} collapsed: {collapsed}; {_COLLAPSE_HINT}")
    result = RunResult(
        task=task.name,
        title=task.title,
        metric=task.metrics[0],
        labels=list(task.labels),
        score=score,
        scores=scored.scores,
        best_threshold=scored.best_threshold,
        majority=majority,
        seed=job.settings.train.seed,
        best_step=state.best_step,
        collapsed=collapsed,
        checkpoint=parents["checkpoint"],
        intermediate=parents.get("intermediate"),
        recipe=hash_recipe(prepared.recipe),  # not of `job.settings`, whose values for "auto" depend on the machine
        data=inputs.fingerprint,
        examples={split: len(examples) for split, examples in inputs.examples.items()},
        protocol=training_protocol(prepared, inputs, schedule),
        device=prepared.device.type,
        precision=precision,
        versions=run.library_versions(),
        seconds=round(state.seconds, 2),
    )
    result.write(out / RESULTS)  # the run is finished once this file exists
    checkpoint.prune_checkpoints(out, keep=0)  # only resuming needs them, and the best model is in `out` itself
    return result


def _read_run_result(out: Path) -> RunResult:
    """Read the result of the finished run in `out`; raise `CheckpointError` if it is damaged."""
    result = read_result(out / RESULTS)
    if not isinstance(result, RunResult):
        raise CheckpointError(f"{out / RESULTS}: damaged: its kind is {result.kind!r}, expected 'run'")
    return result


def _load_finished(prepared: PreparedTask, out: Path) -> RunResult | None:
    """Return the verified result of the run in `out`; None if the run is not finished.

    Raises `CheckpointError` if the result is damaged.
    """
    if not (out / RESULTS).is_file():
        return None
    result = _read_run_result(out)
    store.verify(out, "task")
    # Some dev data lack further metrics, such as SQuAD 2.0's `no_answer_em` if all questions have an answer.
    if (metric := prepared.task.metrics[0]) not in result.scores:
        raise CheckpointError(f"{out / RESULTS}: damaged: scores.{metric} is missing")
    checkpoint.prune_checkpoints(out, keep=0)  # a run that was killed after it wrote its result still has them
    return result


def _raise_saved_divergence(out: Path) -> None:
    """Raise the `DivergedError` of an earlier attempt again, if the attempt left `diverged.json`."""
    if (out / DIVERGED_FILE).is_file():
        diverged = store.read_record(out / DIVERGED_FILE, DivergenceReport)
        raise DivergedError(diverged.message)


@contextmanager
def _record_divergence(parents: Mapping[str, str], out: Path) -> Iterator[None]:
    """Write `diverged.json` if the block raises `DivergedError`, unless the training loop wrote it already."""
    try:
        yield
    except DivergedError as error:
        if not (out / DIVERGED_FILE).is_file():  # an evaluation diverged, not a step
            store.write_json(out / DIVERGED_FILE, asdict(DivergenceReport(error.message, dict(parents))))
        raise


def find_collapse(task: AnyTask, outputs: object, inputs: Inputs, log: Path, *, beats_majority: bool) -> str | None:
    """Return why a run counts as collapsed: constant predictions, or a dev loss at chance; None if it learned.

    outputs: the published model's outputs on dev. log: the run's journal. beats_majority: the model scores higher than
    a predictor that knows only the training labels, or there is no such predictor. Such a model has learned, whatever
    its dev loss.

    Training losses are not compared with chance, because the journal has their means over varying numbers of steps.
    """
    constant_predictions = task.describe_collapse(outputs, inputs.dev_features)
    if constant_predictions:
        return constant_predictions
    if beats_majority:
        return None
    chance_loss = task.chance_loss(inputs.train_examples)
    if not chance_loss:  # None: the task defines none; 0: all training labels are equal
        return None
    losses = [float(row["eval"]["loss"]) for row in journal.read_journal(log) if "loss" in row.get("eval", {})]
    if losses and min(losses) >= _CHANCE_FRACTION * chance_loss:
        return f"loss at chance (lowest {min(losses):.4g}; without the texts it is {chance_loss:.4g})"
    return None
