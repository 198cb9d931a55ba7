"""`albert data`: text to token shards, once, in parallel, and resumable.

Every input file is a task whose result is one directory under `shards/`, committed whole. What a task
writes depends on its file, the vocabulary and the settings alone, so the bytes are the same for any number
of workers, and a task that a killed run had finished is verified and kept. Memory is that of one chunk of
documents a worker.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from albert_cli import console, store
from albert_cli.data.shards import id_type, verify_data
from albert_cli.data.tokenise import FORMAT, SPLITS, BuildSettings, Task, run_task
from albert_cli.errors import AlbertError, BusyError, CheckpointError, InputError

if TYPE_CHECKING:
    from albert_cli.text.vocabulary import Vocabulary

__all__ = ["BuildSettings", "build", "summary", "unigram_entropies"]

_FEW_HELDOUT = 5_000  # pieces: ten sequences of the paper's length
_PLAN = "plan.json"


def build(
    sources: Sequence[str], vocabulary_dir: Path, out: Path, settings: BuildSettings, workers: int = 0
) -> dict[str, Any]:
    """Make the data directory `out` and return its `data.json` with the time that it took.

    workers: processes; 0 means one a core, never more than there are files. Raises `InputError` for
    unreadable or empty text, `BusyError` when `out` holds something else. A finished directory of the same
    sources is left as it is.
    """
    from albert_cli.text.corpus import describe_sources, resolve
    from albert_cli.text.vocabulary import Vocabulary

    vocabulary = Vocabulary.load(vocabulary_dir)
    described = describe_sources(resolve(sources))
    identity = store.fingerprint(vocabulary_dir)
    tasks = [
        Task(
            _task_name(i, source),
            out / "shards" / _task_name(i, source),
            vocabulary_dir,
            source,
            identity,
            settings,
        )
        for i, source in enumerate(described)
    ]
    begin = time.monotonic()
    finished = _finished(out, tasks)
    if finished is not None:
        return {"out": str(out), "up_to_date": True, "seconds": 0.0, **finished}
    with store.lock(out), _nothing_left_behind(out):
        store.write_json(out / _PLAN, _request(tasks))
        _discard_others(out, tasks)
        results = _run_all(tasks, workers or os.cpu_count() or 1)
        tasks, results = _ensure_heldout(tasks, results)
        facts = _publish(out, tasks, results, vocabulary)
        (out / _PLAN).unlink()
    return {"out": str(out), "up_to_date": False, "seconds": round(time.monotonic() - begin, 3), **facts}


def _task_name(position: int, source: dict[str, Any]) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", str(source["source"]).rstrip("/").rpartition("/")[2]).strip("-.")
    return f"{position:05d}-{stem[:40]}"


def _finished(out: Path, tasks: Sequence[Task]) -> dict[str, Any] | None:
    """The `data.json` of a complete directory made by these tasks, or None when it is still to be made.

    Raises `BusyError` when `out` holds something else, `CheckpointError` when it is damaged.
    """
    if not out.exists() or (out.is_dir() and not any(p.name != ".lock" for p in out.iterdir())):
        return None
    manifest = store.read_manifest(out) if out.is_dir() else None
    if manifest is None:
        if not (out / _PLAN).is_file():
            raise BusyError(f"{out}: holds something else", "choose another --out or remove it")
        return None
    if manifest.kind != "data":
        raise BusyError(f"{out}: holds a {manifest.kind}", "choose another --out")
    facts = store.read_json(out / "data.json")
    if any(facts.get(name) != value for name, value in _request(tasks).items()):
        raise BusyError(
            f"{out}: holds data from other text, another vocabulary or other settings",
            "choose another --out or remove it",
        )
    verify_data(out)
    (out / _PLAN).unlink(missing_ok=True)  # there only if the build was killed after its last write
    return facts


def _request(tasks: Sequence[Task]) -> dict[str, Any]:
    """What was asked for: the part of `data.json` that tells whether the same is asked again."""
    settings = asdict(tasks[0].settings)
    del settings["forced_holdout"]  # a consequence, not a wish
    return {
        "vocabulary": tasks[0].vocabulary,
        "sources": [task.source for task in tasks],
        "settings": settings,
    }


@contextmanager
def _nothing_left_behind(out: Path) -> Iterator[None]:
    """After a failure keep the tasks that are finished for the next attempt; with none, remove `out`."""
    try:
        yield
    except BaseException:
        if not any(out.glob(f"shards/*/{store.MANIFEST}")):
            shutil.rmtree(out, ignore_errors=True)
        raise


def _discard_others(out: Path, tasks: Sequence[Task]) -> None:
    """Delete what an unfinished build of other text or settings left, and half-written directories."""
    store.remove_leftovers(out / "shards")
    store.remove_leftovers(out)
    wanted = {task.name for task in tasks}
    for directory in sorted((out / "shards").glob("*")):
        if directory.name not in wanted:
            shutil.rmtree(directory)


def _kept(task: Task) -> dict[str, Any] | None:
    """What a finished task says, or None when it has to run (again)."""
    if not task.directory.exists():
        return None
    try:
        store.verify(task.directory, "shard")
        facts = store.read_json(task.directory / "shard.json")
        if facts["task"] == task.identity:
            return facts
    except CheckpointError as error:
        console.note(f"{error.message}; making it again")
    store.remove_directory(task.directory)
    return None


def _run_all(tasks: Sequence[Task], workers: int) -> list[dict[str, Any]]:
    """Run what is not finished yet, in this process or in several; the results in the order of the tasks."""
    results = {task.name: facts for task in tasks if (facts := _kept(task)) is not None}
    # Large files first: the last worker to finish then has little left.
    left = sorted((t for t in tasks if t.name not in results), key=lambda t: (-_size(t), t.name))
    is_known = all(_size(task) and not str(task.source["source"]).endswith((".gz", ".xz")) for task in left)
    begin = time.monotonic()
    with console.progress("data", sum(map(_size, left)) if left and is_known else None) as progress:

        def show(total: int) -> None:
            rate = total / 1e6 / max(time.monotonic() - begin, 1e-9)
            progress.update(total, f"{total / 1e6:.1f} MB of text, {rate:.1f} MB/s")

        run = _run_here if min(workers, len(left)) <= 1 else _run_in_workers
        results |= run(left, workers, show)
    return [results[task.name] for task in tasks]


def _size(task: Task) -> int:
    return int(task.source.get("bytes", 0))


def _run_here(tasks: Sequence[Task], workers: int, show: Callable[[int], None]) -> dict[str, dict[str, Any]]:
    done = 0
    results: dict[str, dict[str, Any]] = {}

    def count(size: int) -> None:
        nonlocal done
        done += size
        show(done)

    for task in tasks:
        results[task.name] = run_task(task, count)
    return results


def _run_in_workers(tasks: Sequence[Task], workers: int, show: Callable[[int], None]) -> dict[str, dict[str, Any]]:
    from concurrent.futures.process import BrokenProcessPool

    results: dict[str, dict[str, Any]] = {}
    with _pool(min(workers, len(tasks))) as (pool, counter):
        names = {pool.submit(_run_in_worker, task): task.name for task in tasks}
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
            show(counter.value)
    return results


_worker_counter: Any = None


@contextmanager
def _pool(workers: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Worker processes and the shared number of bytes done; on an error, what has not begun is dropped."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")  # the same on every platform, and safe with threads
    counter = context.Value("q", 0)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(counter,))
    try:
        yield pool, counter
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(counter: Any) -> None:
    """Keep the counter, and end with the parent: a worker whose parent was killed would wait for ever."""
    import multiprocessing

    global _worker_counter
    _worker_counter = counter
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _run_in_worker(task: Task) -> dict[str, Any]:
    def count(size: int) -> None:
        with _worker_counter.get_lock():
            _worker_counter.value += size

    return run_task(task, count)


# ---------------------------------------------------------------- the whole directory


def _sum(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    units = ("documents", "sentences", "tokens")
    return {s: {u: sum(r["totals"][s][u] for r in results) for u in units} for s in SPLITS}


def _ensure_heldout(tasks: list[Task], results: list[dict[str, Any]]) -> tuple[list[Task], list[dict[str, Any]]]:
    """Where the share takes no document of a small corpus, hold out the one with the smallest hash.

    Raises `InputError` when there is no text, or none left to train on.
    """
    totals = _sum(results)
    documents = sum(totals[split]["documents"] for split in SPLITS)
    if documents == 0:
        _drop(tasks)
        raise InputError("no text in any source", "check the files, or name others")
    if tasks[0].settings.holdout > 0 and totals["heldout"]["documents"] == 0 and documents > 1:
        smallest = min(r["smallest_hash"] for r in results if r["smallest_hash"] >= 0)
        settings = replace(tasks[0].settings, forced_holdout=smallest)
        console.note(f"holding out 1 of {documents} documents, the one with the smallest hash")
        chosen = [r["smallest_hash"] == smallest for r in results]
        tasks = [replace(t, settings=settings) if c else t for t, c in zip(tasks, chosen, strict=True)]
        results = _run_all(tasks, workers=1)
        totals = _sum(results)
    if totals["train"]["tokens"] == 0:
        _drop(tasks)
        raise InputError("every document is held out, none is left to train on", "lower --holdout or add text")
    return tasks, results


def _drop(tasks: Sequence[Task]) -> None:
    """Delete tasks whose result is of no use."""
    for task in tasks:
        store.remove_directory(task.directory)


def _publish(
    out: Path, tasks: Sequence[Task], results: Sequence[dict[str, Any]], vocabulary: Vocabulary
) -> dict[str, Any]:
    """Write `data.json`, the counts and the copy of the vocabulary, and last the manifest."""
    counts = {split: _counts(tasks, split) for split in SPLITS}
    facts: dict[str, Any] = {
        "format": FORMAT,
        "dtype": id_type(vocabulary.size),
        **_request(tasks),
        "vocab_size": vocabulary.size,
        "cleaning": asdict(vocabulary.cleaning),
        "bytes_read": sum(r["bytes"] for r in results),
        "totals": _sum(results),
        **unigram_entropies(counts["train"], counts["heldout"]),
        "shards": {
            split: [f"{t.name}/{n}" for t, r in zip(tasks, results, strict=True) for n in r["shards"][split]]
            for split in SPLITS
        },
        "fingerprints": {task.name: store.fingerprint(task.directory) for task in tasks},
    }
    shutil.rmtree(out / "vocabulary", ignore_errors=True)
    with store.publish(out, "data", {"vocabulary": tasks[0].vocabulary}) as staging:
        (staging / "vocabulary").mkdir()
        vocabulary.copy_to(staging / "vocabulary")
        counts["train"].astype("<i8").tofile(staging / "unigram.counts")
        (staging / "data.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return facts


def _counts(tasks: Sequence[Task], split: str) -> NDArray[np.int64]:
    """How often each piece occurs in a split: int64 [V]."""
    parts = [np.fromfile(task.directory / f"{split}.counts", "<i8") for task in tasks]
    counts: NDArray[np.int64] = np.stack(parts).astype(np.int64).sum(axis=0)
    return counts


def unigram_entropies(train: NDArray[np.int64], heldout: NDArray[np.int64]) -> dict[str, float | None]:
    """What guessing by frequency alone costs on the held-out text, in nats a piece; None without held-out
    text.

    unigram_entropy_nats: mean -log p over the held-out pieces, p from the train counts with 1 added to
    each: the loss that a model which has learnt only frequencies reaches. heldout_own_entropy_nats: the
    same with p from the held-out counts themselves, the least that any fixed distribution can reach.
    """
    total = int(heldout.sum())
    if total == 0:
        return {"unigram_entropy_nats": None, "heldout_own_entropy_nats": None}
    share = heldout[heldout > 0] / total
    smoothed = (train[heldout > 0] + 1) / (int(train.sum()) + train.size)
    cross, own = -(share * np.log(smoothed)).sum(), -(share * np.log(share)).sum()
    return {"unigram_entropy_nats": round(float(cross), 6), "heldout_own_entropy_nats": round(float(own), 6)}


def summary(facts: dict[str, Any]) -> str:
    """What `build` made, in a few lines for a person."""
    rows = [[split, *(f"{n:,}" for n in facts["totals"][split].values())] for split in SPLITS]
    lines = [console.table(["split", "documents", "sentences", "pieces"], rows), ""]
    read = facts["bytes_read"]
    if facts["up_to_date"]:
        lines.append(f"{facts['out']}: up to date")
    else:
        rate = read / 1e6 / max(facts["seconds"], 1e-3)
        lines.append(
            f"{facts['out']}: {read / 1e6:.1f} MB of text in {console.duration(facts['seconds'])}, {rate:.1f} MB/s"
        )
    tokens = sum(facts["totals"][split]["tokens"] for split in SPLITS)
    lines.append(f"{read / max(tokens, 1):.2f} bytes of text a piece")
    if facts["unigram_entropy_nats"] is not None:
        lines.append(
            f"unigram entropy of the held-out pieces: {facts['unigram_entropy_nats']:.3f} nats"
            f" (their own: {facts['heldout_own_entropy_nats']:.3f})"
        )
    if 0 < facts["totals"]["heldout"]["tokens"] < _FEW_HELDOUT:
        lines.append("so few pieces are held out that scores on them will say little; --holdout takes a larger share")
    return "\n".join(lines)
