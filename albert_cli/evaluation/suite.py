"""`albert eval`: evaluate one task, or every GLUE task and their mean, with controls if requested.

A control fine-tunes the same seeds from other initial weights: the weights at step 0 of pretraining, or random ones.
The score minus the score of the control at step 0 is the gain from pretraining.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from albert_cli import console
from albert_cli.array_jobs import ArrayJob
from albert_cli.errors import ConfigError, InputError, MissingDataError
from albert_cli.evaluation import submission
from albert_cli.evaluation.differences import compare_predictions, read_predictions
from albert_cli.evaluation.output import CONTROLS_FOLDER, EVALUATION_FILES, best_run, require_own_output
from albert_cli.evaluation.parallel import (
    TaskRuns,
    find_best_run,
    finish_runs,
    list_units,
    require_finished,
    train_in_parallel,
    train_share,
)
from albert_cli.evaluation.scoring import checkpoint_for_test_set, prepare_evaluation, scoring_request
from albert_cli.evaluation.single import AllSeedsDiverged, KnownBaselines, evaluate_task
from albert_cli.inference.table_predictions import check_test_file, predict_test_file
from albert_cli.results import (
    CONTROLS,
    RESULTS,
    ControlResult,
    EvaluationResult,
    ScoreDifference,
    ScoredResult,
    SeedSummary,
    SuiteResult,
)
from albert_cli.tasks.features import PairFeatures
from albert_cli.tasks.glue import GLUE_ON_HUB, GLUE_SCORE_TASKS
from albert_cli.tasks.registry import TASKS, average_score
from albert_cli.training.intermediate import (
    add_intermediate,
    missing_intermediate,
    skip_intermediate,
    use_intermediate,
)
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_model import resolve_schedule
from albert_cli.training.task_setup import OpenCheckpoints, PreparedTask, TaskRequest
from albert_cli.work_plan import PLAN_FILE, recorded_plan

GLUE_SUITE = "glue"
TaskEvaluation = ScoredResult | EvaluationResult


def evaluate(name: str, request: TaskRequest, out: Path, submission_file: Path | None = None) -> TaskEvaluation:
    """Evaluate a checkpoint on one task.

    A checkpoint of this task is scored, or fine-tuned again with `retrain`. From any other checkpoint, including one of
    another task, fine-tuning runs start with several seeds. The best run predicts the test file of a table, and
    the task's test sets for GLUE's server if there is a `submission_file`.
    """
    if submission_file is not None:
        submission.check_task_submission(name, request.data, submission_file)
    opened: OpenCheckpoints = {}
    prepared = prepare_evaluation(name, request, opened)
    if not prepared.for_scoring:  # checked before an intermediate task trains for hours
        require_own_output(out, *EVALUATION_FILES, prepared.recipe.intermediate_task)
    inputs = prepared.load_inputs()
    check_test_file(prepared.task)
    if not prepared.for_scoring:
        resolve_schedule(prepared, inputs).check()
        prepared.warn_about_text(inputs)
    controls = _prepare_controls(name, prepared, out, out, opened)
    with recorded_plan(out / PLAN_FILE, list_units({".": prepared}, request)):
        prepared = add_intermediate(prepared, out / prepared.recipe.intermediate_task, opened=opened)
        runs = TaskRuns(name, prepared, out)
        train_in_parallel([runs, *controls.values()], request)
        known_baselines: KnownBaselines = {}
        result = evaluate_task(prepared, inputs, out, known_baselines)
        result = add_controls(result, controls, inputs, out, known_baselines)
    checkpoint = prepared.checkpoint.directory
    if isinstance(result, EvaluationResult):
        checkpoint = best_run(out, result)
    predict_test_file(prepared.task, checkpoint, out, request.device)
    if submission_file is not None:
        predict = submission.predict_with(request, str(checkpoint))
        submission.write_task_submission(name, request.data, submission_file, predict)
    return result


@dataclass(frozen=True)
class _SuitePlan:
    """The tasks of a suite: those that are ready, all of them, and the intermediate task of each that waits for one."""

    ready_tasks: Mapping[str, PreparedTask]
    prepared_tasks: Mapping[str, PreparedTask]
    intermediate_tasks: Mapping[str, str]
    left_out: Mapping[str, str]

    def dependent_tasks(self, best_runs: Mapping[str, Path]) -> dict[str, PreparedTask]:
        """Return the tasks that start from the best run of another one, or from the checkpoint if there is none."""
        tasks = {}
        for name, intermediate in self.intermediate_tasks.items():
            if intermediate in best_runs:
                tasks[name] = use_intermediate(self.prepared_tasks[name], best_runs[intermediate])
            else:
                reason = self.left_out.get(intermediate, "it has an intermediate task itself")
                tasks[name] = skip_intermediate(self.prepared_tasks[name], reason)
        return tasks


@dataclass
class _SuiteState:
    """The results of a suite so far, and the tasks whose seeds all diverged."""

    results: dict[str, TaskEvaluation]
    diverged: dict[str, AllSeedsDiverged]


def evaluate_suite(request: TaskRequest, out: Path, submission_file: Path | None = None) -> SuiteResult:
    """Evaluate every GLUE task whose data are available; the others are listed and left out.

    MNLI comes before the tasks that start from its model. If every seed of a task diverges, the other tasks are still
    trained, and `AllSeedsDiverged` is raised at the end. Raises `InputError` for damaged data before anything is
    trained, because a mean without the task would be another number than the requested one.

    submission_file: write test-set predictions for GLUE's server as this zip.
    """
    if submission_file is not None:
        submission.check_submission(request.data, submission_file)
    require_own_output(out, RESULTS, *TASKS)
    opened: OpenCheckpoints = {}
    prepared_tasks, left_out = _prepare_available_tasks(request, opened)
    if not prepared_tasks:
        reason = next(iter(left_out.values()), None)
        raise InputError(f"{request.data or GLUE_ON_HUB}: found the data of no GLUE task", reason)
    with recorded_plan(out / PLAN_FILE, list_units(prepared_tasks, request)):
        results = _evaluate_in_order(request, prepared_tasks, left_out, out, opened)
    tasks = {name: results[name] for name in GLUE_SCORE_TASKS if name in results}
    mean = average_score({name: glue_metrics(result) for name, result in tasks.items()})
    suite = SuiteResult(
        tasks=tasks,
        tasks_scored=len(tasks),
        left_out=left_out,
        glue_score=None if left_out else mean,
        mean_of_tasks=mean if left_out else None,
        diagnostics=_score_diagnostics(request, out, tasks),
    )
    suite.write(out / RESULTS)
    if submission_file is not None:
        submission.write_submission(submission_file, request, out, suite.tasks)
    return suite


def _evaluate_in_order(
    request: TaskRequest,
    prepared_tasks: Mapping[str, PreparedTask],
    left_out: Mapping[str, str],
    out: Path,
    opened: OpenCheckpoints,
) -> Mapping[str, TaskEvaluation]:
    """Evaluate MNLI before the tasks that start from its model; raise `AllSeedsDiverged` if a task has no score."""
    intermediate_tasks = {
        name: intermediate
        for name, prepared in prepared_tasks.items()
        if (intermediate := missing_intermediate(prepared)) is not None
    }
    ready_tasks = {name: prepared for name, prepared in prepared_tasks.items() if name not in intermediate_tasks}
    plan = _SuitePlan(ready_tasks, prepared_tasks, intermediate_tasks, left_out)
    if request.array_job is not None:
        _train_share(request, request.array_job, plan, out, opened)
    state = _SuiteState({}, {})
    _evaluate_tasks(request, ready_tasks, out, opened, state)
    best_runs = {}
    for intermediate in set(intermediate_tasks.values()):
        if intermediate in state.diverged:
            raise state.diverged[intermediate]
        result = state.results.get(intermediate)
        if isinstance(result, EvaluationResult):
            best_runs[intermediate] = best_run(out / intermediate, result)
    _evaluate_tasks(request, plan.dependent_tasks(best_runs), out, opened, state)
    if state.diverged:
        raise next(iter(state.diverged.values()))
    return state.results


def _prepare_available_tasks(
    request: TaskRequest, opened: OpenCheckpoints
) -> tuple[dict[str, PreparedTask], dict[str, str]]:
    """Return the tasks whose data are available and intact, and the reason for each task that is left out."""
    prepared_tasks: dict[str, PreparedTask] = {}
    left_out: dict[str, str] = {}
    for name in GLUE_SCORE_TASKS:
        try:
            prepared = prepare_evaluation(name, request, opened)
            prepared.check_inputs()
        except MissingDataError as error:
            left_out[name] = error.message
            console.warn(f"{TASKS[name].title} is left out: {error.message}")
            continue
        prepared_tasks[name] = prepared
    if "mnli" in prepared_tasks:
        # Its model is scored on the diagnostics. Damaged ones raise `InputError` here, before anything is trained.
        for split in ("dev", "test"):
            with suppress(MissingDataError):
                TASKS["ax"].read(split, request.data)
    return prepared_tasks, left_out


def _train_share(
    request: TaskRequest, array_job: ArrayJob, plan: _SuitePlan, out: Path, opened: OpenCheckpoints
) -> None:
    """Fine-tune an array job's share of all tasks; raise `ArrayJobDone` if runs of other jobs are unfinished then.

    Before its share of the tasks that start from MNLI's best run, a job completes the runs of MNLI: it fine-tunes those
    that no job fine-tunes, and waits for the others. So one submission of the array is enough.
    """
    ready_runs = _list_runs(plan.ready_tasks, out, opened)
    train_share(ready_runs, array_job, request.nproc)
    best_runs = {}
    for intermediate in set(plan.intermediate_tasks.values()) & set(plan.ready_tasks):
        runs = TaskRuns(intermediate, plan.ready_tasks[intermediate], out / intermediate)
        finish_runs(runs, request.nproc)
        best_runs[intermediate] = find_best_run(runs)
    dependent_runs = _list_runs(plan.dependent_tasks(best_runs), out, opened)
    train_share(dependent_runs, array_job, request.nproc)
    require_finished([*ready_runs, *dependent_runs], array_job)


def _list_runs(prepared_tasks: Mapping[str, PreparedTask], out: Path, opened: OpenCheckpoints) -> list[TaskRuns]:
    """Return the runs of the tasks and of their controls."""
    runs = []
    for name, prepared in prepared_tasks.items():
        controls = _prepare_controls(name, prepared, out / name, out, opened)
        runs += [TaskRuns(name, prepared, out / name), *controls.values()]
    return runs


def _evaluate_tasks(
    request: TaskRequest,
    prepared_tasks: Mapping[str, PreparedTask],
    out: Path,
    opened: OpenCheckpoints,
    state: _SuiteState,
) -> None:
    """Evaluate tasks with their controls and add the results, or the errors, to `state`."""
    controls = {
        name: _prepare_controls(name, prepared, out / name, out, opened) for name, prepared in prepared_tasks.items()
    }
    runs = []
    for name, prepared in prepared_tasks.items():
        runs += [TaskRuns(name, prepared, out / name), *controls[name].values()]
    train_in_parallel(runs, request)
    for name, prepared in prepared_tasks.items():
        inputs = prepared.load_inputs()
        known_baselines: KnownBaselines = {}
        try:
            result = evaluate_task(prepared, inputs, out / name, known_baselines)
        except AllSeedsDiverged as error:
            console.warn(error.message)
            state.diverged[name] = error
            continue
        state.results[name] = add_controls(result, controls[name], inputs, out / name, known_baselines)


def _score_diagnostics(request: TaskRequest, out: Path, tasks: Mapping[str, TaskEvaluation]) -> TaskEvaluation | None:
    """Score the best model of MNLI on GLUE's diagnostics; None without such a model or without labels."""
    checkpoint = checkpoint_for_test_set("mnli", request, out, tasks)
    if checkpoint is None:
        return None
    try:
        prepared = prepare_evaluation("ax", scoring_request(request, checkpoint))
        return evaluate_task(prepared, prepared.load_inputs(), out / "ax")
    except MissingDataError as error:
        console.info(f"{TASKS['ax'].title} is left out: {error.message}")
        return None


