"""Merge finished work units into a data directory: count its text, copy the vocabulary, write `data.json`.

The shards stay in the units' directories; `data.json` lists the shards of each split.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from albert_cli import store
from albert_cli.data.records import (
    DATA_FORMAT,
    GROUPS,
    SPLITS,
    DataFacts,
    Group,
    ShardFacts,
    ShardRecord,
    Split,
    TextCounts,
)
from albert_cli.data.shards import Shard, id_type
from albert_cli.data.tokenization import ShardUnit
from albert_cli.errors import InputError
from albert_cli.randomness import Integers
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.vocabulary import Vocabulary

_GROUPS_OF_SPLIT: Final[dict[Split, tuple[Group, ...]]] = {"train": ("train", "train-more"), "heldout": ("heldout",)}


@dataclass(frozen=True)
class UnitGroup:
    """One group of a finished work unit's documents; a pass over their split uses each of them `repetitions` times."""

    unit: ShardUnit
    facts: ShardFacts
    group: Group
    repetitions: int

    @property
    def counts(self) -> TextCounts:
        """The documents, sentences and tokens that a pass uses, repetitions included."""
        return self.facts.totals[self.group] * self.repetitions

    @property
    def shards(self) -> list[ShardRecord]:
        """The group's shards with paths relative to `shards/`, each `repetitions` times."""
        shards = [replace(shard, name=f"{self.unit.name}/{shard.name}") for shard in self.facts.shards[self.group]]
        return [shard for shard in shards for _ in range(self.repetitions)]


def iter_groups(units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts], split: Split) -> Iterator[UnitGroup]:
    """Yield the groups that a split consists of, unit by unit; unit_facts: the facts of each unit."""
    for unit, facts in zip(units, unit_facts, strict=True):
        n_uses = int(unit.weight)
        repetitions: dict[Group, int] = {"train": n_uses, "train-more": n_uses + 1, "heldout": 1}
        for group in _GROUPS_OF_SPLIT[split]:
            yield UnitGroup(unit, facts, group, repetitions[group])


def count_totals(units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts]) -> dict[Split, TextCounts]:
    """Count the documents, sentences and tokens of a pass over each split."""
    totals = dict.fromkeys(SPLITS, TextCounts())
    for split in SPLITS:
        for unit_group in iter_groups(units, unit_facts, split):
            totals[split] += unit_group.counts
    return totals


def _list_shards(units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts], split: Split) -> list[ShardRecord]:
    """List the shards of a split, each as often as a pass uses it."""
    return [shard for unit_group in iter_groups(units, unit_facts, split) for shard in unit_group.shards]


def require_training_text(units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts]) -> None:
    """Raise `InputError` if there is no text to train on, after removing the units' shards, which are useless then."""
    totals = count_totals(units, unit_facts)
    if totals["train"].tokens > 0:
        return
    for unit in units:
        store.remove_directory(unit.directory)
    sources = dict.fromkeys(part.source.name for unit in units for part in unit.parts)
    names = ", ".join(list(sources)[:5])
    if totals["heldout"].tokens > 0:
        message = f"{names}: all documents are held out and none is left to train on"
        raise InputError(message, "use --holdout 0, or add text")
    raise InputError(f"no text in {names}", "check the files, or name others")


