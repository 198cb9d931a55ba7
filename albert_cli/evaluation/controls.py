"""`--controls`: the same seeds from the weights at step 0 of pretraining, and from random ones, beside every score.

What pretraining itself has brought is what lies between: the start has all that was known beforehand, random weights
have only the shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.errors import ConfigError
from albert_cli.evaluation.parallel import Job
from albert_cli.evaluation.single import FOLDER, NoneEnded, Request, evaluate_task, prepare_task
from albert_cli.results import CONTROLS
from albert_cli.training.finetune import RESULTS, Prepared

_KEPT = ("median", "spread", "stdev", "standard_error", "scores_by_seed", "diverged", "collapsed")


def parse(text: str | None) -> tuple[str, ...]:
    """The names in `start,random`; raises `ConfigError` for any other."""
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if unknown := [name for name in names if name not in CONTROLS]:
        raise ConfigError(f"--controls: no control is called {unknown[0]!r}", f"choose from {', '.join(CONTROLS)}")
    return names


def jobs(request: Request, task: str, prepared: Prepared, out: Path) -> list[Job]:
    """Each control as runs of its own below `out`.

    Raises `ConfigError` where nothing is trained, and where there are no weights of step 0.
    """
    if request.controls and prepared.for_scoring:
        hint = "give --checkpoint a pretrained model"
        raise ConfigError(f"--controls: {prepared.task.title} is only scored here, so nothing is compared", hint)
    found = []
    for name in request.controls:
        asked = replace(request, overrides=(*request.overrides, f"model.initial={name}"), controls=())
        found.append(Job(asked, task, prepare_task(asked, task, prepared), out / FOLDER / name))
    return found


def evaluate_beside(prepared: Prepared, out: Path, runs: int, controls: Sequence[Job]) -> dict[str, Any]:
    """The task's result with those of its controls in it; `every_seed_above` says whether all seeds are apart."""
    result = evaluate_task(prepared, out, runs)
    if controls:
        lowest = min(result["scores_by_seed"].values())
        result["controls"] = {}
        for job in controls:
            found = _evaluated(job, runs)
            scores: Mapping[str, float] = found["scores_by_seed"]
            clear = lowest > max(scores.values()) if scores else None
            result["controls"][job.out.name] = {**found, "every_seed_above": clear}
        store.write_json(out / RESULTS, result)
    return result


def _evaluated(job: Job, runs: int) -> dict[str, Any]:
    """What is kept of a control's result; that every seed of it diverged is a result too."""
    try:
        found = evaluate_task(job.prepared, job.out, runs)
    except NoneEnded as error:
        console.warn(f"{CONTROLS[job.out.name]}: {error.message}")
        return {"median": None, "scores_by_seed": {}, "diverged": error.seeds}
    return {key: found[key] for key in _KEPT}
