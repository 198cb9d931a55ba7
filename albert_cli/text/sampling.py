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

_INDEX_BITS = 40  # a sentence's position is its work unit's number, shifted left by 40 bits, plus its index in the unit
_BATCH_SENTENCES = 1 << 12  # sentences that are added at a time, because hashing an array is faster
_LARGEST_KEY = 2**64 - 1


@dataclass
class SentenceSample:
    """A uniform sample of at most `size` sentences, and the totals of the text read.

    Bottom-k sampling (Cohen and Kaplan, PODC 2007): a sentence's key is a hash of the seed and of the sentence's
    position in the text, and the sample consists of the sentences with the `size` smallest keys. So the samples of
    parts of a text merge into the sample of the whole, in any order.

    key_limit: sentences with a larger key cannot be in the sample and are dropped immediately, which bounds the memory;
    positions: the sentences' positions in the text, int64 [len(sentences)]; documents, sentences_read and characters:
    totals of the text read, not only of the sample; lines: numbers of lines that were changed or left out. Until
    `finish` is called, the sample may be larger than `size` and is in no order.
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
        """Add sentences, and their positions in the text: int64 [len(sentences)]."""
        is_candidate = hash_keys(self.seed, Stream.SENTENCE, positions) <= np.uint64(self.key_limit)
        self.sentences += compress(sentences, is_candidate.tolist())
        self.positions = np.concatenate([self.positions, positions[is_candidate]])
        # The list may exceed the size by a quarter, because every reduction takes time.
        if len(self.sentences) > self.size + self.size // 4:
            self._drop_largest_keys()

    def merge(self, other: SentenceSample) -> None:
        """Add the sample and the totals of another work unit."""
        self.documents += other.documents
        self.sentences_read += other.sentences_read
        self.characters += other.characters
        self.lines += other.lines
        self.add(other.positions, other.sentences)

    def finish(self) -> None:
        """Reduce the sample to its size, and sort it in the order of the text."""
        self._drop_largest_keys()
        order = np.argsort(self.positions)
        self.positions = self.positions[order]
        self.sentences = [self.sentences[i] for i in order.tolist()]

    def _drop_largest_keys(self) -> None:
        """Retain the sentences with the `size` smallest keys, and lower `key_limit` to the largest of these keys."""
        keys = hash_keys(self.seed, Stream.SENTENCE, self.positions)
        if keys.size <= self.size:
            return
        last = self.size - 1  # the index of the largest retained key among the sorted keys
        self.key_limit = int(np.partition(keys, last)[last])
        is_retained = keys <= np.uint64(self.key_limit)
        self.positions = self.positions[is_retained]
        self.sentences = list(compress(self.sentences, is_retained.tolist()))


def sample_work_unit(
    unit: WorkUnit, read_settings: ReadSettings, language: str, size: int, seed: int, key_limit: int
) -> tuple[SentenceSample, str | None]:
    """Sample a work unit's sentences; return the sample, and the SHA-256 of the bytes on disk.

    The SHA-256 is None for a data set on the Hub. A document is sampled as often as its source's weight repeats it.
    size, seed, key_limit: of the `SentenceSample`; language: ISO 639 code for splitting into sentences.
    """
    sample = SentenceSample(size, seed, key_limit)
    counter = ReadCounter()
    batch: list[str] = []
    for document in unit.documents(read_settings, counter):
        repetitions = document_repetitions(document, unit.weight)
        if repetitions:
            sample.documents += repetitions
            sample.characters += repetitions * len(document.text)
            batch += repetitions * split_sentences(document.text, language)  # the list, repeated
        if len(batch) >= _BATCH_SENTENCES:
            _add_batch(sample, unit, batch)
            batch = []
    _add_batch(sample, unit, batch)
    sample.finish()
    sample.lines = counter.counts
    sha256 = None if unit.is_hub_dataset else counter.sha256.hexdigest()
    return sample, sha256


def _add_batch(sample: SentenceSample, unit: WorkUnit, batch: Sequence[str]) -> None:
    """Add the next sentences of a work unit at their positions in the text."""
    first_position = (unit.number << _INDEX_BITS) + sample.sentences_read
    sample.add(np.arange(first_position, first_position + len(batch)), batch)
    sample.sentences_read += len(batch)


def clean_in_place(sentences: list[str], cleaning: Cleaning) -> None:
    """Replace the sentences by their cleaned text and remove empty ones, without a second list in memory."""
    n_cleaned = 0
    for sentence in sentences:
        if cleaned := clean(sentence, cleaning):
            sentences[n_cleaned] = cleaned  # overwrites no sentence that the loop has not read yet
            n_cleaned += 1
    del sentences[n_cleaned:]
