"""`albert data`: turn text into token shards, once, in parallel, and resumably.

The sources are divided into tasks. Each task writes one directory below `shards/`, committed as a whole. Its bytes
depend on its text, the vocabulary and the settings, never on the workers or machines. A build that is interrupted
keeps its finished tasks.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from albert_cli import console, executor, store
from albert_cli.array_jobs import ARRAY_FILE, ArrayJob
from albert_cli.data.build_report import ArrayJobReport, BuildReport
from albert_cli.data.merge import publish_data, require_training_text
from albert_cli.data.records import DATA_FORMAT, BuildPlan, BuildSettings, DataFacts, ShardFacts, read_data_facts
from albert_cli.data.rewrites import rewrite_all
from albert_cli.data.sentence_order import warn_missing_pairs
from albert_cli.data.tokenization import ProgressCallback, ShardTask, load_finished_task, tokenize_task
from albert_cli.data.verification import (
    are_sources_unchanged,
    collect_file_signatures,
    read_verified_task,
    record_verified,
    verify_data,
)
from albert_cli.errors import BusyError, ConfigError, LockedError
from albert_cli.machine import available_cores
from albert_cli.text.parallel_reading import hash_work_units
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.work_units import split_sources
from albert_cli.work_plan import PLAN_FILE, locked_unit, record_plan

_PLAN: Final = "plan.json"
_LOCKS: Final = ".tasks"
_SECONDS_BETWEEN_ATTEMPTS: Final = 5.0
_OTHER_OUT: Final = "choose another --out, or delete this directory"


def build_data(
    sources: Sequence[str],
    vocabulary_dir: Path,
    out: Path,
    settings: BuildSettings,
    workers: int = 0,
    array_job: ArrayJob | None = None,
) -> BuildReport | ArrayJobReport:
    """Build the data directory `out`; a finished one of the same sources and settings stays unchanged.

    workers: processes, 0 means one per core. array_job: runs only the tasks of this array job; a later call without
    `array_job` runs the remaining tasks and merges. Waits for tasks that other processes run. Raises `InputError` for
    unreadable or empty text, `BusyError` if `out` holds something else.
    """
    begin = time.monotonic()
    vocabulary = Vocabulary.load(vocabulary_dir)
    tasks = plan_tasks(sources, vocabulary_dir, out, settings)
    finished = load_finished_data(out, tasks, workers)
    if finished is not None:
        warn_missing_pairs(finished.totals["train"])
        return BuildReport(out, finished, up_to_date=True, seconds=0.0)
    workers = workers or available_cores()
    if array_job:
        return _run_array_job(out, tasks, workers, array_job)
    with store.lock(out), _cleanup_on_failure(out):
        write_or_check_plan(out, tasks)
        record_plan(out / PLAN_FILE, _list_units(tasks))
        results = rewrite_all(tasks, _run_tasks(tasks, workers), workers)
        require_training_text(tasks, results)
        facts = publish_data(out, tasks, results, vocabulary)
        _remove_plans(out)
        record_verified(out, collect_file_signatures(out))  # publishing has just hashed everything
    warn_missing_pairs(facts.totals["train"])
    return BuildReport(out, facts, up_to_date=False, seconds=round(time.monotonic() - begin, 3))


def _remove_plans(out: Path) -> None:
    """Remove the records of unfinished work."""
    shutil.rmtree(out / _LOCKS, ignore_errors=True)
    for name in (_PLAN, ARRAY_FILE, PLAN_FILE):
        (out / name).unlink(missing_ok=True)


def _run_array_job(out: Path, tasks: Sequence[ShardTask], workers: int, array_job: ArrayJob) -> ArrayJobReport:
    """Run the tasks of one array job."""
    begin = time.monotonic()
    if any(task.is_stream for task in tasks):
        raise ConfigError("several jobs cannot read stdin", "write it to a file first, or omit --task")
    selected = array_job.select(tasks, size=lambda task: task.size)
    out.mkdir(parents=True, exist_ok=True)
    write_or_check_plan(out, tasks)
    record_plan(out / PLAN_FILE, _list_units(tasks))
    results = _run_tasks(selected, workers)
    return ArrayJobReport(
        out=out,
        job=str(array_job),
        tasks=len(results),
        bytes_read=sum(result.bytes for result in results),
        tasks_finished=sum(task.is_finished for task in tasks),
        tasks_total=len(tasks),
        seconds=round(time.monotonic() - begin, 3),
    )


@contextmanager
def _cleanup_on_failure(out: Path) -> Iterator[None]:
    """Remove `out` if the block fails, unless it has finished tasks or the work of other processes."""
    was_begun = (out / _PLAN).is_file()
    try:
        yield
    except BusyError:
        raise
    except BaseException:
        has_finished_tasks = any(out.glob(f"shards/*/{store.MANIFEST}"))
        if not was_begun and not has_finished_tasks:
            shutil.rmtree(out, ignore_errors=True)
        raise


# ---------------------------------------------------------------- what is finished, and what is planned


def load_finished_data(out: Path, tasks: Sequence[ShardTask], workers: int) -> DataFacts | None:
    """Load the facts of a complete directory built by these tasks; None if it is still to be built.

    Raises `BusyError` if `out` holds something else, `CheckpointError` if it is damaged.
    """
    if store.read_finished_manifest(out, "data", _PLAN, _LOCKS) is None:
        return None
    if store.read_json(out / "data.json").get("format") != DATA_FORMAT:
        raise BusyError(f"{out}: data of another version of albert", f"build it again, or {_OTHER_OUT}")
    facts = read_data_facts(out)
    if not _is_built_by(facts, tasks, workers):
        raise BusyError(f"{out}: holds data from other text, another vocabulary or other settings", _OTHER_OUT)
    verify_data(out)
    store.remove_leftovers(out)
    _remove_plans(out)  # they exist only if the build was killed after its last write
    return facts


def _is_built_by(facts: DataFacts, tasks: Sequence[ShardTask], workers: int) -> bool:
    """Return whether the tasks would build the same data; hashes the sources only if everything else agrees."""
    plan = make_plan(tasks)
    if facts.vocabulary != plan.vocabulary or facts.settings != plan.settings:
        return False
    if [{**source, "sha256": None} for source in facts.sources] != [
        {**source, "sha256": None} for source in plan.sources
    ]:
        return False
    changed = [task for task in tasks if not _has_unchanged_sources(task)]
    hashes = dict(zip([task.name for task in changed], hash_work_units(changed, workers), strict=True))
    # A source without a hash is identified by its name.
    return all(
        hashes.get(task.name, source["sha256"]) in (source["sha256"], None)
        for task, source in zip(tasks, facts.sources, strict=True)
    )


def _has_unchanged_sources(task: ShardTask) -> bool:
    return are_sources_unchanged(task.source_signatures, read_verified_task(task.directory))


def make_plan(tasks: Sequence[ShardTask]) -> BuildPlan:
    """Return the plan of a build of these tasks."""
    return BuildPlan(
        vocabulary=tasks[0].vocabulary,
        settings=tasks[0].settings,
        sources=[task.record for task in tasks],
        names=[task.name for task in tasks],
    )


def _list_units(tasks: Sequence[ShardTask]) -> dict[str, str]:
    """Return the units of the plan; the names of the directories say which text they hold."""
    return {f"shards/{task.name}": "" for task in tasks}


def write_or_check_plan(out: Path, tasks: Sequence[ShardTask]) -> None:
    """Write the plan; raises `BusyError` if an unfinished build in `out` has tasks that this one would delete.

    Files that have changed since do not matter: only their tasks run again.
    """
    plan = make_plan(tasks)
    path = out / _PLAN
    if path.is_file() and not plan.contains(store.read_record(path, BuildPlan)):
        raise BusyError(
            f"{out}: holds an unfinished build of other text, another vocabulary or other settings",
            "use the same sources and settings to continue it, or delete this directory",
        )
    store.write_json(path, asdict(plan))


# ---------------------------------------------------------------- from sources to tasks


def plan_tasks(sources: Sequence[str], vocabulary_dir: Path, out: Path, settings: BuildSettings) -> list[ShardTask]:
    """Divide the sources into tasks, in their order; the result is the same on every machine."""
    identity = store.fingerprint(vocabulary_dir)
    tasks = []
    for unit in split_sources(sources, settings.read, settings.split_bytes):
        name = _task_name(unit.number, unit.parts)
        directory = out / "shards" / name
        tasks.append(ShardTask(unit.parts, unit.number, name, directory, vocabulary_dir, identity, settings))
    return tasks


def _task_name(number: int, parts: Sequence[SourcePart]) -> str:
    """Return a name such as `00007-wiki.jsonl-00000256M`: number, first file, and the part's first megabyte."""
    first = parts[0]
    file_name = first.source.name.rstrip("/").rpartition("/")[2]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", file_name).strip("-.")
    name = f"{number:05d}-{stem[:40]}"
    if len(parts) > 1:
        return f"{name}-and-{len(parts) - 1}-more"
    if first.source.kind == "hub" and first.end is not None:
        return f"{name}-{first.start:05d}"
    if first.start or first.end is not None:
        return f"{name}-{first.start >> 20:08d}M"
    return name