def publish_data(
    out: Path, units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts], vocabulary: Vocabulary
) -> DataFacts:
    """Write a copy of the vocabulary, the token counts, `data.json` and the manifest; return the facts in `data.json`.

    The directory is complete once this function returns, and has no manifest if it fails.
    """
    train_counts = _count_tokens(units, unit_facts, "train", vocabulary.size)
    heldout_counts = _count_tokens(units, unit_facts, "heldout", vocabulary.size)
    unigram_entropy, heldout_entropy = unigram_entropies(train_counts, heldout_counts)
    facts = DataFacts(
        format=DATA_FORMAT,
        dtype=id_type(vocabulary.size),
        vocabulary=units[0].vocabulary_fingerprint,
        settings=units[0].settings,
        sources=[{**shard_facts.identity.source, "sha256": shard_facts.sha256} for shard_facts in unit_facts],
        vocab_size=vocabulary.size,
        cleaning=vocabulary.cleaning,
        bytes_read=sum(shard_facts.bytes for shard_facts in unit_facts),
        tokens_read=sum(shard_facts.tokens for shard_facts in unit_facts),
        lines=sum((shard_facts.lines for shard_facts in unit_facts), start=LineCounts()),
        duplicates_dropped=sum(shard_facts.rewritten.dropped for shard_facts in unit_facts if shard_facts.rewritten),
        totals=count_totals(units, unit_facts),
        bytes_per_token_on_disk=round(_bytes_per_token(units, unit_facts), 4),
        unknown_rate=round(float(train_counts[vocabulary.unk_id] / max(train_counts.sum(), 1)), 6),
        unigram_entropy_nats=unigram_entropy,
        heldout_entropy_nats=heldout_entropy,
        shards={split: _list_shards(units, unit_facts, split) for split in SPLITS},
        fingerprints={unit.name: store.fingerprint(unit.directory) for unit in units},
    )
    # `publish` cannot replace a folder that has files.
    shutil.rmtree(out / "vocabulary", ignore_errors=True)
    store.remove_leftovers(out / "shards")
    with store.publish(out, "data", {"vocabulary": units[0].vocabulary_fingerprint}) as staging:
        (staging / "vocabulary").mkdir()
        vocabulary.copy_to(staging / "vocabulary")
        (staging / "unigram.counts").write_bytes(train_counts.astype("<i8").tobytes())
        store.write_json(staging / "data.json", asdict(facts))
    return facts


def _bytes_per_token(units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts]) -> float:
    """Return the size of all files of the units, in bytes per token of their shards."""
    n_bytes = 0
    for unit in units:
        manifest = store.read_manifest(unit.directory)
        assert manifest is not None, "a finished unit has a manifest"
        n_bytes += sum(entry["size"] for entry in manifest.files.values())
    n_tokens = sum(facts.totals[group].tokens for facts in unit_facts for group in GROUPS)
    return n_bytes / max(n_tokens, 1)


def _count_tokens(
    units: Sequence[ShardUnit], unit_facts: Sequence[ShardFacts], split: Split, vocab_size: int
) -> Integers:
    """Count how often a pass over a split uses each token: int64 [vocab_size].

    `GroupWriter` has written the counts of a train group to a file, unless the group has no documents. The held-out
    group has no such file, so its tokens are read and counted here.
    """
    counts = np.zeros(vocab_size, np.int64)
    for unit_group in iter_groups(units, unit_facts, split):
        directory = unit_group.unit.directory
        path = directory / f"{unit_group.group}.counts"
        if path.is_file():
            has_four_bytes = path.stat().st_size == 4 * vocab_size
            dtype = "<u4" if has_four_bytes else "<u8"
            counts += unit_group.repetitions * np.fromfile(path, dtype).astype(np.int64)
        elif split == "heldout":
            for record in unit_group.facts.shards[unit_group.group]:
                shard = Shard.open(directory / record.name, id_type(vocab_size))
                counts += np.bincount(shard.ids, minlength=vocab_size)
    return counts


def unigram_entropies(train: Integers, heldout: Integers) -> tuple[float | None, float | None]:
    """Return the cross-entropy of the held-out tokens, which reports call "unigram entropy", and their entropy.

    Both are in nats per token, and None without held-out text.

    train, heldout: token counts, int64 [vocab_size]. The cross-entropy with the train frequencies, with 1 added to each
    count, is the loss of a model that has learned only how frequent each token is. The entropy, with the held-out
    frequencies, is the lowest loss of any prediction that ignores the context.
    """
    total = int(heldout.sum())
    if total == 0:
        return None, None
    is_used = heldout > 0
    p_heldout = heldout[is_used] / total
    p_train = (train[is_used] + 1) / (int(train.sum()) + train.size)
    cross_entropy = -(p_heldout * np.log(p_train)).sum()
    entropy = -(p_heldout * np.log(p_heldout)).sum()
    return round(float(cross_entropy), 6), round(float(entropy), 6)
