"""Score a task checkpoint on its labeled dev or test split without training, and predict unlabeled test sets with it.

`prepare_evaluation` decides whether a checkpoint is scored or trained: it is scored if it has the task's head.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from albert_cli import config, console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.output import TEST_PREDICTIONS, best_run, read_earlier_result, require_own_output
from albert_cli.inference.table_predictions import PredictExamples
from albert_cli.model import hub
from albert_cli.results import RESULTS, EvaluationResult, RunResult, ScoredResult, read_result
from albert_cli.tasks.base import PREDICTIONS, AnyTask, Example
from albert_cli.tasks.holdout import SplitFiles
from albert_cli.tasks.squad.data import SquadFiles
from albert_cli.tasks.squad.task import OFFICIAL_FILES
from albert_cli.tasks.table_sources import TableSource
from albert_cli.tasks.token_classification import NER
from albert_cli.training import capacity, run
from albert_cli.training.device import autocast
from albert_cli.training.task_inputs import Inputs, encode_examples
from albert_cli.training.task_model import resolve_train_settings, score_majority, score_model
from albert_cli.training.task_provenance import hash_recipe, parent_fingerprints
from albert_cli.training.task_recipe import FinetuneRecipe, load_recipe
from albert_cli.training.task_setup import (
    OpenCheckpoint,
    OpenCheckpoints,
    PreparedTask,
    TaskRequest,
    prepare_task,
    prepare_with_recipe,
)

SCORING_FILES = (RESULTS, PREDICTIONS, TEST_PREDICTIONS, *OFFICIAL_FILES)
# A trained run has its own weights, head and class names. So the request's values of these keys, which are for the
# initial checkpoint, do not apply to the run.
_RUN_OVERRIDES = ("model.weights=pretrained", "model.head=auto", "model.labels=[]")


def prepare_evaluation(
    name: str, request: TaskRequest, opened: OpenCheckpoints | None = None, *, can_train: bool = True
) -> PreparedTask:
    """Prepare a task for scoring if the checkpoint has the task's head, else for training.

    Any checkpoint is trained if the request has `retrain`, if `model.weights` is not "pretrained", or if `model.head`
    is "new". can_train: False if the command only scores, so that an error does not propose training.

    Raises `ConfigError` for a head to score whose classes have no names, because the head may belong to another task.
    Also raises it for `--split test` if the checkpoint would be trained. Raises `CheckpointError` if `model.labels`
    names other classes than the task's.
    """
    prepared = prepare_task(name, request, opened, may_be_scored=not request.retrain)
    task = prepared.task
    model_settings = prepared.recipe.model
    checkpoint = prepared.checkpoint
    training_is_requested = request.retrain or model_settings.weights != "pretrained" or model_settings.head == "new"
    if training_is_requested or not task.has_head(checkpoint):
        if request.split == "test":
            raise ConfigError(
                f"--split test scores a model of {task.title}, but {checkpoint.directory} would be trained",
                "fine-tune it first, which selects the best step on dev, and score the result",
            )
        if model_settings.labels and not training_is_requested:
            # The names in `model.labels` must be the task's. The call raises `CheckpointError` if they are not.
            task.reorder_labels(checkpoint)
        if prepared.recipe.task in ("table", NER) and checkpoint.output_names and not request.retrain:
            # Training reads the usual columns and the classes of the data, not those of the checkpoint.
            return prepare_task(name, request, opened, may_be_scored=False)
        return prepared
    if model_settings.head == "auto" and task.labels and checkpoint.has_unnamed_labels:  # a regression has no labels
        raise _unnamed_labels(prepared, can_train=can_train)
    finetuned = checkpoint.finetuned_task
    expected_tasks = (task.name, task.classifier_of)  # MNLI's models are meant to be scored on AX
    if finetuned is not None and finetuned.task not in expected_tasks:
        console.info(
            f"{checkpoint.directory}: was fine-tuned for {finetuned.task} and is scored on {task.title} without "
            "training (--retrain fine-tunes it)"
        )
    source = OpenCheckpoint(checkpoint, prepared.vocabulary, prepared.fingerprints["checkpoint"])
    return prepare_with_recipe(_scoring_recipe(name, prepared), request, task, source, needs_training=False)


def _unnamed_labels(prepared: PreparedTask, *, can_train: bool) -> ConfigError:
    """Return the error for a head whose classes have no names; can_train: True if the command can train a new head."""
    checkpoint = prepared.checkpoint
    task = prepared.task
    remedies = [
        f"use -s model.head=checkpoint to score them as {', '.join(task.output_names)} in this order",
        "-s 'model.labels=[…]' to name them in the checkpoint's order",
    ]
    if can_train:
        remedies.append("-s model.head=new to train a new head")
    return ConfigError(
        f"{checkpoint.directory}: the classes have no names ({', '.join(checkpoint.output_names)}) and may not be "
        f"the classes of {task.title}",
        f"{', '.join(remedies[:-1])}, or {remedies[-1]}",
    )


def _scoring_recipe(name: str, prepared: PreparedTask) -> FinetuneRecipe:
    """Return the task's recipe with the settings with which the checkpoint's fine-tuning encoded its inputs.

    The request's overrides have precedence over these settings.
    """
    checkpoint = prepared.checkpoint
    request = prepared.request
    if checkpoint.finetuned_task is None:
        return prepared.recipe
    overrides = [*prepared.task.overrides_from_checkpoint(checkpoint.finetuned_task), *request.overrides]
    try:
        return load_recipe(name, overrides, request.recipes)
    except ConfigError as error:  # `prepare_task` accepted the request's overrides, so the checkpoint's are invalid
        raise CheckpointError(f"{checkpoint.directory / 'config.json'}: {error.message}") from None


def load_scoring_inputs(
    name: str,
    request: TaskRequest,
    first_prepared: PreparedTask,
    directories: Sequence[Path],
    opened: OpenCheckpoints | None = None,
) -> Inputs:
    """Load the inputs to score models; dev has no rows on which the models are known to be trained.

    If the data are a single file, all of its rows are dev. If a run was trained on this file, dev is only the part that
    its training held out; the rest is then the training split of the inputs. If several runs were trained on it, one of
    them decides, and a message is printed if they held out different parts.

    first_prepared: the first model, prepared for scoring. directories: the checkpoints of all models. opened: the
    checkpoints that this command has already read. Prints which examples of a single file are scored.
    """
    inputs = first_prepared.load_inputs()
    if request.split == "test" or not _is_single_file(first_prepared.task.source, first_prepared.request.data):
        return inputs
    rows = len(inputs.dev_examples)
    results = {path: read_result(path / RESULTS) for path in directories if (path / RESULTS).is_file()}
    # A run with more examples than the file has rows was trained on other data. It may have fewer, because training
    # leaves out some, such as questions whose answers are not in their context.
    data_fingerprints = {
        path: result.data
        for path, result in results.items()
        if isinstance(result, RunResult) and sum(result.examples.values()) <= rows
    }
    opened = {} if opened is None else opened
    all_overrides = list(dict.fromkeys(map(_example_overrides, data_fingerprints)))
    # Load the file as the training of each run did. If the fingerprint is that of a run, it was trained on this file.
    for overrides in all_overrides:
        all_settings = (*overrides.train, *overrides.dev, *request.overrides)
        trained_request = replace(request, overrides=all_settings, checkpoint=str(directories[0]))
        prepared = prepare_evaluation(name, trained_request, opened, can_train=False)
        task = replace(prepared.task, scores_whole_file=False)
        training_inputs = replace(prepared, task=task, needs_training=True).load_inputs()
        if training_inputs.fingerprint in data_fingerprints.values():
            held_out = len(training_inputs.dev_examples)
            console.info(f"{first_prepared.request.data}: the {held_out:,} examples that training held out are scored")
            if len({other.dev for other in all_overrides if other.dev}) > 1:
                console.info(
                    f"{first_prepared.request.data}: the models held out different examples; "
                    "if a model was trained on some of the scored ones, the scores are too high"
                )
            return training_inputs
    console.info(
        f"{first_prepared.request.data}: all {rows:,} examples are scored; "
        "if a model was trained on some of them, the scores are too high"
    )
    return inputs


@dataclass(frozen=True)
class _ExampleOverrides:
    """The settings that selected a run's training and dev examples, as overrides; empty if the run has no recipe."""

    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()


