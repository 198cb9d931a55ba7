"""`albert eval`: evaluate a checkpoint on one task, or on every GLUE task to compute their mean.

`evaluate` returns the result of one task, `evaluate_suite` the results of all tasks; both also write `results.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from albert_cli import console
from albert_cli.array_jobs import ArrayJob
from albert_cli.errors import DivergedError, InputError, MissingDataError
from albert_cli.evaluation import submission
from albert_cli.evaluation.controls import AddIntermediate, evaluate_with_controls, prepare_controls
from albert_cli.evaluation.output import EVALUATION_FILES, best_run, read_earlier_result, require_own_output
from albert_cli.evaluation.parallel import (
    TaskRuns,
    find_best_run,
    find_recorded_intermediate,
    finish_runs,
    list_units,
    require_finished,
    train_ahead,
    train_array_job,
)
from albert_cli.evaluation.scoring import (
    checkpoint_for_test_set,
    load_scoring_inputs,
    predict_examples,
    predict_with_run,
    prepare_evaluation,
    score_checkpoint,
    scoring_request,
)
from albert_cli.evaluation.single import AllSeedsDiverged
from albert_cli.inference.table_predictions import PredictExamples, check_test_file, predict_test_file
from albert_cli.results import RESULTS, EvaluationResult, ScoredResult, SuiteResult
from albert_cli.tasks.glue import GLUE_ON_HUB, GLUE_SCORE_TASKS, require_task_folders
from albert_cli.tasks.registry import TASKS, average_score
from albert_cli.training.intermediate import (
    add_intermediate,
    check_intermediate_of_runs,
    encoder_overrides,
    missing_intermediate,
    skip_intermediate,
    use_intermediate,
)
from albert_cli.training.task_model import resolve_schedule
from albert_cli.training.task_setup import OpenCheckpoints, PreparedTask, TaskRequest, resolve_checkpoint
from albert_cli.work_plan import PLAN_FILE, recorded_plan

GLUE_SUITE = "glue"
TaskEvaluation = ScoredResult | EvaluationResult


def evaluate(name: str, request: TaskRequest, out: Path, submission_file: Path | None = None) -> TaskEvaluation:
    """Evaluate a checkpoint on the task or the fine-tuning recipe `name`.

    A checkpoint with this task's head is scored, unless the request has `retrain`. Any other checkpoint, including one
    of another task, is fine-tuned with several seeds. The best run on dev, or the scored checkpoint, then predicts the
    test file of a table, and the test sets for GLUE's server if there is a `submission_file`.
    """
    request = resolve_checkpoint(request)
    opened: OpenCheckpoints = {}
    prepared = prepare_evaluation(name, request, opened)
    if submission_file is not None:
        submission.check_task_submission(prepared.task.name, request.data, submission_file)
    if prepared.needs_training:  # checked before an intermediate task trains for hours
        require_own_output(out, *EVALUATION_FILES, prepared.recipe.intermediate_task)
        inputs = prepared.load_inputs()
    else:
        inputs = load_scoring_inputs(name, request, prepared, [prepared.checkpoint.directory], opened)
    check_test_file(prepared.task)
    if prepared.needs_training:
        resolve_schedule(prepared, inputs).check()
        prepared.warn_about_text(inputs)
    units = list_units({".": prepared}, request)
    check_intermediate_of_runs(prepared, [out / unit for unit in units], opened=opened)
    controls = prepare_controls(name, prepared, out, opened, partial(_train_intermediate, opened=opened))
    with recorded_plan(out / PLAN_FILE, units):
        runs = TaskRuns(name, prepared, out, controls)
        runs = _train_intermediate(runs, out / prepared.recipe.intermediate_task, opened)
        train_ahead([runs], request)
        result = evaluate_with_controls(runs, inputs)
    if isinstance(result, EvaluationResult):
        predict: PredictExamples = predict_with_run(runs.prepared, best_run(out, result))
    else:
        predict = partial(predict_examples, runs.prepared, precision=result.precision)
    task = runs.prepared.task
    predict_test_file(task, predict, out)
    if submission_file is not None:
        predict_test_set = cast(submission.PredictTestSet, predict)  # a task of GLUE has logits as outputs
        submission.write_task_submission(task.name, request.data, submission_file, predict_test_set)
    return result


def _train_intermediate(runs: TaskRuns, folder: Path, opened: OpenCheckpoints) -> TaskRuns:
    """Fine-tune on the runs' intermediate task in `folder`, unless that is finished; return the runs with its encoder.

    Runs without an intermediate task are returned unchanged. If the data of the intermediate task are missing, the runs
    start from the checkpoint itself, with a warning. See `add_intermediate` for finished runs.
    """
    return replace(runs, prepared=add_intermediate(runs.prepared, folder, runs.directories, opened=opened))


@dataclass(frozen=True)
class _SuitePlan:
    """The order of a suite's tasks: a task whose recipe starts from another task's model must wait for that model."""

    prepared_tasks: Mapping[str, PreparedTask]
    intermediate_tasks: Mapping[str, str]  # the task to wait for (MNLI), by the task that waits (such as RTE)
    left_out: Mapping[str, str]  # the reason, by task without data

    @property
    def ready_tasks(self) -> dict[str, PreparedTask]:
        """The tasks that wait for no other task."""
        return {name: task for name, task in self.prepared_tasks.items() if name not in self.intermediate_tasks}

    @property
    def dependent_tasks(self) -> dict[str, PreparedTask]:
        """The tasks that wait for another task."""
        return {name: self.prepared_tasks[name] for name in self.intermediate_tasks}

    @property
    def unusable_intermediates(self) -> dict[str, str]:
        """The tasks from whose models no other task can start, each with the reason."""
        return {**self.left_out, **dict.fromkeys(self.intermediate_tasks, "it has an intermediate task itself")}

    def check_dependent_runs(self, request: TaskRequest, out: Path, opened: OpenCheckpoints) -> None:
        """Raise `ConfigError` if runs that an earlier call started could not start from their intermediate task now."""
        for name, intermediate in self.intermediate_tasks.items():
            if intermediate not in self.unusable_intermediates:
                prepared = self.prepared_tasks[name]
                directories = [out / unit for unit in list_units({name: prepared}, request)]
                check_intermediate_of_runs(prepared, directories, opened=opened)

    def add_intermediate_of_suite(
        self, runs: TaskRuns, folder: Path, suite_runs: Sequence[TaskRuns], opened: OpenCheckpoints
    ) -> TaskRuns:
        """Return the runs of a task, or of a control, with the model of its intermediate task as the initial encoder.

        The model is from the suite's finished runs of the intermediate task (`suite_runs`), or from the runs of its
        controls, that start from the same encoder. If an earlier call has started some of `runs`, all start from the
        same model as these, because the runs of one result must not differ in it. Otherwise they start from the best
        model. If there are no finished runs, a run in `folder` is fine-tuned. A task whose intermediate task is left
        out, or has an intermediate task itself, starts from the checkpoint, with a warning. Raises `AllSeedsDiverged`
        if no seed of the intermediate task has a score.
        """
        prepared = runs.prepared
        name = missing_intermediate(prepared)
        if name is None:
            return runs
        if name in self.unusable_intermediates:
            return replace(runs, prepared=skip_intermediate(prepared, self.unusable_intermediates[name]))
        encoder = encoder_overrides(prepared)
        candidates = [candidate for candidate in suite_runs if candidate.name == name]
        candidates += [control for candidate in candidates for control in candidate.controls.values()]
        for candidate in candidates:
            if candidate.prepared.needs_training and encoder_overrides(candidate.prepared) == encoder:
                directory = find_recorded_intermediate(runs, candidate) or find_best_run(candidate)
                return replace(runs, prepared=use_intermediate(prepared, directory, opened))
        return _train_intermediate(runs, folder, opened)


def evaluate_suite(request: TaskRequest, out: Path, submission_file: Path | None = None) -> SuiteResult:
    """Evaluate every GLUE task whose data are available; warn about the other tasks and leave them out.

    If every seed of a task diverges, the other tasks are still trained, except the tasks that start from its model, and
    `AllSeedsDiverged` is raised at the end. Damaged data raise `InputError` before anything is trained, because leaving
    out their task would change the mean. submission_file: the zip of predictions for GLUE's server to write, or None.
    """
    if submission_file is not None:
        submission.check_submission(request.data, submission_file)
    require_task_folders(request.data)
    require_own_output(out, RESULTS, *TASKS)
    request = resolve_checkpoint(request)
    opened: OpenCheckpoints = {}
    plan = _plan_suite(request, opened)
    if not plan.prepared_tasks:
        first_reason = next(iter(plan.left_out.values()))
        raise InputError(f"{request.data or GLUE_ON_HUB}: contains the data of no GLUE task", first_reason)
    for name, prepared in plan.prepared_tasks.items():
        if prepared.needs_training:
            require_own_output(out / name, *EVALUATION_FILES, prepared.recipe.intermediate_task)
    plan.check_dependent_runs(request, out, opened)
    with recorded_plan(out / PLAN_FILE, list_units(plan.prepared_tasks, request)):
        results = _evaluate_in_order(request, plan, out, opened)
    tasks = {name: results[name] for name in GLUE_SCORE_TASKS if name in results}
    mean = average_score({name: glue_metrics(result) for name, result in tasks.items()})
    suite = SuiteResult(
        tasks=tasks,
        tasks_scored=len(tasks),
        left_out=dict(plan.left_out),
        glue_score=None if plan.left_out else mean,
        mean_of_tasks=mean if plan.left_out else None,
        diagnostics=_score_diagnostics(request, out, tasks),
    )
    suite.write(out / RESULTS)
    if submission_file is not None:
        submission.write_submission(submission_file, request, out, suite.tasks)
    return suite


def _evaluate_in_order(
    request: TaskRequest, plan: _SuitePlan, out: Path, opened: OpenCheckpoints
) -> dict[str, TaskEvaluation]:
    """Evaluate MNLI before the tasks that start from its model.

    Raises `AllSeedsDiverged` if a task has no score. In an array job, raises `ArrayJobDone` unless the runs of all jobs
    are finished.
    """
    ready_runs = _list_runs(plan.ready_tasks, out, opened, partial(_train_intermediate, opened=opened))
    if request.array_job is not None:
        # Raises `ArrayJobDone` unless all runs are finished.
        _train_array_job_in_order(request, request.array_job, plan, ready_runs, out, opened)
    results, diverged = _evaluate_tasks(request, ready_runs)
    dependent_runs = _list_dependent_runs(plan, ready_runs, out, opened)
    dependent_results, dependent_diverged = _evaluate_tasks(request, dependent_runs)
    errors = [*diverged.values(), *dependent_diverged.values()]
    if errors:
        raise errors[0]
    return results | dependent_results


def _plan_suite(request: TaskRequest, opened: OpenCheckpoints) -> _SuitePlan:
    """Prepare the tasks whose data are available and intact; a task without data is left out, with a warning.

    Raises `InputError` for damaged data.
    """
    prepared_tasks: dict[str, PreparedTask] = {}
    intermediate_tasks: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in GLUE_SCORE_TASKS:
        try:
            prepared = prepare_evaluation(name, request, opened)
            prepared.check_inputs()
            schedule = prepared.recipe.schedule
            if prepared.needs_training and schedule.epochs is not None and schedule.warmup_steps is not None:
                # Too few steps for the warmup are an error now, before other tasks train for hours.
                resolve_schedule(prepared, prepared.load_inputs()).check()
        except MissingDataError as error:
            left_out[name] = error.message
            console.warn(f"{TASKS[name].title} is left out: {error.message}")
            continue
        prepared_tasks[name] = prepared
        intermediate = missing_intermediate(prepared)
        if intermediate is not None:
            intermediate_tasks[name] = intermediate
    if "mnli" in prepared_tasks:
        # MNLI's model is scored on GLUE's diagnostics. Damaged files raise `InputError` now, before training.
        for split in ("dev", "test"):
            with suppress(MissingDataError):
                TASKS["ax"].read(split, request.data)
    return _SuitePlan(prepared_tasks, intermediate_tasks, left_out)


def _train_array_job_in_order(
    request: TaskRequest,
    array_job: ArrayJob,
    plan: _SuitePlan,
    ready_runs: Sequence[TaskRuns],
    out: Path,
    opened: OpenCheckpoints,
) -> None:
    """Fine-tune an array job's runs of all tasks; raise `ArrayJobDone` if runs of other jobs are unfinished afterwards.

    The tasks that start from MNLI's best run need all runs of MNLI and of its controls. A job therefore fine-tunes
    those of them that no other job is working on, and waits for the other jobs. This way, the user submits the array
    only once.
    """
    train_array_job(ready_runs, array_job, request.nproc)
    for runs in ready_runs:
        if runs.name in plan.intermediate_tasks.values():
            finish_runs(runs, request.nproc)
    dependent_runs = _list_dependent_runs(plan, ready_runs, out, opened)
    train_array_job(dependent_runs, array_job, request.nproc)
    require_finished([*ready_runs, *dependent_runs], array_job)


def _list_runs(
    prepared_tasks: Mapping[str, PreparedTask], out: Path, opened: OpenCheckpoints, add_encoder: AddIntermediate
) -> list[TaskRuns]:
    """Return the runs of each task and of its controls.

    add_encoder: adds the initial encoder to the runs of a task or a control, and may fine-tune it on the intermediate
    task. If the intermediate model of a task diverges, the task's runs have diverged, too, and its controls are left
    out: nothing would be compared with them.
    """
    all_runs = []
    for name, prepared in prepared_tasks.items():
        runs = TaskRuns(name, prepared, out / name)
        try:
            runs = add_encoder(runs, runs.out / prepared.recipe.intermediate_task)
        except DivergedError as error:
            all_runs.append(runs.with_diverged_intermediate(error))
            continue
        all_runs.append(replace(runs, controls=prepare_controls(name, prepared, runs.out, opened, add_encoder)))
    return all_runs


def _list_dependent_runs(
    plan: _SuitePlan, ready_runs: Sequence[TaskRuns], out: Path, opened: OpenCheckpoints
) -> list[TaskRuns]:
    """Return the runs of the tasks that wait for another task; `ready_runs`, for which they wait, are finished."""
    add_encoder = partial(plan.add_intermediate_of_suite, suite_runs=ready_runs, opened=opened)
    return _list_runs(plan.dependent_tasks, out, opened, add_encoder)


def _evaluate_tasks(
    request: TaskRequest, all_runs: Sequence[TaskRuns]
) -> tuple[dict[str, TaskEvaluation], dict[str, AllSeedsDiverged]]:
    """Evaluate tasks with their controls; return the results, and the errors of the tasks whose seeds all diverged."""
    train_ahead(all_runs, request)
    results: dict[str, TaskEvaluation] = {}
    diverged: dict[str, AllSeedsDiverged] = {}
    for runs in all_runs:
        try:
            results[runs.name] = evaluate_with_controls(runs, runs.prepared.load_inputs())
        except AllSeedsDiverged as error:
            console.warn(error.message)
            diverged[runs.name] = error
    return results, diverged


def _score_diagnostics(request: TaskRequest, out: Path, tasks: Mapping[str, TaskEvaluation]) -> TaskEvaluation | None:
    """Score the best model of MNLI on GLUE's diagnostics; None if MNLI or the diagnostics' labels are missing."""
    if "mnli" not in tasks:
        return None
    checkpoint, _ = checkpoint_for_test_set(tasks["mnli"], out / "mnli", request)
    try:
        prepared = prepare_evaluation("ax", scoring_request(request, checkpoint))
        inputs = prepared.load_inputs()
        earlier = read_earlier_result(out / "ax", ScoredResult)
        if earlier is not None and earlier.checkpoint != prepared.fingerprints["checkpoint"]:
            (out / "ax" / RESULTS).unlink()  # with more runs than in the earlier call, another run of MNLI is the best
        return score_checkpoint(prepared, inputs, out / "ax")
    except MissingDataError as error:
        console.info(f"{TASKS['ax'].title} is left out: {error.message}")
        return None


def glue_metrics(result: TaskEvaluation) -> dict[str, float]:
    """Return the metrics of one task that the GLUE score averages, each as the median over the runs.

    All metrics of a task count, except for CoLA's accuracy (arXiv 1804.07461, §3).
    """
    return {name: score for name, score in result.medians.items() if (result.task, name) != ("cola", "accuracy")}
