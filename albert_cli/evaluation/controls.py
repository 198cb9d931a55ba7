"""Controls of a task: the same seeds, fine-tuned from the weights at step 0 of pretraining, or from random weights.

`prepare_controls` returns the runs of a task's controls, and `evaluate_with_controls` compares the task's scores with
theirs. The score minus the score of the control from step 0 is the gain from pretraining.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from albert_cli import console
from albert_cli.errors import ConfigError, DivergedError
from albert_cli.evaluation.differences import compare_predictions, read_predictions_by_seed
from albert_cli.evaluation.output import CONTROLS_FOLDER
from albert_cli.evaluation.parallel import TaskRuns, evaluate_runs
from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.evaluation.single import AllSeedsDiverged, BaselineCache
from albert_cli.results import CONTROLS, RESULTS, ControlResult, EvaluationResult, ScoredResult, SeedSummary
from albert_cli.tasks.features import PairFeatures
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_setup import OpenCheckpoints, PreparedTask

# Returns runs that start from a model of their intermediate task; if there is none, a run in the folder trains it.
AddIntermediate = Callable[[TaskRuns, Path], TaskRuns]


def parse_controls(text: str | None) -> tuple[str, ...]:
    """Return the names of the controls in a list like `init,random`, without repetitions; none for None.

    Raises `ConfigError` for an unknown name.
    """
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in CONTROLS:
            raise ConfigError(f"--controls: unknown control {name!r}", f"choose from {', '.join(CONTROLS)}")
    return tuple(dict.fromkeys(names))


def prepare_controls(
    name: str, prepared: PreparedTask, out: Path, opened: OpenCheckpoints, add_encoder: AddIntermediate
) -> dict[str, TaskRuns]:
    """Return the runs of each control, in folders of the task's `out`.

    If the recipe has an intermediate task, the control starts from a separate model of that task, which `add_encoder`
    adds. If this model diverges, the control's runs have diverged, too. Raises `ConfigError` if the task is only
    scored, or if the weights of step 0 were not saved.
    """
    request = prepared.request
    if request.controls and not prepared.needs_training:
        raise ConfigError(
            f"--controls: {prepared.task.title} is only scored, so there is nothing to compare",
            "use a pretrained model as --checkpoint",
        )
    controls = {}
    for control in request.controls:
        overrides = (*request.overrides, f"model.weights={control}")
        control_task = prepare_evaluation(name, replace(request, overrides=overrides, controls=()), opened)
        runs = TaskRuns(name, control_task, out / CONTROLS_FOLDER / control)
        try:
            runs = add_encoder(runs, out / control_task.recipe.intermediate_task / CONTROLS_FOLDER / control)
        except DivergedError as error:
            runs = runs.with_diverged_intermediate(error)
        controls[control] = runs
    return controls


def evaluate_with_controls(runs: TaskRuns, inputs: Inputs) -> ScoredResult | EvaluationResult:
    """Evaluate a task, then its controls; add the comparison with them to the task's result, and write it again.

    inputs: the task's inputs for its first seed.
    """
    baseline_cache: BaselineCache = {}
    result = evaluate_runs(runs, inputs, baseline_cache)
    if not runs.controls or not isinstance(result, EvaluationResult):
        return result
    task = runs.prepared.task
    predictions = read_predictions_by_seed(task, runs.out, result, len(inputs.dev_examples))
    lowest_score = min(result.scores_by_seed.values())
    control_results = {}
    differences = dict(result.differences)
    for name, control in runs.controls.items():
        try:
            evaluation = evaluate_runs(control, inputs, baseline_cache)
        except AllSeedsDiverged as error:
            console.warn(f"{CONTROLS[name]}: {error.message}")
            control_results[name] = ControlResult(diverged=error.reasons)
            continue
        assert isinstance(evaluation, EvaluationResult), "a control is never scored without training"
        highest_control_score = max(evaluation.scores_by_seed.values())
        summary = evaluation.model_dump(include=set(SeedSummary.model_fields))
        control_results[name] = ControlResult(**summary, every_seed_above=lowest_score > highest_control_score)
        if isinstance(inputs.dev_features, PairFeatures):
            control_predictions = read_predictions_by_seed(task, control.out, evaluation, len(inputs.dev_examples))
            difference = compare_predictions(result.metric, inputs.dev_features.gold, predictions, control_predictions)
            if difference is not None:
                differences[name] = difference
    result = result.model_copy(update={"controls": control_results, "differences": differences})
    result.write(runs.out / RESULTS)
    return result
