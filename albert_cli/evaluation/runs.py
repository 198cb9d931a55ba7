"""`albert eval`: the median of k seeded fine-tunings (§4.2), or the scores of a task checkpoint as it is."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import BusyError, ConfigError, InputError
from albert_cli.tasks.spec import TASKS
from albert_cli.training import run
from albert_cli.training.classify import PREDICTIONS
from albert_cli.training.finetune import RESULTS, Prepared, finetune, prepare
from albert_cli.training.task_recipe import TaskData

GLUE = "glue"
# GLUE (arXiv 1804.07461, §3) counts CoLA by Matthews' correlation alone, every other task by all its metrics.
_NOT_COUNTED = {"cola": ("accuracy",)}


def evaluate(
    task: str, checkpoint: str, data: str | None, out: Path, runs: int, overrides: Sequence[str], device: str
) -> dict[str, Any]:
    """Score a checkpoint on a task, or on every GLUE task whose data are there; return `results.json`.

    A checkpoint of this very task is scored as it is. Any other, one of another task included, is where `runs`
    seeded fine-tunings start from: the paper starts RTE, STS-B and MRPC from MNLI (§4.2).
    """
    if runs < 1:
        raise ConfigError(f"--runs {runs}: at least one run is needed")
    if task == GLUE:
        return _suite(checkpoint, data, out, runs, overrides, device)
    return _evaluate(_ready(prepare(task, checkpoint, data, overrides, device)), out, runs)


def _ready(prepared: Prepared) -> Prepared:
    """Ready to be scored as it is, when its checkpoint has the task's own classifier; else to be trained."""
    recipe, made_for = prepared.recipe, prepared.checkpoint.finetuned_for
    if recipe.model.initial == "random" or not prepared.kind.has_head(prepared.task, prepared.checkpoint):
        return prepared
    if made_for and made_for.max_seq_length < recipe.data.max_seq_length:  # scored as it was trained
        recipe = dataclasses.replace(recipe, data=TaskData(made_for.max_seq_length))
    return dataclasses.replace(prepared, recipe=recipe, for_scoring=True)


def _evaluate(prepared: Prepared, out: Path, runs: int) -> dict[str, Any]:
    if prepared.for_scoring:
        return _score(prepared, out)
    found = prepared.checkpoint
    if found.labels:
        what = found.finetuned_for.task if found.finetuned_for else "another task"
        console.note(
            f"{found.directory}: was fine-tuned for {what} ({', '.join(found.labels)}); "
            f"{prepared.task.title} is trained from its encoder"
        )
    return _median_of_runs(prepared, out, runs)


def _refuse_foreign(out: Path, *own: str) -> None:
    """Raise `BusyError` when `out` holds anything but files of these patterns."""
    others = [p.name for p in out.glob("[!.]*") if not any(fnmatch(p.name, pattern) for pattern in own)]
    if others:
        raise BusyError(f"{out}: holds other files ({others[0]}, …)", "choose another --out")


# ---------------------------------------------------------------- a checkpoint to start from


