"""Make the inputs of speed measurements: the text of a data directory, random text, or random batches.

Random text has sentences and documents about as long as in English text, so it causes about the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch
from albert_cli.data.shards import Shard, TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.words import WordBoundaries
from albert_cli.training.objectives import PretrainingCorpora

# Random text is roughly like English Wikipedia in 30,000 pieces.
_SENTENCE_LENGTH: Final = 25  # mean number of pieces
_DOCUMENT_LENGTH: Final = 30  # mean number of sentences
_DOCUMENTS: Final = 400
_WORD_START_FRACTION: Final = 0.7  # of the pieces
_SPECIAL_PIECES: Final = 5  # ids 0 to 4


def load_text(data: Path) -> tuple[PretrainingCorpora, str]:
    """Return the training split of a data directory and a phrase that names the source of the text.

    Raises `CheckpointError` if `data` is not a data directory or is damaged.
    """
    verify_data(data)
    corpus = TokenCorpus.open(data)
    # The measurements do not read the held-out text, so the training text takes its position.
    return PretrainingCorpora(corpus, corpus, Vocabulary.load(corpus.vocabulary_dir)), f"text of {data}"


def make_random_text(vocab_size: int) -> tuple[PretrainingCorpora, str]:
    """Sample a corpus of random ids with a stand-in for its vocabulary; also return a phrase that names the source."""
    rng = np.random.default_rng(0)
    is_word_start = rng.random(vocab_size) < _WORD_START_FRACTION
    no_pieces = np.zeros(vocab_size, bool)
    boundaries = WordBoundaries(is_word_start, separates=no_pieces, continues=no_pieces)
    document_lengths = np.maximum(2, rng.geometric(1 / _DOCUMENT_LENGTH, _DOCUMENTS))
    document_offsets = np.cumsum([0, *document_lengths], dtype=np.uint32)
    n_sentences = int(document_offsets[-1])
    sentence_lengths = np.maximum(1, rng.poisson(_SENTENCE_LENGTH, n_sentences))
    sentence_offsets = np.cumsum([0, *sentence_lengths], dtype=np.uint32)
    n_tokens = int(sentence_offsets[-1])
    lowest_id = min(_SPECIAL_PIECES, vocab_size - 1)
    ids = rng.integers(lowest_id, vocab_size, n_tokens).astype(np.uint32)
    corpus = TokenCorpus([Shard(ids, sentence_offsets, document_offsets)])
    # These are the only attributes of a vocabulary that the sampler of examples reads.
    vocabulary = SimpleNamespace(
        size=vocab_size,
        word_boundaries=lambda rule: boundaries,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        ordinary_ids=np.arange(_SPECIAL_PIECES, vocab_size, dtype=np.int32),
    )
    source = f"random ids of {vocab_size:,} pieces, in sentences of about {_SENTENCE_LENGTH} (no --data)"
    return PretrainingCorpora(corpus, corpus, cast(Vocabulary, vocabulary)), source


def random_batch(lengths: Sequence[int], vocab_size: int) -> PackedBatch:
    """Sample sequences of these lengths, with 15 % of the positions masked and two segments of equal length.

    Every call with the same arguments returns the same batch.
    """
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, *lengths])
    # Position 0 of a sequence, [CLS], is never masked.
    masked = []
    for start, length in zip(offsets[:-1], lengths, strict=True):
        chosen = rng.permutation(length - 1)[: round(costs.MASKED_FRACTION * length)]
        masked.append(start + 1 + np.sort(chosen))
    masked_index = np.concatenate(masked)
    positions = np.concatenate([np.arange(n) for n in lengths])
    segments = positions > np.repeat(lengths, lengths) // 2
    ids = rng.integers(_SPECIAL_PIECES, vocab_size, len(positions))
    labels = rng.integers(_SPECIAL_PIECES, vocab_size, len(masked_index))
    order_labels = rng.integers(0, 2, len(lengths))
    arrays = (ids, segments, positions, offsets, masked_index, labels, order_labels)
    return PackedBatch(*(array.astype(np.int32) for array in arrays))


def pretraining_loss(model: PretrainingModel, device: torch.device, batch: PackedBatch) -> Tensor:
    """Return the mean MLM loss, plus the mean sentence-order loss if the batch has sentence-order labels."""
    labels = torch.from_numpy(batch.masked_labels).long().to(device)
    logits = model(pack(batch, device, batch.masked_index))
    loss = F.cross_entropy(logits.masked.float(), labels)
    if bool((batch.order_labels >= 0).any()):
        order_labels = torch.from_numpy(batch.order_labels).long().to(device)
        loss = loss + F.cross_entropy(logits.sentence_order.float(), order_labels, ignore_index=-1)
    return loss
