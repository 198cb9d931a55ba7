"""Tokenize one work unit of the text (see `text.work_units`) into a directory of shards, a chunk of text at a time.

A `ShardUnit` is a work unit with its output directory and settings. `data.build` tokenizes the units of a build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from albert_cli import console, store
from albert_cli.data.records import DATA_FORMAT, BuildSettings, ShardFacts, ShardIdentity
from albert_cli.data.verification import (
    are_shards_unchanged,
    are_sources_unchanged,
    read_verified_unit,
    record_verified_unit,
)
from albert_cli.data.writer import DROPPED, HELDOUT, TRAIN, TRAIN_MORE, GroupWriter, TokenizedDocuments
from albert_cli.errors import CheckpointError, DiskError
from albert_cli.randomness import Integers, repetitions
from albert_cli.text.corpus import Document, hash_single_spaced
from albert_cli.text.sentences import segment_paragraphs, split_paragraphs
from albert_cli.text.source_parts import FileSignature, ReadCounter
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.work_units import WorkUnit

_CHUNK_CHARACTERS: Final = 1 << 20  # large enough to amortize the calls, small enough to hold in memory

# Arguments: the bytes of the sources that were read since the last call, and the bytes of text (UTF-8) in this chunk.
ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True)
class ShardUnit(WorkUnit):
    """A work unit of a build, with the vocabulary and the settings to tokenize it, and the directory for its shards."""

    directory: Path
    vocabulary_dir: Path
    vocabulary_fingerprint: str
    settings: BuildSettings

    @property
    def name(self) -> str:
        """The name of the directory, which identifies the unit within the build."""
        return self.directory.name

    @property
    def source_signatures(self) -> list[FileSignature | None]:
        """The signature of each part's file; None for a part that is not a file."""
        return [part.signature for part in self.parts]

    @property
    def is_finished(self) -> bool:
        """True if the unit's shards are committed."""
        return (self.directory / store.MANIFEST).is_file()

    @property
    def identity(self) -> ShardIdentity:
        """The identity of the shards that this unit writes; existing shards of another identity are unusable."""
        settings = self.settings
        return ShardIdentity(
            format=DATA_FORMAT,
            vocabulary=self.vocabulary_fingerprint,
            holdout=settings.holdout,
            language=settings.language,
            read=settings.read,
            max_shard_tokens=settings.max_shard_tokens,
            source=self.record,
        )


# ---------------------------------------------------------------- text to shards


@lru_cache(maxsize=1)
def load_vocabulary_once(directory: Path, fingerprint: str) -> Vocabulary:
    """Load a unit's vocabulary, or return the last loaded vocabulary if it has the same directory and fingerprint.

    fingerprint: of the directory. It is a part of the cache's key, so a vocabulary that has changed is loaded again.
    """
    return Vocabulary.load(directory)


def tokenize_unit(unit: ShardUnit, on_progress: ProgressCallback | None = None) -> ShardFacts:
    """Tokenize a work unit's text into `unit.directory` and return the facts in its `shard.json`.

    Calls `on_progress` after each chunk of text.
    """
    settings = unit.settings
    vocabulary = load_vocabulary_once(unit.vocabulary_dir, unit.vocabulary_fingerprint)
    counter = ReadCounter()
    text_bytes = 0
    tokens = 0
    with (
        store.commit_directory(unit.directory, "shard") as staging,
        closing(GroupWriter(staging, vocabulary.size, settings.max_shard_tokens)) as writer,
    ):
        reported_bytes = 0
        for chunk in _iter_chunks(unit.documents(settings.read, counter)):
            documents = tokenize_documents(chunk, vocabulary, settings.language)
            writer.add(assign_groups(documents.hashes, unit.weight, settings.holdout), documents)
            chunk_bytes = sum(len(document.text.encode("utf-8", "replace")) for document in chunk)
            text_bytes += chunk_bytes
            tokens += documents.ids.size
            if on_progress is not None:
                on_progress(counter.size - reported_bytes, chunk_bytes)
            reported_bytes = counter.size
        totals, shards = writer.finish()
        facts = ShardFacts(
            identity=unit.identity,
            sha256=counter.sha256.hexdigest(),
            bytes=text_bytes,
            tokens=tokens,
            lines=counter.counts,
            shards=shards,
            totals=totals,
        )
        store.write_json(staging / "shard.json", asdict(facts))
    record_verified_unit(unit.directory, unit.source_signatures)
    return facts


