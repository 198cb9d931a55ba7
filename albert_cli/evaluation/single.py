"""One task: the median of k seeded fine-tunings (§4.2), or the scores of a task checkpoint as it is.

`--nproc`: the fine-tunings over processes, one per GPU, or N that share the cores of a CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from albert_cli import console, pool, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, DivergedError
from albert_cli.evaluation.baselines import score_baselines
from albert_cli.results import RESULTS, Result, format_percent, standard_error
from albert_cli.tasks.base import PREDICTIONS
from albert_cli.tasks.squad.task import OFFICIAL_FILES
from albert_cli.training import capacity, run
from albert_cli.training.finetune import finetune
from albert_cli.training.intermediate import from_intermediate
from albert_cli.training.task_recipe import PRETRAINED, load_recipe
from albert_cli.training.task_setup import PreparedTask, TaskRequest, prepare_task, prepare_with_recipe

CONTROLS_FOLDER = "controls"  # below an evaluation: those of its controls
SCORING_FILES = (
    RESULTS,
    PREDICTIONS,
    "predictions.test.jsonl",
    *OFFICIAL_FILES,
)  # what scoring without training writes, or wrote


class AllSeedsDiverged(DivergedError):  # noqa: N818  (as its kind)
    """Every seed of a task diverged; `seeds` says why."""

    def __init__(self, title: str, seeds: Mapping[str, str]) -> None:
        first, why = next(iter(seeds.items()))
        every = "its only seed" if len(seeds) == 1 else f"each of its {len(seeds)} seeds"
        hint = "lower optimizer.lr or lengthen the warm-up, and choose another --out"
        super().__init__(f"{title}: {every} diverged; seed {first}: {why}", hint)
        self.seeds = dict(seeds)


def prepare_evaluation(request: TaskRequest, task: str) -> PreparedTask:
    """The task, to be scored as it is if the checkpoint has its head; otherwise, or under `again`, to be trained.

    Raises `ConfigError` where nobody can know that the head is the task's.
    """
    prepared = prepare_task(task, request)
    recipe, found, asked = prepared.recipe, prepared.checkpoint, prepared.task
    model, made_for = recipe.model, found.finetuned_task
    if request.again or model.weights != "pretrained" or model.head == "new" or not asked.has_head(found):
        return prepared
    if model.head == "auto" and found.has_unnamed_labels:
        raise ConfigError(
            f"{found.directory}: its classes have no names ({', '.join(found.labels)}); are they {asked.title}'s?",
            f"-s model.head=checkpoint takes them for {', '.join(asked.output_names)}, model.head=new trains anew",
        )
    if made_for is not None:  # inputs are made as in its fine-tuning
        try:
            recipe = load_recipe(
                task, [*asked.overrides_from_checkpoint(made_for), *request.overrides], request.recipes
            )
        except ConfigError as error:  # without what the checkpoint says of itself it was resolved before
            raise CheckpointError(f"{found.directory / 'config.json'}: {error.message}") from None
    return prepare_with_recipe(recipe, request, asked, found, prepared.inputs.vocabulary, for_scoring=True)


def evaluate_task(prepared: PreparedTask, out: Path) -> Result:
    """The task's result, which is written below `out` with all that leads to it.

    Raises `NoneEnded` where every seed diverged.
    """
    if prepared.for_scoring:
        return _score_checkpoint(prepared, out)
    checkpoint = prepared.checkpoint
    if checkpoint.labels and prepared.intermediate is None:
        what = checkpoint.finetuned_task.task if checkpoint.finetuned_task else "another task"
        console.info(
            f"{checkpoint.directory}: was fine-tuned for {what} ({', '.join(checkpoint.labels)}); "
            f"{prepared.task.title} is trained from its encoder"
        )
    require_own_output(out, RESULTS, "run-*", CONTROLS_FOLDER, prepared.recipe.intermediate_task)
    results = []
    for seed in seeds(prepared):
        there = run_directory(out, seed)
        results.append(found := train_seed(prepared, there, seed))
        if found.diverged:
            what = f"{prepared.task.title} seed {seed}"
            console.warn(f"{what} diverged and does not count: {found.diverged}; remove {there} to try it again")
    summary = summarize_runs(results)
    if prepared.request.baselines:
        summary = summary.model_copy(update={"baselines": _baselines(prepared, results)})
    summary.write(out / RESULTS)
    return summary


def require_own_output(out: Path, *own: str) -> None:
    """Raise `BusyError` when `out` holds anything but files of these patterns."""
    others = [p.name for p in out.glob("[!.]*") if not any(fnmatch(p.name, pattern) for pattern in own)]
    if others:
        raise BusyError(f"{out}: holds other files ({others[0]}, …)", "choose another --out")


# ---------------------------------------------------------------- a checkpoint to start from


def seeds(prepared: PreparedTask) -> range:
    """The seeds of the runs that were asked for: from the recipe's own on."""
    first = prepared.recipe.train.seed
    return range(first, first + prepared.request.runs)


