"""`albert data`: text to token shards, once, in parallel, and resumable.

The sources are cut into tasks, each of which writes one directory under `shards/`, committed whole. Its bytes depend on
its text, the vocabulary and the settings alone, not on workers or machines; what a killed run had finished is kept.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from albert_cli import console, pool, store
from albert_cli.data.array_jobs import ArrayJob, select_array_job
from albert_cli.data.merge import Facts, drop_duplicates, publish_data
from albert_cli.data.shards import DATA_FORMAT, read_data_facts
from albert_cli.data.tokenization import (
    BuildSettings,
    ProgressCallback,
    ShardFacts,
    ShardTask,
    load_finished_task,
    tokenize_task,
)
from albert_cli.data.verification import collect_file_signatures, record_verified, verify_data
from albert_cli.errors import BusyError
from albert_cli.machine import available_cores
from albert_cli.text.parallel_reading import hash_work_units
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.work_units import split_sources

_PLAN, _LOCKS = "plan.json", ".tasks"
_REMEDY = "choose another --out or remove it"


def build_data(
    sources: Sequence[str],
    vocabulary_dir: Path,
    out: Path,
    settings: BuildSettings,
    workers: int = 0,
    share: ArrayJob = None,
) -> Facts:
    """Make the data directory `out` and return its `data.json` with the time that it took.

    workers: processes; 0 means one per core. share: (i, n) does the i-th of n parts of the work for a call without,
    which does the rest and makes the directory of it all. A finished one of the same sources is left as it is. Raises
    `InputError` for unreadable or empty text, `BusyError` when `out` holds something else.
    """
    vocabulary = Vocabulary.load(vocabulary_dir)
    tasks = plan_tasks(sources, vocabulary_dir, out, settings)
    begin = time.monotonic()
    finished = load_finished_data(out, tasks, workers)
    if finished is not None:
        return {"out": str(out), "up_to_date": True, "seconds": 0.0, **finished}
    workers = workers or available_cores()
    if share:
        index, count = share
        mine = select_array_job(tasks, index, count)
        out.mkdir(parents=True, exist_ok=True)
        write_or_check_plan(out, tasks)
        results = _run_tasks(mine, workers)
        facts: Facts = {
            "job": f"{index}/{count}",
            "tasks": len(results),
            "bytes_read": sum(r.bytes for r in results),
            "tasks_finished": sum(task.is_finished for task in tasks),
            "tasks_in_all": len(tasks),
        }
    else:
        with store.lock(out), _cleanup_on_failure(out):
            write_or_check_plan(out, tasks)
            results = drop_duplicates(tasks, _run_tasks(tasks, workers), workers)
            facts = publish_data(out, tasks, results, vocabulary, build_request(tasks))
            shutil.rmtree(out / _LOCKS, ignore_errors=True)
            (out / _PLAN).unlink()
            record_verified(out, collect_file_signatures(out))  # all of it has just been hashed
    return {"out": str(out), "up_to_date": False, "seconds": round(time.monotonic() - begin, 3), **facts}


def load_finished_data(out: Path, tasks: Sequence[ShardTask], workers: int) -> Facts | None:
    """The `data.json` of a complete directory made by these tasks, or None when it is still to be made.

    Raises `BusyError` when `out` holds something else, `CheckpointError` when it is damaged.
    """
    if store.read_finished_manifest(out, "data", _PLAN, _LOCKS) is None:
        return None
    if store.read_json(out / "data.json").get("format") != DATA_FORMAT:
        raise BusyError(f"{out}: data of another version of albert", f"make it again, or {_REMEDY}")
    facts = read_data_facts(out)
    asked, made = build_request(tasks), facts["sources"]
    is_same = all(facts.get(name) == asked[name] for name in ("vocabulary", "settings"))
    is_same = is_same and [{**source, "sha256": None} for source in made] == [
        {**source, "sha256": None} for source in asked["sources"]
    ]
    if not is_same or not all(
        found in (source["sha256"], None) for found, source in zip(hash_work_units(tasks, workers), made, strict=True)
    ):
        raise BusyError(f"{out}: holds data from other text, another vocabulary or other settings", _REMEDY)
    verify_data(out)
    store.remove_leftovers(out)
    (out / _PLAN).unlink(missing_ok=True)  # there only if the build was killed after its last write
    return dict(facts)


@contextmanager
def _cleanup_on_failure(out: Path) -> Iterator[None]:
    """After a failure keep the tasks that are finished, and what others have begun; with neither, remove `out`."""
    was_begun = (out / _PLAN).is_file()
    try:
        yield
    except BaseException as error:
        if not was_begun and not isinstance(error, BusyError) and not any(out.glob(f"shards/*/{store.MANIFEST}")):
            shutil.rmtree(out, ignore_errors=True)
        raise


class _PlannedPart(TypedDict):
    source: str


class _PlannedSource(TypedDict):
    parts: list[_PlannedPart]


class _BuildPlan(TypedDict):
    vocabulary: str
    settings: dict[str, Any]
    sources: list[_PlannedSource]
    names: list[str]


def write_or_check_plan(out: Path, tasks: Sequence[ShardTask]) -> None:
    """Write the plan, or raise `BusyError` where an unfinished build holds tasks that this one would delete.

    Files that have changed since are no reason: their tasks alone are made again.
    """
    wanted = {**build_request(tasks), "names": [task.name for task in tasks]}
    path = out / _PLAN
    before: Mapping[str, Any] = store.read_record(path, _BuildPlan) if path.is_file() else wanted
    is_same = all(before.get(name) == wanted[name] for name in ("vocabulary", "settings"))
    if not is_same or not _files_by_task(before).items() <= _files_by_task(wanted).items():
        what = "holds an unfinished build of other text, another vocabulary or other settings"
        raise BusyError(f"{out}: {what}", "name sources and settings as it does to go on, or remove it")
    store.write_json(path, wanted)


def _files_by_task(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """The files of each task."""
    files = ([part["source"] for part in source["parts"]] for source in plan["sources"])
    return dict(zip(plan["names"], files, strict=False))


# ---------------------------------------------------------------- from sources to tasks: the same on every machine


def plan_tasks(sources: Sequence[str], vocabulary_dir: Path, out: Path, settings: BuildSettings) -> list[ShardTask]:
    """The tasks of a build, in the order of the sources: one for each portion of them."""
    identity = store.fingerprint(vocabulary_dir)
    tasks = []
    for portion in split_sources(sources, settings.split_bytes):
        name = _task_name(portion.number, portion.parts)
        tasks.append(
            ShardTask(portion.parts, portion.number, name, out / "shards" / name, vocabulary_dir, identity, settings)
        )
    return tasks


def _task_name(number: int, parts: Sequence[SourcePart]) -> str:
    """`00007-wiki.jsonl-00000256M`: place in the order, first file, and where in it the part begins."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[0].source.name.rstrip("/").rpartition("/")[2]).strip("-.")
    name = f"{number:05d}-{stem[:40]}"
    if len(parts) > 1:
        return f"{name}-and-{len(parts) - 1}-more"
    is_split = parts[0].start or parts[0].end is not None
    return f"{name}-{parts[0].start >> 20:08d}M" if is_split else name


