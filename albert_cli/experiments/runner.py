"""`albert reproduce`: an experiment of the paper at a chosen scale, from its recipe to its report.

Stages run one at a time or several side by side, each once, whatever ended the attempt before. A stage is done when its
result file is there; it is written last, in one rename. So a killed run repeats nothing that was finished, and a stage
that was under way goes on from its own newest checkpoint, as its verb does by itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from albert_cli import console, machine, pool, store
from albert_cli.errors import AlbertError, BusyError, ConfigError, DivergedError, InputError, Interrupted
from albert_cli.experiments import outcome, pages, recall_table, recipe
from albert_cli.experiments.budget import describe_plan, judge_decidability
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest, StageRecord
from albert_cli.experiments.stages import make_plan
from albert_cli.text.corpus import check_readable
from albert_cli.training.device import choose_device
from albert_cli.training.settings import parse_duration

Invoke = Callable[[Sequence[str]], tuple[int, str]]  # an `albert` command here: its exit code and what it printed
_Ended = tuple[int, str, float]  # the same with its seconds
_PATIENCE = 600.0  # seconds to wait for what a killed run left behind and is still writing


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


def preview_experiment(name: str, request: ExperimentRequest) -> tuple[dict[str, Any], str]:
    """What an experiment would do and cost; text on the Hub that cannot be read from here is named."""
    plan = make_plan(recipe.load_experiment(name), request)
    data, text = describe_plan(plan)
    data["unreadable"] = _unreadable(plan)
    for why in data["unreadable"].values():
        console.warn(f"{why}; the run would end there. {_other_text(plan)}")
    return data, text


def _unreadable(plan: ExperimentPlan) -> dict[str, str]:
    """The sources on the Hub that the stages to come cannot read from here, and why."""
    texts = [stage.facts["text"] for stage in plan.left if stage.kind in ("vocabulary", "data", "table")]
    found = {}
    for source in dict.fromkeys(name for names in texts for name in names if name.startswith("hf:")):
        try:
            check_readable(source)
        except InputError as error:
            found[source] = error.message
    return found


def _other_text(plan: ExperimentPlan) -> str:
    """What may stand in for a scale's text."""
    others = plan.scale.other_text
    return "--text SOURCE names other text" + (f", such as {', '.join(others)}" if others else "")


