"""`albert search`: evaluate every combination of the listed hyperparameters and report the best on dev.

Each combination is evaluated like a task of `albert eval`, in a folder such as `lr=1e-5,batch=16`. `results.json` has a
point for each combination.
"""

from __future__ import annotations

import glob
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from albert_cli import config, console
from albert_cli.errors import ConfigError, DivergedError
from albert_cli.evaluation.output import EVALUATION_FILES, require_own_output
from albert_cli.evaluation.parallel import TaskRuns, evaluate_runs, list_units, train_ahead
from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.evaluation.single import AllSeedsDiverged, BaselineCache
from albert_cli.evaluation.suite import GLUE_SUITE
from albert_cli.formatting import count_of, suggest
from albert_cli.results import (
    RESULTS,
    EvaluationResult,
    SearchBudget,
    SearchPoint,
    SearchResult,
    SeedSummary,
    TaskResult,
)
from albert_cli.training.intermediate import (
    ENCODER_KEYS,
    add_intermediate,
    check_intermediate_of_runs,
    missing_intermediate,
    use_intermediate,
)
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_model import resolve_schedule
from albert_cli.training.task_setup import OpenCheckpoints, PreparedTask, TaskRequest, resolve_checkpoint
from albert_cli.work_plan import PLAN_FILE, recorded_plan

SHORT_KEYS = {  # keys on the command line, with the recipe's keys
    "lr": "optimizer.lr",
    "batch": "train.batch_size",
    "steps": "schedule.total_steps",
    "epochs": "schedule.epochs",
    "examples": "data.train_examples",
    "warmup": "schedule.warmup_steps",
    "decay": "optimizer.weight_decay",
    "dropout": "model.dropout",
    "length": "data.max_seq_length",
    "intermediate": "intermediate_task",
}
_SHORT_KEY_OF = {full_key: key for key, full_key in SHORT_KEYS.items()}
CAVEAT = "The best combination was selected on dev, so its dev score is optimistic: use other data or new seeds."

Combination = Mapping[str, str]  # value as on the command line, by key: the short one if there is one


@dataclass(frozen=True)
class _GridPoint:
    """A combination of hyperparameters with the task and the inputs of its runs."""

    combination: Combination
    runs: TaskRuns
    inputs: Inputs


def parse_grid(value_lists: Sequence[str]) -> list[Combination]:
    """Parse arguments `key=value,value,…` and return every combination; the last list changes fastest.

    Raises `ConfigError` for an argument of another form, an unknown key, an empty value or one with a slash, and for a
    setting that is listed twice, also under two keys that exclude each other.
    """
    values_by_key: dict[str, list[str]] = {}
    for text in value_lists:
        key, equals, values_text = text.partition("=")
        values = [value.strip() for value in values_text.split(",")]
        if not equals or not key or not all(values):
            raise ConfigError(f"{text}: expected KEY=VALUE,VALUE,…", "for example lr=1e-5,2e-5 batch=16,32")
        if key not in SHORT_KEYS and "." not in key:
            hint = suggest(key, list(SHORT_KEYS)) or f"keys: {', '.join(SHORT_KEYS)}, or section.key"
            raise ConfigError(f"{text}: unknown key {key!r}", hint)
        key = _SHORT_KEY_OF.get(key, key)  # so that both spellings have the same folder
        if "/" in text:
            raise ConfigError(f"{text}: a value must not contain /, because the values are part of a folder's name")
        if key in values_by_key:
            raise ConfigError(f"{key} is listed twice")
        for earlier_key in values_by_key:
            if _exclude_each_other(earlier_key, key):
                raise ConfigError(f"{earlier_key} and {key} set the same thing")
        values_by_key[key] = list(dict.fromkeys(values))  # without repetitions
    return [dict(zip(values_by_key, point, strict=True)) for point in itertools.product(*values_by_key.values())]


def _exclude_each_other(key: str, other_key: str) -> bool:
    """Return True if two different keys change settings that exclude each other, such as steps and epochs."""
    settings = {SHORT_KEYS.get(key, key), SHORT_KEYS.get(other_key, other_key)}
    exclusive_pairs = [{f"schedule.{name}", f"schedule.{other}"} for name, other in config.EXCLUSIVE_KEYS.items()]
    return settings in exclusive_pairs


def search_grid(name: str, request: TaskRequest, value_lists: Sequence[str], out: Path) -> SearchResult:
    """Evaluate every combination below `out`, and select the one with the highest median on dev.

    Prints the amount of training first. The same command resumes a stopped search. An intermediate task is fine-tuned
    once for all combinations with the same initial encoder, without the other searched values. Raises
    `AllSeedsDiverged` if no combination has a score.
    """
    if name == GLUE_SUITE:
        raise ConfigError("a search needs one task", "for example `albert search rte …`")
    combinations = parse_grid(value_lists)
    # Results of other combinations or commands in this directory are an error.
    folders = [glob.escape(_folder_name(combination)) for combination in combinations]  # a value may have brackets
    require_own_output(out, RESULTS, *folders, "intermediate-*")
    request = resolve_checkpoint(request)
    opened: OpenCheckpoints = {}
    task_runs = [_prepare_combination(name, request, combination, out, opened) for combination in combinations]
    points: list[_GridPoint] = []
    for combination, runs in zip(combinations, task_runs, strict=True):
        points.append(_GridPoint(combination, runs, _load_inputs(runs.prepared, points)))
    budget = _compute_budget(points, request.runs)
    console.info(
        f"{budget.combinations} combinations, {count_of(request.runs, 'seed')} each: "
        f"{budget.runs} runs, {budget.steps:,} steps (finished runs are counted, intermediate tasks are not)"
    )
    # While the search runs, `albert status` reads the runs' directories (units) from the plan file.
    units = list_units({point.runs.out.name: point.runs.prepared for point in points}, request)
    for runs in task_runs:
        require_own_output(runs.out, *EVALUATION_FILES, runs.prepared.recipe.intermediate_task)
        check_intermediate_of_runs(runs.prepared, runs.directories, request.overrides, opened)
    with recorded_plan(out / PLAN_FILE, units):
        points = _add_intermediates(points, request, out, opened)
        train_ahead([point.runs for point in points], request)
        result = _evaluate_points(points, budget)
        result.write(out / RESULTS)
    return result


