"""GLUE: every task that has its data there, MNLI before those that start from it, and one number for all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import InputError, MissingData
from albert_cli.evaluation import controls, parallel
from albert_cli.evaluation.average import average
from albert_cli.evaluation.single import (
    NoneEnded,
    Request,
    evaluate_task,
    prepare_task,
    refuse_foreign,
    run_directory,
)
from albert_cli.results import Result
from albert_cli.tasks.glue import HUB
from albert_cli.tasks.spec import SCORED, TASKS
from albert_cli.training.finetune import RESULTS, Prepared
from albert_cli.training.start import start_from_run, start_task, without_start

GLUE = "glue"
_DIAGNOSTICS = "ax"
# GLUE (arXiv 1804.07461, §3) counts CoLA by Matthews' correlation alone, every other task by all its metrics.
_NOT_COUNTED = {"cola": ("accuracy",)}

Results = dict[str, dict[str, Any]]


def evaluate_suite(request: Request, out: Path) -> dict[str, Any]:
    """Every GLUE task that has its data there; those without are named and left out.

    A task of which every seed diverges does not keep the others from being trained: its `NoneEnded` comes last.

    Raises `InputError` for data that are there and damaged before anything is trained: a mean without the task would
    be another number than the one that was asked for, and a warning is easily missed.
    """
    refuse_foreign(out, RESULTS, *TASKS)
    ready, left_out = _with_data(request)
    if not ready:
        raise InputError(f"{request.data or HUB}: no GLUE task has its data there", next(iter(left_out.values()), None))
    first = {name: prepared for name, prepared in ready.items() if start_task(prepared) is None}
    failed: dict[str, NoneEnded] = {}
    results = _evaluate(request, first, out, failed)
    if started := [failed[name] for name in map(start_task, ready.values()) if name in failed]:
        raise started[0]
    others = {name: _started(ready[name], request, out, results, left_out) for name in ready if name not in first}
    results |= _evaluate(request, others, out, failed)
    for error in failed.values():
        raise error
    tasks = {name: results[name] for name in SCORED if name in results}
    mean = average({name: counted(result) for name, result in tasks.items()})
    total = {"mean_of_tasks": mean} if left_out else {"glue_score": mean}
    diagnostics = _diagnostics(request, out, tasks)
    summary = {"kind": "suite", "tasks": tasks, "left_out": left_out, "tasks_scored": len(tasks), **total}
    summary |= {"diagnostics": diagnostics} if diagnostics else {}
    store.write_json(out / RESULTS, summary)
    return summary


def _with_data(request: Request) -> tuple[dict[str, Prepared], dict[str, str]]:
    """The tasks whose data are there, all of them read, and why the others are left out."""
    ready: dict[str, Prepared] = {}
    left_out: dict[str, str] = {}
    for name in SCORED:
        try:
            prepared = prepare_task(request, name, next(iter(ready.values()), None))
            _ = prepared.examples
        except MissingData as error:
            left_out[name] = error.message
            console.warn(f"{TASKS[name].title} is left out: {error.message}")
            continue
        ready[name] = prepared
    if "mnli" in ready:
        for split in ("dev", "test"):
            with suppress(MissingData):
                TASKS[_DIAGNOSTICS].read(split, request.data)
    return ready, left_out


def _started(
    prepared: Prepared, request: Request, out: Path, results: Mapping[str, Mapping[str, Any]], left_out: dict[str, str]
) -> Prepared:
    """The same from the best run of the task that its recipe starts from, which the suite has run by now."""
    name = start_task(prepared)
    assert name is not None
    if name not in results:
        return without_start(prepared, left_out.get(name, "it has a start of its own"))
    return start_from_run(prepared, best_run(out / name, results[name]))


def best_run(out: Path, result: Mapping[str, Any]) -> Path:
    """The run of an evaluation that is best on dev; of equals the one with the lowest seed."""
    scores: Mapping[str, float] = result["scores_by_seed"]
    return run_directory(out, min(map(int, scores), key=lambda seed: (-scores[str(seed)], seed)))


def _evaluate(request: Request, tasks: Mapping[str, Prepared], out: Path, failed: dict[str, NoneEnded]) -> Results:
    """The results of those tasks of which a seed ended; the others' errors go into `failed`."""
    beside = {name: controls.jobs(request, name, prepared, out / name) for name, prepared in tasks.items()}
    jobs = [[parallel.Job(request, name, prepared, out / name), *beside[name]] for name, prepared in tasks.items()]
    parallel.train(list(chain.from_iterable(jobs)), request.nproc)
    results = {}
    for name, prepared in tasks.items():
        try:
            results[name] = controls.evaluate_beside(prepared, out / name, request.runs, beside[name])
        except NoneEnded as error:
            console.warn(error.message)
            failed[name] = error
    return results


def _diagnostics(request: Request, out: Path, tasks: Results) -> dict[str, Any] | None:
    """AX by the best model of MNLI, where both are there."""
    name = _DIAGNOSTICS
    if (mnli := model_of(str(TASKS[name].classifier_of), request, out, tasks)) is None:
        return None
    try:
        return evaluate_task(prepare_task(answering(request, mnli), name), out / name, 1)
    except MissingData as error:
        console.note(f"{TASKS[name].title} is left out: {error.message}")
        return None


def answering(request: Request, model: str) -> Request:
    """The request for a model that was made by it and is now asked as it is."""
    kept = [text for text in request.overrides if text.partition("=")[0].strip() != "model.initial"]
    return Request(model, request.data, 1, tuple(kept), request.device)


def model_of(name: str, request: Request, out: Path, tasks: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The checkpoint that answers a task's test set: its best run on dev, or the one that was scored as it is."""
    if name not in tasks:
        return None
    return str(best_run(out / name, tasks[name])) if tasks[name]["kind"] == "eval" else request.checkpoint


def counted(result: Mapping[str, Any]) -> dict[str, float]:
    """What GLUE counts of a task: all of its metrics and dev splits, each the median of its runs."""
    not_counted = _NOT_COUNTED.get(result["task"], ())
    return {name: score for name, score in Result.model_validate(result).medians.items() if name not in not_counted}
