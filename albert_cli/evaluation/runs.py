"""`albert eval`: what is asked for, and which part of this package answers it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.errors import ConfigError
from albert_cli.evaluation import controls, parallel, submission
from albert_cli.evaluation.single import FOLDER, Request, prepare_task, refuse_foreign
from albert_cli.evaluation.suite import GLUE, evaluate_suite
from albert_cli.training.finetune import RESULTS
from albert_cli.training.start import with_start
from albert_cli.training.task_recipe import PAPER


def evaluate(
    task: str,
    checkpoint: str | None,
    data: str | None,
    out: Path,
    runs: int,
    overrides: Sequence[str],
    device: str,
    *,
    nproc: int = 1,
    again: bool = False,
    submission_file: Path | None = None,
    controlled: Sequence[str] = (),
    recipes: str = PAPER,
) -> dict[str, Any]:
    """Score a checkpoint on a task, or on every GLUE task whose data are there; return `results.json`.

    A checkpoint of this very task is scored as it is, or `again` fine-tuned. Any other, one of another task included,
    is where `runs` seeded fine-tunings start from, `nproc` at a time. `submission_file` becomes the suite's zip for
    GLUE's server. `controlled` names the weights that the same seeds start from for comparison (`controls.py`),
    `recipes` whose recipes the tasks are trained by.
    """
    for name, value in (("runs", runs), ("nproc", nproc)):
        if value < 1:
            raise ConfigError(f"--{name} {value}: at least one is needed")
    if not checkpoint:
        raise ConfigError("eval needs a --checkpoint", "a pretrained one, or one of the task")
    if submission_file and task != GLUE:
        raise ConfigError("--submission is for all of GLUE", "albert eval glue … --submission FILE.zip")
    request = Request(checkpoint, data, runs, tuple(overrides), device, nproc, again, tuple(controlled), recipes)
    if submission_file is not None:
        submission.check(data, submission_file)
    if task == GLUE:
        result = evaluate_suite(request, out)
        if submission_file is not None:
            result["submission"] = submission.write(submission_file, request, out, result["tasks"])
            store.write_json(out / RESULTS, result)
        return result
    prepared = prepare_task(request, task)
    if not prepared.for_scoring:
        refuse_foreign(out, RESULTS, "run-*", FOLDER, prepared.recipe.start_from)  # before hours of MNLI
    beside = controls.jobs(request, task, prepared, out)
    prepared = with_start(prepared, out / prepared.recipe.start_from)
    parallel.train([parallel.Job(request, task, prepared, out), *beside], nproc)
    return controls.evaluate_beside(prepared, out, runs, beside)
