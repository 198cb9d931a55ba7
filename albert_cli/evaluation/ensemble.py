"""`albert ensemble`: task checkpoints answer together, and what that gains (§4.9)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.single import SCORING_FILES, prepare_evaluation, require_own_output
from albert_cli.evaluation.suite import GLUE_SUITE
from albert_cli.results import RESULTS, EnsembleMember, Result, format_percent
from albert_cli.tasks.base import PREDICTIONS
from albert_cli.training import run
from albert_cli.training.task_setup import PreparedTask, TaskRequest


def evaluate_ensemble(request: TaskRequest, task: str, names: Sequence[str], out: Path) -> Result:
    """Score task checkpoints on dev alone, all together, and the best few, which dev chose (as in the paper, §4.9).

    A name is a task checkpoint, or an evaluation, whose runs all count. Probabilities are averaged (or values).
    """
    started = time.monotonic()
    if task == GLUE_SUITE:
        raise ConfigError("an ensemble is for one task", "for example albert ensemble rte …")
    require_own_output(out, *SCORING_FILES)
    directories = list(dict.fromkeys(directory for name in names for directory in _find_checkpoints(Path(name), task)))
    if len(directories) < 2:
        raise ConfigError("one checkpoint is no ensemble", "name several task checkpoints or evaluations")
    with store.lock(out):
        first, outputs, alone = _score_members(request, task, directories)
        model, metric = first.task, first.task.metrics[0]

        def together(members: Sequence[int]) -> Any:
            return model.average([outputs[i] for i in members])

        chosen = select_greedily(alone, lambda members: _task_metrics(first, together(members))[metric])
        answers = together(chosen)
        scores, of_all = _task_metrics(first, answers), _task_metrics(first, together(range(len(outputs))))
        model.write_predictions(out, first.inputs.dev_examples, answers)
        result = Result(
            kind="ensemble",
            task=model.name,
            title=model.title,
            metric=metric,
            score=scores[metric],
            scores=scores,
            majority=first.majority,
            members=[
                EnsembleMember(directory=str(d), score=score) for d, score in zip(directories, alone, strict=True)
            ],
            of_all=of_all,
            chosen=[str(directories[i]) for i in chosen],
            gain={
                "all_over_median": of_all[metric] - statistics.median(alone),
                "all_over_best": of_all[metric] - max(alone),
                "chosen_over_best": scores[metric] - max(alone),
            },
            labels=list(model.labels),
            predictions=PREDICTIONS,
            data=first.provenance["data"],
            examples=first.provenance["examples"],
            versions=run.library_versions(),
            seconds=round(time.monotonic() - started, 2),
        )
        result.write(out / RESULTS)
    return result


def _find_checkpoints(path: Path, task: str) -> list[Path]:
    """The task checkpoint at a path, or those of the runs below it; of a suite those of the task."""
    if (path / "config.json").is_file():
        return [path]
    for folder in (path, path / task):
        runs = [p for p in folder.glob("run-*") if p.name[4:].isdecimal() and (p / RESULTS).is_file()]
        if runs:
            return sorted(runs, key=lambda p: int(p.name[4:]))
    return [path]


def _score_members(
    request: TaskRequest, task: str, directories: Sequence[Path]
) -> tuple[PreparedTask, list[Any], list[float]]:
    """The first checkpoint made ready, what each says of the first one's dev examples, and its score."""
    first: PreparedTask | None = None
    outputs: list[Any] = []
    scores: list[float] = []
    for directory in directories:
        prepared = prepare_evaluation(replace(request, checkpoint=str(directory)), task)
        if not prepared.for_scoring:
            what = f"{directory}: is no model of {prepared.task.title}"
            raise CheckpointError(what, "an ensemble is of task checkpoints")
        first = first or prepared
        outputs.append(predict_dev(prepared, first))
        scores.append(_task_metrics(first, outputs[-1])[first.task.metrics[0]])
        console.info(f"{directory}: {first.task.title} {first.task.metrics[0]} {format_percent(scores[-1])}")
    assert first is not None, "several, as the caller saw to"
    return first, outputs, scores


def predict_dev(prepared: PreparedTask, first: PreparedTask) -> Any:
    """What a checkpoint says of the first one's dev examples, in the order of the first one's classes."""
    task = first.task
    if not task.has_head(prepared.checkpoint):
        theirs, ours = (", ".join(p.checkpoint.labels) for p in (prepared, first))
        raise CheckpointError(
            f"{prepared.checkpoint.directory}: has other classes ({theirs}) than {first.checkpoint.directory} ({ours})",
            "an ensemble is of models of the same task",
        )
    model = task.load(prepared.checkpoint).to(first.device).eval()
    dev = first.inputs.dev if prepared is first else prepared.inputs.encode(first.inputs.dev_examples)
    return task.predict(model, dev, first.device)


def _task_metrics(first: PreparedTask, outputs: Any) -> dict[str, float]:
    found = first.task.evaluation(outputs, first.inputs.dev, first.inputs.dev_examples)
    return {name: found[name] for name in first.task.metrics}


def select_greedily(alone: Sequence[float], together: Callable[[Sequence[int]], float]) -> list[int]:
    """The members that raise the score, as they are taken: from the best one on the one that raises it most."""
    chosen = [max(range(len(alone)), key=alone.__getitem__)]
    best = alone[chosen[0]]
    while left := [i for i in range(len(alone)) if i not in chosen]:
        tried = {i: together([*chosen, i]) for i in left}
        candidate = max(left, key=tried.__getitem__)
        if tried[candidate] <= best:
            break
        chosen.append(candidate)
        best = tried[candidate]
    return chosen
