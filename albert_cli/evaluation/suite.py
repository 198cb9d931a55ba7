"""`albert eval`: scores one task, or all of GLUE (MNLI before the tasks that start from it) with their mean.

`--controls`: the same seeds from the weights at step 0 of pretraining, and from random ones, beside every score. Score
minus init is what pretraining brought; init minus random is what was known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import console
from albert_cli.errors import ConfigError, InputError, MissingDataError
from albert_cli.evaluation import submission
from albert_cli.evaluation.single import (
    CONTROLS_FOLDER,
    AllSeedsDiverged,
    TaskRuns,
    best_run,
    checkpoint_for_test_set,
    evaluate_task,
    prepare_evaluation,
    require_own_output,
    scoring_request,
    train_in_parallel,
)
from albert_cli.results import CONTROLS, RESULTS, Result, SuiteResult
from albert_cli.tasks.glue import GLUE_ON_HUB
from albert_cli.tasks.registry import GLUE_SCORE_TASKS, TASKS, average_score
from albert_cli.training.intermediate import (
    from_intermediate,
    intermediate_task,
    with_intermediate,
    without_intermediate,
)
from albert_cli.training.task_setup import PreparedTask, TaskRequest

GLUE_SUITE = "glue"
_OF_CONTROLS = {"median", "spread", "stdev", "standard_error", "scores_by_seed", "diverged", "collapsed"}


def evaluate(request: TaskRequest, task: str, out: Path, submission_file: Path | None = None) -> Result | SuiteResult:
    """Score a checkpoint on a task, or on every GLUE task whose data are there.

    A checkpoint of this very task is scored as it is, or fine-tuned again. Any other, one of another task included, is
    where the seeded fine-tunings start from. `submission_file` becomes the suite's zip for GLUE's server.
    """
    if task == GLUE_SUITE:
        if submission_file is not None:
            submission.check_submission(request.data, submission_file)
        suite = evaluate_suite(request, out)
        if submission_file is not None:
            submission.write_submission(submission_file, request, out, suite.tasks)
        return suite
    if submission_file is not None:
        raise ConfigError("--submission is for all of GLUE", "albert eval glue … --submission FILE.zip")
    prepared = prepare_evaluation(request, task)
    if not prepared.for_scoring:
        require_own_output(
            out, RESULTS, "run-*", CONTROLS_FOLDER, prepared.recipe.intermediate_task
        )  # before hours of MNLI
    beside = _control_jobs(task, prepared, out, out)
    prepared = with_intermediate(prepared, out / prepared.recipe.intermediate_task)
    train_in_parallel([TaskRuns(task, prepared, out), *beside], request.nproc)
    return _evaluate_with_controls(prepared, out, beside)


def evaluate_suite(request: TaskRequest, out: Path) -> SuiteResult:
    """Every GLUE task that has its data there; those without are named and left out.

    A task of which every seed diverges does not keep the others from being trained: its `NoneEnded` comes last. Raises
    `InputError` for damaged data before anything is trained: a mean without the task would be another number than the
    one that was asked for.
    """
    require_own_output(out, RESULTS, *TASKS)
    ready, left_out = _prepare_available_tasks(request)
    if not ready:
        raise InputError(
            f"{request.data or GLUE_ON_HUB}: no GLUE task has its data there", next(iter(left_out.values()), None)
        )
    starts = {name: start for name, prepared in ready.items() if (start := intermediate_task(prepared))}
    failed: dict[str, AllSeedsDiverged] = {}
    results = _evaluate_tasks(request, {name: ready[name] for name in ready if name not in starts}, out, failed)
    others = {}
    for name, start in starts.items():
        if start in failed:
            raise failed[start]
        if start in results:
            others[name] = from_intermediate(ready[name], best_run(out / start, results[start]))
        else:
            others[name] = without_intermediate(ready[name], left_out.get(start, "it has a start of its own"))
    results |= _evaluate_tasks(request, others, out, failed)
    for error in failed.values():
        raise error
    tasks = {name: results[name] for name in GLUE_SCORE_TASKS if name in results}
    mean = average_score({name: glue_metrics(result) for name, result in tasks.items()})
    further: dict[str, Any] = {"mean_of_tasks": mean} if left_out else {"glue_score": mean}
    if (mnli := checkpoint_for_test_set("mnli", request, out, tasks)) is not None:  # whose best model answers AX
        try:
            further["diagnostics"] = evaluate_task(prepare_evaluation(scoring_request(request, mnli), "ax"), out / "ax")
        except MissingDataError as error:
            console.info(f"{TASKS['ax'].title} is left out: {error.message}")
    suite = SuiteResult(kind="suite", tasks=tasks, left_out=left_out, tasks_scored=len(tasks), **further)
    suite.write(out / RESULTS)
    return suite


def _prepare_available_tasks(request: TaskRequest) -> tuple[dict[str, PreparedTask], dict[str, str]]:
    """The tasks whose data are there, all of them read, and why the others are left out."""
    ready: dict[str, PreparedTask] = {}
    left_out: dict[str, str] = {}
    for name in GLUE_SCORE_TASKS:
        try:
            prepared = prepare_evaluation(request, name)
            _ = prepared.inputs.examples
        except MissingDataError as error:
            left_out[name] = error.message
            console.warn(f"{TASKS[name].title} is left out: {error.message}")
            continue
        ready[name] = prepared
    if "mnli" in ready:
        for split in ("dev", "test"):
            with suppress(MissingDataError):
                TASKS["ax"].read(split, request.data)
    return ready, left_out


def _evaluate_tasks(
    request: TaskRequest, tasks: Mapping[str, PreparedTask], out: Path, failed: dict[str, AllSeedsDiverged]
) -> dict[str, Result]:
    """The results of those tasks of which a seed ended; the others' errors go into `failed`."""
    beside = {name: _control_jobs(name, prepared, out / name, out) for name, prepared in tasks.items()}
    jobs = [job for name, p in tasks.items() for job in (TaskRuns(name, p, out / name), *beside[name])]
    train_in_parallel(jobs, request.nproc)
    results = {}
    for name, prepared in tasks.items():
        try:
            results[name] = _evaluate_with_controls(prepared, out / name, beside[name])
        except AllSeedsDiverged as error:
            console.warn(error.message)
            failed[name] = error
    return results