def glue_metrics(result: TaskEvaluation) -> dict[str, float]:
    """Return the metrics in the GLUE score: every metric on every dev split, as the median of the runs.

    CoLA alone counts by one metric, Matthews correlation (arXiv 1804.07461, §3).
    """
    return {name: score for name, score in result.medians.items() if (result.task, name) != ("cola", "accuracy")}


# ---------------------------------------------------------------- controls


def parse_controls(text: str | None) -> tuple[str, ...]:
    """Parse a list like `init,random`; raises `ConfigError` for an unknown name."""
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if unknown := [name for name in names if name not in CONTROLS]:
        raise ConfigError(f"--controls: unknown control {unknown[0]!r}", f"choose from {', '.join(CONTROLS)}")
    return names


def _prepare_controls(
    name: str, prepared: PreparedTask, out: Path, shared: Path, opened: OpenCheckpoints
) -> dict[str, TaskRuns]:
    """Return the runs of each control, in folders of `out`.

    If the recipe has an intermediate task, the control's weights are first fine-tuned on that task, in a folder of
    `shared`, unless that folder has a model. Raises `ConfigError` if the task is only scored, or if there are no
    weights of step 0.
    """
    request = prepared.request
    if request.controls and prepared.for_scoring:
        raise ConfigError(
            f"--controls: {prepared.task.title} is only scored, so there is nothing to compare",
            "use a pretrained model as --checkpoint",
        )
    controls = {}
    for control in request.controls:
        overrides = (*request.overrides, f"model.weights={control}")
        control_task = prepare_evaluation(name, replace(request, overrides=overrides, controls=()), opened)
        folder = shared / control_task.recipe.intermediate_task / CONTROLS_FOLDER / control
        control_task = add_intermediate(control_task, folder, opened=opened)
        controls[control] = TaskRuns(name, control_task, out / CONTROLS_FOLDER / control)
    return controls


