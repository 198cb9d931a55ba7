"""`albert ensemble`: task checkpoints answer together, and what that gains (§4.9)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.single import SCORING, prepare_task, refuse_foreign
from albert_cli.evaluation.suite import GLUE
from albert_cli.results import RESULTS, Member, Result, percent
from albert_cli.tasks.base import PREDICTIONS
from albert_cli.training import run
from albert_cli.training.task_setup import Prepared, Request


@dataclass(frozen=True)
class _Member:
    directory: Path
    outputs: Any
    score: float


def evaluate_ensemble(request: Request, task: str, names: Sequence[str], out: Path) -> Result:
    """Score task checkpoints on dev alone, all together, and the best few together.

    A name is a task checkpoint, or an evaluation, whose runs all count. Probabilities are averaged (values, for a
    regression). The best few are chosen greedily on dev: from the best one on, each time the one that raises the
    score most, until none does; the paper, too, chose its ensembles by their dev scores (§4.9).
    """
    started = time.monotonic()
    if task == GLUE:
        raise ConfigError("an ensemble is for one task", "for example albert ensemble rte …")
    refuse_foreign(out, *SCORING)
    directories = list(dict.fromkeys(directory for name in names for directory in _checkpoints(Path(name), task)))
    if len(directories) < 2:
        raise ConfigError("one checkpoint is no ensemble", "name several task checkpoints or evaluations")
    with store.lock(out):
        first = _prepared(request, task, directories[0])
        members = [_member(directories[0], first, first)]
        members += [_member(directory, _prepared(request, task, directory), first) for directory in directories[1:]]
        chosen = _greedy(first, members)
        outputs = _average(first, [members[i] for i in chosen])
        first.task.write_predictions(out, first.inputs.dev_examples, outputs)
        result = _record(first, members, chosen, outputs, started)
        result.write(out / RESULTS)
    return result


def _checkpoints(path: Path, task: str) -> list[Path]:
    """The task checkpoint at a path, or those of the runs below it; of a suite those of the task."""
    if (path / "config.json").is_file():
        return [path]
    for folder in (path, path / task):
        runs = [p for p in folder.glob("run-*") if p.name[4:].isdecimal() and (p / RESULTS).is_file()]
        if runs:
            return sorted(runs, key=lambda p: int(p.name[4:]))
    return [path]


def _prepared(request: Request, task: str, directory: Path) -> Prepared:
    prepared = prepare_task(replace(request, checkpoint=str(directory)), task)
    if not prepared.for_scoring:
        raise CheckpointError(
            f"{directory}: is no model of {prepared.task.title}", "an ensemble is of task checkpoints"
        )
    return prepared


def _member(directory: Path, prepared: Prepared, first: Prepared) -> _Member:
    """A checkpoint with what it says of the first one's dev examples, in the order of the first one's classes."""
    if not first.task.has_head(prepared.checkpoint):
        theirs, ours = (", ".join(p.checkpoint.labels) for p in (prepared, first))
        raise CheckpointError(
            f"{directory}: has other classes ({theirs}) than {first.checkpoint.directory} ({ours})",
            "an ensemble is of models of the same task",
        )
    model = first.task.load(prepared.checkpoint).to(first.device).eval()
    dev = first.inputs.dev if prepared is first else prepared.inputs.encode(first.inputs.dev_examples)
    outputs = first.task.predict(model, dev, first.device)
    score = _scores(first, outputs)[first.task.metrics[0]]
    console.note(f"{directory}: {first.task.title} {first.task.metrics[0]} {percent(score)}")
    return _Member(directory, outputs, score)


def _scores(first: Prepared, outputs: Any) -> dict[str, float]:
    found = first.task.evaluation(outputs, first.inputs.dev, first.inputs.dev_examples)
    return {name: found[name] for name in first.task.metrics}


def _average(first: Prepared, members: Sequence[_Member]) -> Any:
    return first.task.average([member.outputs for member in members])


def _greedy(first: Prepared, members: Sequence[_Member]) -> list[int]:
    """Which members raise the score on dev, in the order in which they were taken."""
    metric = first.task.metrics[0]
    chosen = [max(range(len(members)), key=lambda i: members[i].score)]
    best = members[chosen[0]].score
    while left := [i for i in range(len(members)) if i not in chosen]:
        tried = {i: _scores(first, _average(first, [members[j] for j in (*chosen, i)]))[metric] for i in left}
        candidate = max(left, key=lambda i: tried[i])
        if tried[candidate] <= best:
            break
        chosen.append(candidate)
        best = tried[candidate]
    return chosen


def _record(first: Prepared, members: Sequence[_Member], chosen: Sequence[int], outputs: Any, started: float) -> Result:
    metric = first.task.metrics[0]
    alone = [member.score for member in members]
    everything, selected = _scores(first, _average(first, members)), _scores(first, outputs)
    return Result(
        kind="ensemble",
        task=first.task.name,
        title=first.task.title,
        metric=metric,
        score=selected[metric],
        scores=selected,
        majority=first.majority,
        members=[Member(directory=str(m.directory), score=m.score) for m in members],
        of_all=everything,
        chosen=[str(members[i].directory) for i in chosen],
        gain={
            "all_over_median": everything[metric] - statistics.median(alone),
            "all_over_best": everything[metric] - max(alone),
            "chosen_over_best": selected[metric] - max(alone),
        },
        labels=list(first.task.labels),
        predictions=PREDICTIONS,
        data=first.provenance["data"],
        examples=first.provenance["examples"],
        versions=run.versions(),
        seconds=round(time.monotonic() - started, 2),
    )
