"""One task of `albert data`: the text of one source, tokenised into one directory of shards.

What it writes depends on the source, the vocabulary and the settings alone. It holds one chunk of documents
at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from albert_cli import store
from albert_cli.data.shards import MAX_SHARD_TOKENS, ShardWriter, Split, id_type
from albert_cli.errors import ConfigError
from albert_cli.text.corpus import OnBadBytes

if TYPE_CHECKING:
    from albert_cli.text.corpus import Document
    from albert_cli.text.vocabulary import Vocabulary

FORMAT = 1
SPLITS: tuple[Split, ...] = ("train", "heldout")
_CHUNK = 1 << 20  # characters tokenised at a time: enough to amortise the call, little enough to hold


@dataclass(frozen=True)
class BuildSettings:
    """How text becomes shards.

    holdout: share of the documents kept for evaluation; language: ISO 639 code for the sentence splitter;
    forced_holdout: hash of a document that is held out in any case (where the share alone would take none).
    """

    holdout: float = 0.01
    language: str = "en"
    on_bad_bytes: OnBadBytes = "refuse"
    text_field: str = "text"
    max_shard_tokens: int = MAX_SHARD_TOKENS
    forced_holdout: int = -1

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"--holdout {self.holdout:g}: must be at least 0 and below 1")

    def holds_out(self, digest: int) -> bool:
        """Whether a document with this hash belongs to the held-out split."""
        return digest < int(self.holdout * 2**64) or digest == self.forced_holdout


@dataclass(frozen=True)
class Task:
    """One source: `directory` receives its shards; `identity` is all that their bytes depend on."""

    name: str
    directory: Path
    vocabulary_dir: Path
    source: dict[str, Any]
    vocabulary: str
    settings: BuildSettings

    @property
    def identity(self) -> dict[str, Any]:
        """What `shard.json` must say for the shards to be this task's."""
        return {
            "format": FORMAT,
            "source": self.source,
            "vocabulary": self.vocabulary,
            **asdict(self.settings),
        }


def document_hash(text: str) -> int:
    """64 bits of BLAKE2b over the text with single spaces: the same in any file, under any vocabulary."""
    return int.from_bytes(blake2b(" ".join(text.split()).encode("utf-8", "replace"), digest_size=8).digest(), "big")


def run_task(task: Task, count: Callable[[int], None]) -> dict[str, Any]:
    """Tokenise one source into `task.directory` and return what its `shard.json` says.

    count is told the bytes of text after each chunk.
    """
    from albert_cli.text.corpus import read_documents
    from albert_cli.text.vocabulary import Vocabulary

    settings = task.settings
    vocabulary = Vocabulary.load(task.vocabulary_dir)
    documents = read_documents([task.source["source"]], settings.on_bad_bytes, settings.text_field)
    counts = {split: np.zeros(vocabulary.size, np.int64) for split in SPLITS}
    size, smallest = 0, -1
    with store.commit_directory(task.directory, "shard") as staging:
        dtype = id_type(vocabulary.size)
        train, heldout = (ShardWriter(staging, split, dtype, settings.max_shard_tokens) for split in SPLITS)
        writers = {"train": train, "heldout": heldout}
        with train, heldout:
            for chunk in _chunks(documents):
                encoded = _encode(chunk, vocabulary, settings.language)
                for document, (ids, lengths) in zip(chunk, encoded, strict=True):
                    if not ids.size:
                        continue
                    digest = document_hash(document.text)
                    smallest = digest if smallest < 0 else min(smallest, digest)
                    split: Split = "heldout" if settings.holds_out(digest) else "train"
                    writers[split].add(ids, lengths)
                    counts[split] += np.bincount(ids, minlength=vocabulary.size)
                chunk_size = sum(len(d.text.encode("utf-8", "replace")) for d in chunk)
                size += chunk_size
                count(chunk_size)
        for split in SPLITS:
            counts[split].astype("<i8").tofile(staging / f"{split}.counts")
        facts = {
            "task": task.identity,
            "bytes": size,
            "smallest_hash": smallest,
            "shards": {split: writers[split].names for split in SPLITS},
            "totals": {split: _totals(writers[split]) for split in SPLITS},
        }
        (staging / "shard.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def _totals(writer: ShardWriter) -> dict[str, int]:
    return {"documents": writer.documents, "sentences": writer.sentences, "tokens": writer.tokens}


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Groups of documents of about a million characters."""
    chunk: list[Document] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document.text)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _encode(
    documents: Sequence[Document], vocabulary: Vocabulary, language: str
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
    """For each document its ids and the lengths of its sentences that have any."""
    from albert_cli.text.sentences import split_sentences

    sentences = [split_sentences(document.text, language) for document in documents]
    pieces = vocabulary.encode_batch(list(chain.from_iterable(sentences)))
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    ids = np.fromiter(chain.from_iterable(pieces), np.uint32, int(lengths.sum()))
    first_sentence = first_id = 0
    for document in sentences:
        own = lengths[first_sentence : first_sentence + len(document)]
        total = int(own.sum())
        yield ids[first_id : first_id + total], own[own > 0]
        first_sentence, first_id = first_sentence + len(document), first_id + total
