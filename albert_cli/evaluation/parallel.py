"""Fine-tune the seeds of several tasks in parallel: one run per GPU, or several that share the cores of a CPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from albert_cli import console, executor, store
from albert_cli.array_jobs import ArrayJob
from albert_cli.errors import DivergedError, LockedError
from albert_cli.evaluation.output import CONTROLS_FOLDER, best_run, run_directory
from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.evaluation.single import DivergedSeed, seeds_of, summarize_runs
from albert_cli.formatting import format_percent
from albert_cli.results import RESULTS, RunResult, read_result
from albert_cli.training.finetune import finetune
from albert_cli.training.intermediate import KEY, use_intermediate
from albert_cli.training.loop import DIVERGED_FILE, DivergenceReport
from albert_cli.training.task_recipe import PRETRAINED
from albert_cli.training.task_setup import PreparedTask, TaskRequest

_SECONDS_BETWEEN_ATTEMPTS = 10.0


class ArrayJobDone(Exception):  # noqa: N818  (a normal end)
    """The end of an array job whose share is finished, while runs of other jobs are not."""

    def __init__(self, array_job: ArrayJob, finished: int, total: int) -> None:
        super().__init__(f"job {array_job}: its share is finished; {finished} of {total} runs are")
        self.facts = {"job": str(array_job), "runs_finished": finished, "runs_total": total}


@dataclass(frozen=True)
class TaskRuns:
    """The runs of a task: the name that the user gave, the prepared task, and their directory."""

    name: str
    prepared: PreparedTask
    out: Path


@dataclass(frozen=True)
class _RunRequest:
    """One run, described by values that can be sent to another process."""

    request: TaskRequest
    name: str
    seed: int
    out: Path
    intermediate: Path | None
    intermediate_note: str | None


def list_units(tasks: Mapping[str, PreparedTask], request: TaskRequest) -> dict[str, str]:
    """Return the units of a plan: all runs, also those of the controls. Tasks are by folder of the output directory."""
    units = dict[str, str]()
    for folder, prepared in tasks.items():
        if not prepared.for_scoring:
            outs = [Path(folder), *(Path(folder) / CONTROLS_FOLDER / control for control in request.controls)]
            units |= {run_directory(out, seed).as_posix(): "" for out in outs for seed in seeds_of(prepared)}
    return units


def train_in_parallel(tasks: Sequence[TaskRuns], request: TaskRequest) -> None:
    """Fine-tune every seed of every task, `nproc` at a time; with `nproc=1` the evaluation itself does it.

    A failed run does not stop the others; at the end the first error is raised. A diverged run is no failure. On a
    signal every process saves its run, and the same command resumes. An array job fine-tunes only its share, and raises
    `ArrayJobDone` if other runs are unfinished then.
    """
    if request.array_job is not None:
        train_share(tasks, request.array_job, request.nproc)
        require_finished(tasks, request.array_job)
    elif request.nproc > 1 or executor.has_cluster():
        _run_items(_list_items(tasks), request.nproc)


def train_share(tasks: Sequence[TaskRuns], array_job: ArrayJob, nproc: int) -> None:
    """Fine-tune the share of an array job."""
    share = array_job.select(_list_items(tasks))
    _run_items([item for item in share if not _is_finished(item)], nproc)


def require_finished(tasks: Sequence[TaskRuns], array_job: ArrayJob) -> None:
    """Raise `ArrayJobDone` if a run of any job is unfinished."""
    items = _list_items(tasks)
    finished = sum(map(_is_finished, items))
    if finished < len(items):
        raise ArrayJobDone(array_job, finished, total=len(items))


def finish_runs(runs: TaskRuns, nproc: int) -> None:
    """Fine-tune all unfinished runs that no other array job fine-tunes, and wait for the runs of other jobs."""
    items = _list_items([runs])
    while unfinished := [item for item in items if not _is_finished(item)]:
        try:
            _run_items(unfinished, nproc)
        except LockedError:
            console.info(f"waiting for {len(unfinished)} runs, which other jobs fine-tune")
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def find_best_run(runs: TaskRuns) -> Path:
    """Return the directory of the best finished run; raise `AllSeedsDiverged` if no seed has a score."""
    outcomes: list[RunResult | DivergedSeed] = []
    for seed in seeds_of(runs.prepared):
        directory = run_directory(runs.out, seed)
        if (directory / RESULTS).is_file():
            result = read_result(directory / RESULTS)
            assert isinstance(result, RunResult), "a run has the result of one seed"
            outcomes.append(result)
        else:
            outcomes.append(DivergedSeed(seed, store.read_record(directory / DIVERGED_FILE, DivergenceReport).message))
    return best_run(runs.out, summarize_runs(runs.prepared.task.title, outcomes))


def _list_items(tasks: Sequence[TaskRuns]) -> list[executor.WorkItem[float | None]]:
    """Return one item for each run of the tasks that are trained."""
    return [item for runs in tasks if not runs.prepared.for_scoring for item in _work_items(runs)]


def _is_finished(item: executor.WorkItem[float | None]) -> bool:
    (run,) = item.arguments
    return any((run.out / name).is_file() for name in (RESULTS, DIVERGED_FILE))


def _run_items(items: Sequence[executor.WorkItem[float | None]], nproc: int) -> None:
    if not items:
        return
    errors: dict[str, BaseException] = {}

    def record(item: executor.WorkItem[float | None], score: float | BaseException | None) -> None:
        if isinstance(score, BaseException):
            errors[item.name] = score
        else:
            console.info(f"{item.name} {format_percent(score) or 'diverged'}")

    count = min(nproc, len(items))
    threads = max(1, torch.get_num_threads() // count)
    executor.run_items(items, executor.WorkerLimits(count, threads, torch.cuda.device_count(), quiet=True), record)
    for item in items:
        if item.name in errors:
            raise errors[item.name]


def _work_items(runs: TaskRuns) -> list[executor.WorkItem[float | None]]:
    """Return one item for each seed."""
    prepared = runs.prepared
    request = prepared.request
    if prepared.intermediate_note:
        request = replace(request, overrides=(*request.overrides, f"{KEY}={PRETRAINED}"))
    items = []
    for seed in seeds_of(prepared):
        out = run_directory(runs.out, seed)
        intermediate = prepared.intermediate.directory if prepared.intermediate else None
        run = _RunRequest(request, runs.name, seed, out, intermediate, prepared.intermediate_note)
        items.append(executor.WorkItem(f"{out}: {runs.name} seed {seed}", _train_in_worker, (run,)))
    return items


def _train_in_worker(run: _RunRequest) -> float | None:
    """Fine-tune one seed in a worker process; returns its score, None if it diverged."""
    prepared = replace(prepare_evaluation(run.name, run.request), intermediate_note=run.intermediate_note)
    if run.intermediate is not None:
        prepared = use_intermediate(prepared, run.intermediate)
    inputs = prepared.load_inputs(run.seed)
    try:
        return finetune(prepared, inputs, run.out, run.seed, retry_diverged=False).score
    except DivergedError:
        return None
