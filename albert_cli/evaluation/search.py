"""`albert search`: evaluate every combination of lists of hyperparameters and report the best on dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sklearn.model_selection import ParameterGrid

from albert_cli import config, console
from albert_cli.errors import ConfigError
from albert_cli.evaluation.output import require_own_output
from albert_cli.evaluation.parallel import TaskRuns, list_units, train_in_parallel
from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.evaluation.single import AllSeedsDiverged, KnownBaselines, evaluate_task
from albert_cli.evaluation.suite import GLUE_SUITE
from albert_cli.model.hub import Checkpoint
from albert_cli.results import RESULTS, EvaluationResult, SearchBudget, SearchPoint, SearchResult, SeedSummary
from albert_cli.training.intermediate import add_intermediate
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_model import resolve_schedule
from albert_cli.training.task_setup import OpenCheckpoints, PreparedTask, TaskRequest
from albert_cli.work_plan import PLAN_FILE, recorded_plan

SHORT_KEYS = {
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
CAVEAT = "The best combination was selected on dev, so its dev score is optimistic: use other data or new seeds."

Combination = Mapping[str, str]  # key as on the command line -> value


def parse_grid(lists: Sequence[str]) -> list[Combination]:
    """Parse arguments `key=value,value,…` and return every combination; the last list changes fastest.

    Raises `ConfigError` for an argument that is no list, an empty value, or a setting that is listed twice.
    """
    values_by_key: dict[str, list[str]] = {}
    settings: dict[str, str] = {}  # setting by the key on the command line
    alternatives = {f"schedule.{key}": f"schedule.{other}" for key, other in config.EXCLUSIVE_KEYS.items()}
    for text in lists:
        key, equals, value_list = text.partition("=")
        values = list(dict.fromkeys(value.strip() for value in value_list.split(",")))
        if not equals or not key or not all(values):
            raise ConfigError(f"{text}: expected KEY=VALUE,VALUE,…", "for example lr=1e-5,2e-5 batch=16,32")
        if key not in SHORT_KEYS and "." not in key:
            hint = config.suggest(key, list(SHORT_KEYS)) or f"keys: {', '.join(SHORT_KEYS)}, or section.key"
            raise ConfigError(f"{text}: unknown key {key!r}", hint)
        if "/" in text:
            raise ConfigError(f"{text}: a value must not contain /, because it names a folder")
        setting = SHORT_KEYS.get(key, key)
        for earlier_key, earlier in settings.items():
            if earlier in (setting, alternatives.get(setting)) or alternatives.get(earlier) == setting:
                same_key = f"{key} is listed twice"
                raise ConfigError(same_key if earlier_key == key else f"{earlier_key} and {key} set the same thing")
        settings[key] = setting
        values_by_key[key] = values
    # ParameterGrid sorts by name: numbered names keep the order of the command line.
    numbered = {f"{number:04d} {key}": values for number, (key, values) in enumerate(values_by_key.items())}
    return [
        {name.partition(" ")[2]: value for name, value in sorted(point.items())} for point in ParameterGrid(numbered)
    ]


def search_grid(name: str, request: TaskRequest, lists: Sequence[str], out: Path) -> SearchResult:
    """Evaluate every combination below `out`, and select the one with the highest median on dev.

    Prints the amount of training first. The same command resumes. An intermediate task is fine-tuned once for all
    combinations, without the searched values. Raises `AllSeedsDiverged` if no combination has a score.
    """
    if name == GLUE_SUITE:
        raise ConfigError("a search needs one task", "for example `albert search rte …`")
    combinations = parse_grid(lists)
    require_own_output(out, RESULTS, *map(_folder_name, combinations), "intermediate-*")
    opened: OpenCheckpoints = {}
    runs = [_prepare_combination(name, request, combination, out, opened) for combination in combinations]
    inputs = _load_distinct_inputs([point.prepared for point in runs])
    steps_of_one_seed = 0
    for point, point_inputs in zip(runs, inputs, strict=True):
        schedule = resolve_schedule(point.prepared, point_inputs)
        schedule.check()
        steps_of_one_seed += schedule.total_steps
    budget = SearchBudget(combinations=len(runs), runs=len(runs) * request.runs, steps=steps_of_one_seed * request.runs)
    console.info(
        f"{budget.combinations} combinations, {request.runs} seed{'' if request.runs == 1 else 's'} each: "
        f"{budget.runs} runs, {budget.steps:,} steps, finished runs included, intermediate tasks not"
    )
    units = list_units({point.out.name: point.prepared for point in runs}, request)
    with recorded_plan(out / PLAN_FILE, units):
        runs = _add_intermediates(runs, request, out, opened)
        train_in_parallel(runs, request)
        result = _evaluate_combinations(combinations, runs, inputs, budget)
        result.write(out / RESULTS)
    return result


def _folder_name(combination: Combination) -> str:
    return ",".join(f"{key}={value}" for key, value in combination.items())


def _prepare_combination(
    name: str, request: TaskRequest, combination: Combination, out: Path, opened: OpenCheckpoints
) -> TaskRuns:
    overrides = tuple(f"{SHORT_KEYS.get(key, key)}={value}" for key, value in combination.items())
    prepared = prepare_evaluation(name, replace(request, overrides=request.overrides + overrides), opened)
    if prepared.for_scoring:
        raise ConfigError(
            f"{request.checkpoint}: is already fine-tuned for {prepared.task.title}", "use a pretrained checkpoint"
        )
    return TaskRuns(name, prepared, out / _folder_name(combination))


def _load_distinct_inputs(prepared_tasks: Sequence[PreparedTask]) -> list[Inputs]:
    """Load the inputs of each combination; combinations with the same input settings share them."""
    loaded: list[tuple[PreparedTask, Inputs]] = []
    inputs = []
    for prepared in prepared_tasks:
        same = [
            other_inputs
            for other, other_inputs in loaded
            if other.task == prepared.task and other.input_settings() == prepared.input_settings()
        ]
        inputs.append(same[0] if same else prepared.load_inputs())
        if not same:
            loaded.append((prepared, inputs[-1]))
    return inputs


def _add_intermediates(
    runs: Sequence[TaskRuns], request: TaskRequest, out: Path, opened: OpenCheckpoints
) -> list[TaskRuns]:
    """Fine-tune each intermediate task once and let every combination that names it start from the model."""
    models: dict[str, Checkpoint] = {}  # by intermediate task
    result = []
    for point in runs:
        prepared = point.prepared
        name = prepared.recipe.intermediate_task
        if name in models:
            prepared = replace(prepared, intermediate=models[name])
        else:
            prepared = add_intermediate(prepared, out / f"intermediate-{name}", request.overrides, opened)
        if prepared.intermediate is not None:
            models[name] = prepared.intermediate
        result.append(replace(point, prepared=prepared))
    return result


def _evaluate_combinations(
    combinations: Sequence[Combination], runs: Sequence[TaskRuns], inputs: Sequence[Inputs], budget: SearchBudget
) -> SearchResult:
    """Evaluate every combination; if all of its seeds diverge, it is recorded without a score."""
    points: list[SearchPoint] = []
    results: list[EvaluationResult] = []
    errors: list[AllSeedsDiverged] = []
    known_baselines: KnownBaselines = {}
    for combination, point, point_inputs in zip(combinations, runs, inputs, strict=True):
        values = dict(combination)
        directory = _folder_name(combination)
        try:
            result = evaluate_task(point.prepared, point_inputs, point.out, known_baselines)
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
    first = results[0]
    scored_points = [point for point in points if point.median is not None]
    return SearchResult(
        task=first.task,
        title=first.title,
        metric=first.metric,
        labels=first.labels,
        majority=first.majority,
        data=first.data,
        examples=first.examples,
        versions=first.versions,
        checkpoint=first.checkpoint,
        points=points,
        best=max(scored_points, key=lambda point: point.median or 0.0),  # the first of equal ones
        caveat=CAVEAT,
        budget=budget,
        seconds=round(sum(point.seconds for point in points), 2),
    )