def glue_metrics(result: Result) -> dict[str, float]:
    """What GLUE counts of a task: all of its metrics and dev splits, each the median of its runs.

    CoLA alone counts by one, Matthews' correlation (arXiv 1804.07461, §3).
    """
    return {name: score for name, score in result.medians.items() if (result.task, name) != ("cola", "accuracy")}


# ---------------------------------------------------------------- controls


def parse_controls(text: str | None) -> tuple[str, ...]:
    """The names in `init,random`; raises `ConfigError` for any other."""
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if unknown := [name for name in names if name not in CONTROLS]:
        raise ConfigError(f"--controls: no control is called {unknown[0]!r}", f"choose from {', '.join(CONTROLS)}")
    return names


def _control_jobs(task: str, prepared: PreparedTask, out: Path, others: Path) -> list[TaskRuns]:
    """Each control as runs of its own below `out`.

    Where the recipe starts from another task's model, a control starts from its own, which stands (or is fine-tuned)
    beside the models of that task below `others`. Raises `ConfigError` where nothing is trained, and where there are no
    weights of step 0.
    """
    request = prepared.request
    if request.controls and prepared.for_scoring:
        hint = "give --checkpoint a pretrained model"
        raise ConfigError(f"--controls: {prepared.task.title} is only scored here, so nothing is compared", hint)
    found = []
    for name in request.controls:
        asked = replace(request, overrides=(*request.overrides, f"model.weights={name}"), controls=())
        of_control = prepare_evaluation(asked, task)
        folder = others / of_control.recipe.intermediate_task / CONTROLS_FOLDER / name
        found.append(TaskRuns(task, with_intermediate(of_control, folder), out / CONTROLS_FOLDER / name))
    return found


def _evaluate_with_controls(prepared: PreparedTask, out: Path, controls: Sequence[TaskRuns]) -> Result:
    """The task's result with those of its controls in it; `every_seed_above` says whether all seeds are apart."""
    result = evaluate_task(prepared, out)
    if controls:
        beside, lowest = {}, min(result.scores_by_seed.values())
        for job in controls:
            try:
                found = evaluate_task(job.prepared, job.out)
            except AllSeedsDiverged as error:  # a result too
                console.warn(f"{CONTROLS[job.out.name]}: {error.message}")
                kept = Result(median=None, scores_by_seed={}, diverged=error.seeds, every_seed_above=None)
            else:
                clear = lowest > max(found.scores_by_seed.values())
                kept = Result(**found.model_dump(include=_OF_CONTROLS), every_seed_above=clear)
            beside[job.out.name] = kept
        result = result.model_copy(update={"controls": beside})
        result.write(out / RESULTS)
    return result
