"""What `albert bench pretrain` feeds to a model: a data directory's examples, or random ids laid out like text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.text.vocabulary import Vocabulary

VOCABULARY: Final = 30_000  # the paper's, where a recipe leaves it to the data
# English Wikipedia in a vocabulary of 30,000 pieces, roughly: pieces of a sentence, sentences of a document.
_SENTENCE, _DOCUMENT, _DOCUMENTS = 25, 30, 400


@dataclass(frozen=True)
class RandomVocabulary:
    """As many pieces as a recipe asks for, of which seven in ten begin a word."""

    size: int
    is_word_start: NDArray[np.bool_]
    cls_id: int = 2
    sep_id: int = 3
    mask_id: int = 4
    first_ordinary_id: int = 5


@dataclass(frozen=True)
class Text:
    """Where examples are drawn from, and how to say so."""

    corpus: TokenCorpus
    vocabulary: Vocabulary
    said: str


def read(data: Path | None, vocab_size: int | None) -> Text:
    """The training split of a data directory, or random ids; raises `CheckpointError` for what is not one."""
    if data is not None:
        corpus = TokenCorpus.open(data)
        return Text(corpus, Vocabulary.load(corpus.vocabulary_dir), f"text of {data}")
    size, rng = vocab_size or VOCABULARY, np.random.default_rng(0)
    first = RandomVocabulary.first_ordinary_id
    starts = rng.random(size) < 0.7
    starts[:first] = True
    documents = np.cumsum([0, *np.maximum(2, rng.geometric(1 / _DOCUMENT, _DOCUMENTS))])
    sentences = np.cumsum([0, *np.maximum(1, rng.poisson(_SENTENCE, int(documents[-1])))])
    ids = rng.integers(min(first, size - 1), size, int(sentences[-1])).astype(np.uint32)
    shard = Shard(ids, sentences.astype(np.uint32), documents.astype(np.uint32))
    said = f"random ids of {size:,} pieces, in sentences of about {_SENTENCE} (no --data): the work is that of text"
    return Text(TokenCorpus([shard]), cast(Vocabulary, RandomVocabulary(size, starts)), said)