def _example_overrides(directory: Path) -> _ExampleOverrides:
    """Return the overrides that select a run's examples.

    The settings in `[span]` also affect the examples, but `_scoring_recipe` already takes these from the checkpoint.
    """
    path = directory / "recipe.toml"
    if not path.is_file():
        return _ExampleOverrides()
    recipe = config.validate_recipe(FinetuneRecipe, store.read_toml(path), str(path))
    data = recipe.data
    table = recipe.table
    train = [f"data.train_examples={data.train_examples}"]
    if data.train_examples:  # without a subset, the examples do not depend on the seed
        train.append(f"train.seed={recipe.train.seed}")
    dev = [f"data.dev_examples={data.dev_examples}", f"table.holdout={table.holdout}"]
    dev.append(f"table.holdout_seed={table.holdout_seed}")
    return _ExampleOverrides(tuple(train), tuple(dev))


def _is_single_file(source: object, data: str | None) -> bool:
    """Return True if a task's data are a single file, of which training holds out a part as dev."""
    if isinstance(source, SquadFiles):
        return data is not None and Path(data).is_file()
    files = source.tables if isinstance(source, TableSource) else source
    return isinstance(files, SplitFiles) and files.is_single_file


def score_checkpoint(prepared: PreparedTask, inputs: Inputs, out: Path) -> ScoredResult:
    """Score a task checkpoint and write predictions and result to `out`.

    Returns the result in `out` if there is one already; raises `ConfigError` if that result is of another checkpoint,
    recipe or data set.
    """
    started = time.monotonic()
    task = prepared.task
    require_own_output(out, *SCORING_FILES)
    parents = parent_fingerprints(prepared, inputs)
    recipe_hash = hash_recipe(prepared.recipe)
    with store.lock(out):
        if (earlier := read_earlier_result(out, ScoredResult)) is not None:
            saved = {"task": earlier.task, **earlier.parents, "recipe": earlier.recipe}
            run.check_parents(out, saved, {"task": task.name, **parents, "recipe": recipe_hash})
            return earlier
        precision = resolve_train_settings(prepared, inputs).precision
        scored = score_model(prepared, inputs, load_model(prepared), precision)
        task.write_predictions(out, inputs.dev_examples, scored.outputs)
        result = ScoredResult(
            task=task.name,
            title=task.title,
            metric=task.metrics[0],
            labels=list(task.labels),
            score=scored.scores[task.metrics[0]],
            scores=scored.scores,
            best_threshold=scored.best_threshold,
            majority=score_majority(prepared, inputs),
            checkpoint=parents["checkpoint"],
            recipe=recipe_hash,
            data=inputs.fingerprint,
            examples={split: len(examples) for split, examples in inputs.examples.items()},
            max_seq_length=prepared.recipe.data.max_seq_length,
            device=prepared.device.type,
            precision=precision,
            versions=run.library_versions(),
            seconds=round(time.monotonic() - started, 2),
        )
        result.write(out / RESULTS)
    return result


