"""`albert ensemble`: average the outputs of several task checkpoints and measure the gain (§4.9).

`evaluate_ensemble` scores each checkpoint (member) on dev, all members together, and the subset that is best on dev. It
writes the scores to `results.json`, and predicts test sets with the subset.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation import submission
from albert_cli.evaluation.output import read_earlier_result, require_own_output
from albert_cli.evaluation.scoring import (
    SCORING_FILES,
    load_model,
    load_scoring_inputs,
    predict_examples,
    prepare_evaluation,
)
from albert_cli.evaluation.suite import GLUE_SUITE
from albert_cli.formatting import format_percent
from albert_cli.inference.table_predictions import check_test_file, predict_test_file
from albert_cli.results import RESULTS, EnsembleGain, EnsembleMember, EnsembleResult
from albert_cli.tasks.base import Array, Example
from albert_cli.training import run
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_model import score_majority
from albert_cli.training.task_recipe import load_recipe
from albert_cli.training.task_setup import PreparedTask, TaskRequest


@dataclass(frozen=True)
class _ScoredMembers:
    """The outputs and the score of each member on the same dev examples, which are those of the first member."""

    prepared: PreparedTask  # of the first member
    inputs: Inputs  # of the first member
    outputs: Sequence[object]  # as `Task.predict` returns them
    scores: Sequence[float]  # the task's main metric

    def average_outputs(self, indices: Sequence[int]) -> object:
        """Return the average of the outputs of the members with these indices."""
        return self.prepared.task.average([self.outputs[i] for i in indices])

    def average_metrics(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the task's metrics of the average outputs of the members with these indices."""
        return _compute_metrics(self.prepared, self.inputs, self.average_outputs(indices))


def evaluate_ensemble(
    name: str, request: TaskRequest, paths: Sequence[str], out: Path, submission_file: Path | None = None
) -> EnsembleResult:
    """Score task checkpoints on dev: each alone, all together, and the subset that is selected on dev (§4.9).

    name: a task or a fine-tuning recipe. paths: task checkpoints, or directories of evaluations, whose runs all become
    members. submission_file: the file of test predictions for GLUE's server that the selected members make, or None.
    """
    started = time.monotonic()
    if name == GLUE_SUITE:
        raise ConfigError("an ensemble needs one task", "for example `albert ensemble rte …`")
    task_name = load_recipe(name, request.overrides, request.recipes).task
    if submission_file is not None:
        submission.check_task_submission(task_name, request.data, submission_file)
    require_own_output(out, *SCORING_FILES)
    read_earlier_result(out, EnsembleResult)  # raises `ConfigError` instead of overwriting another command's result
    directories = _find_members(paths, task_name)
    with store.lock(out):
        members = _score_members(name, request, directories)
        task = members.prepared.task
        metric = task.metrics[0]
        chosen = select_greedily(members.scores, lambda indices: members.average_metrics(indices)[metric])
        scores = members.average_metrics(chosen)
        scores_of_all = members.average_metrics(range(len(directories)))
        best_score = max(members.scores)
        task.write_predictions(out, members.inputs.dev_examples, members.average_outputs(chosen))
        result = EnsembleResult(
            task=task.name,
            title=task.title,
            metric=metric,
            labels=list(task.labels),
            majority=score_majority(members.prepared, members.inputs),
            score=scores[metric],
            scores=scores,
            scores_of_all=scores_of_all,
            members=[
                EnsembleMember(directory=str(directory), score=score)
                for directory, score in zip(directories, members.scores, strict=True)
            ],
            chosen=[str(directories[i]) for i in chosen],
            gain=EnsembleGain(
                all_over_median=scores_of_all[metric] - statistics.median(members.scores),
                all_over_best=scores_of_all[metric] - best_score,
                chosen_over_best=scores[metric] - best_score,
            ),
            data=members.inputs.fingerprint,
            examples={split: len(examples) for split, examples in members.inputs.examples.items()},
            versions=run.library_versions(),
            seconds=round(time.monotonic() - started, 2),
        )
        result.write(out / RESULTS)
    predict = _predict_together(name, request, result.chosen, first=str(directories[0]))
    predict_test_file(task, predict, out)
    if submission_file is not None:
        submission.write_task_submission(task_name, request.data, submission_file, predict)
    return result


def _predict_together(
    name: str, request: TaskRequest, checkpoints: Sequence[str], first: str
) -> Callable[[Sequence[Example]], Array]:
    """Return a function that predicts test sets with the average outputs of several checkpoints.

    first: the ensemble's first member, which need not be one of `checkpoints`. The outputs are in the order of its
    classes, as in `predict_dev`.
    """

    def predict(examples: Sequence[Example]) -> Array:
        task = prepare_evaluation(name, replace(request, checkpoint=first)).task
        members = [prepare_evaluation(name, replace(request, checkpoint=checkpoint)) for checkpoint in checkpoints]
        return cast(Array, task.average([predict_examples(member, examples, task) for member in members]))

    return predict


