"""Sample sentences uniformly from any amount of text in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from albert_cli.randomness import Integers, Stream, hash_keys
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.corpus import document_repetitions
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.sentences import split_sentences
from albert_cli.text.source_parts import ReadCounter
from albert_cli.text.work_units import WorkUnit

_INDEX_BITS = 40  # a sentence's position is its work unit's number, followed by its index in the unit
_BATCH_SENTENCES = 1 << 12
_LARGEST_KEY = 2**64 - 1


@dataclass
class SentenceSample:
    """A uniform sample of at most `size` sentences, and the totals of the text read.

    Bottom-k sampling (Cohen and Kaplan, PODC 2007): a sentence's key is a hash of the seed and of its position, and
    the `size` smallest keys stay. Samples of parts of a text therefore merge into the sample of the whole, in any
    order. key_limit: sentences with a larger key are dropped at once, which bounds the memory.
    """

    size: int
    seed: int
    key_limit: int = _LARGEST_KEY
    sentences: list[str] = field(default_factory=list)
    positions: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    documents: int = 0
    sentences_read: int = 0
    characters: int = 0
    lines: LineCounts = field(default_factory=LineCounts)

    def add(self, positions: Integers, sentences: Sequence[str]) -> None:
        """Add sentences with their positions, in the order of the text."""
        is_chosen = hash_keys(self.seed, Stream.SENTENCE, positions) <= np.uint64(self.key_limit)
        self.sentences += compress(sentences, is_chosen.tolist())
        self.positions = np.concatenate([self.positions, positions[is_chosen]])
        if len(self.sentences) > self.size + self.size // 4:
            self._drop_largest_keys()

    def merge(self, other: SentenceSample) -> None:
        """Add the sample of another work unit."""
        self.documents += other.documents
        self.sentences_read += other.sentences_read
        self.characters += other.characters
        self.lines += other.lines
        self.add(other.positions, other.sentences)

    def finish(self) -> None:
        """Reduce the sample to its size and restore the order of the text."""
        self._drop_largest_keys()
        order = np.argsort(self.positions)
        self.positions = self.positions[order]
        self.sentences = [self.sentences[i] for i in order.tolist()]

    def _drop_largest_keys(self) -> None:
        keys = hash_keys(self.seed, Stream.SENTENCE, self.positions)
        if keys.size <= self.size:
            return
        self.key_limit = int(np.partition(keys, self.size - 1)[self.size - 1])
        is_chosen = keys <= np.uint64(self.key_limit)
        self.positions = self.positions[is_chosen]
        self.sentences = list(compress(self.sentences, is_chosen.tolist()))


@dataclass(frozen=True)
class SampledWorkUnit:
    """A work unit's sample, and the SHA-256 of its bytes on disk (None for a data set on the Hub)."""

    sample: SentenceSample
    sha256: str | None


def sample_work_unit(
    unit: WorkUnit, read: ReadSettings, language: str, size: int, seed: int, key_limit: int
) -> SampledWorkUnit:
    """Read a work unit and sample its sentences."""
    sample = SentenceSample(size, seed, key_limit)
    counter = ReadCounter()
    batch: list[str] = []
    for document in unit.documents(read, counter):
        count = document_repetitions(document, unit.weight)
        if count:
            sample.documents += count
            sample.characters += count * len(document.text)
            batch += count * split_sentences(document.text, language)
        if len(batch) >= _BATCH_SENTENCES:
            _add_batch(sample, unit, batch)
            batch = []
    _add_batch(sample, unit, batch)
    sample.finish()
    sample.lines = counter.counts
    return SampledWorkUnit(sample, None if unit.is_hub_dataset else counter.sha256.hexdigest())


def _add_batch(sample: SentenceSample, unit: WorkUnit, batch: Sequence[str]) -> None:
    first = (unit.number << _INDEX_BITS) + sample.sentences_read
    sample.add(np.arange(first, first + len(batch)), batch)
    sample.sentences_read += len(batch)


def clean_in_place(sentences: list[str], cleaning: Cleaning) -> None:
    """Clean the sentences and remove empty results, without a second list in memory."""
    length = 0
    for sentence in sentences:
        if cleaned := clean(sentence, cleaning):
            sentences[length] = cleaned
            length += 1
    del sentences[length:]
