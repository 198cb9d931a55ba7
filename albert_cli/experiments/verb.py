"""`albert reproduce`: an experiment of the paper at a chosen scale, from its recipe to its report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from albert_cli import console, store
from albert_cli.errors import ConfigError, InputError
from albert_cli.experiments import outcome, pages, recipe
from albert_cli.experiments.budget import decision, describe, in_words
from albert_cli.experiments.plan import Plan, Request, make
from albert_cli.experiments.runner import Invoke, run_plan
from albert_cli.text.corpus import check_readable
from albert_cli.training.device import choose_device
from albert_cli.training.settings import parse_duration


def parse_speeds(options: Sequence[str]) -> dict[str, float]:
    """`--tflops N` for all variants or `VARIANT=N` for one, as TFLOP/s by variant ("": all)."""
    found = {}
    for option in options:
        name, _, value = option.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f"--tflops {option}: not a number", "such as --tflops 410 or --tflops base=380") from None
        if not 0 < found[name] < 1e6:
            raise ConfigError(f"--tflops {option}: no speed", "TFLOP/s of one device, such as --tflops 410")
    return found


def dry_run(name: str, request: Request) -> tuple[dict[str, Any], str]:
    """What an experiment would do and cost; text on the Hub that cannot be read from here is named."""
    plan = make(recipe.load(name), request)
    data, text = describe(plan)
    data["unreadable"] = _unreadable(plan)
    for why in data["unreadable"].values():
        console.warn(f"{why}; the run would end there. {_other_text(plan)}")
    return data, text


def _unreadable(plan: Plan) -> dict[str, str]:
    """The sources on the Hub that cannot be read from here, and why."""
    found = {}
    for source in plan.hub_text:
        try:
            check_readable(source)
        except InputError as error:
            found[source] = error.message
    return found


def _other_text(plan: Plan) -> str:
    """What may stand in for a scale's text."""
    others = plan.scale.other_text
    return "--text SOURCE names other text" + (f", such as {', '.join(others)}" if others else "")


def reproduce(
    name: str, request: Request, invoke: Invoke, *, jobs: int | None = None, max_time: str | None = None
) -> tuple[dict[str, Any], str]:
    """Run what is left of an experiment and write its report; return what `--json` prints, and the text.

    Text that a stage could not read is refused before anything is run.
    """
    import torch

    seconds, started = parse_duration(max_time, "--max-time") if max_time else None, time.monotonic()
    gpus = torch.cuda.device_count() if choose_device(request.device).type == "cuda" else 0
    plan = make(recipe.load(name), request)
    for why in _unreadable(plan).values():
        raise InputError(why, _other_text(plan))
    for task, why in plan.left_out.items():
        console.warn(f"{task} is left out: {why}")
    for expected in (decision(plan, claim) for claim in plan.claims):
        if expected.why:
            console.warn(f"this run cannot decide: {expected.says} {expected.why}")
    places = jobs if jobs is not None else max(1, gpus // request.nproc)
    with store.lock(request.out):
        # One at a time, with the cores or the GPU that a run has: what stood beside it would be measured too.
        done = sum(run_plan(part, invoke, places, gpus, seconds) for part in plan.unmeasured)
        plan = make(plan.experiment, request)
        done += run_plan(plan, invoke, places, gpus, seconds)
        found = outcome.read(plan)
        written = pages.write(found)
    result = found.to_json() | {"report": str(written), "stages": len(plan.stages), "stages_done_now": done}
    columns = pages.columns(found)
    rows = [
        (plan.experiment.variants[variant].title, *(pages.cell(found, variant, metric) for metric in columns))
        for variant in plan.variants
    ]
    lines = [console.table((f"{plan.experiment.name}, scale {request.scale}", *columns.values()), rows)]
    lines += [console.wrapped([in_words(plan, variant)]) for variant in plan.equal_time]
    for printed in plan.experiment.tables:
        beside = found.beside(printed)
        heads = [column for column in printed.columns if any(column in cells for cells in beside.values())]
        gaps = [(plan.title(row), *(pages.gap(cells.get(column)) for column in heads)) for row, cells in beside.items()]
        if gaps:
            lines += ["", console.table((f"ours (minus {printed.title}, {printed.version})", *heads), gaps)]
    lines.append("")
    for judgement in found.judgements:
        lines.append(f"{judgement.verdict.upper()}: {judgement.claim.says}")
        lines += [f"    {pages.finding_in_words(finding)}" for finding in judgement.findings]
    return result | {"wall_seconds": round(time.monotonic() - started, 1)}, "\n".join([*lines, "", str(written)])
