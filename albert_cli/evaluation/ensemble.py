"""`--ensemble`: task checkpoints answer together, and what that gains (§4.9)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.single import Request, prepare_task, refuse_foreign
from albert_cli.evaluation.tables import percent
from albert_cli.training import run
from albert_cli.training.classify import PREDICTIONS
from albert_cli.training.finetune import RESULTS, Prepared


@dataclass(frozen=True)
class _Member:
    directory: Path
    prepared: Prepared
    outputs: Any
    score: float


def evaluate_ensemble(request: Request, task: str, names: Sequence[str], out: Path) -> dict[str, Any]:
    """Score task checkpoints on dev alone, all together, and the best few together; return `results.json`.

    A name is a task checkpoint, or an evaluation, whose runs all count. Probabilities are averaged (values, for a
    regression). The best few are chosen greedily on dev: from the best one on, each time the one that raises the
    score most, until none does; the paper, too, chose its ensembles by their dev scores (§4.9).
    """
    started = time.monotonic()
    refuse_foreign(out, RESULTS, "predictions*", "nbest_predictions.json", "null_odds.json")
    directories = [directory for name in names for directory in _checkpoints(Path(name))]
    if len(set(directories)) < 2:
        raise ConfigError("--ensemble: one checkpoint is no ensemble", "name several task checkpoints or evaluations")
    with store.lock(out):
        members = [_member(request, task, directory) for directory in dict.fromkeys(directories)]
        first = members[0].prepared
        chosen = _greedy(members)
        result = _record(members, chosen) | {"seconds": round(time.monotonic() - started, 2)}
        outputs = _average([members[i] for i in chosen])
        first.kind.write_predictions(out, first.task, outputs, first.dev, first.dev_examples)
        store.write_json(out / RESULTS, result)
    return result


def _checkpoints(path: Path) -> list[Path]:
    """The task checkpoint at a path, or those of the runs below it."""
    runs = sorted((p for p in path.glob("run-*") if (p / RESULTS).is_file()), key=lambda p: int(p.name[4:]))
    if (path / "config.json").is_file() or not runs:
        return [path]
    return runs


def _member(request: Request, task: str, directory: Path) -> _Member:
    """A checkpoint with what it says of dev."""
    prepared = prepare_task(Request(str(directory), request.data, 1, request.overrides, request.device), task)
    if not prepared.for_scoring:
        raise CheckpointError(
            f"{directory}: is no model of {prepared.task.title}", "an ensemble is of task checkpoints"
        )
    model = prepared.kind.load(prepared.task, prepared.checkpoint).to(prepared.device).eval()
    outputs = prepared.kind.predict(prepared.task, model, prepared.dev, prepared.device)
    score = _scores(prepared, outputs)[prepared.task.metrics[0]]
    console.note(f"{directory}: {prepared.task.title} {prepared.task.metrics[0]} {percent(score)}")
    return _Member(directory, prepared, outputs, score)


def _scores(prepared: Prepared, outputs: Any) -> dict[str, float]:
    found = prepared.kind.evaluation(prepared.task, outputs, prepared.dev, prepared.dev_examples)
    return {name: found[name] for name in prepared.task.metrics}


def _average(members: Sequence[_Member]) -> Any:
    first = members[0].prepared
    return first.kind.average(first.task, [member.outputs for member in members])


def _together(members: Sequence[_Member]) -> dict[str, float]:
    return _scores(members[0].prepared, _average(members))


def _greedy(members: Sequence[_Member]) -> list[int]:
    """Which members raise the score on dev, in the order in which they were taken."""
    metric = members[0].prepared.task.metrics[0]
    chosen = [max(range(len(members)), key=lambda i: members[i].score)]
    best = members[chosen[0]].score
    while left := [i for i in range(len(members)) if i not in chosen]:
        tried = {i: _together([members[j] for j in (*chosen, i)])[metric] for i in left}
        candidate = max(left, key=lambda i: tried[i])
        if tried[candidate] <= best:
            break
        chosen.append(candidate)
        best = tried[candidate]
    return chosen


def _record(members: Sequence[_Member], chosen: Sequence[int]) -> dict[str, Any]:
    first, metric = members[0].prepared, members[0].prepared.task.metrics[0]
    alone = [member.score for member in members]
    everything, selected = _together(members), _together([members[i] for i in chosen])
    return {
        "kind": "ensemble",
        "task": first.task.name,
        "title": first.task.title,
        "metric": metric,
        "score": selected[metric],
        "scores": selected,
        "majority": first.majority,
        "members": [{"directory": str(m.directory), "score": m.score} for m in members],
        "of_all": everything,
        "chosen": [str(members[i].directory) for i in chosen],
        "gain": {
            "all_over_median": everything[metric] - statistics.median(alone),
            "all_over_best": everything[metric] - max(alone),
            "chosen_over_best": selected[metric] - max(alone),
        },
        "labels": list(first.task.labels),
        "predictions": PREDICTIONS,
        "data": first.provenance["data"],
        "examples": first.provenance["examples"],
        "versions": run.versions(),
    }
