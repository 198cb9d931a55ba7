"""`albert search`: every combination of lists of hyper-parameters, the budget printed first, the best by dev last."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from albert_cli import config, console
from albert_cli.errors import ConfigError
from albert_cli.evaluation.single import (
    AllSeedsDiverged,
    TaskRuns,
    evaluate_task,
    prepare_evaluation,
    require_own_output,
    train_in_parallel,
)
from albert_cli.evaluation.suite import GLUE_SUITE
from albert_cli.model import hub
from albert_cli.results import RESULTS, SearchPoint, SearchResult
from albert_cli.training.intermediate import with_intermediate
from albert_cli.training.task_setup import TaskRequest

# What people search, by the names that they use.
SHORT_KEYS = {
    "lr": "optimizer.lr",
    "batch": "train.batch_size",
    "steps": "schedule.total_steps",
    "epochs": "schedule.epochs",
    "examples": "data.train_examples",
    "warmup": "schedule.warmup_steps",
    "decay": "optimizer.weight_decay",
    "dropout": "model.dropout",
    "length": "data.max_seq_length",
    "intermediate": "intermediate_task",
}
_KEPT = {"median", "spread", "scores_by_seed", "diverged", "collapsed", "seconds"}
_OF_ALL = {"task", "title", "metric", "majority", "checkpoint", "data", "versions", "examples"}
CAVEAT = "The best was chosen on dev, so that its dev score flatters it: compare it on other data, or run new seeds."

Combination = tuple[tuple[str, str], ...]  # (short name, value), …


def parse_grid(lists: Sequence[str]) -> list[Combination]:
    """Every combination of `key=value,value,…`, the last list changing fastest.

    Raises `ConfigError` for what is no list, an empty value, or a key that is given twice.
    """
    found: dict[str, list[str]] = {}
    settings: dict[str, str] = {}  # by the key that was given
    instead = {f"schedule.{key}": f"schedule.{of}" for key, of in config.EXCLUSIVE_KEYS.items()}
    for text in lists:
        key, equals, values = text.partition("=")
        listed = list(dict.fromkeys(value.strip() for value in values.split(",")))
        if not equals or not key or not all(listed):
            raise ConfigError(f"{text}: expected KEY=VALUE,VALUE,…", "for example lr=1e-5,2e-5 batch=16,32")
        if key not in SHORT_KEYS and "." not in key:
            hint = config.suggest(key, list(SHORT_KEYS)) or f"keys: {', '.join(SHORT_KEYS)}, or section.key"
            raise ConfigError(f"{text}: no key is called {key!r}", hint)
        if "/" in text:
            raise ConfigError(f"{text}: a value must not contain /, because it names a folder")
        setting = SHORT_KEYS.get(key, key)
        for other, its in settings.items():
            if setting in (its, instead.get(its)) or its == instead.get(setting):  # only one of them would count
                raise ConfigError(f"{key} is given twice" if other == key else f"{other} and {key} set the same thing")
        settings[key], found[key] = setting, listed
    return list(itertools.product(*([(key, value) for value in values] for key, values in found.items())))


def search_grid(request: TaskRequest, task: str, lists: Sequence[str], out: Path) -> SearchResult:
    """Evaluate every combination below `out`, each resumable; all of them, and the best.

    A task that combinations start from by name is trained once for all, without the searched values. Raises
    `NoneEnded` where every seed of every combination diverged.
    """
    if task == GLUE_SUITE:
        raise ConfigError("a search is for one task", "for example albert search rte …")
    points = parse_grid(lists)
    require_own_output(out, RESULTS, *map(_folder_name, points), "intermediate-*")
    found = []
    for point in points:
        overrides = tuple(f"{SHORT_KEYS.get(key, key)}={value}" for key, value in point)
        prepared = prepare_evaluation(replace(request, overrides=request.overrides + overrides), task)
        if prepared.for_scoring:
            hint = "search from a pretrained checkpoint"
            raise ConfigError(f"{request.checkpoint}: is fine-tuned for {prepared.task.title} already", hint)
        _ = prepared.inputs.examples  # what is wrong with them is found out before anything is trained
        found.append(TaskRuns(task, prepared, out / _folder_name(point)))
    runs = len(found) * request.runs
    steps = sum(job.prepared.schedule.total_steps for job in found) * request.runs
    console.info(
        f"{len(found)} combinations, {request.runs} seed{'s' if request.runs != 1 else ''} each: {runs} runs, "
        f"{steps:,} steps, finished runs included"  # and without those of a task to start from
    )
    intermediates: dict[str, hub.Checkpoint] = {}  # by the task that was fine-tuned for it, for all combinations alike
    for i, job in enumerate(found):
        name, prepared = job.prepared.recipe.intermediate_task, job.prepared
        if name not in intermediates:
            prepared = with_intermediate(prepared, out / f"intermediate-{name}", request.overrides)
        if checkpoint := intermediates.get(name, prepared.intermediate):
            intermediates[name] = checkpoint
            prepared = replace(prepared, intermediate=checkpoint)
        found[i] = replace(job, prepared=prepared)
    train_in_parallel(found, request.nproc)
    result = _collect_results(points, found, {"combinations": len(found), "runs": runs, "steps": steps})
    result.write(out / RESULTS)
    return result


def _folder_name(point: Combination) -> str:
    return ",".join(f"{key}={value}" for key, value in point)


def _collect_results(search: Sequence[Combination], found: Sequence[TaskRuns], budget: dict[str, int]) -> SearchResult:
    """Every combination, and the best of those with a score; that every seed of one diverges is a result too."""
    points, ended, failed = [], [], []
    for combination, job in zip(search, found, strict=True):
        values, directory = dict(combination), _folder_name(combination)
        try:
            result = evaluate_task(job.prepared, job.out)
        except AllSeedsDiverged as error:
            console.warn(error.message)
            failed.append(error)
            points.append(SearchPoint(values=values, directory=directory, median=None, diverged=error.seeds))
        else:
            ended.append(result)
            points.append(SearchPoint(values=values, directory=directory, **result.model_dump(include=_KEPT)))
    if not ended:
        raise failed[0]
    best = max((p for p in points if p.median is not None), key=lambda p: p.median or 0.0)  # of equals the first
    return SearchResult(
        kind="search",
        **ended[0].model_dump(include=_OF_ALL),
        points=points,
        best=SearchPoint(**best.model_dump(include={"values", "directory", "median"})),
        caveat=CAVEAT,
        budget=budget,
        seconds=round(sum(point.seconds or 0.0 for point in points), 2),
    )