# ---------------------------------------------------------------- running tasks


def run_unless_finished(task: ShardTask, on_progress: ProgressCallback | None = None) -> ShardFacts:
    """Return the task's facts, running it unless its shards exist and verify.

    Raises `LockedError` while another process runs it.
    """
    with locked_unit(task.directory.parents[1] / _LOCKS / task.name):
        finished = load_finished_task(task)
        if finished is not None:
            return finished
        try:
            return tokenize_task(task, on_progress)
        except BusyError:
            # Where locks do not reach other machines, two of them may run a task; one of them commits it first.
            finished = load_finished_task(task)
            if finished is None:
                raise
            return finished


def _run_unless_locked(task: ShardTask, on_progress: ProgressCallback | None = None) -> ShardFacts | None:
    """Return the task's facts, or None while another process runs it."""
    try:
        return run_unless_finished(task, on_progress)
    except LockedError:
        return None


def _run_tasks(tasks: Sequence[ShardTask], workers: int) -> list[ShardFacts]:
    """Run the unfinished tasks, in this process or in several, and return all results in the order of the tasks.

    Tasks that other processes run come last: this process waits for them, and runs a task itself if the other process
    stops.
    """
    begin = time.monotonic()
    disk_bytes = sum(task.size for task in tasks if task.is_finished)
    text_bytes = 0
    has_known_size = all(task.size for task in tasks)
    total_bytes = sum(task.size for task in tasks) if has_known_size else None
    results: dict[str, ShardFacts] = {}
    with console.show_progress("data", total_bytes, disk_bytes) as progress:

        def on_progress(more_disk_bytes: int, more_text_bytes: int) -> None:
            nonlocal disk_bytes, text_bytes
            disk_bytes += more_disk_bytes
            text_bytes += more_text_bytes
            rate = text_bytes / 1e6 / max(time.monotonic() - begin, 1e-9)
            progress.update(disk_bytes, f"{text_bytes / 1e6:.1f} MB of text, {rate:.1f} MB/s")

        while True:
            for task, facts in _iter_results([t for t in tasks if t.name not in results], workers, on_progress):
                if facts is not None:
                    results[task.name] = facts
            locked = len(tasks) - len(results)
            if not locked:
                return [results[task.name] for task in tasks]
            console.info(f"waiting for {locked} of {len(tasks)} tasks, which other processes run")
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def _iter_results(
    tasks: Sequence[ShardTask], workers: int, on_progress: ProgressCallback
) -> Iterator[tuple[ShardTask, ShardFacts | None]]:
    """Yield the tasks with their facts, None if another process runs a task."""
    local_tasks, pool_tasks = _divide_tasks(tasks, workers)
    for task in local_tasks:
        yield task, _run_unless_locked(task, on_progress)
    remedy = "run the same command again with fewer --workers; finished files are kept"
    was_finished = {task.name for task in pool_tasks if task.is_finished}
    calls = ((task,) for task in pool_tasks)
    workers = min(workers, len(pool_tasks))
    with closing(executor.map_unordered(_run_unless_locked, calls, workers, remedy)) as finished:
        for (task,), facts in finished:
            yield task, facts
            if facts is not None and task.name not in was_finished:
                on_progress(task.size, facts.bytes)


def _divide_tasks(tasks: Sequence[ShardTask], workers: int) -> tuple[list[ShardTask], list[ShardTask]]:
    """Return the tasks for this process (stdin, or all of them without workers) and the tasks for the pool.

    Large tasks come first, so that the last worker to finish has little left.
    """
    ordered = sorted(tasks, key=lambda task: (-task.size, task.name))
    if min(workers, len(tasks)) <= 1 and not executor.has_cluster():
        return sorted(ordered, key=lambda task: not task.is_stream), []
    return [task for task in ordered if task.is_stream], [task for task in ordered if not task.is_stream]