def run_directory(out: Path, seed: int) -> Path:
    """Where a seed's run lies below the evaluation of its task."""
    return out / f"run-{seed}"


def best_run(out: Path, result: Result) -> Path:
    """The run of an evaluation that is best on dev; of equals the one with the lowest seed."""
    scores = result.scores_by_seed
    return run_directory(out, min(map(int, scores), key=lambda seed: (-scores[str(seed)], seed)))


def scoring_request(request: TaskRequest, model: str) -> TaskRequest:
    """The request for a model that was made by it and is now asked as it is."""
    of_its_making = ("model.weights", "model.head")
    kept = [text for text in request.overrides if text.partition("=")[0].strip() not in of_its_making]
    return TaskRequest(model, request.data, 1, tuple(kept), request.device)


def checkpoint_for_test_set(name: str, request: TaskRequest, out: Path, tasks: Mapping[str, Result]) -> str | None:
    """The checkpoint that answers a task's test set: its best run on dev, or the one that was scored as it is."""
    if name not in tasks:
        return None
    return str(best_run(out / name, tasks[name])) if tasks[name].kind == "eval" else request.checkpoint


_seen: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}  # of this process, by what they learnt from


def _baselines(prepared: PreparedTask, runs: Sequence[Result]) -> dict[str, dict[str, float]]:
    """The linear models' scores; where every seed has its own part of the training examples, the median over them."""
    each = []
    for run_ in runs if prepared.recipe.data.train_examples else runs[:1]:
        p = prepared.for_seed(run_.seed or 0)
        key = (p.task.name, p.provenance["data"])
        if key not in _seen:
            _seen[key] = score_baselines(p.task, p.inputs.train_examples, p.inputs.dev_examples)
        each.append(_seen[key])
    return {
        name: {metric: statistics.median(found[name][metric] for found in each) for metric in of_first}
        for name, of_first in each[0].items()
    }


def train_seed(prepared: PreparedTask, out: Path, seed: int) -> Result:
    """One run's result. Divergence is one too, which is kept: with why under `diverged`, and without a score."""
    try:
        return finetune(prepared, out, seed, again=False)
    except DivergedError as error:
        return Result(title=prepared.task.title, seed=seed, diverged=error.message)


_OF_ONE_RUN = {
    "kind", "score", "scores", "best_threshold", "seed", "best_step", "predictions", "collapsed", "seconds"
}  # fmt: skip


def summarize_runs(runs: Sequence[Result]) -> Result:
    """Median, spread and every score of runs that differ in their seed alone, and the standard error of their mean.

    `diverged` says why for every seed without a score, of which there are more in `seeds` then. `collapsed` says why
    for every seed that collapsed; the median is over all that ended, and once more over the others. Raises `NoneEnded`
    where there is no score.
    """
    diverged = {str(r.seed): str(r.diverged) for r in runs if r.diverged}
    results = [r for r in runs if not r.diverged]
    if not results:
        raise AllSeedsDiverged(runs[0].title, diverged)
    by_seed = {str(r.seed): r.score for r in results if r.score is not None}
    collapsed = {str(r.seed): str(r.collapsed) for r in results if r.collapsed}
    scores, sound = list(by_seed.values()), [score for seed, score in by_seed.items() if seed not in collapsed]
    return Result(
        **results[0].model_dump(exclude_unset=True, exclude=_OF_ONE_RUN),
        kind="eval",
        median=statistics.median(scores),
        spread=max(scores) - min(scores),
        mean=statistics.fmean(scores),
        stdev=statistics.stdev(scores) if len(scores) > 1 else 0.0,
        standard_error=standard_error(scores),
        scores_by_seed=by_seed,
        all_scores={name: [r.scores[name] for r in results] for name in results[0].scores},
        seeds=[r.seed for r in runs if r.seed is not None],
        diverged=diverged,
        collapsed=collapsed,
        median_without_collapsed=statistics.median(sound) if sound else None,
        seconds=round(sum(r.seconds or 0.0 for r in results), 2),
    )


