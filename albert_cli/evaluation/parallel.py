"""Fine-tune the seeds of several tasks in parallel: one run per GPU, or several that share the cores of a CPU.

With several processes, a cluster or an array, `train_ahead` leaves a finished or diverged run in the directory of every
seed, and `evaluate_runs` only reads them. With one process it only checks started runs, and `evaluate_runs` trains. The
jobs of an array divide the runs among themselves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from albert_cli import console, executor, store
from albert_cli.array_jobs import ArrayJob
from albert_cli.errors import DivergedError, LockedError
from albert_cli.evaluation.output import CONTROLS_FOLDER, best_run, run_directory
from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.evaluation.single import (
    AllSeedsDiverged,
    BaselineCache,
    DivergedSeed,
    evaluate_task,
    seeds_of,
    summarize_runs,
)
from albert_cli.formatting import count_of, format_percent
from albert_cli.model import hub
from albert_cli.results import RESULTS, EvaluationResult, RunResult, ScoredResult, read_result
from albert_cli.tasks.registry import find_task
from albert_cli.training.finetune import check_run, finetune, read_parents
from albert_cli.training.intermediate import INTERMEDIATE_KEY, use_intermediate
from albert_cli.training.loop import DIVERGED_FILE, DivergenceReport
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_recipe import NO_INTERMEDIATE_TASK
from albert_cli.training.task_setup import PreparedTask, TaskRequest

_SECONDS_BETWEEN_ATTEMPTS = 10.0


class ArrayJobDone(Exception):  # noqa: N818  (a normal end)
    """The normal end of an array job that has finished its own runs before all runs of the array are finished."""

    def __init__(self, array_job: ArrayJob, finished: int, total: int) -> None:
        super().__init__(f"job {array_job}: finished its runs; all jobs together have finished {finished} of {total}")
        self.facts = {"job": str(array_job), "runs_finished": finished, "runs_total": total}


@dataclass(frozen=True)
class TaskRuns:
    """The runs of a task, one for each requested seed, and the runs of its controls."""

    name: str  # of the task or recipe, as on the command line
    prepared: PreparedTask
    out: Path  # contains a directory for each run
    controls: Mapping[str, TaskRuns] = field(default_factory=dict)  # by the control's initial weights
    diverged: AllSeedsDiverged | None = None  # set if no run can start, because the intermediate model diverged

    @property
    def directories(self) -> list[Path]:
        """The directories of the task's own runs."""
        return [run_directory(self.out, seed) for seed in seeds_of(self.prepared)]

    def with_diverged_intermediate(self, error: DivergedError) -> TaskRuns:
        """Return the runs as diverged, because the run on their intermediate task raised `error`."""
        title = find_task(self.prepared.recipe.intermediate_task).title
        reason = f"the model of {title} to start from diverged: {error.message}"
        reasons = {str(seed): reason for seed in seeds_of(self.prepared)}
        return replace(self, diverged=AllSeedsDiverged(self.prepared.task.title, reasons))


@dataclass(frozen=True)
class _RunRequest:
    """One run for a worker process.

    The worker prepares the task itself, because a prepared task contains the model's tensors and is too large to send.
    """

    request: TaskRequest
    name: str
    seed: int
    out: Path  # the run's directory
    intermediate: Path | None  # the run on the intermediate task
    intermediate_note: str | None  # the reason if the recipe's intermediate task was left out


_RunItem = executor.WorkItem[float | None]  # calls `_train_in_worker`; the result is the score, None if it diverged


def list_units(tasks: Mapping[str, PreparedTask], request: TaskRequest) -> dict[str, str]:
    """Return the units of the work plan that `albert status` reads: the directories of all runs and controls' runs.

    tasks: the tasks by folder; folders and directories are relative to the output directory. The values are empty,
    because a directory needs no other title.
    """
    units: dict[str, str] = {}
    for folder, prepared in tasks.items():
        if not prepared.needs_training:
            continue
        outs = [Path(folder), *(Path(folder) / CONTROLS_FOLDER / control for control in request.controls)]
        units |= {run_directory(out, seed).as_posix(): "" for out in outs for seed in seeds_of(prepared)}
    return units


