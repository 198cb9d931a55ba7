"""One task: the median of k seeded fine-tunings (§4.2), or the scores of a task checkpoint as it is."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import BusyError, ConfigError, DivergedError, MissingData
from albert_cli.evaluation.baselines import baselines
from albert_cli.tasks.base import PREDICTIONS
from albert_cli.tasks.squad.answers import OFFICIAL
from albert_cli.training import run
from albert_cli.training.finetune import RESULTS, Prepared, finetune, prepare
from albert_cli.training.task_recipe import PAPER, PRETRAINED, resolve
from albert_cli.training.task_setup import prepared_by

FOLDER = "controls"  # below an evaluation: those of its controls
TEST_PREDICTIONS = "predictions.test.jsonl"
SCORING = (RESULTS, PREDICTIONS, TEST_PREDICTIONS, *OFFICIAL)  # what scoring without training writes


class NoneEnded(DivergedError):  # noqa: N818  (as its kind)
    """Every seed of a task diverged; `seeds` says why."""

    def __init__(self, title: str, seeds: Mapping[str, str]) -> None:
        first, why = next(iter(seeds.items()))
        every = "its only seed" if len(seeds) == 1 else f"each of its {len(seeds)} seeds"
        hint = "lower optimizer.lr or lengthen the warm-up, and choose another --out"
        super().__init__(f"{title}: {every} diverged; seed {first}: {why}", hint)
        self.seeds = dict(seeds)


@dataclass(frozen=True)
class Request:
    """What `albert eval` was asked for, whatever the task; `again`: train a checkpoint that has the task's head too."""

    checkpoint: str
    data: str | None
    runs: int
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    nproc: int = 1
    again: bool = False
    controls: tuple[str, ...] = ()
    recipes: str = PAPER


def prepare_task(request: Request, task: str, like: Prepared | None = None) -> Prepared:
    """Ready to be scored as it is, when its checkpoint has the task's own head; else, or `again`, to be trained.

    What `like` has read already is taken from it, where it is the same.
    """
    r = request
    prepared = prepare(task, r.checkpoint, r.data, r.overrides, r.device, r.recipes, like=like)
    if request.again or not _is_scored(prepared):
        return prepared
    recipe, made_for = prepared.recipe, prepared.checkpoint.finetuned_for
    if made_for is not None:  # inputs are made as in its fine-tuning
        recipe = resolve(task, [*prepared.task.as_trained(made_for), *request.overrides], request.recipes)
    return prepared_by(
        recipe, prepared.asked, prepared.task, prepared.checkpoint, prepared.vocabulary, for_scoring=True
    )


def _is_scored(prepared: Prepared) -> bool:
    """Whether the checkpoint's own head answers; raises `ConfigError` where nobody can know that it is the task's."""
    model, found, task = prepared.recipe.model, prepared.checkpoint, prepared.task
    if model.initial != PRETRAINED or model.head == "new" or not task.has_head(found):
        return False
    if model.head == "auto" and found.has_nameless_labels:
        raise ConfigError(
            f"{found.directory}: its classes have no names ({', '.join(found.labels)}); are they {task.title}'s?",
            f"-s model.head=checkpoint takes them for {', '.join(task.output_names)}, model.head=new trains anew",
        )
    return True


def evaluate_task(prepared: Prepared, out: Path, runs: int) -> dict[str, Any]:
    """The task's `results.json`, which is written below `out` with all that leads to it.

    Raises `NoneEnded` where every seed diverged.
    """
    if prepared.for_scoring:
        return _score(prepared, out)
    found = prepared.checkpoint
    if found.labels and prepared.start is None:
        what = found.finetuned_for.task if found.finetuned_for else "another task"
        console.note(
            f"{found.directory}: was fine-tuned for {what} ({', '.join(found.labels)}); "
            f"{prepared.task.title} is trained from its encoder"
        )
    return _median_of_runs(prepared, out, runs)


def refuse_foreign(out: Path, *own: str) -> None:
    """Raise `BusyError` when `out` holds anything but files of these patterns."""
    others = [p.name for p in out.glob("[!.]*") if not any(fnmatch(p.name, pattern) for pattern in own)]
    if others:
        raise BusyError(f"{out}: holds other files ({others[0]}, …)", "choose another --out")


# ---------------------------------------------------------------- a checkpoint to start from


def seeds(prepared: Prepared, runs: int) -> range:
    """The seeds of k runs: from the recipe's own on."""
    first = prepared.recipe.train.seed
    return range(first, first + runs)


def run_directory(out: Path, seed: int) -> Path:
    """Where a seed's run lies below the evaluation of its task."""
    return out / f"run-{seed}"


def _median_of_runs(prepared: Prepared, out: Path, runs: int) -> dict[str, Any]:
    """Fine-tune `runs` seeds below `out`, each resumable, and summarise them."""
    refuse_foreign(out, RESULTS, "run-*", FOLDER, prepared.recipe.start_from)
    results = []
    for seed in seeds(prepared, runs):
        results.append(found := run_seed(prepared, run_directory(out, seed), seed))
        if why := found.get("diverged"):
            what, there = f"{prepared.task.title} seed {seed}", run_directory(out, seed)
            console.warn(f"{what} diverged and does not count: {why}; remove {there} to try it again")
    summary = {**summarise(results), "baselines": _baselines(prepared, results)}
    store.write_json(out / RESULTS, summary)
    return summary