def _median_of_runs(prepared: Prepared, out: Path, runs: int) -> dict[str, Any]:
    """Fine-tune `runs` seeds from the recipe's own on below `out`, each resumable, and summarise them."""
    _refuse_foreign(out, RESULTS, "run-*")
    first = prepared.recipe.train.seed
    results = [finetune(prepared, out / f"run-{seed}", seed) for seed in range(first, first + runs)]
    summary = summarise(results)
    store.write_json(out / RESULTS, summary)
    return summary


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median, spread and every score of runs that differ in their seed alone."""
    scores = [float(r["score"]) for r in results]
    of_one_run = ("kind", "score", "scores", "seed", "best_step", "predictions", "seconds")
    return {
        "kind": "eval",
        **{key: value for key, value in results[0].items() if key not in of_one_run},
        "median": statistics.median(scores),
        "spread": max(scores) - min(scores),
        "mean": statistics.fmean(scores),
        "stdev": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "scores_by_seed": {str(r["seed"]): r["score"] for r in results},
        "all_scores": {name: [r["scores"][name] for r in results] for name in results[0]["scores"]},
        "seeds": [r["seed"] for r in results],
        "seconds": round(sum(float(r["seconds"]) for r in results), 2),
    }


# ---------------------------------------------------------------- a task checkpoint


def _score(prepared: Prepared, out: Path) -> dict[str, Any]:
    """Score a fine-tuned model on every dev split without training it."""
    started = time.monotonic()
    _refuse_foreign(out, RESULTS, PREDICTIONS)
    with store.lock(out):
        provenance = {"task": prepared.task.name, **prepared.provenance}
        if (out / RESULTS).is_file():
            done = store.read_json(out / RESULTS)
            run.check_parents(out, done, {what: provenance[what] for what in ("task", "checkpoint", "data", "recipe")})
            return done
        model = prepared.kind.load(prepared.task, prepared.checkpoint).to(prepared.device)
        result, outputs = prepared.results(model)
        result |= {"steps": 0, "initial": "task checkpoint", "seconds": round(time.monotonic() - started, 2)}
        prepared.kind.write_predictions(out, prepared.task, outputs, prepared.dev, prepared.dev_examples)
        store.write_json(out / RESULTS, result)
    return result


# ---------------------------------------------------------------- the suite


def _suite(
    checkpoint: str, data: str | None, out: Path, runs: int, overrides: Sequence[str], device: str
) -> dict[str, Any]:
    """Every GLUE task that has its data at `data`; those without are named and left out."""
    _refuse_foreign(out, RESULTS, *TASKS)
    tasks, left_out = {}, {}
    for name, row in TASKS.items():
        try:
            prepared = _ready(prepare(name, checkpoint, data, overrides, device))
            _ = prepared.examples
        except InputError as error:
            left_out[name] = error.message
            console.warn(f"{row.title} is left out: {error.message}")
            continue
        tasks[name] = _evaluate(prepared, out / name, runs)
    if not tasks:
        raise InputError(f"{data}: no GLUE task has its data there", next(iter(left_out.values()), None))
    mean = statistics.fmean(map(task_score, tasks.values()))
    total = {"mean_of_tasks": mean} if left_out else {"glue_score": mean}
    summary = {"kind": "suite", "tasks": tasks, "left_out": left_out, "tasks_scored": len(tasks), **total}
    store.write_json(out / RESULTS, summary)
    return summary


def task_score(result: Mapping[str, Any]) -> float:
    """One number for a task, as GLUE has it: the mean of its metrics and dev splits, each the median of its runs."""
    scores: Mapping[str, Sequence[float]]
    scores = result["all_scores"] if "all_scores" in result else {n: [s] for n, s in result["scores"].items()}
    not_counted = _NOT_COUNTED.get(result["task"], ())
    return statistics.fmean(statistics.median(s) for name, s in scores.items() if name not in not_counted)


# ---------------------------------------------------------------- in words


def text(result: Mapping[str, Any]) -> str:
    """A result as a table: a row a task, with every score."""
    if result["kind"] == "run":
        return run_text(result, None)
    rows = [_row(r) for r in (result["tasks"].values() if result["kind"] == "suite" else [result])]
    if result["kind"] == "suite":
        mean = result.get("glue_score", result.get("mean_of_tasks"))
        name = "GLUE score" if "glue_score" in result else f"mean of {result['tasks_scored']} of {len(TASKS)} tasks"
        rows.append((name, "", _percent(mean), "", "", ""))
    return console.table(("task", "metric", "median", "spread", "majority", "scores by seed"), rows)


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    if result["kind"] == "run":
        return (result["title"], result["metric"], _percent(result["score"]), "", _percent(result["majority"]), "")
    scores = " ".join(map(_percent, result["scores_by_seed"].values()))
    numbers = (result["median"], result["spread"], result["majority"])
    return (result["title"], result["metric"], *map(_percent, numbers), scores)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def run_text(result: Mapping[str, Any], out: Path | None) -> str:
    """One run's scores in a line or two."""
    scores = ", ".join(f"{name} {_percent(value)}" for name, value in result["scores"].items())
    where = f"{out}: " if out else ""
    best = f" at step {result['best_step']} of {result['steps']}" if "best_step" in result else ""
    majority = f" (majority {_percent(result['majority'])})" if result["majority"] is not None else ""
    return f"{where}{result['title']} dev {scores}{best}{majority}"