def reproduce_experiment(
    name: str, request: ExperimentRequest, invoke: Invoke, *, jobs: int | None = None, max_time: str | None = None
) -> tuple[dict[str, Any], str]:
    """Run what is left of an experiment and write its report; what `--json` prints, and the text."""
    import torch

    seconds, started = parse_duration(max_time, "--max-time") if max_time else None, time.monotonic()
    gpus = torch.cuda.device_count() if choose_device(request.device).type == "cuda" else 0
    plan = make_plan(recipe.load_experiment(name), request)
    for why in _unreadable(plan).values():
        raise InputError(why, _other_text(plan))
    for task, why in plan.left_out.items():
        console.warn(f"{task} is left out: {why}")
    for claim in plan.claims:
        if why := judge_decidability(plan, claim).why:
            console.warn(f"this run cannot decide: {claim.says} {why}")
    places = jobs if jobs is not None else max(1, gpus // request.nproc)

    def carried_out(plan: ExperimentPlan) -> int:
        return run_plan(plan, invoke, places, gpus, seconds and max(0.0, seconds - (time.monotonic() - started)))

    with store.lock(request.out):
        for folder in (plan.folder, plan.report):  # of a process that was killed
            store.remove_leftovers(folder)
        done = 0
        # One at a time, with the cores or the GPU that a run has: what stood beside it would be measured too.
        for part in plan.unmeasured:
            done += carried_out(part)
            if pool.is_stop_requested():  # while the last stage of this part ended well
                raise _stopped(plan)
        plan = make_plan(plan.experiment, request)
        done += carried_out(plan)
        found = outcome.read_outcome(plan)
        written = pages.write_report(found)
    result = found.to_json() | {"report": str(written), "stages": len(plan.stages), "stages_done_now": done}
    result["wall_seconds"] = round(time.monotonic() - started, 1)
    verdicts = [f"{checked.verdict.upper()}: {checked.claim.says}" for checked in found.claims]
    return result, "\n".join([*verdicts, "", str(written), str(written.with_suffix(".md"))])


# ---------------------------------------------------------------- the stages


def run_plan(plan: ExperimentPlan, invoke: Invoke, jobs: int = 1, gpus: int = 0, max_time: float | None = None) -> int:
    """Do all stages that are left; the number of those that were done now.

    One at a time in this process, or `jobs` of them side by side as processes of their own, as are those that start
    ranks. Raises `Interrupted` when it was asked to stop or its time is up, and `AlbertError` for a stage that failed,
    with the exit code of its command.
    """
    import torch

    left = plan.left
    total, ranks = len(plan.stages), plan.request.nproc
    ended = total - len(left)
    if ended:
        console.info(f"{ended} of {total} stages were finished before")
    here = jobs == 1 and ranks == 1
    # What OMP_NUM_THREADS says, which may be a list, torch has read.
    given = "OMP_NUM_THREADS" in os.environ
    threads = torch.get_num_threads() if given else max(1, machine.available_cores() // (jobs * ranks))
    places = pool.WorkerLimits(jobs, threads, gpus, ranks, fresh=True, here=here)

    def keep(job: pool.WorkItem[_Ended], outcome: _Ended | BaseException) -> None:
        nonlocal ended
        if isinstance(outcome, BaseException):
            raise outcome
        ended += 1
        _keep(plan, job.name, *outcome)
        console.info(f"[{ended}/{total}] {plan.stages[job.name].title}: {outcome[2]:.0f} s")

    stages = []
    for stage in left:
        needs = tuple(map(plan.result, stage.needs))
        run_command = recall_table.main if stage.kind == "table" else invoke
        arguments = (run_command, stage.argv, "" if here else stage.title, plan.directory(stage.id), needs)
        stages.append(pool.WorkItem(stage.id, _carry_out, arguments, frozenset(stage.needs)))
    try:
        pool.run_items(stages, places, keep, max_time)
    except Interrupted:
        if plan.left:
            raise _stopped(plan) from None
    return len(left)


def _stopped(plan: ExperimentPlan) -> Interrupted:
    return Interrupted(f"{plan.request.out}: stopped")


def _carry_out(invoke: Invoke, argv: Sequence[str], title: str, directory: Path, needs: Sequence[Path]) -> _Ended:
    """Run a stage's command once no process of a killed run writes there; its messages begin with the title."""
    if any(StageRecord.read(need).diverged for need in needs):
        return DivergedError.exit_code, "", 0.0
    started = time.monotonic()
    while (directory / ".lock").is_file():
        try:
            with store.lock(directory):
                break
        except BusyError:
            if time.monotonic() - started > _PATIENCE or pool.is_stop_requested():
                raise
            console.info(f"{directory}: another process is still writing here; waiting for it")
            time.sleep(5)
    started = time.monotonic()
    with contextlib.redirect_stderr(_Titled(title, sys.stderr)) if title else contextlib.nullcontext():
        code, printed = invoke(argv)
    return code, printed, time.monotonic() - started


class _Titled(io.TextIOBase):
    """A stream whose lines begin with a title."""

    def __init__(self, title: str, stream: Any) -> None:
        self._title, self._stream, self._line = title, stream, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        self._stream.write("".join(f"{self._title} | {line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def _keep(plan: ExperimentPlan, name: str, code: int, printed: str, seconds: float) -> None:
    """Note that a stage is done, with what it printed; raise for one that failed."""
    stage = plan.stages[name]
    outcome: dict[str, object] = {"diverged": True}
    if code == DivergedError.exit_code:
        console.warn(f"{stage.title}: diverged, or starts from a run that did; the other stages go on")
    elif code == 0:
        outcome = {"result": json.loads(printed)}
    elif code == Interrupted.exit_code or pool.is_stop_requested():
        raise Interrupted("stopped")
    else:
        failed = AlbertError(f"{stage.title}: ended with {code}: {stage.command}", "see its error message above")
        failed.exit_code = code
        raise failed
    record = {"stage": name, "title": stage.title, "command": stage.command, "seconds": round(seconds, 1)}
    store.write_json(plan.result(name), record | outcome)
