"""What a bench feeds to a model: a data directory's examples, random ids laid out like text, or random batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import numpy as np

from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch
from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.data.verified import verify_data
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.objectives import PretrainingText

VOCABULARY: Final = 30_000  # the paper's, where a recipe leaves it to the data
# English Wikipedia in a vocabulary of 30,000 pieces, roughly: pieces of a sentence, sentences of a document.
_SENTENCE, _DOCUMENT, _DOCUMENTS = 25, 30, 400


def read(data: Path | None, vocab_size: int | None) -> tuple[PretrainingText, str]:
    """The training split of a data directory, or random ids, and a phrase that says which.

    Raises `CheckpointError` for what is no data directory, or a damaged one.
    """
    if data is not None:
        verify_data(data)
        corpus = TokenCorpus.open(data)
        return PretrainingText(corpus, corpus, Vocabulary.load(corpus.vocabulary_dir)), f"text of {data}"
    size, first, rng = vocab_size or VOCABULARY, 5, np.random.default_rng(0)
    starts = rng.random(size) < 0.7  # of a word
    starts[:first] = True
    documents = np.cumsum([0, *np.maximum(2, rng.geometric(1 / _DOCUMENT, _DOCUMENTS))])
    sentences = np.cumsum([0, *np.maximum(1, rng.poisson(_SENTENCE, int(documents[-1])))])
    ids = rng.integers(min(first, size - 1), size, int(sentences[-1])).astype(np.uint32)
    corpus = TokenCorpus([Shard(ids, sentences.astype(np.uint32), documents.astype(np.uint32))])
    source = f"random ids of {size:,} pieces, in sentences of about {_SENTENCE} (no --data): the work is that of text"
    # No more than these attributes is read of it.
    vocabulary = SimpleNamespace(
        size=size, is_word_start=starts, cls_id=2, sep_id=3, mask_id=4, first_ordinary_id=first
    )
    return PretrainingText(corpus, corpus, cast(Vocabulary, vocabulary)), source


def random_batch(lengths: Sequence[int], vocab_size: int) -> PackedBatch:
    """Random sequences of these lengths, 15 % of the positions masked, seeded."""
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, *lengths])
    chosen = [rng.permutation(n - 1)[: round(costs.MASKED * n)] for n in lengths]
    index = [start + 1 + np.sort(places) for start, places in zip(offsets, chosen, strict=False)]
    positions = np.concatenate([np.arange(n) for n in lengths])
    segments, masked = positions > np.repeat(lengths, lengths) // 2, np.concatenate(index)
    ids, labels = (rng.integers(5, vocab_size, size) for size in (len(positions), len(masked)))
    parts = (ids, segments, positions, offsets, masked, labels, rng.integers(0, 2, len(lengths)))
    return PackedBatch(*(part.astype(np.int32) for part in parts))