# ---------------------------------------------------------------- several runs at a time


@dataclass(frozen=True)
class TaskRuns:
    """A task to be fine-tuned with every seed: as the user names it, made ready, and where its runs go."""

    task: str
    prepared: PreparedTask
    out: Path


def train_in_parallel(jobs: Sequence[TaskRuns], nproc: int) -> None:
    """Fine-tune every seed of every job, `nproc` at a time; one at a time is left to the evaluation itself.

    Tasks that are only scored are left alone. A run that fails does not stop the others; at the end the first error
    is raised (divergence is none). Asked to stop, every process saves its run, and the same command goes on.
    """
    runs = [one for job in jobs if not job.prepared.for_scoring for one in _work_items(job)]
    if nproc == 1 or not runs:
        return
    errors: dict[str, BaseException] = {}

    def keep(job: pool.WorkItem[float | None], score: float | BaseException | None) -> None:
        if isinstance(score, BaseException):
            errors[job.name] = score
        else:
            console.info(f"{job.name} {format_percent(score) or 'diverged'}")

    count = min(nproc, len(runs))
    threads, gpus = max(1, torch.get_num_threads() // count), torch.cuda.device_count()
    pool.run_items(runs, pool.WorkerLimits(count, threads, gpus, quiet=True), keep)
    for one in runs:
        if one.name in errors:
            raise errors[one.name]


def _work_items(job: TaskRuns) -> list[pool.WorkItem[float | None]]:
    prepared, request = job.prepared, job.prepared.request
    found = prepared.intermediate.directory if prepared.intermediate else None
    if prepared.intermediate_note:
        request = replace(request, overrides=(*request.overrides, f"intermediate_task={PRETRAINED}"))
    return [
        pool.WorkItem(
            f"{run_directory(job.out, seed)}: {job.task} seed {seed}", _train_in_worker,
            (request, job.task, found, prepared.intermediate_note, run_directory(job.out, seed), seed),
        )
        for seed in seeds(prepared)
    ]  # fmt: skip


def _train_in_worker(
    request: TaskRequest, task: str, intermediate: Path | None, note: str | None, out: Path, seed: int
) -> float | None:
    return train_seed(_prepared(request, task, intermediate, note), out, seed).score


@lru_cache(maxsize=1)
def _prepared(request: TaskRequest, task: str, intermediate: Path | None, note: str | None) -> PreparedTask:
    """The task read and encoded once for all seeds that this process runs after each other."""
    prepared = replace(prepare_evaluation(request, task), intermediate_note=note)
    return from_intermediate(prepared, intermediate) if intermediate else prepared


# ---------------------------------------------------------------- a task checkpoint


def _score_checkpoint(prepared: PreparedTask, out: Path) -> Result:
    started = time.monotonic()
    require_own_output(out, *SCORING_FILES)
    _ = prepared.inputs.examples  # what is wrong with them is said before a folder is made
    with store.lock(out):
        provenance = {"task": prepared.task.name, **prepared.provenance}
        if (out / RESULTS).is_file():
            done = Result.read(out / RESULTS)
            run.check_parents(
                out, done.as_json(), {what: provenance[what] for what in ("task", "checkpoint", "data", "recipe")}
            )
            return done
        result, outputs = prepared.results(_load_model(prepared))
        seconds = round(time.monotonic() - started, 2)
        result = result.model_copy(update={"weights": "task checkpoint", "seconds": seconds})
        prepared.task.write_predictions(out, prepared.inputs.dev_examples, outputs)
        result.write(out / RESULTS)
    return result


def _load_model(prepared: PreparedTask) -> Any:
    capacity.warn_inference_memory(prepared.checkpoint.config, prepared.device)
    return prepared.task.load(prepared.checkpoint).to(prepared.device)


def predict_examples(prepared: PreparedTask, examples: Sequence[Any]) -> Any:
    """What the checkpoint's own head says of some examples."""
    return prepared.task.predict(_load_model(prepared).eval(), prepared.inputs.encode(examples), prepared.device)
