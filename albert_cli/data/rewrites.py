"""Rewrite finished shards once all work units are tokenized: drop duplicates, and hold out at least one document.

Only then is it known which documents are duplicates, and whether any document is held out. A unit's `GROUP.hashes`
files list the text hashes of its documents as they were tokenized, and every decision is a function of these hashes.
`data.build` calls `rewrite_all` between tokenization and merge.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from albert_cli import executor, store
from albert_cli.data.arrays import Flags
from albert_cli.data.records import (
    GROUPS,
    Group,
    RewriteTarget,
    ShardFacts,
    ShardRecord,
    TextCounts,
    read_data_facts,
)
from albert_cli.data.shards import Shard, id_type
from albert_cli.data.tokenization import ShardUnit, load_vocabulary_once, tokenize_unit
from albert_cli.data.verification import record_verified_unit
from albert_cli.data.writer import DROPPED, HELDOUT, GroupWriter, TokenizedDocuments

_HASHES_AT_A_TIME: Final = 8 << 20  # to sort 8 million hashes takes about 400 MB of memory


@dataclass(frozen=True)
class ShardRewrite:
    """A work unit whose shards have to be rewritten.

    number: index of the unit in the build; facts: of the present shards; target: of the shards to write, None to
    restore the shards as they were tokenized; is_retained: False for duplicates, bool [documents of the unit], in the
    order of `_iter_hashes`.
    """

    number: int
    unit: ShardUnit
    facts: ShardFacts
    target: RewriteTarget | None
    is_retained: Flags


def rewrite_all(units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts], workers: int = 1) -> list[ShardFacts]:
    """Drop duplicates if the settings request it, and hold out one document if `holdout` selects none.

    unit_facts: the facts of each unit. Returns the facts of all units, rewritten or not, in the same order.
    """
    new_facts = list(unit_facts)
    calls = ((rewrite,) for rewrite in iter_rewrites(units, unit_facts))  # the arguments of each call
    # Without `dedup`, only the units that contain the one held-out document are rewritten, so one process is enough.
    workers = min(workers, len(units)) if units[0].settings.dedup else 1
    remedy = "run the same command again with fewer --workers, which need less memory"
    with closing(executor.map_unordered(rewrite_shards, calls, workers, remedy)) as finished:
        for (rewrite,), facts in finished:
            new_facts[rewrite.number] = facts
    return new_facts


def iter_rewrites(units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts]) -> Iterator[ShardRewrite]:
    """Yield a rewrite for each unit whose present shards differ from those that the hashes of all units require."""
    heldout_hash = choose_heldout_hash(units)
    is_first_copy = find_first_copies(units) if units[0].settings.dedup else None
    start = 0  # of the unit's documents in `is_first_copy`
    for number, (unit, facts) in enumerate(zip(units, unit_facts, strict=True)):
        if is_first_copy is None and heldout_hash is None and facts.rewritten is None:
            continue
        hashes_of_groups = [hashes for _, hashes in _iter_hashes(unit)]
        hashes = np.concatenate([np.zeros(0, np.uint64), *hashes_of_groups])  # a unit may have no documents
        is_retained = np.ones(hashes.size, np.bool_)
        if is_first_copy is not None:
            is_retained = is_first_copy[start : start + hashes.size]
        start += hashes.size
        target = _describe_target(hashes, is_retained, heldout_hash)
        # If another unit was tokenized again, this unit may have as many duplicates as before, but other ones. The
        # targets differ then, because they contain a hash of `is_retained`.
        if facts.rewritten != target:
            yield ShardRewrite(number, unit, facts, target, is_retained)


def _describe_target(hashes: NDArray[np.uint64], is_retained: Flags, heldout_hash: int | None) -> RewriteTarget | None:
    """Return the target of a unit whose documents have these hashes; None if all documents stay in their groups."""
    dropped = int((~is_retained).sum())
    if heldout_hash is not None and not (hashes == np.uint64(heldout_hash)).any():
        heldout_hash = None
    if dropped == 0 and heldout_hash is None:
        return None
    digest = hashlib.sha256(np.packbits(is_retained).tobytes()).hexdigest()
    return RewriteTarget(dropped, digest, heldout_hash)


def _iter_hashes(unit: ShardUnit) -> Iterator[tuple[Group, NDArray[np.uint64]]]:
    """Yield each group that has documents after tokenization, with the documents' hashes, uint64 [documents]."""
    for group in GROUPS:
        path = unit.directory / f"{group}.hashes"
        if path.is_file():
            yield group, np.fromfile(path, "<u8").astype(np.uint64)


def choose_heldout_hash(units: Sequence[ShardUnit]) -> int | None:
    """Return the smallest hash of all documents if the fraction `holdout` selects no document; else None.

    Tokenization holds out a document if its hash is below the fraction, which in a small corpus may be true of none.
    Returns None also if all documents have the same text: they would be held out together and leave none to train on.
    """
    if units[0].settings.holdout == 0 or any((unit.directory / "heldout.hashes").is_file() for unit in units):
        return None
    smallest = min((int(hashes.min()) for unit in units for _, hashes in _iter_hashes(unit)), default=0)
    largest = max((int(hashes.max()) for unit in units for _, hashes in _iter_hashes(unit)), default=0)
    return smallest if smallest < largest else None


