"""`albert ensemble`: average the outputs of several task checkpoints and measure the gain (§4.9)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.output import require_own_output
from albert_cli.evaluation.scoring import SCORING_FILES, load_model, prepare_evaluation
from albert_cli.evaluation.suite import GLUE_SUITE
from albert_cli.formatting import format_percent
from albert_cli.results import RESULTS, EnsembleGain, EnsembleMember, EnsembleResult
from albert_cli.training import run
from albert_cli.training.task_inputs import Inputs, encode_examples
from albert_cli.training.task_model import score_majority
from albert_cli.training.task_setup import PreparedTask, TaskRequest


@dataclass(frozen=True)
class _ScoredMembers:
    """The first member's task and inputs, and the outputs and the score of each member on the same dev examples."""

    prepared: PreparedTask
    inputs: Inputs
    outputs: list[Any]
    scores: list[float]

    def metrics(self, outputs: Any) -> dict[str, float]:
        """Compute the task's metrics of some outputs."""
        task = self.prepared.task
        metrics = task.evaluation(outputs, self.inputs.dev, self.inputs.dev_examples)
        return {name: metrics[name] for name in task.metrics}


def evaluate_ensemble(name: str, request: TaskRequest, paths: Sequence[str], out: Path) -> EnsembleResult:
    """Score task checkpoints on dev: each alone, all together, and the best few as selected on dev (§4.9).

    A path is a task checkpoint or an evaluation, all of whose runs are members. Probabilities (or values) are averaged.
    """
    started = time.monotonic()
    if name == GLUE_SUITE:
        raise ConfigError("an ensemble needs one task", "for example `albert ensemble rte …`")
    require_own_output(out, *SCORING_FILES)
    directories = list(dict.fromkeys(d for path in paths for d in _find_checkpoints(Path(path), name)))
    if len(directories) < 2:
        raise ConfigError("an ensemble needs two or more checkpoints", "name several task checkpoints or evaluations")
    with store.lock(out):
        members = _score_members(name, request, directories)
        task = members.prepared.task
        metric = task.metrics[0]

        def average_outputs(indices: Sequence[int]) -> Any:
            return task.average([members.outputs[i] for i in indices])

        chosen = select_greedily(members.scores, lambda indices: members.metrics(average_outputs(indices))[metric])
        outputs = average_outputs(chosen)
        scores = members.metrics(outputs)
        scores_of_all = members.metrics(average_outputs(range(len(directories))))
        best = max(members.scores)
        task.write_predictions(out, members.inputs.dev_examples, outputs)
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
                all_over_best=scores_of_all[metric] - best,
                chosen_over_best=scores[metric] - best,
            ),
            data=members.inputs.fingerprint,
            examples={split: len(examples) for split, examples in members.inputs.examples.items()},
            versions=run.library_versions(),
            seconds=round(time.monotonic() - started, 2),
        )
        result.write(out / RESULTS)
    return result


def _find_checkpoints(path: Path, task: str) -> list[Path]:
    """Return the task checkpoint at a path, or the runs of the evaluation (or of the suite's task) there."""
    if (path / "config.json").is_file():
        return [path]
    for folder in (path, path / task):
        runs = [p for p in folder.glob("run-*") if p.name[4:].isdecimal() and (p / RESULTS).is_file()]
        if runs:
            return sorted(runs, key=lambda p: int(p.name[4:]))
    return [path]


def _score_members(name: str, request: TaskRequest, directories: Sequence[Path]) -> _ScoredMembers:
    """Score each checkpoint on the dev examples of the first."""
    members: _ScoredMembers | None = None
    for directory in directories:
        prepared = prepare_evaluation(name, replace(request, checkpoint=str(directory)))
        title = prepared.task.title
        if not prepared.for_scoring:
            raise CheckpointError(
                f"{directory}: is not a model of {title}", "an ensemble needs checkpoints fine-tuned for its task"
            )
        if members is None:
            members = _ScoredMembers(prepared, prepared.load_inputs(), [], [])
        outputs = predict_dev(prepared, members.prepared, members.inputs)
        metric = members.prepared.task.metrics[0]
        score = members.metrics(outputs)[metric]
        members.outputs.append(outputs)
        members.scores.append(score)
        console.info(f"{directory}: {title} {metric} {format_percent(score)}")
    assert members is not None, "the caller names two or more"
    return members


def predict_dev(prepared: PreparedTask, first: PreparedTask, inputs: Inputs) -> Any:
    """Return a checkpoint's outputs for the first member's dev examples, in the order of the first member's classes."""
    task = first.task
    if not task.has_head(prepared.checkpoint):
        raise CheckpointError(
            f"{prepared.checkpoint.directory}: its classes ({', '.join(prepared.checkpoint.labels)}) are not those of "
            f"{first.checkpoint.directory} ({', '.join(first.checkpoint.labels)})",
            "an ensemble needs models of the same task",
        )
    model = load_model(replace(prepared, task=task, device=first.device))
    if prepared is first:
        features = inputs.dev
    else:
        length = prepared.recipe.data.max_seq_length
        features = encode_examples(prepared.task, inputs.dev_examples, prepared.vocabulary, length)
    return task.predict(model, features, first.device)


def select_greedily(scores: Sequence[float], score_together: Callable[[Sequence[int]], float]) -> list[int]:
    """Select members: the best one, then again and again the one that raises the common score most, if any does."""
    chosen = [max(range(len(scores)), key=scores.__getitem__)]
    best = scores[chosen[0]]
    while remaining := [i for i in range(len(scores)) if i not in chosen]:
        scores_with = {i: score_together([*chosen, i]) for i in remaining}
        candidate = max(remaining, key=scores_with.__getitem__)
        if scores_with[candidate] <= best:
            break
        chosen.append(candidate)
        best = scores_with[candidate]
    return chosen