def train_ahead(all_runs: Sequence[TaskRuns], request: TaskRequest) -> None:
    """Fine-tune every unfinished seed of every task and of its controls, `nproc` runs at a time.

    With `nproc=1`, no cluster and no array job, this trains nothing, because `evaluate_task` fine-tunes seeds that have
    no run. A failed run does not stop the others: the first error is raised at the end. A diverged run is no failure.
    On a signal every process saves its run, and the same command resumes. An array job fine-tunes only its runs, and
    raises `ArrayJobDone` if runs of other jobs are unfinished afterwards.

    Raises `ConfigError` before any training, also with `nproc=1`, if an earlier run is of other data, another
    checkpoint or another recipe.
    """
    if request.array_job is not None:
        train_array_job(all_runs, request.array_job, request.nproc)
        require_finished(all_runs, request.array_job)
        return
    items = [item for item in _list_items(all_runs) if not _is_finished(item)]
    _check_started_runs(all_runs, items)
    if request.nproc > 1 or executor.has_cluster():
        _require_checkpoints(items)
        _run_items(items, request.nproc)


def train_array_job(all_runs: Sequence[TaskRuns], array_job: ArrayJob, nproc: int) -> None:
    """Fine-tune the unfinished runs that belong to an array job.

    Raises `ConfigError` if a run of any job is of other data, another checkpoint or another recipe.
    """
    items = [item for item in array_job.select(_list_items(all_runs)) if not _is_finished(item)]
    _check_started_runs(all_runs, items)
    _require_checkpoints(items)
    _run_items(items, nproc)


def _check_started_runs(all_runs: Sequence[TaskRuns], items: Sequence[_RunItem]) -> None:
    """Raise `ConfigError` if a run of the tasks cannot be resumed; do nothing if all `items` are finished.

    Call it before one of `items` is trained. Otherwise the directory would hold runs of different data, checkpoints or
    recipes, and nobody could finish it.
    """
    if all(map(_is_finished, items)):
        return
    task = None
    inputs = None
    for runs in _with_controls(all_runs):
        prepared = runs.prepared
        started = [seed for seed in seeds_of(prepared) if (run_directory(runs.out, seed) / "recipe.toml").is_file()]
        for seed in started:
            if inputs is None or task != prepared.task or inputs.settings != prepared.input_settings(seed):
                task = prepared.task
                inputs = prepared.load_inputs(seed)
            check_run(prepared, inputs, run_directory(runs.out, seed), seed)


def _with_controls(all_runs: Sequence[TaskRuns]) -> list[TaskRuns]:
    """Return the runs to fine-tune, each before its controls; without those whose intermediate model diverged."""
    with_controls = [runs for task_runs in all_runs for runs in (task_runs, *task_runs.controls.values())]
    return [runs for runs in with_controls if runs.prepared.needs_training and runs.diverged is None]


def require_finished(all_runs: Sequence[TaskRuns], array_job: ArrayJob) -> None:
    """Raise `ArrayJobDone` if a run of any job is unfinished."""
    items = _list_items(all_runs)
    finished = sum(map(_is_finished, items))
    if finished < len(items):
        raise ArrayJobDone(array_job, finished, total=len(items))


def finish_runs(runs: TaskRuns, nproc: int) -> None:
    """Fine-tune the unfinished runs of a task, and wait for the runs that other array jobs have locked.

    Raises `ConfigError` if an earlier run is of other data, another checkpoint or another recipe.
    """
    items = _list_items([runs])
    _check_started_runs([runs], items)
    _require_checkpoints([item for item in items if not _is_finished(item)])
    while unfinished := [item for item in items if not _is_finished(item)]:
        try:
            _run_items(unfinished, nproc)
        except LockedError:
            console.info(f"waiting for {count_of(len(unfinished), 'run')} of other jobs")
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def find_best_run(runs: TaskRuns) -> Path:
    """Return the directory of the best run of a task whose runs are all finished.

    Raises `AllSeedsDiverged` if no seed has a score.
    """
    if runs.diverged is not None:
        raise runs.diverged
    outcomes: list[RunResult | DivergedSeed] = []
    for seed in seeds_of(runs.prepared):
        directory = run_directory(runs.out, seed)
        if (directory / RESULTS).is_file():
            result = read_result(directory / RESULTS)
            assert isinstance(result, RunResult), "a run has the result of one seed"
            outcomes.append(result)
        else:
            divergence = store.read_record(directory / DIVERGED_FILE, DivergenceReport)
            outcomes.append(DivergedSeed(seed, divergence.message))
    return best_run(runs.out, summarize_runs(runs.prepared.task.title, outcomes))


