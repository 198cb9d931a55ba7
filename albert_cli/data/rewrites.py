"""Rewrite finished shards once the text of all tasks is known: drop duplicates, and hold out at least one document."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from albert_cli import executor, store
from albert_cli.data.arrays import Flags
from albert_cli.data.records import GROUPS, Group, RewriteTarget, ShardFacts
from albert_cli.data.shards import Shard, id_type
from albert_cli.data.tokenization import ShardTask, load_vocabulary_once, tokenize_task
from albert_cli.data.verification import record_verified_task
from albert_cli.data.writer import DROPPED, HELDOUT, GroupWriter, TokenizedDocuments

_HASHES_AT_A_TIME: Final = 8 << 20  # sorting this many takes about 400 MB of memory


@dataclass(frozen=True)
class ShardRewrite:
    """A task whose shards are not yet what `target` describes; None: as the text was tokenized.

    is_retained: bool [documents of the task], in the order of its groups.
    """

    number: int
    task: ShardTask
    facts: ShardFacts
    target: RewriteTarget | None
    is_retained: Flags


def rewrite_all(tasks: Sequence[ShardTask], results: Sequence[ShardFacts], workers: int = 1) -> list[ShardFacts]:
    """Drop duplicates if the settings request it, hold out a document if none is, and return all tasks' facts."""
    completed = list(results)
    rewrites = ((rewrite,) for rewrite in iter_rewrites(tasks, results))
    workers = min(workers, len(tasks)) if tasks[0].settings.dedup else 1
    remedy = "run the same command again with fewer --workers"
    with closing(executor.map_unordered(rewrite_shards, rewrites, workers, remedy)) as finished:
        for (rewrite,), facts in finished:
            completed[rewrite.number] = facts
    return completed


def iter_rewrites(tasks: Sequence[ShardTask], results: Sequence[ShardFacts]) -> Iterator[ShardRewrite]:
    """Yield the tasks whose shards have to be rewritten."""
    heldout_hash = choose_heldout_hash(tasks)
    is_first_copy = find_first_copies(tasks) if tasks[0].settings.dedup else None
    start = 0
    for number, (task, facts) in enumerate(zip(tasks, results, strict=True)):
        if is_first_copy is None and heldout_hash is None and facts.rewritten is None:
            continue
        hashes = np.concatenate([np.zeros(0, np.uint64), *(part for _, part in _iter_hashes(task))])
        is_retained = np.ones(hashes.size, np.bool_)
        if is_first_copy is not None:
            is_retained = is_first_copy[start : start + hashes.size]
        start += hashes.size
        target = _describe_target(hashes, is_retained, heldout_hash)
        # The counts may match while the duplicates differ, if a task was rebuilt in between: the mask decides.
        if facts.rewritten != target:
            yield ShardRewrite(number, task, facts, target, is_retained)


def _describe_target(hashes: NDArray[np.uint64], is_retained: Flags, heldout_hash: int | None) -> RewriteTarget | None:
    dropped = int((~is_retained).sum())
    if heldout_hash is not None and not (hashes == np.uint64(heldout_hash)).any():
        heldout_hash = None
    if dropped == 0 and heldout_hash is None:
        return None
    digest = hashlib.sha256(np.packbits(is_retained).tobytes()).hexdigest()
    return RewriteTarget(dropped, digest, heldout_hash)


def _iter_hashes(task: ShardTask) -> Iterator[tuple[Group, NDArray[np.uint64]]]:
    """Yield each group of a task's shards with the hashes of all its documents, as they were tokenized."""
    for group in GROUPS:
        path = task.directory / f"{group}.hashes"
        if path.is_file():
            yield group, np.fromfile(path, "<u8").astype(np.uint64)


def choose_heldout_hash(tasks: Sequence[ShardTask]) -> int | None:
    """Return the smallest hash if `holdout` takes no document but should take one; None if no rewrite is necessary.

    In a small corpus, no document's hash may lie below the requested fraction. Documents with equal text are held out
    together, so there must be two different ones.
    """
    if tasks[0].settings.holdout == 0 or any((task.directory / "heldout.hashes").is_file() for task in tasks):
        return None
    bounds = [(int(hashes.min()), int(hashes.max())) for task in tasks for _, hashes in _iter_hashes(task)]
    smallest = min((first for first, _ in bounds), default=0)
    largest = max((last for _, last in bounds), default=0)
    return smallest if smallest < largest else None


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
    """Rewrite a task's shards for its target (None: as tokenized), and return their facts."""
    facts = rewrite.facts
    if facts.rewritten is not None:
        # An interrupted build with other tasks rewrote them differently: begin with the text again.
        store.remove_directory(rewrite.task.directory)
        facts = tokenize_task(rewrite.task)
    if rewrite.target is None:
        return facts
    return _write_target(rewrite.task, facts, rewrite.target, rewrite.is_retained)


def _write_target(task: ShardTask, facts: ShardFacts, target: RewriteTarget, is_retained: Flags) -> ShardFacts:
    """Replace the task's shards, in one rename, by shards without the dropped documents.

    The files of hashes keep all documents in their first groups, so that the same decision can be repeated.
    """
    vocab_size = load_vocabulary_once(task.vocabulary_dir, task.vocabulary).size
    with store.commit_directory(task.directory, "shard", replace=True) as staging:
        with closing(GroupWriter(staging, vocab_size, task.settings.max_shard_tokens)) as writer:
            start = 0
            for group, hashes in _iter_hashes(task):
                groups = np.full(hashes.size, GROUPS.index(group))
                if target.heldout_hash is not None:
                    groups[hashes == np.uint64(target.heldout_hash)] = HELDOUT
                groups[~is_retained[start : start + hashes.size]] = DROPPED
                start += hashes.size
                first = 0
                for record in facts.shards[group]:
                    shard = Shard.open(task.directory / record.name, id_type(vocab_size))
                    documents = TokenizedDocuments(
                        np.asarray(shard.ids),
                        np.diff(shard.sentences).astype(np.int64),
                        np.diff(shard.documents).astype(np.int64),
                        hashes[first : first + shard.n_documents],
                    )
                    writer.add(groups[first : first + shard.n_documents], documents)
                    first += shard.n_documents
            totals, shards = writer.finish()
        for path in staging.glob("*.hashes"):
            path.unlink()
        for path in task.directory.glob("*.hashes"):
            shutil.copyfile(path, staging / path.name)
        facts = replace(facts, totals=totals, shards=shards, rewritten=target)
        store.write_json(staging / "shard.json", asdict(facts))
    record_verified_task(task.directory, task.source_signatures)
    return facts
