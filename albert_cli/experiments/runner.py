"""`albert reproduce`: run an experiment of the paper at a scale, and write its report.

Stages run one at a time or in parallel. The result file of a stage is written last and in one rename, and the stage is
finished if it has this file and its directory. So the command may be killed at any time: repeated, it runs only the
unfinished stages, and an unfinished pretraining run resumes from its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from albert_cli import array_jobs, console, executor, machine, store
from albert_cli.array_jobs import ArrayJob, retry_while_locked
from albert_cli.errors import AlbertError, BusyError, DivergedError, InputError, Interrupted, LockedError, ReportedError
from albert_cli.experiments import outcome, pages, recall_table, recipe, word_order_pairs
from albert_cli.experiments.budget import PlanDescription, describe_plan, judge_decidability
from albert_cli.experiments.inputs import MINIMAL_PAIRS_TASK, RECALL_TASK, check_heldout_text
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest, Stage, StageKind
from albert_cli.experiments.records import StageRecord, TimedResult, read_record
from albert_cli.experiments.stages import make_plan
from albert_cli.formatting import count_of, hide_secrets
from albert_cli.ranks import require_one_process
from albert_cli.text.corpus import check_readable
from albert_cli.training.device import choose_device
from albert_cli.training.settings import parse_duration
from albert_cli.work_plan import PLAN_FILE, STAGE_LOCKS, locked_unit, record_plan, recorded_plan, remove_plan

Invoke = Callable[[Sequence[str]], tuple[int, str]]  # runs an `albert` command; returns exit code and standard output
# Stages that run a module of this package; see `plan.MODULES`.
_MODULE_COMMANDS: Mapping[StageKind, Invoke] = {"table": recall_table.main, "pairs": word_order_pairs.main}
_MAX_LOCK_SECONDS = 600.0  # that a stage waits for a process of a killed run that is still writing
_LOCK_POLL_SECONDS = 5.0


@dataclass(frozen=True)
class FinishedCommand:
    """A finished command: exit code, standard output and wall-clock seconds, and the machine that ran it."""

    exit_code: int
    printed: str
    seconds: float
    host: str = ""
    device: str = ""  # the value of `machine.describe_device`; "" if the command failed or uses no device


def preview_experiment(name: str, request: ExperimentRequest) -> tuple[PlanDescription, dict[str, str]]:
    """Return an experiment's plan with its costs, and the reason for each source that cannot be read.

    Warn about these sources, too.
    """
    plan = make_plan(recipe.load_experiment(name), request)
    unreadable = _find_unreadable_text(plan)
    for error in unreadable.values():
        console.warn(f"{error.message}; the run would stop there. {error.hint}")
    _print_unused_tasks(plan)
    return describe_plan(plan), {hide_secrets(source): error.message for source, error in unreadable.items()}


def reproduce_experiment(
    name: str, request: ExperimentRequest, invoke: Invoke, *, jobs: int | None = None, max_time: str | None = None
) -> tuple[dict[str, object], str]:
    """Run the unfinished stages of an experiment and write its report; return the output of `--json`, and the text.

    jobs: the number of stages to run at a time; by default one for each `--nproc` GPUs, and at least one. max_time: a
    duration such as "9m". Raises `Interrupted` after a stop request or after `max_time`, and `InputError` for a text
    on the Hub, or in `--text`, that cannot be read, and `ConfigError` in a process that is one of several ranks.
    """
    import torch

    require_one_process("an experiment", "start the command alone; --nproc sets the processes of each pretraining run")
    started = time.monotonic()
    deadline = None
    if max_time:
        deadline = started + parse_duration(max_time, "--max-time")
    gpus = torch.cuda.device_count() if choose_device(request.device).type == "cuda" else 0
    plan = make_plan(recipe.load_experiment(name), request)
    _check_before_run(plan)
    max_jobs = jobs if jobs is not None else max(1, gpus // request.nproc)

    def run(stages: Sequence[Stage]) -> int:
        time_left = max(0.0, deadline - time.monotonic()) if deadline is not None else None
        return run_stages(plan, stages, invoke, max_jobs, gpus, time_left)

    with store.lock(request.out):
        for folder in (request.stage_folder, plan.report_folder):
            store.remove_leftovers(folder)  # a killed process may have left temporary files
        if num_earlier := plan.count_finished():
            console.info(f"{num_earlier} of {len(plan.stages)} stages are already finished")
        num_finished = 0
        # Speeds are measured one at a time, because stages that run in parallel slow each other down.
        for speed in plan.speeds:
            num_finished += run([speed])
            if executor.is_stop_requested():
                raise _stopped(plan)
        plan = make_plan(plan.experiment, plan.request)  # the measured speeds determine the steps of other stages
        with recorded_plan(_plan_path(plan), _list_units(plan)):
            num_finished += run(list(plan.stages.values()))
            return _write_outcome(plan, num_finished, started)


def _plan_path(plan: ExperimentPlan) -> Path:
    """Return the path of the plan's file for `albert status`; each experiment in the output directory has one."""
    name = Path(PLAN_FILE)
    return plan.request.out / f"{name.stem}-{plan.report_folder.name}{name.suffix}"


