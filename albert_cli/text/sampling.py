"""A uniform sample of sentences out of any amount of text, and what the cleaning takes from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from unicodedata import normalize

import numpy as np

from albert_cli import console
from albert_cli.randomness import Integers, Stream, hash_keys
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.corpus import document_repetitions
from albert_cli.text.lines import ReadCounter, ReadSettings
from albert_cli.text.sentences import split_sentences
from albert_cli.text.work_units import WorkUnit

_INDEX_BITS = 40  # bits of a sentence's place in its portion
_BATCH_SENTENCES = 1 << 12  # sentences that are added at a time
_MEASURED_SENTENCES = 50_000  # sentences that the losses are measured on
_MIN_CHANGED_FRACTION = 0.01  # share of the words: English of Wikipedia loses 0.3 % to accents, German 7 %
_MIN_DOTLESS_FRACTION = 0.001  # share of the letters that are a dotless i: none in English, 4 % in Turkish


@dataclass
class SentenceSample:
    """At most `size` sentences of a text, each of the text's equally likely to be among them, and how much there was.

    Those with the smallest keys stay; a key is a hash of the seed and of the sentence's place. So the samples of a
    text's portions make the sample of the whole, whoever drew them (bottom-k sampling; Cohen and Kaplan, PODC 2007).
    limit: sentences with a larger key are dropped at once, so that memory stays within `size`.
    """

    size: int
    seed: int
    limit: int = 2**64 - 1
    sentences: list[str] = field(default_factory=list)
    places: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    documents: int = 0
    read: int = 0
    characters: int = 0

    def add(self, places: Integers, sentences: Sequence[str]) -> None:
        """Take in sentences with their places, in the order of the text."""
        chosen = hash_keys(self.seed, Stream.SENTENCE, places) <= np.uint64(self.limit)
        self.sentences += compress(sentences, chosen.tolist())
        self.places = np.concatenate([self.places, places[chosen]])
        if len(self.sentences) > self.size + self.size // 4:
            self._drop()

    def merge(self, other: SentenceSample) -> None:
        """Take in the sample of another portion."""
        self.documents += other.documents
        self.read += other.read
        self.characters += other.characters
        self.add(other.places, other.sentences)

    def finish(self) -> None:
        """Leave what is the sample, in the order of the text."""
        self._drop()
        order = np.argsort(self.places)
        self.places, self.sentences = self.places[order], [self.sentences[i] for i in order.tolist()]

    def _drop(self) -> None:
        found = hash_keys(self.seed, Stream.SENTENCE, self.places)
        if found.size > self.size:
            self.limit = int(np.partition(found, self.size - 1)[self.size - 1])
            kept = found <= np.uint64(self.limit)
            self.places = self.places[kept]
            self.sentences = list(compress(self.sentences, kept.tolist()))


def sample_work_unit(
    portion: WorkUnit, read: ReadSettings, language: str, size: int, seed: int, limit: int
) -> tuple[SentenceSample, str | None]:
    """The sample of a portion, as `Sample` has it, and the `sha256` of its text."""
    sample, tally = SentenceSample(size, seed, limit), ReadCounter()
    waiting: list[str] = []

    def add() -> None:
        first = (portion.number << _INDEX_BITS) + sample.read
        sample.add(np.arange(first, first + len(waiting)), waiting)
        sample.read += len(waiting)
        waiting.clear()

    for document in portion.documents(read, tally):
        for _ in range(document_repetitions(document, portion.weight)):
            sample.documents += 1
            sample.characters += len(document.text)
            waiting += split_sentences(document.text, language)
        if len(waiting) >= _BATCH_SENTENCES:
            add()
    add()
    sample.finish()
    return sample, None if portion.is_by_name else str(tally.sha256.hexdigest())


def clean_in_place(sentences: list[str], cleaning: Cleaning) -> None:
    """Clean the sentences and leave out those of which nothing remains, without holding the list twice."""
    kept = 0
    for sentence in sentences:
        if cleaned := clean(sentence, cleaning):
            sentences[kept] = cleaned
            kept += 1
    del sentences[kept:]


@dataclass(frozen=True)
class AccentReport:
    """Shares of the running words that dropping accents has `changed`, and `merged` with another, more frequent word.

    examples: the most frequent of the latter, as (word, other word, what both become).
    """

    changed: float
    merged: float
    examples: list[tuple[str, str, str]]


def measure_accent_stripping(sentences: list[str], cleaning: Cleaning) -> AccentReport | None:
    """What accent stripping takes from raw sentences, where it is on; NFKC, which SentencePiece applies, left aside."""
    if not cleaning.strip_accents:
        return None
    words = Counter[str]()
    kinder = replace(cleaning, strip_accents=False)
    for sentence in sentences[:: max(1, len(sentences) // _MEASURED_SENTENCES)]:
        words.update(normalize("NFKC", clean(sentence, kinder)).split())
    changed, merged = 0, Counter[tuple[str, str, str]]()
    first: dict[str, str] = {}  # what a word becomes: the most frequent word that becomes it
    for word, count in words.most_common():
        result = normalize("NFKC", clean(word, cleaning))
        changed += count * (result != word)
        other = first.setdefault(result, word)
        if other != word:
            merged[word, other, result] = count
    total = max(words.total(), 1)
    return AccentReport(changed / total, merged.total() / total, [example for example, _ in merged.most_common(3)])


def warn_about_normalization(accents: AccentReport | None, sentences: list[str], cleaning: Cleaning) -> None:
    """Warn once of what the cleaning would take from a language that needs it, with the switch to change."""
    warnings = []
    if accents and accents.changed >= _MIN_CHANGED_FRACTION:
        examples = ", ".join(f"{a} = {b}" for a, b, _ in accents.examples)
        made_equal = f" and makes {accents.merged:.1%} equal to another word ({examples})" if examples else ""
        warnings.append(
            f"dropping accents and marks changes {accents.changed:.1%} of the words{made_equal}:"
            " --no-strip-accents keeps them"
        )
    if cleaning.lowercase:
        text = "".join(sentences[:: max(1, len(sentences) // 1000)])
        if text.count("ı") > _MIN_DOTLESS_FRACTION * len(text):
            warnings.append("lower-casing makes i of I, which is ı in this text: --no-lowercase keeps it")
    if warnings:
        console.warn("; ".join(warnings))
