"""Finished tasks to one data directory: duplicates dropped, something held out, everything named and counted."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_cli import console, pool, store
from albert_cli.data.shards import DATA_FORMAT, SPLITS, UNITS, Shard, id_type
from albert_cli.data.tokenization import ShardFacts, ShardTask, load_vocabulary_once, tokenize_task
from albert_cli.data.writer import DROPPED, GROUPS, GroupWriter
from albert_cli.errors import InputError
from albert_cli.randomness import Integers
from albert_cli.text.vocabulary import Vocabulary

_FEW_HELDOUT = 5_000  # tokens: ten sequences of the paper's length
_MANY_UNKNOWN = 0.01
_HASHES_AT_A_TIME = 8 << 20  # in memory while duplicates are found, with what sorting takes about 400 MB
Facts = dict[str, Any]
_GroupUse = tuple[ShardTask, ShardFacts, str, int]


def drop_duplicates(tasks: Sequence[ShardTask], results: Sequence[ShardFacts], workers: int = 1) -> list[ShardFacts]:
    """Take duplicates out of the tasks' shards where that is asked; raises `InputError` where no text is left."""
    completed = list(results)
    workers = min(workers, len(tasks)) if tasks[0].settings.dedup else 1
    calls = _plan_rewrites(tasks, results)
    with closing(
        pool.map_unordered(_rewrite_task, calls, workers, "run the same command again with fewer --workers")
    ) as done:
        for (number, *_), facts in done:
            completed[number] = facts
    totals = count_totals(tasks, completed)
    if totals["train"]["tokens"] == 0:
        for task in tasks:
            store.remove_directory(task.directory)
        if totals["heldout"]["tokens"] == 0:
            sources = dict.fromkeys(part.source.name for task in tasks for part in task.parts)
            raise InputError(f"no text in {', '.join(list(sources)[:5])}", "check the files, or name others")
        raise InputError("every document is held out, none is left to train on", "lower --holdout or add text")
    return completed


def _iter_hashes(task: ShardTask) -> Iterator[tuple[str, NDArray[np.uint64]]]:
    """Each group of a task's shards with the hashes of all its documents, also of those dropped later."""
    for group in GROUPS:
        path = task.directory / f"{group}.hashes"
        if path.is_file():
            yield group, np.fromfile(path, "<u8").astype(np.uint64)


