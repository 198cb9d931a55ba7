"""`albert data`: text to token shards, once, in parallel, and resumable.

The sources are cut into tasks, each of which writes one directory under `shards/`, committed whole. What a
task writes depends on its text, the vocabulary and the settings alone, so the bytes are the same for any
number of workers, processes and machines, and a task that a killed run had finished is verified and kept.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albert_cli import console, ranks, store
from albert_cli.data.merge import complete, publish, summary, unigram_entropies
from albert_cli.data.plan import Share, plan, request, share_of
from albert_cli.data.shards import verify_data
from albert_cli.data.tokenise import FORMAT, BuildSettings, Count, Task, is_same_text, kept, run_task
from albert_cli.errors import AlbertError, BusyError, CheckpointError, ConfigError
from albert_cli.machine import cores

__all__ = ["BuildSettings", "build", "summary", "unigram_entropies"]

_PLAN, _LOCKS = "plan.json", ".tasks"
Facts = dict[str, Any]


def build(
    sources: Sequence[str],
    vocabulary_dir: Path,
    out: Path,
    settings: BuildSettings,
    workers: int = 0,
    share: Share = None,
) -> Facts:
    """Make the data directory `out` and return its `data.json` with the time that it took.

    workers: processes; 0 means one a core, never more than there are tasks. share: (i, n) does the i-th of n
    parts of the work and leaves the rest to other jobs; "merge" makes the directory of what they have made.
    Raises `InputError` for unreadable or empty text, `BusyError` when `out` holds something else. A finished
    directory of the same sources is left as it is.
    """
    from albert_cli.text.vocabulary import Vocabulary

    vocabulary = Vocabulary.load(vocabulary_dir)
    tasks = plan(sources, vocabulary_dir, out, settings)
    begin = time.monotonic()
    finished = _finished(out, tasks)
    if finished is not None:
        return {"out": str(out), "up_to_date": True, "seconds": 0.0, **finished}
    workers = workers or cores()
    if isinstance(share, tuple):
        facts = _do_share(out, tasks, workers, *share)
    else:
        is_merge = share == "merge"
        with store.lock(out), _nothing_left_behind(out, is_merge):
            _begin(out, tasks, may_delete=not is_merge)
            results = _run_all(tasks, workers, may_run=not is_merge)
            results = complete(tasks, results)
            facts = publish(out, tasks, results, vocabulary)
            shutil.rmtree(out / _LOCKS, ignore_errors=True)
            (out / _PLAN).unlink()
    return {"out": str(out), "up_to_date": False, "seconds": round(time.monotonic() - begin, 3), **facts}


def _do_share(out: Path, tasks: Sequence[Task], workers: int, index: int, count: int) -> Facts:
    """Run one job's tasks; the directory is made whole by the merge."""
    if any(task.is_stream for task in tasks):
        raise ConfigError("stdin cannot be shared by several jobs", "write it to a file first, or leave --task away")
    out.mkdir(parents=True, exist_ok=True)
    _begin(out, tasks, may_delete=False)
    results = _run_all(share_of(tasks, index, count), workers)
    done = sum((task.directory / store.MANIFEST).is_file() for task in tasks)
    return {
        "job": f"{index}/{count}",
        "tasks": len(results),
        "bytes_read": sum(r["bytes"] for r in results),
        "tasks_finished": done,
        "tasks_in_all": len(tasks),
    }


def _finished(out: Path, tasks: Sequence[Task]) -> Facts | None:
    """The `data.json` of a complete directory made by these tasks, or None when it is still to be made.

    Raises `BusyError` when `out` holds something else, `CheckpointError` when it is damaged.
    """
    if not out.exists() or (out.is_dir() and not any(p.name != ".lock" for p in out.iterdir())):
        return None
    manifest = store.read_manifest(out) if out.is_dir() else None
    if manifest is None:
        if not (out / _PLAN).is_file() and not (out / _LOCKS).is_dir():
            raise BusyError(f"{out}: holds something else", "choose another --out or remove it")
        return None
    if manifest.kind != "data":
        raise BusyError(f"{out}: holds a {manifest.kind}", "choose another --out")
    facts = store.read_json(out / "data.json")
    if facts.get("format") != FORMAT:
        raise BusyError(
            f"{out}: data of another version of albert", "remove it and make it again, or choose another --out"
        )
    asked = request(tasks)
    made = [{**source, "sha256": None} for source in facts.get("sources", [])]
    is_same = all(facts.get(name) == asked[name] for name in ("vocabulary", "settings"))
    if not is_same or made != [{**source, "sha256": None} for source in asked["sources"]]:
        raise _other_text(out)
    if not all(is_same_text(task, source) for task, source in zip(tasks, facts["sources"], strict=True)):
        raise _other_text(out)
    verify_data(out)
    (out / _PLAN).unlink(missing_ok=True)  # there only if the build was killed after its last write
    return facts


def _other_text(out: Path) -> BusyError:
    return BusyError(
        f"{out}: holds data from other text, another vocabulary or other settings",
        "choose another --out or remove it",
    )


