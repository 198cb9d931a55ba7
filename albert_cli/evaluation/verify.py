"""`albert eval verify/NAME`: a published checkpoint on the tasks with published scores, and a verdict on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from albert_cli import config, console, store
from albert_cli.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    MissingDataError,
    ScoreNotReachedError,
    Skipped,
)
from albert_cli.evaluation.single import require_own_output
from albert_cli.evaluation.suite import evaluate
from albert_cli.model import hub
from albert_cli.results import RESULTS, Result
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.registry import average_score, paper_metric_names, paper_metrics
from albert_cli.training.task_setup import TaskRequest

ScorePoints = Annotated[float, Ge(-100), Le(100)]
Tolerance = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class VerifyRecipe:
    """What `albert eval verify/NAME` repeats: every task of `expected` from `checkpoint`, by its own recipe.

    `expected` are scores on dev as they were published, times 100, by task and metric (of SQuAD 2.0 at the best
    threshold), `source` says where, `runs` how many seeds are fine-tuned (the median counts), `overrides` are laid on
    every task's recipe. A task passes when none of its scores is more than `tolerance` points below, or those that
    `tolerance_of` has for it.
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
            raise ConfigError("a recipe to verify names no task", "[expected] with sst2.accuracy = 92.9")
        for task, scores in self.expected.items():
            if not scores or set(scores) - set(paper_metric_names(task)):
                raise ConfigError(f"expected.{task}: scores are published as {' and '.join(paper_metric_names(task))}")
        if unknown := self.tolerance_of.keys() - self.expected.keys():
            raise ConfigError(f"tolerance_of.{min(unknown)}: no task of [expected]", ", ".join(self.expected))


def is_verify_recipe(name: str) -> bool:
    """Whether `eval`'s argument names a recipe to verify."""
    return (name.endswith(".toml") or name in config.shipped_recipes()) and "expected" in config.read_recipe(name)


def verify_checkpoint(name: str, request: TaskRequest, out: Path) -> dict[str, Any]:
    """Evaluate every task of the recipe below `out`; return `results.json`, a verdict for each.

    What the request has of `checkpoint` and `runs` stands in for the recipe's own; its `overrides` change the tasks'
    recipes. `data` is a folder with the folders of GLUE, `squad/` and `race/` (or RACE's own layout), or None for the
    Hub. Tasks without their data are skipped with the reason. Raises `Skipped` when the recipe's own checkpoint or all
    data are out of reach.
    """
    recipe = config.load_recipe(VerifyRecipe, name)
    require_own_output(out, RESULTS, *recipe.expected)
    checkpoint, runs = request.checkpoint or recipe.checkpoint, request.runs or recipe.runs
    try:
        hub.find_checkpoint(checkpoint)
    except CheckpointError as error:
        if request.checkpoint:
            raise
        raise Skipped(f"{name} is skipped: {error.message}", error.hint) from None
    overrides = (*recipe.overrides, *request.overrides)
    request = dataclasses.replace(request, checkpoint=checkpoint, runs=runs, overrides=overrides)
    tasks = {task: _verify_task(recipe, task, request, out) for task in recipe.expected}
    if all(found["verdict"] == "skipped" for found in tasks.values()):
        raise Skipped(f"{name} is skipped: {next(iter(tasks.values()))['reason']}", "--data DIR, or a network")
    scored = {task: found for task, found in tasks.items() if "scores" in found}
    means = {"published": "published", "here": "scores"} if scored else {}
    result = {
        "kind": "verify",
        "recipe": name,
        "checkpoint": checkpoint,
        "source": recipe.source,
        "tasks": tasks,
        # Avg of what was published and of what was reached here, over the tasks that were evaluated
        "average": {name: average_score({task: of[key] for task, of in scored.items()}) for name, key in means.items()},
        "reached": all(found["verdict"] in ("reached", "skipped") for found in tasks.values()),
    }
    store.write_json(out / RESULTS, result)
    return result


def _verify_task(recipe: VerifyRecipe, task: str, request: TaskRequest, out: Path) -> dict[str, Any]:
    expected, tolerance = recipe.expected[task], recipe.tolerance_of.get(task, recipe.tolerance)
    published = {"published": expected, "tolerance": tolerance}
    try:
        found = evaluate(dataclasses.replace(request, data=find_task_data(task, request.data)), task, out / task)
    except MissingDataError as error:
        console.warn(f"{task} is skipped: {error.message}")
        return {**published, "verdict": "skipped", "reason": error.message}
    except DivergedError as error:
        console.warn(error.message)
        return {**published, "verdict": "diverged", "reason": error.message}
    assert isinstance(found, Result), "of one task"
    scores = {name: 100 * score for name, score in paper_metrics(task, found).items() if name in expected}
    reached = all(scores[name] >= score - tolerance for name, score in expected.items())
    return {**published, "scores": scores, "runs": request.runs, "verdict": "reached" if reached else "not reached"}


def find_task_data(task: str, data: str | None) -> str | None:
    """Where a task's data lie in the folder of all: `glue/`, `squad/`, `race/` or its name in it, or that folder."""
    if data is None:
        return None
    family = "glue" if task in GLUE else next((name for name in ("squad", "race") if task.startswith(name)), task)
    names = (family, family.upper(), "SQuAD" if family == "squad" else family.title())
    return next((str(Path(data) / name) for name in names if (Path(data) / name).is_dir()), data)


def format_verdicts(result: Mapping[str, Any]) -> str:
    """The verdicts as a table."""
    rows = []
    for task, found in result["tasks"].items():
        verdict = ": ".join(filter(None, (found["verdict"], found.get("reason"))))
        here = _format_scores(found.get("scores", {}))
        rows.append((task, _format_scores(found["published"]), f"{found['tolerance']:.1f}", here, verdict))
    if means := result["average"]:
        name = f"Avg of {sum('scores' in found for found in result['tasks'].values())}"
        rows.append((name, f"{means['published']:.1f}", "", f"{means['here']:.1f}", ""))
    return console.format_table(("task", "published", "tolerance", "here", "verdict"), rows)


def _format_scores(scores: Mapping[str, float]) -> str:
    """As the tables print them: one number, or `F1/EM`."""
    return "/".join(f"{score:.1f}" for score in scores.values())


def require_reached(result: Mapping[str, Any]) -> None:
    """Raise `NotReached` where a score lies further below its published value than the tolerance."""
    short = [task for task, found in result["tasks"].items() if found["verdict"] in ("not reached", "diverged")]
    if short:
        raise ScoreNotReachedError(
            f"{result['recipe']}: {', '.join(short)}: below the published score by more than the tolerance, or diverged"
        )