def assign_groups(hashes: NDArray[np.uint64], weight: float, holdout: float) -> Integers:
    """Assign each document to a group by the hash of its text.

    hashes: uint64 [documents]; weight: average number of times that a pass uses a document of the source; holdout:
    fraction of held-out documents. Returns indices of `GROUPS`, or DROPPED: int64 [documents].
    """
    n_uses = np.array([repetitions(weight, digest) for digest in hashes.tolist()], np.int64)
    groups = np.where(n_uses > int(weight), TRAIN_MORE, TRAIN)  # TRAIN_MORE is used once more in a pass than TRAIN
    groups[hashes < np.uint64(int(holdout * 2**64))] = HELDOUT
    groups[n_uses == 0] = DROPPED
    return groups


def _iter_chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Yield lists of documents with at least `_CHUNK_CHARACTERS` characters, except for the last list."""
    chunk: list[Document] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document.text)
        if size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def tokenize_documents(documents: Sequence[Document], vocabulary: Vocabulary, language: str) -> TokenizedDocuments:
    """Split documents into sentences and encode them, without sentences and documents that have no token.

    language: code of the language whose rules split sentences.
    """
    paragraphs_by_document = [split_paragraphs(document.text) for document in documents]
    texts = (" ".join(paragraphs) for paragraphs in paragraphs_by_document)
    hashes = np.fromiter(map(hash_single_spaced, texts), np.uint64, len(documents))
    sentences_by_document = [segment_paragraphs(paragraphs, language) for paragraphs in paragraphs_by_document]
    ids_by_sentence = vocabulary.encode_sentences(list(chain.from_iterable(sentences_by_document)))
    sentence_lengths = np.fromiter(map(len, ids_by_sentence), np.int64, len(ids_by_sentence))
    ids = np.fromiter(chain.from_iterable(ids_by_sentence), np.int32, int(sentence_lengths.sum()))
    has_tokens = sentence_lengths > 0
    n_sentences = np.fromiter(map(len, sentences_by_document), np.int64, len(documents))
    document_index = np.repeat(np.arange(len(documents)), n_sentences)  # of each sentence
    # The number of sentences in each document, without sentences that have no token.
    document_sizes = np.bincount(document_index[has_tokens], minlength=len(documents))
    has_sentences = document_sizes > 0
    return TokenizedDocuments(ids, sentence_lengths[has_tokens], document_sizes[has_sentences], hashes[has_sentences])


# ---------------------------------------------------------------- finished work units


def load_finished_unit(unit: ShardUnit) -> ShardFacts | None:
    """Load the facts of a finished unit; remove unusable shards and return None if the unit has to be tokenized.

    Shards are unusable if they are damaged, or if the unit's settings or sources have changed. Files are not hashed
    again if their size, mtime and inode are those that were recorded when the shards were written. Raises an error, and
    removes nothing, if the disk fails.
    """
    if not unit.directory.exists():
        return None
    store.remove_leftovers(unit.directory)
    verified = read_verified_unit(unit.directory)
    try:
        if not are_shards_unchanged(unit.directory, verified):
            store.verify(unit.directory, "shard")
        facts = store.read_record(unit.directory / "shard.json", ShardFacts)
        if facts.identity == unit.identity and not unit.is_stream:
            if are_sources_unchanged(unit.source_signatures, verified):
                return facts
            sha256 = unit.sha256()
            # A data set on the Hub has no hash. Its name identifies it, and `identity` contains the name.
            if sha256 is None or sha256 == facts.sha256:
                return facts
    except DiskError:  # the shards may be intact
        raise
    except CheckpointError as error:
        console.info(f"{error.message}; tokenizing its text again")
    store.remove_directory(unit.directory)
    return None