def _compute_budget(points: Sequence[_GridPoint], runs: int) -> SearchBudget:
    """Return the amount of training with this number of runs per point; raise `ConfigError` for an invalid schedule."""
    steps = 0
    for point in points:
        schedule = resolve_schedule(point.runs.prepared, point.inputs)
        schedule.check()
        steps += schedule.total_steps * runs
    return SearchBudget(combinations=len(points), runs=len(points) * runs, steps=steps)


def _folder_name(combination: Combination) -> str:
    """Return the name of a combination's folder, such as `lr=1e-5,batch=16`."""
    return ",".join(f"{key}={value}" for key, value in combination.items())


def _prepare_combination(
    name: str, request: TaskRequest, combination: Combination, out: Path, opened: OpenCheckpoints
) -> TaskRuns:
    """Prepare the task with the values of a combination; raise `ConfigError` if it would be scored without training."""
    overrides = tuple(f"{SHORT_KEYS.get(key, key)}={value}" for key, value in combination.items())
    prepared = prepare_evaluation(name, replace(request, overrides=request.overrides + overrides), opened)
    if not prepared.needs_training:
        raise ConfigError(
            f"{request.checkpoint}: is already fine-tuned for {prepared.task.title}", "use a pretrained checkpoint"
        )
    return TaskRuns(name, prepared, out / _folder_name(combination))


def _load_inputs(prepared: PreparedTask, points: Sequence[_GridPoint]) -> Inputs:
    """Load a task's inputs, or return the inputs of one of `points` that has the same task and input settings."""
    for point in points:
        other = point.runs.prepared
        if other.task == prepared.task and other.input_settings() == prepared.input_settings():
            return point.inputs
    return prepared.load_inputs()


def _add_intermediates(
    points: Sequence[_GridPoint], request: TaskRequest, out: Path, opened: OpenCheckpoints
) -> list[_GridPoint]:
    """Fine-tune on the intermediate tasks; return the points with the resulting models as their initial encoders.

    Points with the same intermediate task and the same values of `ENCODER_KEYS` share a run. A point that needs no
    intermediate run (`missing_intermediate`) does not change. The runs of a point whose intermediate run diverges have
    diverged, too.
    """
    folders = [_intermediate_folder(point) for point in points]
    models: dict[str, Path] = {}  # the directories of intermediate runs, by the name of their folder
    points_with_models = []
    for point, folder in zip(points, folders, strict=True):
        runs = point.runs
        if folder is not None:
            sharing = [other for other, name in zip(points, folders, strict=True) if name == folder]
            directories = [directory for other in sharing for directory in other.runs.directories]
            try:
                if folder in models:
                    prepared = use_intermediate(runs.prepared, models[folder], opened)
                else:
                    prepared = add_intermediate(runs.prepared, out / folder, directories, request.overrides, opened)
                runs = replace(runs, prepared=prepared)
                if prepared.intermediate is not None:
                    models[folder] = prepared.intermediate.directory
            except DivergedError as error:
                runs = runs.with_diverged_intermediate(error)
        points_with_models.append(replace(point, runs=runs))
    return points_with_models


def _intermediate_folder(point: _GridPoint) -> str | None:
    """Return the name of the folder of a point's intermediate run; None if the point needs none."""
    name = missing_intermediate(point.runs.prepared)
    if name is None:
        return None
    encoder_values = [f"{key}={value}" for key, value in point.combination.items() if key in ENCODER_KEYS]
    return ",".join([f"intermediate-{name}", *encoder_values])


def _evaluate_points(grid: Sequence[_GridPoint], budget: SearchBudget) -> SearchResult:
    """Evaluate every combination; a combination whose seeds all diverge is recorded without a score."""
    points: list[SearchPoint] = []
    results: list[EvaluationResult] = []
    errors: list[AllSeedsDiverged] = []
    baseline_cache: BaselineCache = {}
    for grid_point in grid:
        values = dict(grid_point.combination)
        directory = grid_point.runs.out.name
        try:
            result = evaluate_runs(grid_point.runs, grid_point.inputs, baseline_cache)
        except AllSeedsDiverged as error:
            console.warn(error.message)
            errors.append(error)
            points.append(SearchPoint(values=values, directory=directory, diverged=error.reasons))
            continue
        assert isinstance(result, EvaluationResult), "a search never scores without training"
        results.append(result)
        summary = result.model_dump(include=set(SeedSummary.model_fields))
        points.append(SearchPoint(values=values, directory=directory, seconds=result.seconds, **summary))
    if not results:
        raise errors[0]
    best_result = max(results, key=lambda result: result.median)  # the first one of equal medians
    # The combinations share these fields. If they differ in `data.train_examples`, the fields are those of the best.
    shared_fields = best_result.model_dump(include=set(TaskResult.model_fields) - {"seconds"})
    return SearchResult(
        **shared_fields,
        checkpoint=best_result.checkpoint,
        points=points,
        best=next(point for point in points if point.median == best_result.median),
        caveat=CAVEAT,
        budget=budget,
        seconds=round(sum(point.seconds for point in points), 2),
    )