_seen: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}  # of this process, by what they learnt from


def _baselines(prepared: Prepared, runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The linear models' scores; where every seed has its own part of the training examples, the median over them."""
    each = []
    for run_ in runs if prepared.recipe.data.train_examples else runs[:1]:
        p = prepared.for_seed(run_["seed"])
        key = (p.task.name, p.provenance["data"])
        if key not in _seen:
            _seen[key] = baselines(p.task, p.examples[str(p.task.train_split)], p.dev_examples)
        each.append(_seen[key])
    return {
        name: {metric: statistics.median(found[name][metric] for found in each) for metric in of_first}
        for name, of_first in each[0].items()
    }


def run_seed(prepared: Prepared, out: Path, seed: int) -> dict[str, Any]:
    """One run's results. Divergence is a result too, which is kept: `title`, `seed`, and why under `diverged`."""
    try:
        return finetune(prepared, out, seed, again=False)
    except DivergedError as error:
        return {"title": prepared.task.title, "seed": seed, "diverged": error.message}


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median, spread and every score of runs that differ in their seed alone, and the standard error of their mean.

    `diverged` says why for every seed without a score, of which there are more in `seeds` then. `collapsed` says why
    for every seed that collapsed; the median is over all that ended, and once more over the others. Raises `NoneEnded`
    where there is no score.
    """
    diverged = {str(r["seed"]): r["diverged"] for r in runs if "diverged" in r}
    results = [r for r in runs if "diverged" not in r]
    if not results:
        raise NoneEnded(runs[0]["title"], diverged)
    scores = [float(r["score"]) for r in results]
    collapsed = {str(r["seed"]): r["collapsed"] for r in results if r.get("collapsed")}
    sound = [float(r["score"]) for r in results if not r.get("collapsed")]
    of_one_run = {"kind", "score", "scores", "best_threshold", "seed", "best_step", "predictions", "seconds"}
    return {
        "kind": "eval",
        **{key: value for key, value in results[0].items() if key not in {*of_one_run, "collapsed"}},
        "median": statistics.median(scores),
        "spread": max(scores) - min(scores),
        "mean": statistics.fmean(scores),
        "stdev": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "standard_error": statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None,
        "scores_by_seed": {str(r["seed"]): r["score"] for r in results},
        "all_scores": {name: [r["scores"][name] for r in results] for name in results[0]["scores"]},
        "seeds": [r["seed"] for r in runs],
        "diverged": diverged,
        "collapsed": collapsed,
        "median_without_collapsed": statistics.median(sound) if sound else None,
        "seconds": round(sum(float(r["seconds"]) for r in results), 2),
    }


# ---------------------------------------------------------------- a task checkpoint


def _score(prepared: Prepared, out: Path) -> dict[str, Any]:
    """Score a fine-tuned model on every dev split without training it."""
    started = time.monotonic()
    refuse_foreign(out, *SCORING)
    with store.lock(out):
        try:
            _ = prepared.examples
        except MissingData:
            if prepared.task.train_split is not None:
                raise
            return _predict_unlabelled(prepared, out)
        provenance = {"task": prepared.task.name, **prepared.provenance}
        if (out / RESULTS).is_file():
            done = store.read_json(out / RESULTS)
            run.check_parents(out, done, {what: provenance[what] for what in ("task", "checkpoint", "data", "recipe")})
            return done
        model = prepared.task.load(prepared.checkpoint).to(prepared.device)
        result, outputs = prepared.results(model)
        result |= {"initial": "task checkpoint", "seconds": round(time.monotonic() - started, 2)}
        prepared.task.write_predictions(out, prepared.dev_examples, outputs)
        store.write_json(out / RESULTS, result)
    return result


def _predict_unlabelled(prepared: Prepared, out: Path) -> dict[str, Any]:
    """Answer the diagnostics where only their unlabelled file is there: predictions, and no score."""
    task = prepared.task
    examples = task.read("test", prepared.asked.data)
    model = task.load(prepared.checkpoint).to(prepared.device).eval()
    outputs = task.predict(model, prepared.inputs.encode(examples), prepared.device)
    lines = task.prediction_lines(examples, outputs, scored=False)
    store.write_text(out / TEST_PREDICTIONS, "".join(lines))
    counts = Counter(json.loads(line)["prediction"] for line in lines)
    result = {
        "kind": "predictions",
        "task": task.name,
        "title": task.title,
        "examples": {"test": len(examples)},
        "predicted": {label: counts[label] for label in task.labels},
        "predictions": TEST_PREDICTIONS,
        "checkpoint": store.fingerprint(prepared.checkpoint.directory),
        "versions": run.versions(),
    }
    store.write_json(out / RESULTS, result)
    return result
