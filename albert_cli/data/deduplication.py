"""Remove documents with equal text from finished shards, over all tasks of a build."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from albert_cli import pool, store
from albert_cli.data.arrays import Flags
from albert_cli.data.records import GROUPS, Deduplication, Group, ShardFacts
from albert_cli.data.shards import Shard, id_type
from albert_cli.data.tokenization import ShardTask, load_vocabulary_once, tokenize_task
from albert_cli.data.writer import DROPPED, GroupWriter, TokenizedDocuments

_HASHES_AT_A_TIME: Final = 8 << 20  # sorting this many takes about 400 MB of memory


@dataclass(frozen=True)
class ShardRewrite:
    """A task whose shards are not yet what `target` describes (None: no document is removed).

    is_retained: bool [documents of the task], in the order of its groups.
    """

    number: int
    task: ShardTask
    facts: ShardFacts
    target: Deduplication | None
    is_retained: Flags


def drop_duplicates(tasks: Sequence[ShardTask], results: Sequence[ShardFacts], workers: int = 1) -> list[ShardFacts]:
    """Remove duplicates from the tasks' shards if the settings request it, and return the facts of all tasks."""
    completed = list(results)
    workers = min(workers, len(tasks)) if tasks[0].settings.dedup else 1
    calls = ((rewrite,) for rewrite in iter_rewrites(tasks, results))
    remedy = "run the same command again with fewer --workers"
    with closing(pool.map_unordered(rewrite_shards, calls, workers, remedy)) as finished:
        for (rewrite,), facts in finished:
            completed[rewrite.number] = facts
    return completed


def iter_rewrites(tasks: Sequence[ShardTask], results: Sequence[ShardFacts]) -> Iterator[ShardRewrite]:
    """Yield the tasks whose shards have to be rewritten."""
    is_first_copy = find_first_copies(tasks) if tasks[0].settings.dedup else None
    start = 0
    for number, (task, facts) in enumerate(zip(tasks, results, strict=True)):
        n_documents = sum(hashes.size for _, hashes in _iter_hashes(task))
        is_retained = np.ones(n_documents, np.bool_)
        if is_first_copy is not None:
            is_retained = is_first_copy[start : start + n_documents]
        start += n_documents
        target = _describe_mask(is_retained)
        # The counts may match while the duplicates differ, if a task was rebuilt in between: the mask decides.
        if facts.deduplicated != target:
            yield ShardRewrite(number, task, facts, target, is_retained)


def _describe_mask(is_retained: Flags) -> Deduplication | None:
    dropped = int((~is_retained).sum())
    if dropped == 0:
        return None
    return Deduplication(dropped, hashlib.sha256(np.packbits(is_retained).tobytes()).hexdigest())


def _iter_hashes(task: ShardTask) -> Iterator[tuple[Group, NDArray[np.uint64]]]:
    """Yield each group of a task's shards with the hashes of all its documents, removed ones included."""
    for group in GROUPS:
        path = task.directory / f"{group}.hashes"
        if path.is_file():
            yield group, np.fromfile(path, "<u8").astype(np.uint64)


def find_first_copies(tasks: Sequence[ShardTask]) -> Flags:
    """Flag the first document of each hash, over all tasks in order: bool [N].

    Only hashes with the same remainder are compared at a time, so that they fit into memory.
    """
    n_documents = sum(hashes.size for task in tasks for _, hashes in _iter_hashes(task))
    rounds = -(-n_documents // _HASHES_AT_A_TIME)
    is_first = np.zeros(n_documents, np.bool_)
    for remainder in range(rounds):
        values = [np.zeros(0, np.uint64)]
        positions = [np.zeros(0, np.int64)]
        start = 0
        for task in tasks:
            for _, hashes in _iter_hashes(task):
                selected = np.flatnonzero(hashes % np.uint64(rounds) == remainder)
                values.append(hashes[selected])
                positions.append(selected + start)
                start += hashes.size
        _, first = np.unique(np.concatenate(values), return_index=True)
        is_first[np.concatenate(positions)[first]] = True
    return is_first


def rewrite_shards(rewrite: ShardRewrite) -> ShardFacts:
    """Bring a task's shards to the state that the rewrite describes, and return their facts."""
    facts = rewrite.facts
    if facts.deduplicated is not None:
        # An interrupted build with other tasks removed other documents: begin with the text again.
        store.remove_directory(rewrite.task.directory)
        facts = tokenize_task(rewrite.task)
    if rewrite.target is None:
        return facts
    return _write_retained(rewrite.task, replace(facts, deduplicated=rewrite.target), rewrite.is_retained)


def _write_retained(task: ShardTask, facts: ShardFacts, is_retained: Flags) -> ShardFacts:
    """Replace the task's shards, in one rename, by shards of the retained documents alone.

    The files of hashes keep all documents, so that the same decision can be repeated.
    """
    vocab_size = load_vocabulary_once(task.vocabulary_dir, task.vocabulary).size
    with store.commit_directory(task.directory, "shard", replace=True) as staging:
        with closing(GroupWriter(staging, vocab_size, task.settings.max_shard_tokens)) as writer:
            start = 0
            for group, hashes in _iter_hashes(task):
                first = 0
                for name in facts.shards[group]:
                    shard = Shard.open(task.directory / name, id_type(vocab_size))
                    documents = TokenizedDocuments(
                        np.asarray(shard.ids),
                        np.diff(shard.sentences).astype(np.int64),
                        np.diff(shard.documents).astype(np.int64),
                        hashes[first : first + shard.n_documents],
                    )
                    groups = np.full(shard.n_documents, GROUPS.index(group))
                    groups[~is_retained[start + first : start + first + shard.n_documents]] = DROPPED
                    writer.add(groups, documents)
                    first += shard.n_documents
                start += hashes.size
            totals, shards = writer.finish()
            facts = replace(facts, totals=totals, shards=shards)
        for path in task.directory.glob("*.hashes"):
            shutil.copyfile(path, staging / path.name)
        store.write_json(staging / "shard.json", asdict(facts))
    return facts
