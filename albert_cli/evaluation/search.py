"""`albert search`: every combination of lists of hyper-parameters, the budget printed first, the best by dev last."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
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
            raise ConfigError(f"{text}: a value with a / would not be the name of a folder")
        if key in found:
            raise ConfigError(f"{key} is given twice")
        found[key] = listed
    return list(itertools.product(*([(key, value) for value in values] for key, values in found.items())))


def search(request: Request, task: str, lists: Sequence[str], out: Path) -> dict[str, Any]:
    """Evaluate every combination below `out`, each resumable; return `results.json` with all and the best."""
    if task == GLUE:
        raise ConfigError("a search is for one task", "for example albert search rte …")
    if request.nproc < 1:
        raise ConfigError(f"--nproc {request.nproc}: at least one is needed")
    points = parse(lists)
    refuse_foreign(out, RESULTS, *map(_folder, points), "start-*")
    asked = {point: dataclasses.replace(request, overrides=request.overrides + _overrides(point)) for point in points}
    ready: dict[Point, Prepared] = {}
    for point in points:
        ready[point] = _prepared(asked[point], task, next(iter(ready.values()), None))
    starts = _starts(ready, request)
    budget = _budget(ready, starts, request)
    console.note(_budget_text(budget, starts))
    _start(ready, starts, out)
    jobs = [parallel.Job(asked[point], task, prepared, out / _folder(point)) for point, prepared in ready.items()]
    parallel.train(jobs, request.nproc)
    results = {point: _evaluated(prepared, out / _folder(point), request.runs) for point, prepared in ready.items()}
    result = _record(results, budget)
    store.write_json(out / RESULTS, result)
    return result


def _overrides(point: Point) -> tuple[str, ...]:
    return tuple(f"{SHORT.get(key, key)}={value}" for key, value in point)


def _folder(point: Point) -> str:
    return ",".join(f"{key}={value}" for key, value in point)


def _prepared(asked: Request, task: str, like: Prepared | None) -> Prepared:
    prepared = prepare_task(asked, task, like)
    if prepared.for_scoring:
        raise ConfigError(
            f"{asked.checkpoint}: is fine-tuned for {prepared.task.title} already",
            "search from a pretrained checkpoint",
        )
    _ = prepared.examples
    return prepared


# ---------------------------------------------------------------- what combinations start from


def _starts(ready: dict[Point, Prepared], request: Request) -> dict[str, Prepared]:
    """The tasks that combinations start from by name, each once for all and without the searched values.

    A combination whose start has no data is made ready without it.
    """
    starts: dict[str, Prepared] = {}
    for point, prepared in ready.items():
        name = start_task(prepared)
        if name is not None and name not in starts:
            try:
                starts[name] = prepare_start(prepared, request.overrides)
            except MissingData as error:
                ready[point] = without_start(prepared, error.message)
    return starts


def _start(ready: dict[Point, Prepared], starts: Mapping[str, Prepared], out: Path) -> None:
    """Fine-tune those tasks, and let the combinations begin with their encoders."""
    first = next(iter(ready.values()))
    made = {name: make_start(first, other, out / f"start-{name}") for name, other in starts.items()}
    for point, prepared in ready.items():
        if (name := start_task(prepared)) is not None:
            ready[point] = start_from_run(prepared, made[name])


# ---------------------------------------------------------------- the budget


def _budget(ready: Mapping[Point, Prepared], starts: Mapping[str, Prepared], request: Request) -> dict[str, Any]:
    """Runs, steps and seconds, of which the last by timing a few steps of each kind of batch."""
    speeds: dict[tuple[Any, ...], float] = {}
    runs, steps, seconds = 0, 0, 0.0
    each = [(prepared, request.runs, request.nproc) for prepared in ready.values()]
    for prepared, times, nproc in [*each, *((other, 1, 1) for other in starts.values())]:
        recipe = prepared.recipe
        kind = (recipe.task, recipe.train, recipe.data, recipe.model)
        if kind not in speeds:
            speeds[kind] = _step_seconds(prepared)
        runs += times
        steps += prepared.schedule.total_steps * times
        seconds += prepared.schedule.total_steps * times * speeds[kind] / nproc
    return {"combinations": len(ready), "runs": runs, "steps": steps, "seconds": round(seconds, 1)}


def _step_seconds(prepared: Prepared) -> float:
    settings = prepared.train_settings
    recipe = dataclasses.replace(prepared.recipe, train=settings)
    job = TaskJob(prepared, recipe, prepared.new_model(settings.seed), Path())
    with use_threads(settings.threads):
        loop = LoopSettings(prepared.recipe.optimizer, prepared.schedule, settings)
        return measure(job, loop, Group(), steps=3, seconds=0.5)


def _budget_text(budget: Mapping[str, Any], starts: Mapping[str, Prepared]) -> str:
    points = budget["combinations"]
    seeds = (budget["runs"] - len(starts)) // points
    each = f"{points} combinations, {seeds} seed{'s' if seeds != 1 else ''} each"
    first = "".join(f", and {other.task.title} before them" for other in starts.values())
    return (
        f"{each}{first}: {budget['runs']} runs, {budget['steps']:,} steps, about "
        f"{console.duration(budget['seconds'])} of training by the speed of a few steps now, finished runs included"
    )


# ---------------------------------------------------------------- the result


def _evaluated(prepared: Prepared, out: Path, runs: int) -> Mapping[str, Any] | NoneEnded:
    """The result of a combination; that every seed diverges is one too, as a high rate may make them."""
    try:
        return evaluate_task(prepared, out, runs)
    except NoneEnded as error:
        console.warn(error.message)
        return error


def _record(found: Mapping[Point, Mapping[str, Any] | NoneEnded], budget: Mapping[str, Any]) -> dict[str, Any]:
    """Every combination, and the best of those with a score; raises `NoneEnded` where none has one."""
    results = {point: result for point, result in found.items() if not isinstance(result, NoneEnded)}
    failed = {point: error for point, error in found.items() if isinstance(error, NoneEnded)}
    if not results:
        raise next(iter(failed.values()))
    first = next(iter(results.values()))
    best = max(results, key=lambda point: results[point]["median"])  # of equals the first
    kept = ("median", "spread", "scores_by_seed", "diverged", "collapsed", "seconds")
    none: dict[str, Any] = {"median": None, "spread": None, "scores_by_seed": {}, "collapsed": {}, "seconds": 0.0}
    rows = {point: {key: result[key] for key in kept} for point, result in results.items()}
    rows |= {point: {**none, "diverged": error.seeds} for point, error in failed.items()}
    return {
        "kind": "search",
        **{
            key: first[key]
            for key in ("task", "title", "metric", "majority", "checkpoint", "data", "versions", "examples")
        },
        "points": [{"values": dict(point), "directory": _folder(point), **rows[point]} for point in found],
        "best": {"values": dict(best), "directory": _folder(best), "median": results[best]["median"]},
        "caveat": CAVEAT,
        "budget": dict(budget),
        "seconds": round(sum(result["seconds"] for result in results.values()), 2),
    }