def _list_units(plan: ExperimentPlan) -> dict[str, str]:
    """Return the units of work for `albert status`: the title of each stage, by its directory relative to `--out`."""
    out = plan.request.out
    return {plan.directory(stage).relative_to(out).as_posix(): stage.title for stage in plan.stages.values()}


def _write_outcome(plan: ExperimentPlan, num_finished: int, started: float) -> tuple[dict[str, object], str]:
    """Write the report of an experiment whose stages are finished; return the output of `--json`, and the text."""
    result = outcome.read_outcome(plan)
    for name, reason in result.left_out.items():
        console.warn(f"{name} are left out: {reason}")
    report = pages.write_report(result)
    data = {
        **result.to_json(),
        "report": str(report),
        "stages": len(plan.stages),
        "stages_finished_now": num_finished,
        "wall_seconds": round(time.monotonic() - started, 1),
    }
    verdicts = [f"{checked.verdict.upper()}: {checked.claim.statement}" for checked in result.claims]
    return data, "\n".join([*verdicts, "", str(report), str(report.with_suffix(".md"))])


def run_array_job(
    name: str, request: ExperimentRequest, invoke: Invoke, array_job: ArrayJob
) -> tuple[dict[str, object], str]:
    """Run stages that no other job of the array runs, until all are finished, and write the report.

    Return the output of `--json`, and the text. A job waits while every unfinished stage runs in another job, or needs
    an unfinished stage, and while another process has locked the output directory.
    Raises `InputError` for a text on the Hub, or in `--text`, that cannot be read.
    """
    started = time.monotonic()
    plan = make_plan(recipe.load_experiment(name), request)
    _check_before_run(plan)
    num_finished = 0
    while True:
        record_plan(_plan_path(plan), _list_units(plan))
        # A measured speed changes the number of steps of other stages, so the speeds are measured first.
        unfinished = plan.unfinished(plan.speeds) or plan.unfinished(list(plan.stages.values()))
        if not unfinished:  # then another job may be writing the report
            written = retry_while_locked(partial(_lock_and_write_outcome, plan, num_finished, started))
            remove_plan(_plan_path(plan))
            return written
        # Every job begins its search at another stage, so that two jobs rarely try to lock the same stage.
        offset = array_job.index * len(unfinished) // array_job.count
        candidates = [*unfinished[offset:], *unfinished[:offset]]
        ready = [stage for stage in candidates if all(plan.is_finished(need) for need in stage.needs)]
        # `any` ends at the first stage that this job runs; then the job looks again at what other jobs have finished.
        if any(_run_unless_locked(plan, stage, invoke) for stage in ready):
            num_finished += 1
        else:
            console.info(f"waiting for other jobs; {count_of(len(unfinished), 'stage')} left")
            time.sleep(array_jobs.SECONDS_BETWEEN_ATTEMPTS)
        plan = make_plan(plan.experiment, plan.request)  # with the speeds that are measured by now


def _lock_and_write_outcome(plan: ExperimentPlan, num_finished: int, started: float) -> tuple[dict[str, object], str]:
    """Lock the output directory and call `_write_outcome`; raise `LockedError` if another process has locked it."""
    with store.lock(plan.request.out):
        return _write_outcome(plan, num_finished, started)


def _run_unless_locked(plan: ExperimentPlan, stage: Stage, invoke: Invoke) -> bool:
    """Run a stage unless another job runs it or has finished it; return True if it was run."""
    try:
        with locked_unit(plan.request.stage_folder / STAGE_LOCKS / stage.id):
            if plan.is_finished(stage):
                return False
            _record_stage(plan, stage, _run_stage(plan, stage, invoke))
            return True
    except LockedError:
        return False


