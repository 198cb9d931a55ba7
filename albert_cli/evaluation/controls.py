"""`--controls`: the same seeds from the weights at step 0 of pretraining, and from random ones, beside every score.

Score minus start is what pretraining brought; start minus random is what was known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from albert_cli import console
from albert_cli.errors import ConfigError
from albert_cli.evaluation.parallel import TaskRuns
from albert_cli.evaluation.single import FOLDER, NoneEnded, evaluate_task, prepare_task
from albert_cli.results import CONTROLS, RESULTS, Result
from albert_cli.training.intermediate import with_intermediate
from albert_cli.training.task_setup import Prepared

_KEPT = {"median", "spread", "stdev", "standard_error", "scores_by_seed", "diverged", "collapsed"}


def parse(text: str | None) -> tuple[str, ...]:
    """The names in `start,random`; raises `ConfigError` for any other."""
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if unknown := [name for name in names if name not in CONTROLS]:
        raise ConfigError(f"--controls: no control is called {unknown[0]!r}", f"choose from {', '.join(CONTROLS)}")
    return names


def jobs(task: str, prepared: Prepared, out: Path, others: Path) -> list[TaskRuns]:
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
        asked = replace(request, overrides=(*request.overrides, f"model.initial={name}"), controls=())
        of_control = prepare_task(asked, task)
        folder = others / of_control.recipe.start_from / FOLDER / name
        found.append(TaskRuns(task, with_intermediate(of_control, folder), out / FOLDER / name))
    return found


def evaluate_beside(prepared: Prepared, out: Path, controls: Sequence[TaskRuns]) -> Result:
    """The task's result with those of its controls in it; `every_seed_above` says whether all seeds are apart."""
    result = evaluate_task(prepared, out)
    if controls:
        lowest = min(result.scores_by_seed.values())
        result = result.model_copy(update={"controls": {job.out.name: _evaluated(job, lowest) for job in controls}})
        result.write(out / RESULTS)
    return result


def _evaluated(job: TaskRuns, lowest: float) -> Result:
    """What is kept of a control's result; that every seed of it diverged is a result too."""
    try:
        found = evaluate_task(job.prepared, job.out)
    except NoneEnded as error:
        console.warn(f"{CONTROLS[job.out.name]}: {error.message}")
        return Result(median=None, scores_by_seed={}, diverged=error.seeds, every_seed_above=None)
    clear = lowest > max(found.scores_by_seed.values())
    return Result(**found.model_dump(include=_KEPT), every_seed_above=clear)