def build_request(tasks: Sequence[ShardTask]) -> dict[str, Any]:
    """What was asked for: the part of `data.json` that tells whether the same is asked again."""
    settings = asdict(tasks[0].settings)
    return {"vocabulary": tasks[0].vocabulary, "settings": settings, "sources": [task.sources for task in tasks]}


# ---------------------------------------------------------------- tasks in processes


def run_unless_finished(task: ShardTask, count: ProgressCallback | None = None) -> ShardFacts:
    """What a task's shards say: kept when they are finished and intact, made otherwise."""
    with store.lock(task.directory.parents[1] / _LOCKS / task.name):
        return load_finished_task(task) or tokenize_task(task, count)


def _run_tasks(tasks: Sequence[ShardTask], workers: int) -> list[ShardFacts]:
    """Run what is not finished yet, in this process or in several; the results in the order of the tasks."""
    begin, text = time.monotonic(), 0
    finished = {task.name for task in tasks if task.is_finished}
    disk = sum(task.size for task in tasks if task.name in finished)
    total = sum(task.size for task in tasks) if all(task.size for task in tasks) else None
    # Large tasks first: the last worker to finish then has little left.
    ordered = sorted(tasks, key=lambda t: (not t.is_stream, -t.size, t.name))
    here = [t for t in ordered if t.is_stream or min(workers, len(tasks)) <= 1]
    elsewhere = [t for t in ordered if t not in here]
    with console.progress("data", total, disk) as progress:

        def count(more_disk: int, more_text: int) -> None:
            nonlocal disk, text
            disk, text = disk + more_disk, text + more_text
            rate = text / 1e6 / max(time.monotonic() - begin, 1e-9)
            progress.update(disk, f"{text / 1e6:.1f} MB of text, {rate:.1f} MB/s")

        results = {task.name: run_unless_finished(task, count) for task in here}
        remedy = "run the same command again with fewer --workers; finished files are kept"
        calls = ((task,) for task in elsewhere)
        with closing(pool.map_unordered(run_unless_finished, calls, min(workers, len(elsewhere)), remedy)) as done:
            for (task,), facts in done:
                results[task.name] = facts
                if task.name not in finished:
                    count(task.size, facts.bytes)
    return [results[task.name] for task in tasks]