def _find_first_copies(tasks: Sequence[ShardTask]) -> NDArray[np.bool_]:
    """Which documents to keep, over all tasks in their order: the first of those with the same hash. bool [N].

    Only as many hashes are compared at a time as fit into memory: those with the same remainder.
    """
    size = sum(hashes.size for task in tasks for _, hashes in _iter_hashes(task))
    rounds = -(-size // _HASHES_AT_A_TIME)
    is_first = np.zeros(size, np.bool_)
    for remainder in range(rounds):
        values, places, start = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0
        for task in tasks:
            for _, hashes in _iter_hashes(task):
                chosen = np.flatnonzero(hashes % np.uint64(rounds) == remainder)
                values.append(hashes[chosen])
                places.append(chosen + start)
                start += hashes.size
        _, first = np.unique(np.concatenate(values), return_index=True)
        is_first[np.concatenate(places)[first]] = True
    return is_first


def _plan_rewrites(
    tasks: Sequence[ShardTask], results: Sequence[ShardFacts]
) -> Iterator[tuple[int, ShardTask, ShardFacts, dict[str, Any] | None, NDArray[np.bool_]]]:
    """Of each task whose shards are not what they have to be: its number, what has to change, which documents stay."""
    kept = _find_first_copies(tasks) if tasks[0].settings.dedup else None
    place = 0
    for number, (task, facts) in enumerate(zip(tasks, results, strict=True)):
        size = sum(hashes.size for _, hashes in _iter_hashes(task))
        mask = np.ones(size, np.bool_) if kept is None else kept[place : place + size]
        place += size
        # As many duplicates may be others: of a task that was made again since.
        wanted = {"dropped": int((~mask).sum()), "kept": hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()}
        change = wanted if wanted["dropped"] else None
        if facts.changed != change:
            yield number, task, facts, change, mask


def _rewrite_task(
    number: int, task: ShardTask, facts: ShardFacts, wanted: dict[str, Any] | None, kept: NDArray[np.bool_]
) -> ShardFacts:
    if facts.changed is not None:  # by a build that was killed, beside other tasks: begin with its text again
        store.remove_directory(task.directory)
        facts = tokenize_task(task)
    return facts if wanted is None else _write_without_dropped(task, replace(facts, changed=wanted), kept)


def _write_without_dropped(task: ShardTask, facts: ShardFacts, kept: NDArray[np.bool_]) -> ShardFacts:
    """Write the task's shards anew without the documents that are not kept, in one rename.

    The files of hashes stay as they are, so that the same decision can be taken again.
    """
    vocab_size = load_vocabulary_once(task.vocabulary_dir, task.vocabulary).size
    with store.commit_directory(task.directory, "shard", replace=True) as staging:
        with closing(GroupWriter(staging, vocab_size, task.settings.max_shard_tokens)) as writer:
            start = 0
            for group, hashes in _iter_hashes(task):
                for name in facts.shards[group]:
                    shard = Shard.open(task.directory / name, id_type(vocab_size))
                    own = hashes[: shard.documents.size - 1]
                    hashes = hashes[own.size :]
                    groups = np.full(own.size, GROUPS.index(group))
                    groups[~kept[start : start + own.size]] = DROPPED
                    start += own.size
                    lengths, sizes = (np.diff(a).astype(np.int64) for a in (shard.sentences, shard.documents))
                    writer.add(groups, np.asarray(shard.ids), lengths, sizes, own)
            totals, shards = writer.finish()
            facts = replace(facts, totals=totals, shards=shards)
        for path in task.directory.glob("*.hashes"):
            shutil.copyfile(path, staging / path.name)
        store.write_json(staging / "shard.json", asdict(facts))
    return facts


# ---------------------------------------------------------------- the whole directory


def _iter_groups(tasks: Sequence[ShardTask], results: Sequence[ShardFacts], split: str) -> Iterator[_GroupUse]:
    """Each task with its groups of a split, and how often a pass uses their documents."""
    for task, facts in zip(tasks, results, strict=True):
        for group, times in zip(GROUPS, (int(task.weight), int(task.weight) + 1, 1), strict=True):
            if group.startswith(split):
                yield task, facts, group, times


def count_totals(tasks: Sequence[ShardTask], results: Sequence[ShardFacts]) -> dict[str, dict[str, int]]:
    """Documents, sentences and tokens of a pass over each split."""
    uses = {split: list(_iter_groups(tasks, results, split)) for split in SPLITS}
    return {s: {u: sum(times * r.totals[g][u] for _, r, g, times in uses[s]) for u in UNITS} for s in SPLITS}


def publish_data(
    out: Path, tasks: Sequence[ShardTask], results: Sequence[ShardFacts], vocabulary: Vocabulary, asked: Facts
) -> Facts:
    """Write `data.json` with what was asked for, the counts and the copy of the vocabulary, and last the manifest."""
    counts = {split: _count_tokens(tasks, results, split, vocabulary.size) for split in SPLITS}
    # A shard that a pass uses several times is named as many times.
    names = {
        s: [f"{t.name}/{n}" for t, r, g, k in _iter_groups(tasks, results, s) for n in r.shards[g] * k] for s in SPLITS
    }
    manifests = [m for task in tasks if (m := store.read_manifest(task.directory))]
    on_disk = sum(int(entry["size"]) for manifest in manifests for entry in manifest.files.values())
    written = sum(r.totals[group]["tokens"] for r in results for group in GROUPS)
    facts: Facts = {
        "format": DATA_FORMAT,
        "dtype": id_type(vocabulary.size),
        **asked,
        "sources": [{**source, "sha256": r.sha256} for source, r in zip(asked["sources"], results, strict=True)],
        "vocab_size": vocabulary.size,
        "cleaning": asdict(vocabulary.cleaning),
        "bytes_read": sum(r.bytes for r in results),
        "tokens_read": sum(r.pieces for r in results),
        "skipped_lines": sum(r.skipped_lines for r in results),
        "duplicates_dropped": sum(r.changed["dropped"] for r in results if r.changed),
        "totals": count_totals(tasks, results),
        "bytes_per_token_on_disk": round(on_disk / max(written, 1), 4),
        "unknown_rate": round(float(counts["train"][vocabulary.unk_id] / max(counts["train"].sum(), 1)), 6),
        **unigram_entropies(counts["train"], counts["heldout"]),
        "shards": names,
        "fingerprints": {t.name: manifest.fingerprint() for t, manifest in zip(tasks, manifests, strict=True)},
    }
    shutil.rmtree(out / "vocabulary", ignore_errors=True)
    store.remove_leftovers(out / "shards")
    with store.publish(out, "data", {"vocabulary": tasks[0].vocabulary}) as staging:
        (staging / "vocabulary").mkdir()
        vocabulary.copy_to(staging / "vocabulary")
        (staging / "unigram.counts").write_bytes(counts["train"].astype("<i8").tobytes())
        store.write_json(staging / "data.json", facts)
    return facts


def _count_tokens(tasks: Sequence[ShardTask], results: Sequence[ShardFacts], split: str, vocab_size: int) -> Integers:
    """How often each token occurs in a pass over a split: int64 [V]."""
    counts = np.zeros(vocab_size, np.int64)
    for task, facts, group, times in _iter_groups(tasks, results, split):
        path = task.directory / f"{group}.counts"
        if path.is_file():
            kind = "<u4" if path.stat().st_size == 4 * vocab_size else "<u8"
            counts += times * np.fromfile(path, kind).astype(np.int64)
        elif split == "heldout":
            for name in facts.shards[group]:
                counts += np.bincount(Shard.open(task.directory / name, id_type(vocab_size)).ids, minlength=vocab_size)
    return counts


def unigram_entropies(train: Integers, heldout: Integers) -> dict[str, float | None]:
    """What guessing by frequency alone costs on the held-out text, in nats a token; None without held-out text.

    unigram_entropy_nats: mean -log p over the held-out tokens, p from the train counts with 1 added to each: the loss
    of a model which has learnt only frequencies. heldout_entropy_nats: the same with p from the held-out counts
    themselves, the least that any fixed distribution can reach.
    """
    total = int(heldout.sum())
    if total == 0:
        return {"unigram_entropy_nats": None, "heldout_entropy_nats": None}
    share = heldout[heldout > 0] / total
    smoothed = (train[heldout > 0] + 1) / (int(train.sum()) + train.size)
    cross, own = -(share * np.log(smoothed)).sum(), -(share * np.log(share)).sum()
    return {"unigram_entropy_nats": round(float(cross), 6), "heldout_entropy_nats": round(float(own), 6)}


def format_summary(facts: Facts) -> str:
    """What `build` made, in a few lines for a person."""
    rate = f"{facts['bytes_read'] / 1e6:.1f} MB of text in {console.format_duration(facts['seconds'])}"
    rate += f", {facts['bytes_read'] / 1e6 / max(facts['seconds'], 1e-3):.1f} MB/s"
    if "job" in facts:
        done = f"{facts['tasks_finished']} of {facts['tasks_in_all']} tasks are finished"
        return f"{facts['out']}: job {facts['job']}, {facts['tasks']} tasks, {rate}; {done}"
    rows = [[split, *(f"{n:,}" for n in facts["totals"][split].values())] for split in SPLITS]
    lines = [console.format_table(["split", "documents", "sentences", "tokens"], rows), ""]
    lines.append(f"{facts['out']}: " + ("up to date" if facts["up_to_date"] else rate))
    for name, what in (("duplicates_dropped", "duplicate documents dropped"), ("skipped_lines", "long lines left out")):
        if facts[name]:
            lines.append(f"{facts[name]:,} {what}")
    disk = facts["bytes_per_token_on_disk"]
    lines.append(
        f"{facts['bytes_read'] / max(facts['tokens_read'], 1):.2f} bytes of text a token, {disk:.2f} on the disk"
    )
    if facts["unigram_entropy_nats"] is not None:
        lines.append(
            f"unigram entropy of the held-out tokens: {facts['unigram_entropy_nats']:.3f} nats"
            f" (their own: {facts['heldout_entropy_nats']:.3f})"
        )
    if facts["unknown_rate"] > _MANY_UNKNOWN:
        lines.append(f"{facts['unknown_rate']:.1%} of the tokens are unknown: the vocabulary is of other text")
    if facts["totals"]["heldout"]["tokens"] < _FEW_HELDOUT and facts["settings"]["holdout"]:
        lines.append("so few tokens are held out that scores on them will say little; --holdout takes a larger share")
    return "\n".join(lines)