def add_controls(
    result: TaskEvaluation,
    controls: Mapping[str, TaskRuns],
    inputs: Inputs,
    out: Path,
    known_baselines: KnownBaselines,
) -> TaskEvaluation:
    """Evaluate the controls, add their results to the task's result, and write it again."""
    if not controls or not isinstance(result, EvaluationResult):
        return result
    lowest = min(result.scores_by_seed.values())
    control_results = {}
    differences = dict(result.differences)
    for name, control in controls.items():
        try:
            evaluation = evaluate_task(control.prepared, inputs, control.out, known_baselines)
        except AllSeedsDiverged as error:
            console.warn(f"{CONTROLS[name]}: {error.message}")
            control_results[name] = ControlResult(diverged=error.reasons)
            continue
        assert isinstance(evaluation, EvaluationResult), "a control is never scored without training"
        highest = max(evaluation.scores_by_seed.values())
        summary = evaluation.model_dump(include=set(SeedSummary.model_fields))
        control_results[name] = ControlResult(**summary, every_seed_above=lowest > highest)
        difference = _compare_with_control(result, evaluation, control, inputs, out)
        if difference is not None:
            differences[name] = difference
    result = result.model_copy(update={"controls": control_results, "differences": differences})
    result.write(out / RESULTS)
    return result


def _compare_with_control(
    result: EvaluationResult, evaluation: EvaluationResult, control: TaskRuns, inputs: Inputs, out: Path
) -> ScoreDifference | None:
    task = control.prepared.task
    predictions = read_predictions(task, out, list(result.scores_by_seed))
    control_predictions = read_predictions(task, control.out, list(evaluation.scores_by_seed))
    if not predictions or not isinstance(inputs.dev, PairFeatures):
        return None
    return compare_predictions(result.metric, inputs.dev.gold, predictions, control_predictions)