def has_fallback_holdout(data: Path) -> bool:
    """Return True if a data directory holds out the document that `choose_heldout_hash` has chosen.

    Other documents are held out from every text that contains them; this one only from a text where it is chosen, too.
    """
    holds_out = read_data_facts(data).totals["heldout"].documents > 0
    return holds_out and not any(data.glob("shards/*/heldout.hashes"))


def find_first_copies(units: Sequence[ShardUnit]) -> Flags:
    """Flag the first document of each hash: bool [documents of all units, in order].

    Rounds limit the memory: each sorts about `_HASHES_AT_A_TIME` hashes, those with one remainder modulo the number of
    rounds. Equal hashes have equal remainders, so they are in the same round.
    """
    n_documents = sum(hashes.size for unit in units for _, hashes in _iter_hashes(unit))
    n_rounds = -(-n_documents // _HASHES_AT_A_TIME)
    is_first_copy = np.zeros(n_documents, np.bool_)
    for remainder in range(n_rounds):
        selected_hashes = [np.zeros(0, np.uint64)]
        selected_documents = [np.zeros(0, np.int64)]
        start = 0
        for unit in units:
            for _, hashes in _iter_hashes(unit):
                selected = np.flatnonzero(hashes % np.uint64(n_rounds) == remainder)
                selected_hashes.append(hashes[selected])
                selected_documents.append(start + selected)
                start += hashes.size
        _, first_index = np.unique(np.concatenate(selected_hashes), return_index=True)
        is_first_copy[np.concatenate(selected_documents)[first_index]] = True
    return is_first_copy


def rewrite_shards(rewrite: ShardRewrite) -> ShardFacts:
    """Rewrite a unit's shards to its target, and return their facts."""
    facts = rewrite.facts
    if facts.rewritten is not None:
        # An interrupted build with other units has rewritten the shards for another target, and has dropped documents
        # that this target may need. So the text is tokenized again.
        store.remove_directory(rewrite.unit.directory)
        facts = tokenize_unit(rewrite.unit)
    if rewrite.target is None:
        return facts
    return _write_target(rewrite.unit, facts, rewrite.target, rewrite.is_retained)


def _write_target(unit: ShardUnit, facts: ShardFacts, target: RewriteTarget, is_retained: Flags) -> ShardFacts:
    """Replace the unit's shards by shards that match the target, and return their facts.

    The files of hashes are copied unchanged: they still list all documents, from which a later build decides again.
    """
    with store.commit_directory(unit.directory, "shard", replace=True) as staging:
        totals, shards = _write_groups(staging, unit, facts, target, is_retained)
        for path in staging.glob("*.hashes"):  # they list the documents of the new groups only
            path.unlink()
        for path in unit.directory.glob("*.hashes"):
            shutil.copyfile(path, staging / path.name)
        facts = replace(facts, totals=totals, shards=shards, rewritten=target)
        store.write_json(staging / "shard.json", asdict(facts))
    record_verified_unit(unit.directory, unit.source_signatures)
    return facts


def _write_groups(
    staging: Path, unit: ShardUnit, facts: ShardFacts, target: RewriteTarget, is_retained: Flags
) -> tuple[dict[Group, TextCounts], dict[Group, list[ShardRecord]]]:
    """Write the unit's documents to the groups of the target; return the totals and the new shards by group.

    The unit's shards are mapped only while this function runs, because NFS cannot delete a mapped file.
    """
    vocab_size = load_vocabulary_once(unit.vocabulary_dir, unit.vocabulary_fingerprint).size
    with closing(GroupWriter(staging, vocab_size, unit.settings.max_shard_tokens)) as writer:
        start = 0  # of the shard's documents in `is_retained`
        for group, documents in _iter_shards(unit, facts, id_type(vocab_size)):
            new_groups = np.full(len(documents), GROUPS.index(group))
            if target.heldout_hash is not None:
                new_groups[documents.hashes == np.uint64(target.heldout_hash)] = HELDOUT
            new_groups[~is_retained[start : start + len(documents)]] = DROPPED
            start += len(documents)
            writer.add(new_groups, documents)
        return writer.finish()


def _iter_shards(unit: ShardUnit, facts: ShardFacts, dtype: str) -> Iterator[tuple[Group, TokenizedDocuments]]:
    """Yield the group and the documents of each shard; the documents are in the order of `_iter_hashes`."""
    for group, hashes in _iter_hashes(unit):
        start = 0  # of the shard's documents in the group
        for record in facts.shards[group]:
            shard = Shard.open(unit.directory / record.name, dtype)
            documents = TokenizedDocuments(
                ids=shard.ids,
                sentence_lengths=np.diff(shard.sentence_offsets).astype(np.int64),
                document_sizes=np.diff(shard.document_offsets).astype(np.int64),
                hashes=hashes[start : start + shard.n_documents],
            )
            start += shard.n_documents
            yield group, documents
