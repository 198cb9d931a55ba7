"""`albert search`: every combination of lists of hyper-parameters, the budget printed first, the best by dev last."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_cli import config, console, store
from albert_cli.errors import ConfigError, MissingData
from albert_cli.evaluation import parallel
from albert_cli.evaluation.single import NoneEnded, Request, evaluate_task, prepare_task, refuse_foreign
from albert_cli.evaluation.suite import GLUE
from albert_cli.ranks import Group
from albert_cli.training.device import use_threads
from albert_cli.training.finetune import RESULTS, Prepared, TaskJob
from albert_cli.training.loop import LoopSettings, measure
from albert_cli.training.start import make_start, prepare_start, start_from_run, start_task, without_start

# What people search, by the names that they use.
SHORT = {
    "lr": "optimizer.lr",
    "batch": "train.batch_size",
    "steps": "schedule.total_steps",
    "epochs": "schedule.epochs",
    "examples": "data.train_examples",
    "warmup": "schedule.warmup_steps",
    "decay": "optimizer.weight_decay",
    "dropout": "model.dropout",
    "length": "data.max_seq_length",
    "start": "start_from",
}
CAVEAT = "The best was chosen on dev, so that its dev score flatters it: compare it on other data, or run new seeds."

Point = tuple[tuple[str, str], ...]  # (short name, value), …


def parse(lists: Sequence[str]) -> list[Point]:
    """Every combination of `key=value,value,…`, the last list changing fastest.

    Raises `ConfigError` for what is no list, an empty value, or a key that is given twice.
    """
    found: dict[str, list[str]] = {}
    for text in lists:
        key, equals, values = text.partition("=")
        listed = list(dict.fromkeys(value.strip() for value in values.split(",")))
        if not equals or not key or not all(listed):
            raise ConfigError(f"{text}: expected KEY=VALUE,VALUE,…", "for example lr=1e-5,2e-5 batch=16,32")
        if key not in SHORT and "." not in key:
            hint = config.suggestion(key, list(SHORT)) or f"keys: {', '.join(SHORT)}, or section.key"
            raise ConfigError(f"{text}: no key is called {key!r}", hint)
        if "/" in text:
            raise ConfigError(f"{text}: a value must not contain /, because it names a folder")
        if key in found:
            raise ConfigError(f"{key} is given twice")
        found[key] = listed
    return list(itertools.product(*([(key, value) for value in values] for key, values in found.items())))


@dataclass
class _Combination:
    """A point of the search, made ready, and where its runs go."""

    values: Point
    request: Request
    prepared: Prepared
    out: Path


def search(request: Request, task: str, lists: Sequence[str], out: Path) -> dict[str, Any]:
    """Evaluate every combination below `out`, each resumable; return `results.json` with all and the best.

    A task that combinations start from by name is trained once for all, without the searched values. Raises
    `NoneEnded` where every seed of every combination diverged.
    """
    if task == GLUE:
        raise ConfigError("a search is for one task", "for example albert search rte …")
    if request.nproc < 1:
        raise ConfigError(f"--nproc {request.nproc}: at least one is needed")
    points = parse(lists)
    refuse_foreign(out, RESULTS, *map(_folder, points), "start-*")
    found: list[_Combination] = []
    for point in points:
        found.append(_combination(request, task, point, out, found[0].prepared if found else None))
    starts: dict[str, Prepared] = {}
    for c in found:
        name = start_task(c.prepared)
        if name is not None and name not in starts:
            try:
                starts[name] = prepare_start(c.prepared, request.overrides)
            except MissingData as error:
                c.prepared = without_start(c.prepared, error.message)
    budget = _budget(found, starts, request)
    made = {name: make_start(found[0].prepared, other, out / f"start-{name}") for name, other in starts.items()}
    for c in found:
        if (name := start_task(c.prepared)) is not None:
            c.prepared = start_from_run(c.prepared, made[name])
    parallel.train([parallel.Job(c.request, task, c.prepared, c.out) for c in found], request.nproc)
    result = _results(found, request.runs) | {"budget": budget}
    store.write_json(out / RESULTS, result)
    return result


def _folder(point: Point) -> str:
    return ",".join(f"{key}={value}" for key, value in point)


def _combination(request: Request, task: str, point: Point, out: Path, like: Prepared | None) -> _Combination:
    overrides = tuple(f"{SHORT.get(key, key)}={value}" for key, value in point)
    request = dataclasses.replace(request, overrides=request.overrides + overrides)
    prepared = prepare_task(request, task, like)
    if prepared.for_scoring:
        hint = "search from a pretrained checkpoint"
        raise ConfigError(f"{request.checkpoint}: is fine-tuned for {prepared.task.title} already", hint)
    _ = prepared.examples  # what is wrong with them is found out before anything is trained
    return _Combination(point, request, prepared, out / _folder(point))


def _budget(found: Sequence[_Combination], starts: Mapping[str, Prepared], request: Request) -> dict[str, float]:
    """Runs, steps and seconds, of which the last by timing a few steps of each kind of batch; it is printed."""
    speeds: dict[tuple[Any, ...], float] = {}
    runs, steps, seconds = 0, 0, 0.0
    each = [(c.prepared, request.runs, request.nproc) for c in found] + [(other, 1, 1) for other in starts.values()]
    for prepared, times, nproc in each:
        recipe = prepared.recipe
        kind = (recipe.task, recipe.train, recipe.data, recipe.model)
        if kind not in speeds:
            speeds[kind] = _step_seconds(prepared)
        runs += times
        steps += prepared.schedule.total_steps * times
        seconds += prepared.schedule.total_steps * times * speeds[kind] / nproc
    first = "".join(f", and {other.task.title} before them" for other in starts.values())
    console.note(
        f"{len(found)} combinations, {request.runs} seed{'s' if request.runs != 1 else ''} each{first}: {runs} runs, "
        f"{steps:,} steps, about {console.duration(seconds)} of training by the speed of a few steps now, finished "
        "runs included"
    )
    return {"combinations": len(found), "runs": runs, "steps": steps, "seconds": round(seconds, 1)}


def _step_seconds(prepared: Prepared) -> float:
    settings = prepared.train_settings
    recipe = dataclasses.replace(prepared.recipe, train=settings)
    job = TaskJob(prepared, recipe, prepared.new_model(settings.seed), Path())
    with use_threads(settings.threads):
        loop = LoopSettings(prepared.recipe.optimizer, prepared.schedule, settings)
        return measure(job, loop, Group(), steps=3, seconds=0.5)


def _results(found: Sequence[_Combination], runs: int) -> dict[str, Any]:
    """Every combination, and the best of those with a score; that every seed of one diverges is a result too."""
    kept = ("median", "spread", "scores_by_seed", "diverged", "collapsed", "seconds")
    none: dict[str, Any] = {"median": None, "spread": None, "scores_by_seed": {}, "collapsed": {}, "seconds": 0.0}
    points, ended, failed = [], [], []
    for c in found:
        about = {"values": dict(c.values), "directory": _folder(c.values)}
        try:
            result = evaluate_task(c.prepared, c.out, runs)
        except NoneEnded as error:
            console.warn(error.message)
            failed.append(error)
            points.append({**about, **none, "diverged": error.seeds})
        else:
            ended.append(result)
            points.append({**about, **{key: result[key] for key in kept}})
    if not ended:
        raise failed[0]
    best = max((p for p in points if p["median"] is not None), key=lambda p: p["median"])  # of equals the first
    of_all = ("task", "title", "metric", "majority", "checkpoint", "data", "versions", "examples")
    return {
        "kind": "search",
        **{key: ended[0][key] for key in of_all},
        "points": points,
        "best": {key: best[key] for key in ("values", "directory", "median")},
        "caveat": CAVEAT,
        "seconds": round(sum(p["seconds"] for p in points), 2),
    }