def run_stages(
    plan: ExperimentPlan,
    stages: Sequence[Stage],
    invoke: Invoke,
    max_jobs: int = 1,
    gpus: int = 0,
    max_time: float | None = None,
) -> int:
    """Run the unfinished stages among `stages` and the stages they need; return the number of stages that were run.

    Stages run in this process if they run one at a time, in a single rank and without a cluster; otherwise in
    `max_jobs` processes, or in those of the cluster.

    max_jobs: the number of stages to run at a time. gpus: the number of GPUs to share among them. max_time: in seconds.
    Raises `Interrupted` after a stop request and after `max_time`, and `ReportedError` with the exit code of a stage's
    command that failed.
    """
    import torch

    unfinished = plan.unfinished(stages)
    total = len(plan.stages)
    seconds = _finished_seconds(plan)
    num_finished = sum(map(len, seconds.values()))
    ranks = plan.request.nproc
    in_process = max_jobs == 1 and ranks == 1 and not executor.has_cluster()
    threads = max(1, machine.available_cores() // (max_jobs * ranks))
    if "OMP_NUM_THREADS" in os.environ:
        threads = torch.get_num_threads()  # torch has parsed the variable, which may be a list such as 4,2
    limits = executor.WorkerLimits(max_jobs, threads, gpus, ranks, in_process)

    def record(item: executor.WorkItem[FinishedCommand], result: FinishedCommand | BaseException) -> None:
        nonlocal num_finished
        if isinstance(result, BaseException):
            raise result
        num_finished += 1
        stage = plan.stages[item.name]
        _record_stage(plan, stage, result)
        seconds[stage.kind].append(result.seconds)
        time_left = _describe_time_left(plan, seconds, max_jobs)
        console.info(f"[{num_finished}/{total}] {stage.title}: {result.seconds:.0f} s{time_left}")

    items = []
    for stage in unfinished:
        prefix = "" if in_process else stage.title  # the messages of several processes are mixed
        needs = frozenset(need.id for need in stage.needs)
        items.append(executor.WorkItem(stage.id, _run_stage, (plan, stage, invoke, prefix), needs))
    try:
        executor.run_items(items, limits, record, max_time)
    except Interrupted:
        if plan.unfinished(stages):
            raise _stopped(plan) from None
    return len(unfinished)


def _finished_seconds(plan: ExperimentPlan) -> dict[StageKind, list[float]]:
    """Return the seconds of all finished stages by kind."""
    seconds = defaultdict[StageKind, list[float]](list)
    for stage in filter(plan.is_finished, plan.stages.values()):
        record = read_record(plan.request, stage, StageRecord[TimedResult])
        assert record is not None, "a finished stage has a result file"
        seconds[stage.kind].append(record.seconds)
    return seconds


def _describe_time_left(plan: ExperimentPlan, seconds: Mapping[StageKind, Sequence[float]], max_jobs: int) -> str:
    """Return a phrase on the time of the unfinished stages; "" if there is none, or if a kind is not measured yet.

    An unfinished stage is assumed to take the mean of the finished stages of its kind.
    """
    kinds = [stage.kind for stage in plan.unfinished(list(plan.stages.values()))]
    if not kinds or not all(seconds.get(kind) for kind in kinds):
        return ""
    total = sum(fmean(seconds[kind]) for kind in kinds)
    return f"; about {console.format_duration(total / max_jobs)} left"


# ---------------------------------------------------------------- checks


def _check_before_run(plan: ExperimentPlan) -> None:
    """Warn about the limits of a run; raise an `AlbertError` if a text cannot be read, or cannot score all variants."""
    unreadable = list(_find_unreadable_text(plan).values())
    if unreadable:
        raise unreadable[0]
    check_heldout_text(plan)
    for stage in plan.unfinished(list(plan.stages.values())):
        if plan.result_path(stage).is_file():
            console.warn(f"{plan.directory(stage)}: was deleted, so this stage runs again: {stage.title}")
    _warn_about_limits(plan)


def _find_unreadable_text(plan: ExperimentPlan) -> dict[str, AlbertError]:
    """Return the error of each source that unfinished stages need and cannot read.

    Checked are the sources on the Hub and those that the user names; the others are installed with the package.
    """
    unfinished = plan.unfinished(list(plan.stages.values()))
    texts = [stage.facts["text"] for stage in unfinished if stage.kind in ("vocabulary", "data", "table")]
    user_sources = {*plan.request.text, *plan.request.extra_text}
    unreadable = dict[str, AlbertError]()
    for source in dict.fromkeys(itertools.chain.from_iterable(texts)):  # several stages read the same source
        if not source.startswith("hf:") and source not in user_sources:
            continue
        try:
            check_readable(source)
        except InputError as error:
            unreadable[source] = InputError(error.message, _suggest_other_text(plan))
        except AlbertError as error:  # a failed network or disk, which has another remedy
            unreadable[source] = error
    return unreadable


def _suggest_other_text(plan: ExperimentPlan) -> str:
    """Return the remedy for a source that cannot be read."""
    alternatives = plan.scale.alternative_text
    examples = f", such as {', '.join(alternatives)}" if alternatives else ""
    return f"use --text SOURCE to choose other text{examples}"


def _warn_about_limits(plan: ExperimentPlan) -> None:
    """Warn about tasks and texts that are skipped, and about claims that the run cannot decide, by reason."""
    for name, reason in plan.skipped.items():
        console.warn(f"{name} is skipped: {reason}")
    _print_unused_tasks(plan)
    reasons = [judge_decidability(plan, claim).reason for claim in plan.claims]
    for reason, number in Counter(reasons).items():
        if reason:  # "" is for the claims that the run can decide
            console.warn(f"this run cannot decide {count_of(number, 'claim')}, which --dry-run lists: {reason}")


def _print_unused_tasks(plan: ExperimentPlan) -> None:
    """Print that the files of `--tasks` are not used, if no task of the scale needs files."""
    tasks = plan.scale.tasks
    if plan.request.tasks is not None and tasks and {RECALL_TASK, MINIMAL_PAIRS_TASK}.issuperset(tasks):
        console.info(f"--tasks is not used: no files are needed for {' and '.join(tasks)}, all tasks of this scale")


def _stopped(plan: ExperimentPlan) -> Interrupted:
    """Return the error that ends a stopped run, with the number of finished stages."""
    finished = plan.count_finished()
    out = plan.request.out
    return Interrupted(
        f"stopped; {finished} of {len(plan.stages)} stages in {out} are finished (`albert status {out}` lists them)"
    )


# ---------------------------------------------------------------- single stages


def _run_stage(plan: ExperimentPlan, stage: Stage, invoke: Invoke, prefix: str = "") -> FinishedCommand:
    """Run a stage's command, with `prefix` before each line of its messages, or the stage's title as the first line.

    If a needed stage has diverged, return the exit code of divergence without running the command.
    Raises `InputError` if the held-out text of a finished stage cannot score all variants.
    """
    check_heldout_text(plan)
    needed_results = [plan.result_path(need) for need in stage.needs]
    if any(store.read_record(path, StageRecord[TimedResult]).diverged for path in needed_results):
        return FinishedCommand(DivergedError.exit_code, "", 0.0)
    _wait_for_lock(plan.directory(stage))
    command = _MODULE_COMMANDS.get(stage.kind, invoke)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        if prefix:
            stack.enter_context(contextlib.redirect_stderr(console.PrefixedStream(prefix, sys.stderr)))
        else:
            console.info(stage.title)
        exit_code, printed = command(stage.argv)
    seconds = time.monotonic() - started
    device = ""
    if exit_code == 0 and "--device" in stage.argv:
        device = machine.describe_device(choose_device(plan.request.device), plan.request.nproc)
    return FinishedCommand(exit_code, printed, seconds, socket.gethostname(), device)


def _wait_for_lock(directory: Path) -> None:
    """Wait until no process of a killed run writes to the directory; raise `BusyError` after ten minutes."""
    started = time.monotonic()
    while (directory / ".lock").is_file():  # without this file, no process has ever locked the directory
        try:
            with store.lock(directory):
                return
        except BusyError:
            if time.monotonic() - started > _MAX_LOCK_SECONDS or executor.is_stop_requested():
                raise
            console.info(f"{directory}: waiting for another process that is still writing")
            time.sleep(_LOCK_POLL_SECONDS)


def _record_stage(plan: ExperimentPlan, stage: Stage, finished: FinishedCommand) -> None:
    """Write the result file of a finished or diverged stage.

    Raises `ReportedError` with the command's exit code if the command failed, and `Interrupted` if it was interrupted.
    """
    seconds = round(finished.seconds, 1)
    record = {"stage": stage.id, "title": stage.title, "command": stage.command, "seconds": seconds}
    record |= {"host": finished.host, "device": finished.device}
    if finished.exit_code == DivergedError.exit_code:
        console.warn(f"{stage.title}: diverged, or starts from a diverged run; the other stages continue")
        store.write_json(plan.result_path(stage), record | {"diverged": True})
    elif finished.exit_code == 0:
        store.write_json(plan.result_path(stage), record | {"result": json.loads(finished.printed)})
    elif finished.exit_code == Interrupted.exit_code or executor.is_stop_requested():
        raise _stopped(plan)
    else:
        raise ReportedError(finished.exit_code)