def _find_members(paths: Sequence[str], task: str) -> list[Path]:
    """Return the checkpoints in `paths` without repetitions; raise `ConfigError` if there are fewer than two.

    If there are fewer because a path does not exist, the error is a `CheckpointError`.
    """
    directories = [directory for path in paths for directory in _find_checkpoints(Path(path), task)]
    members = {directory.resolve(): directory for directory in directories}
    if len(members) < 2:
        for path in paths:
            if not Path(path).exists():
                raise CheckpointError(f"{path}: no such directory", "check the path")
        raise ConfigError("an ensemble needs two or more checkpoints", "name several task checkpoints or evaluations")
    return list(members.values())


def _find_checkpoints(path: Path, task: str) -> list[Path]:
    """Return `path` if it is a checkpoint, else the finished runs of an evaluation, sorted by seed.

    The evaluation is in `path`, or in a folder of `path` with the task's name, as in a suite. Without any runs, returns
    `path` too, so that opening it as a checkpoint reports what is missing.
    """
    if (path / "config.json").is_file():
        return [path]
    for evaluation in (path, path / task):
        runs_by_seed = {}
        for run_path in evaluation.glob("run-*"):
            seed = run_path.name.removeprefix("run-")
            if seed.isdecimal() and (run_path / RESULTS).is_file():
                runs_by_seed[int(seed)] = run_path
        if runs_by_seed:
            return [run_path for _, run_path in sorted(runs_by_seed.items())]
    return [path]


def _score_members(name: str, request: TaskRequest, directories: Sequence[Path]) -> _ScoredMembers:
    """Score each checkpoint on the first one's dev examples.

    Only the first checkpoint and one other are in memory at a time.
    """
    first = _prepare_member(name, request, directories[0])
    check_test_file(first.task)
    inputs = load_scoring_inputs(name, request, first, directories)
    metric = first.task.metrics[0]
    outputs = []
    scores = []
    for directory in directories:
        member = first if directory == directories[0] else _prepare_member(name, request, directory)
        member_outputs = predict_dev(member, first, inputs)
        score = _compute_metrics(first, inputs, member_outputs)[metric]
        console.info(f"{directory}: {first.task.title} {metric} {format_percent(score)}")
        outputs.append(member_outputs)
        scores.append(score)
    return _ScoredMembers(first, inputs, outputs, scores)


def _prepare_member(name: str, request: TaskRequest, directory: Path) -> PreparedTask:
    """Prepare a member for scoring; raise `CheckpointError` if it is not a model of the task."""
    prepared = prepare_evaluation(name, replace(request, checkpoint=str(directory)), can_train=False)
    if prepared.needs_training:
        message = f"{directory}: is not a model of {prepared.task.title}"
        checkpoint = prepared.checkpoint
        if prepared.task.accepts_checkpoint(checkpoint) and prepared.task.match_head(checkpoint) is None:
            message = prepared.task.wrong_head(checkpoint).message  # names the classes, if only they differ
        raise CheckpointError(message, "an ensemble needs checkpoints fine-tuned for its task, with the same classes")
    return prepared


def _compute_metrics(prepared: PreparedTask, inputs: Inputs, outputs: object) -> dict[str, float]:
    """Return the task's metrics of outputs for the dev examples; a metric without examples is left out."""
    metrics = prepared.task.compute_metrics(outputs, inputs.dev_features, inputs.dev_examples)
    return {name: metrics[name] for name in prepared.task.metrics if name in metrics}


def predict_dev(member: PreparedTask, first: PreparedTask, inputs: Inputs) -> object:
    """Return a member's outputs for the dev examples in `inputs`, in the order of the first member's classes.

    `inputs` are encoded for the first member; another member may have another vocabulary or input length. Raises
    `CheckpointError` if the members' classes differ.
    """
    task = first.task
    # `task` has the first member's classes. A head for other classes is not a head of `task`.
    if not task.has_head(member.checkpoint):
        raise CheckpointError(
            f"{member.checkpoint.directory}: its classes ({', '.join(member.checkpoint.output_names)}) differ from "
            f"{first.checkpoint.directory} ({', '.join(first.checkpoint.output_names)})",
            "an ensemble needs models of the same task",
        )
    if member is first:
        return task.predict(load_model(first), inputs.dev_features, first.device)
    return predict_examples(replace(member, device=first.device), inputs.dev_examples, task)


def select_greedily(scores: Sequence[float], score_together: Callable[[Sequence[int]], float]) -> list[int]:
    """Select the best member, then repeatedly add the member with which the ensemble's score rises most.

    Stops when no member raises the score. scores: the score of each member alone; score_together: returns the score of
    the ensemble of the members with some indices. Returns the indices of the selected members, in the order of their
    selection.
    """
    best_member = max(range(len(scores)), key=scores.__getitem__)
    chosen = [best_member]
    ensemble_score = scores[best_member]
    while remaining := [i for i in range(len(scores)) if i not in chosen]:
        scores_with = {i: score_together([*chosen, i]) for i in remaining}
        candidate = max(remaining, key=scores_with.__getitem__)
        if scores_with[candidate] <= ensemble_score:
            break
        chosen.append(candidate)
        ensemble_score = scores_with[candidate]
    return chosen