def find_recorded_intermediate(runs: TaskRuns, intermediate_runs: TaskRuns) -> Path | None:
    """Return the one of `intermediate_runs` from which an earlier call started some of `runs`.

    Returns None if no run was started, or if that intermediate run no longer exists.
    """
    directories = [path for path in intermediate_runs.out.glob("run-*") if (path / RESULTS).is_file()]
    by_fingerprint = {store.fingerprint(directory): directory for directory in directories}
    for run_path in runs.directories:
        parents = read_parents(run_path) or {}
        if parents.get("intermediate") in by_fingerprint:
            return by_fingerprint[parents["intermediate"]]
    return None


def evaluate_runs(runs: TaskRuns, inputs: Inputs, baseline_cache: BaselineCache) -> ScoredResult | EvaluationResult:
    """Score a checkpoint, or summarize the runs of a task, as `evaluate_task` does.

    Raises `AllSeedsDiverged` if no seed has a score, or if no run can start.
    """
    if runs.diverged is not None:
        raise runs.diverged
    return evaluate_task(runs.prepared, inputs, runs.out, baseline_cache)


# ---------------------------------------------------------------- work items


def _list_items(all_runs: Sequence[TaskRuns]) -> list[_RunItem]:
    """Return a work item for each run: the seeds of the first task, then of its controls, then of the next task."""
    items = []
    for runs in _with_controls(all_runs):
        prepared = runs.prepared
        request = prepared.request
        if prepared.intermediate_note:  # the worker, which prepares the task again, must skip that task too
            request = replace(request, overrides=(*request.overrides, f"{INTERMEDIATE_KEY}={NO_INTERMEDIATE_TASK}"))
        intermediate = prepared.intermediate.directory if prepared.intermediate else None
        for seed in seeds_of(prepared):
            out = run_directory(runs.out, seed)
            run = _RunRequest(request, runs.name, seed, out, intermediate, prepared.intermediate_note)
            items.append(executor.WorkItem(f"{out}: {runs.name} seed {seed}", _train_in_worker, (run,)))
    return items


def _is_finished(item: _RunItem) -> bool:
    """Return True if the item's run has a result or has diverged."""
    run: _RunRequest = item.arguments[0]
    return (run.out / RESULTS).is_file() or (run.out / DIVERGED_FILE).is_file()


def _require_checkpoints(items: Sequence[_RunItem]) -> None:
    """Raise `CheckpointError` if the workers could not read a checkpoint, such as a step that was deleted since."""
    for name in {item.arguments[0].request.checkpoint for item in items}:
        hub.find_checkpoint(name)


def _run_items(items: Sequence[_RunItem], nproc: int) -> None:
    """Run all items, then raise the error of the first item that failed."""
    if not items:
        return
    errors: dict[str, BaseException] = {}

    def record(item: _RunItem, outcome: float | BaseException | None) -> None:
        if isinstance(outcome, BaseException):
            errors[item.name] = outcome
        elif outcome is None:
            console.info(f"{item.name} diverged")
        else:
            console.info(f"{item.name} {format_percent(outcome)}")

    count = min(nproc, len(items))
    threads = max(1, torch.get_num_threads() // count)
    executor.run_items(items, executor.WorkerLimits(count, threads, torch.cuda.device_count(), quiet=True), record)
    for item in items:
        if item.name in errors:
            raise errors[item.name]


def _train_in_worker(run: _RunRequest) -> float | None:
    """Fine-tune one seed in a worker process; return its score, None if it diverged."""
    prepared = replace(prepare_evaluation(run.name, run.request), intermediate_note=run.intermediate_note)
    if run.intermediate is not None:
        prepared = use_intermediate(prepared, run.intermediate)
    inputs = prepared.load_inputs(run.seed)
    try:
        return finetune(prepared, inputs, run.out, run.seed, retry_diverged=False).score
    except DivergedError:  # `finetune` has saved the reason in the run's directory
        return None
