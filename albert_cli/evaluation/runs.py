"""`albert eval`: the median of k seeded fine-tunings (§4.2), or the scores of a task checkpoint as it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError
from albert_cli.model import hub
from albert_cli.model.heads import SequenceClassifier
from albert_cli.tasks.metrics import majority
from albert_cli.tasks.spec import TASKS
from albert_cli.training.classify import evaluation, predict_logits
from albert_cli.training.finetune import PREDICTIONS, RESULTS, Prepared, finetune, prediction_lines, prepare

GLUE = "glue"


def evaluate(
    task: str, checkpoint: str, data: str | None, out: Path, runs: int, overrides: Sequence[str], device: str
) -> dict[str, Any]:
    """Score a checkpoint on a task, or on every GLUE task whose data are there; return `results.json`."""
    if runs < 1:
        raise ConfigError(f"--runs {runs}: at least one run is needed")
    if task == GLUE:
        return _suite(checkpoint, data, out, runs, overrides, device)
    found = hub.read(hub.find(checkpoint))
    if found.labels:
        return _score_task_checkpoint(task, checkpoint, found, data, out, overrides, device)
    return _median_of_runs(prepare(task, checkpoint, data, overrides, device), out, runs)


# ---------------------------------------------------------------- a pretrained checkpoint


def _median_of_runs(prepared: Prepared, out: Path, runs: int) -> dict[str, Any]:
    """Fine-tune seeds 0 … runs - 1 below `out`, each resumable on its own, and summarise them."""
    others = [p.name for p in out.glob("*") if p.name != RESULTS and not p.name.startswith((".", "run-"))]
    if others:
        raise BusyError(f"{out}: holds other files ({others[0]}, …)", "choose another --out")
    results = [finetune(prepared, out / f"run-{seed}", seed) for seed in range(runs)]
    summary = summarise(results)
    store.write_json(out / RESULTS, summary)
    return summary


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median, spread and every score of runs that differ in their seed alone."""
    first = results[0]
    scores = [float(r["score"]) for r in results]
    shared = {k: first[k] for k in ("task", "title", "metric")}
    same = (
        "majority",
        "labels",
        "checkpoint",
        "initial",
        "recipe",
        "data",
        "versions",
        "steps",
        "batch_size",
        "examples",
    )
    return {
        "kind": "eval",
        **shared,
        "median": statistics.median(scores),
        "spread": max(scores) - min(scores),
        "mean": statistics.fmean(scores),
        "stdev": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "scores_by_seed": {str(r["seed"]): r["score"] for r in results},
        "all_scores": {name: [r["scores"][name] for r in results] for name in first["scores"]},
        "seeds": [r["seed"] for r in results],
        **{key: first[key] for key in same},
        "seconds": round(sum(float(r["seconds"]) for r in results), 2),
    }


def _suite(
    checkpoint: str, data: str | None, out: Path, runs: int, overrides: Sequence[str], device: str
) -> dict[str, Any]:
    """Every GLUE task with training data at `data`; those without are named and left out."""
    tasks, left_out = {}, {}
    for name, row in TASKS.items():
        if row.train_split is None:
            continue
        try:
            prepared = prepare(name, checkpoint, data, overrides, device)
            _ = prepared.examples
        except InputError as error:
            left_out[name] = error.message
            console.warn(f"{row.title} is left out: {error.message}")
            continue
        tasks[name] = _median_of_runs(prepared, out / name, runs)
    if not tasks:
        raise InputError(f"{data}: no GLUE task has its data there", next(iter(left_out.values()), None))
    summary = {"kind": "suite", "tasks": tasks, "left_out": left_out}
    store.write_json(out / RESULTS, summary)
    return summary


# ---------------------------------------------------------------- a task checkpoint


def _score_task_checkpoint(
    task: str,
    name: str,
    found: hub.Checkpoint,
    data: str | None,
    out: Path,
    overrides: Sequence[str],
    device: str,
) -> dict[str, Any]:
    """Score a fine-tuned model on dev without training it."""
    started = time.monotonic()
    prepared = prepare(task, name, data, overrides, device)
    task_row = prepared.task
    expected = task_row.labels if task_row.kind == "classification" else ("score",)
    if found.labels != expected:
        raise CheckpointError(
            f"{found.directory}: was fine-tuned for the labels {', '.join(found.labels)}, "
            f"not for {task_row.title}'s {', '.join(expected)}",
            "name the task it was fine-tuned on, or a pretrained checkpoint",
        )
    model = SequenceClassifier(found.config, task_row.num_outputs)
    hub.load_into(model, found)
    model.to(prepared.device).eval()
    logits = predict_logits(model, prepared.dev, prepared.device)
    metrics = evaluation(task_row, logits, prepared.dev)
    result = {
        "kind": "run",
        "task": task_row.name,
        "title": task_row.title,
        "metric": task_row.metrics[0],
        "score": metrics[task_row.metrics[0]],
        "scores": {m: metrics[m] for m in task_row.metrics},
        "majority": majority(task_row, prepared.train.labels, prepared.dev.labels)[task_row.metrics[0]],  # type: ignore[arg-type]
        "labels": list(task_row.labels),
        "predictions": PREDICTIONS,
        **prepared.provenance,
        "steps": 0,
        "initial": "task checkpoint",
        "seconds": round(time.monotonic() - started, 2),
    }
    with store.lock(out):
        lines = prediction_lines(task_row, logits, prepared.examples[task_row.dev_splits[0]])
        store.write_text(out / PREDICTIONS, "".join(lines))
        store.write_json(out / RESULTS, result)
    return result


# ---------------------------------------------------------------- in words


def text(result: Mapping[str, Any]) -> str:
    """A result as a table: a row a task, with every score."""
    if result["kind"] == "run":
        return run_text(result, None)
    rows = result["tasks"].values() if result["kind"] == "suite" else [result]
    return console.table(("task", "metric", "median", "spread", "majority", "scores by seed"), [_row(r) for r in rows])


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    scores = " ".join(f"{100 * s:.1f}" for s in result["scores_by_seed"].values())
    numbers = (result["median"], result["spread"], result["majority"])
    return (result["title"], result["metric"], *(f"{100 * n:.1f}" for n in numbers), scores)


def run_text(result: Mapping[str, Any], out: Path | None) -> str:
    """One run's scores in a line or two."""
    scores = ", ".join(f"{name} {100 * value:.1f}" for name, value in result["scores"].items())
    where = f"{out}: " if out else ""
    best = f" at step {result['best_step']} of {result['steps']}" if "best_step" in result else ""
    return f"{where}{result['title']} dev {scores}{best} (majority {100 * result['majority']:.1f})"