@contextmanager
def _nothing_left_behind(out: Path, is_merge: bool) -> Iterator[None]:
    """After a failure keep the tasks that are finished for the next attempt; with none, remove `out`.

    A merge that comes too early removes nothing that jobs have begun.
    """
    is_of_jobs = is_merge and (out / _PLAN).is_file()
    try:
        yield
    except BaseException as error:
        is_in_use = is_of_jobs or isinstance(error, BusyError)
        if not is_in_use and not any(out.glob(f"shards/*/{store.MANIFEST}")):
            shutil.rmtree(out, ignore_errors=True)
        raise


def _begin(out: Path, tasks: Sequence[Task], may_delete: bool = True) -> None:
    """Write the plan; what an unfinished build of other text or settings left is deleted, or a `BusyError`."""
    wanted = {**request(tasks), "names": [task.name for task in tasks]}
    path = out / _PLAN
    if path.is_file() and store.read_json(path) == wanted:
        return
    if path.is_file() and not may_delete:
        what = "holds an unfinished build of other text, another vocabulary or other settings"
        raise BusyError(f"{out}: {what}", "remove it, or name the sources as the other jobs do")
    names = set(wanted["names"])
    for directory in sorted((out / "shards").glob("[!.]*")):
        if directory.name not in names:
            shutil.rmtree(directory)
    store.write_json(path, wanted)


# ---------------------------------------------------------------- tasks in processes


def run_or_keep(task: Task, count: Count, may_run: bool = True) -> Facts | None:
    """What a task's shards say: kept when they are finished and intact, made otherwise (None: not allowed)."""
    with store.lock(task.directory.parents[1] / _LOCKS / task.name):
        facts = kept(task)
        return run_task(task, count) if facts is None and may_run else facts


def _run_all(tasks: Sequence[Task], workers: int, may_run: bool = True) -> list[Facts]:
    """Run what is not finished yet, in this process or in several; the results in the order of the tasks.

    Raises `CheckpointError` when a task is not finished and may not be run.
    """
    begin = time.monotonic()
    before = sum(task.size for task in tasks if (task.directory / store.MANIFEST).is_file())
    total = sum(task.size for task in tasks) if all(task.size for task in tasks) else None
    with console.progress("data", total, before) as progress:

        def show(disk: int, text: int) -> None:
            rate = text / 1e6 / max(time.monotonic() - begin, 1e-9)
            progress.update(before + disk, f"{text / 1e6:.1f} MB of text, {rate:.1f} MB/s")

        # Large tasks first: the last worker to finish then has little left.
        ordered = sorted(tasks, key=lambda t: (not t.is_stream, -t.size, t.name))
        here = [t for t in ordered if t.is_stream or min(workers, len(tasks)) <= 1]
        results = _run_here(here, show, may_run)
        elsewhere = [t for t in ordered if t.name not in results]
        if elsewhere:
            results |= _run_in_workers(elsewhere, workers, show, may_run)
    missing = [name for name in sorted(results) if results[name] is None]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(tasks)} tasks are not finished, the first is {missing[0]}",
            "run the jobs that are missing again; without --task the rest is done here",
        )
    return [facts for task in tasks if (facts := results[task.name]) is not None]


def _run_here(tasks: Sequence[Task], show: Count, may_run: bool) -> dict[str, Facts | None]:
    done = [0, 0]

    def count(disk: int, text: int) -> None:
        done[0] += disk
        done[1] += text
        show(*done)

    return {task.name: run_or_keep(task, count, may_run) for task in tasks}


def _run_in_workers(tasks: Sequence[Task], workers: int, show: Count, may_run: bool) -> dict[str, Facts | None]:
    from concurrent.futures.process import BrokenProcessPool

    results: dict[str, Facts | None] = {}
    with _pool(min(workers, len(tasks))) as (pool, counters):
        names = {pool.submit(_run_in_worker, task, may_run): task.name for task in tasks}
        left = set(names)
        while left:
            ready, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
            try:
                results |= {names[future]: future.result() for future in ready}
            except BrokenProcessPool:
                raise AlbertError(
                    "a worker process was killed, perhaps for want of memory",
                    "run the same command again with fewer --workers; finished files are kept",
                ) from None
            show(*(counter.value for counter in counters))
    return results


_worker_counters: tuple[Any, ...] = ()


@contextmanager
def _pool(workers: int) -> Iterator[tuple[ProcessPoolExecutor, tuple[Any, ...]]]:
    """Worker processes and the shared numbers of bytes done; on an error, what has not begun is dropped."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")  # the same on every platform, and safe with threads
    counters = context.Value("q", 0), context.Value("q", 0)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(counters,))
    try:
        yield pool, counters
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(counters: tuple[Any, ...]) -> None:
    """Keep the counters, and end with the parent."""
    global _worker_counters
    _worker_counters = counters
    ranks.end_with_parent()


def _run_in_worker(task: Task, may_run: bool) -> Facts | None:
    def count(*sizes: int) -> None:
        for counter, size in zip(_worker_counters, sizes, strict=True):
            with counter.get_lock():
                counter.value += size

    return run_or_keep(task, count, may_run)
