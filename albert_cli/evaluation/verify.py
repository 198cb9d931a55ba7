"""`albert eval verify/NAME`: a published checkpoint on the tasks with published scores, and a verdict on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from albert_cli import config, console, store
from albert_cli.errors import CheckpointError, ConfigError, DivergedError, MissingData, NotReached, Skipped
from albert_cli.evaluation.single import refuse_foreign
from albert_cli.evaluation.suite import evaluate
from albert_cli.model import hub
from albert_cli.results import RESULTS, Result
from albert_cli.tasks.spec import as_published, average, published_metrics
from albert_cli.training.task_setup import Request

Points = Annotated[float, Ge(-100), Le(100)]


@dataclass(frozen=True)
class Expected:
    """A score on dev as it was published, times 100; `tolerance` in points, 0 for the recipe's own.

    Of SQuAD `score` is F1 and `exact_match` may stand beside it, of 2.0 both at the best threshold.
    """

    score: Points
    exact_match: Points | None = None
    tolerance: Annotated[float, Ge(0)] = 0.0

    @property
    def scores(self) -> tuple[float, ...]:
        """The published numbers, one or two."""
        return (self.score,) if self.exact_match is None else (self.score, self.exact_match)


@dataclass(frozen=True)
class VerifyRecipe:
    """What `albert eval verify/NAME` repeats: every task of `expected` from `checkpoint`, by its own recipe.

    `source` says where the scores were published, `runs` how many seeds are fine-tuned (the median counts),
    `overrides` are laid on every task's recipe. A task passes when none of its scores is more than
    `tolerance` points below.
    """

    checkpoint: str
    source: str
    expected: dict[str, Expected] = field(default_factory=dict)
    tolerance: Annotated[float, Ge(0)] = 1.0
    runs: config.Positive = 1
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.expected:
            raise ConfigError("a recipe to verify names no task", "[expected.sst2] with score = 92.9")
        for task, expected in self.expected.items():
            if expected.exact_match is not None and not task.startswith("squad"):
                raise ConfigError(f"expected.{task}.exact_match: only SQuAD is published with it")

    def tolerance_of(self, task: str) -> float:
        """How many points below its published score a task may end."""
        return self.expected[task].tolerance or self.tolerance


_OWN_KEYS = tuple(field.name for field in dataclasses.fields(VerifyRecipe))


def is_recipe(name: str) -> bool:
    """Whether `eval`'s argument names a recipe to verify."""
    return (name.endswith(".toml") or name in config.shipped_recipes()) and "expected" in config.read_recipe(name)


def verify(
    name: str,
    checkpoint: str | None,
    data: str | None,
    out: Path,
    runs: int | None,
    overrides: Sequence[str],
    device: str,
    nproc: int = 1,
) -> dict[str, Any]:
    """Evaluate every task of the recipe below `out`; return `results.json`, a verdict for each.

    `checkpoint` and `runs` stand in for the recipe's own. Of `overrides` those of its own keys (`tolerance=2`) change
    it, the others (`train.batch_size=16`) the tasks' recipes. `data` is a folder with the
    folders of GLUE, `squad/` and `race/` (or RACE's own layout), or None for the Hub. Tasks without their data are
    skipped with the reason. Raises `Skipped` when the recipe's own checkpoint or all data are out of reach.
    """
    own = [text for text in overrides if text.partition("=")[0].partition(".")[0] in _OWN_KEYS]
    recipe = config.load(VerifyRecipe, name, own)
    recipe = dataclasses.replace(
        recipe, checkpoint=checkpoint or recipe.checkpoint, runs=recipe.runs if runs is None else runs
    )
    refuse_foreign(out, RESULTS, *recipe.expected)
    try:
        hub.find(recipe.checkpoint)
    except CheckpointError as error:
        if checkpoint is not None:
            raise
        raise Skipped(f"{name} is skipped: {error.message}", error.hint) from None
    given = (*recipe.overrides, *(text for text in overrides if text not in own))
    request = Request(recipe.checkpoint, data, recipe.runs, given, device, nproc)
    tasks = {task: _verdict(recipe, task, request, out) for task in recipe.expected}
    if all(found["verdict"] == "skipped" for found in tasks.values()):
        raise Skipped(f"{name} is skipped: {next(iter(tasks.values()))['reason']}", "--data DIR, or a network")
    scored = {task: found for task, found in tasks.items() if "scores" in found}
    means = {"published": "published", "here": "scores"} if scored else {}
    result = {
        "kind": "verify",
        "recipe": name,
        "checkpoint": recipe.checkpoint,
        "source": recipe.source,
        "tasks": tasks,
        # Avg of what was published and of what was reached here, over the tasks that were evaluated
        "average": {name: average({task: of[key] for task, of in scored.items()}) for name, key in means.items()},
        "reached": all(found["verdict"] in ("reached", "skipped") for found in tasks.values()),
    }
    store.write_json(out / RESULTS, result)
    return result


def _verdict(recipe: VerifyRecipe, task: str, request: Request, out: Path) -> dict[str, Any]:
    tolerance = recipe.tolerance_of(task)
    expected = dict(zip(published_metrics(task), recipe.expected[task].scores, strict=False))  # F1 alone is allowed
    published = {"published": expected, "tolerance": tolerance}
    try:
        found = evaluate(dataclasses.replace(request, data=data_of(task, request.data)), task, out / task)
    except MissingData as error:
        console.warn(f"{task} is skipped: {error.message}")
        return {**published, "verdict": "skipped", "reason": error.message}
    except DivergedError as error:
        console.warn(error.message)
        return {**published, "verdict": "diverged", "reason": error.message}
    assert isinstance(found, Result), "of one task"
    scores = {name: 100 * score for name, score in as_published(task, found).items() if name in expected}
    reached = all(scores[name] >= score - tolerance for name, score in expected.items())
    return {**published, "scores": scores, "runs": recipe.runs, "verdict": "reached" if reached else "not reached"}


def data_of(task: str, data: str | None) -> str | None:
    """Where a task's data lie in the folder of all: `glue/`, `squad/` or `race/` in it, or that folder itself."""
    if data is None:
        return None
    family = "squad" if task.startswith("squad") else "race" if task.startswith("race") else "glue"
    names = (family, family.upper(), "SQuAD" if family == "squad" else family.title())
    return next((str(Path(data) / name) for name in names if (Path(data) / name).is_dir()), data)


def text(result: Mapping[str, Any]) -> str:
    """The verdicts as a table."""
    rows = []
    for task, found in result["tasks"].items():
        verdict = ": ".join(filter(None, (found["verdict"], found.get("reason"))))
        here = _shown(found.get("scores", {}))
        rows.append((task, _shown(found["published"]), f"{found['tolerance']:.1f}", here, verdict))
    if means := result["average"]:
        name = f"Avg of {sum('scores' in found for found in result['tasks'].values())}"
        rows.append((name, f"{means['published']:.1f}", "", f"{means['here']:.1f}", ""))
    return console.table(("task", "published", "tolerance", "here", "verdict"), rows)


def _shown(scores: Mapping[str, float]) -> str:
    """As the tables print them: one number, or `F1/EM`."""
    return "/".join(f"{score:.1f}" for score in scores.values())


def check(result: Mapping[str, Any]) -> None:
    """Raise `NotReached` where a score lies further below its published value than the tolerance."""
    short = [task for task, found in result["tasks"].items() if found["verdict"] in ("not reached", "diverged")]
    if short:
        raise NotReached(
            f"{result['recipe']}: {', '.join(short)}: below the published score by more than the tolerance, or diverged"
        )
