"""`albert eval verify/NAME`: evaluate a published checkpoint and compare its scores with the published ones.

A recipe names the checkpoint and its published scores; `results.json` has a verdict for each task. If all published
scores are reached, this package reads checkpoints, fine-tunes and scores as the authors' programs do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from albert_cli import config, console
from albert_cli.errors import (
    CheckpointError,
    ConfigError,
    DiskError,
    DivergedError,
    MissingDataError,
    ScoreNotReachedError,
    Skipped,
)
from albert_cli.evaluation.output import require_own_output
from albert_cli.evaluation.suite import evaluate
from albert_cli.model import hub
from albert_cli.results import RESULTS, EvaluationResult, TaskVerdict, VerifyResult
from albert_cli.tasks.data_files import match_case
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.registry import average_score, paper_metric_names, paper_metrics
from albert_cli.training.task_setup import TaskRequest, resolve_checkpoint

ScorePoints = Annotated[float, Ge(-100), Le(100)]
Tolerance = Annotated[float, Ge(0), Le(100)]


@dataclass(frozen=True)
class VerifyRecipe:
    """The recipe of `albert eval verify/NAME`; every task in `expected` is evaluated with the task's recipe.

    `expected` has published dev scores times 100, by task and metric (SQuAD 2.0: at the best threshold), and `source`
    their origin. `runs` is the number of seeds, whose median is compared. `overrides` apply to every task's recipe. A
    task's verdict is "reached" if no score is more than `tolerance` points below the published one; `tolerance_of`
    has the tolerance of single tasks.
    """

    checkpoint: str
    source: str
    expected: dict[str, dict[str, ScorePoints]] = field(default_factory=dict)
    tolerance: Tolerance = 1.0
    tolerance_of: dict[str, Tolerance] = field(default_factory=dict)
    runs: config.PositiveInt = 1
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.expected:
            raise ConfigError("the recipe expects no scores", "add a table like [expected] with sst2.accuracy = 92.9")
        for task, scores in self.expected.items():
            published = paper_metric_names(task)
            if not scores or set(scores) - set(published):
                raise ConfigError(f"expected.{task}: the published scores are {' and '.join(published)}")
        if unknown := self.tolerance_of.keys() - self.expected.keys():
            raise ConfigError(
                f"tolerance_of.{min(unknown)}: is not a task of [expected]", f"tasks: {', '.join(self.expected)}"
            )


def is_verify_recipe(name: str) -> bool:
    """Return True if `name`, the argument TASK of `albert eval`, is a recipe for verification."""
    return (config.is_recipe_file(name) or name in config.shipped_recipes()) and "expected" in config.read_recipe(name)


def verify_checkpoint(name: str, request: TaskRequest, out: Path) -> VerifyResult:
    """Evaluate every task of the recipe below `out`, compare the scores, and write the verdicts.

    The request's `checkpoint` and `runs`, unless they are "" and 0, replace the recipe's values. Its `overrides` have
    precedence over the recipe's. Its `data` is a folder with the folders `glue/`, `squad/` and `race/`, or None for the
    Hub. Tasks without data are skipped. Raises `Skipped` if the recipe's checkpoint or the data of all tasks are
    missing.
    """
    recipe = config.load_recipe(VerifyRecipe, name)
    require_own_output(out, RESULTS, *recipe.expected)
    checkpoint_is_requested = bool(request.checkpoint)
    request = replace(
        request,
        checkpoint=request.checkpoint or recipe.checkpoint,
        runs=request.runs or recipe.runs,
        overrides=(*recipe.overrides, *request.overrides),
    )
    try:
        hub.find_checkpoint(request.checkpoint)
    except CheckpointError as error:
        if checkpoint_is_requested or isinstance(error, DiskError):
            raise
        raise Skipped(f"{name} is skipped: {error.message}", error.hint) from None
    resolved = resolve_checkpoint(request)
    tasks = {task: _verify_task(recipe, task, resolved, out) for task in recipe.expected}
    if all(verdict.verdict == "skipped" for verdict in tasks.values()):
        reason = next(iter(tasks.values())).reason
        raise Skipped(f"{name} is skipped: {reason}", "give the tasks' files with --data, or connect to the network")
    average: dict[str, float] = {}
    evaluated = {task: verdict for task, verdict in tasks.items() if verdict.scores}
    if evaluated:
        average["published"] = average_score({task: verdict.published for task, verdict in evaluated.items()})
        average["measured"] = average_score({task: verdict.scores for task, verdict in evaluated.items()})
    result = VerifyResult(
        recipe=name,
        checkpoint=request.checkpoint,
        source=recipe.source,
        tasks=tasks,
        average=average,
        reached=all(verdict.verdict in ("reached", "skipped") for verdict in tasks.values()),
    )
    result.write(out / RESULTS)
    return result


def _verify_task(recipe: VerifyRecipe, task: str, request: TaskRequest, out: Path) -> TaskVerdict:
    """Evaluate a task and compare its scores with the published ones.

    The verdict is "skipped" if the task's data are missing, and "diverged" if no seed has a score.
    """
    published = recipe.expected[task]
    tolerance = recipe.tolerance_of.get(task, recipe.tolerance)
    if request.data is not None:
        request = replace(request, data=find_task_data(task, request.data))
    try:
        result = evaluate(task, request, out / task)
    except MissingDataError as error:
        console.warn(f"{task} is skipped: {error.message}")
        return TaskVerdict(verdict="skipped", published=published, tolerance=tolerance, reason=error.message)
    except DivergedError as error:
        console.warn(error.message)
        return TaskVerdict(verdict="diverged", published=published, tolerance=tolerance, reason=error.message)
    scores = {name: 100 * score for name, score in paper_metrics(task, result.medians).items() if name in published}
    reached = all(scores[name] >= score - tolerance for name, score in published.items())
    return TaskVerdict(
        verdict="reached" if reached else "not reached",
        published=published,
        tolerance=tolerance,
        scores=scores,
        runs=len(result.seeds) if isinstance(result, EvaluationResult) else None,
    )


def find_task_data(task: str, data: str) -> str:
    """Return the folder with the task's files in `data`; `data` itself if there is no such folder.

    For a task of GLUE, SQuAD or RACE the folder has the benchmark's name, for another task the task's name, in upper or
    lower case.
    """
    name = task
    if task in GLUE:
        name = "glue"
    elif task.startswith("squad"):
        name = "squad"
    elif task.startswith("race"):
        name = "race"
    folder = match_case(Path(data), name)
    return str(folder) if folder.is_dir() else data


def require_reached(result: VerifyResult) -> None:
    """Raise `ScoreNotReachedError` if a task diverged, or a score is below the published one minus the tolerance."""
    failed = [task for task, verdict in result.tasks.items() if verdict.verdict in ("not reached", "diverged")]
    if failed:
        raise ScoreNotReachedError(
            f"{result.recipe}: {', '.join(failed)}: diverged, or below the published score by more than the tolerance"
        )