def load_model(prepared: PreparedTask) -> nn.Module:
    """Load the checkpoint's encoder and head onto the device of the task; warn if the memory may not suffice."""
    capacity.warn_inference_memory(prepared.checkpoint.config, prepared.device)
    return prepared.task.load(prepared.checkpoint).to(prepared.device).eval()


def predict_examples(
    prepared: PreparedTask, examples: Sequence[Example], task: AnyTask | None = None, precision: str = "fp32"
) -> object:
    """Return the outputs of the checkpoint's head for N examples, in the task's form, such as logits [N, classes].

    task: replaces `prepared.task`; its class order, which may differ, is the order of the outputs. precision: of
    matmuls, "fp32" or "bf16".
    """
    features = encode_examples(prepared.task, examples, prepared.vocabulary, prepared.recipe.data.max_seq_length)
    if task is not None:
        prepared = replace(prepared, task=task)  # loading a model puts its outputs into the order of the task's classes
    model = load_model(prepared)
    with autocast(precision, prepared.device):
        return prepared.task.predict(model, features, prepared.device)


def predict_with_run(prepared: PreparedTask, directory: Path) -> PredictExamples:
    """Return a function that predicts examples with the model of a finished run of `prepared` in `directory`.

    The function reads the model when it is called, and predicts in the run's precision, in which dev was scored.
    """

    def predict(examples: Sequence[Example]) -> object:
        trained = replace(prepared, checkpoint=hub.read_checkpoint(directory))
        return predict_examples(trained, examples, precision=_read_precision(directory))

    return predict


def _read_precision(directory: Path) -> str:
    """Return the precision of a finished run; with "auto" in the recipe, the runs of an evaluation may differ in it."""
    result = read_result(directory / RESULTS)
    assert isinstance(result, RunResult), "a run has the result of one seed"
    return result.precision


def scoring_request(request: TaskRequest, checkpoint: str) -> TaskRequest:
    """Return `request` without its training options, to score `checkpoint`.

    This is the request's checkpoint, or a run trained from it.
    """
    overrides = request.overrides
    if checkpoint != request.checkpoint:
        overrides = (*overrides, *_RUN_OVERRIDES)
    return replace(request, checkpoint=checkpoint, runs=1, overrides=overrides, nproc=1, retrain=False, controls=())


def checkpoint_for_test_set(
    result: ScoredResult | EvaluationResult, out: Path, request: TaskRequest
) -> tuple[str, str]:
    """Return the checkpoint that predicts a task's test set, and the precision with which its dev score was measured.

    The checkpoint is the run that is best on dev, or the scored checkpoint. result: the result of the task's evaluation
    for `request`, in the directory `out`.
    """
    if isinstance(result, EvaluationResult):
        directory = best_run(out, result)
        return str(directory), _read_precision(directory)
    return request.checkpoint, result.precision
