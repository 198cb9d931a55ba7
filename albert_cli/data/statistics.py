"""What a data directory's text and the sequences drawn from it look like, measured on a random sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.batches import pack
from albert_cli.data.masking import ngram_probabilities, select_spans
from albert_cli.data.pairs import PairSettings, draw_pairs, examples_per_pass
from albert_cli.data.shards import TokenCorpus, of_damaged_shards
from albert_cli.random import Integers, Stream, below, keys
from albert_cli.text.vocabulary import Vocabulary

SEQUENCES = 512  # drawn and masked
_UNITS = 4096  # sentences and documents whose length is read
LENGTH_BINS = 8


@of_damaged_shards
def sample_statistics(
    corpus: TokenCorpus,
    vocabulary: Vocabulary,
    settings: PairSettings,
    seed: int,
) -> dict[str, Any]:
    """How the first sequences of a run with this seed come out; shares lie in 0..1.

    fill: mean length over the longest allowed; length_share: of the lengths in `LENGTH_BINS` equal bins up to
    it; full_share: sequences of exactly that length; label_1_share: of those with an order label; mask_rate: of
    all positions; shortened_share: spans cut to fit the budget or the end of their segment; ngram_share: spans
    of 1, 2, … words among those chosen, ngram_expected: p(n), from which their lengths are drawn (long spans
    are left out more often, because they touch others).
    """
    index = np.arange(SEQUENCES, dtype=np.int64)
    pairs = draw_pairs(corpus, index, settings, seed)
    ids, special, _, offsets = pack(corpus, pairs, vocabulary.cls_id, vocabulary.sep_id)
    spans = select_spans(ids, special, offsets, vocabulary, settings, seed, index)
    words = np.bincount(spans.words, minlength=settings.ngram + 1)[1:]
    labelled = pairs.order_labels[pairs.order_labels >= 0]
    length = np.diff(offsets)
    bins = np.histogram(length, LENGTH_BINS, (0, settings.max_seq_length))[0]
    return {
        "sequences": SEQUENCES,
        "max_seq_length": settings.max_seq_length,
        "examples_per_pass": examples_per_pass(corpus.tokens, settings.max_seq_length),
        "fill": round(float(length.mean()) / settings.max_seq_length, 4),
        "full_share": _share(length == settings.max_seq_length),
        "length_share": _shares(bins),
        "one_segment_share": _share(pairs.b_stop == pairs.b_start),
        "label_1_share": _share(labelled == 1) if labelled.size else None,
        "mask_rate": round(spans.positions().size / ids.size, 4),
        "tokens_per_span": round(float((spans.stop - spans.start).mean()), 3) if spans.start.size else None,
        "shortened_share": _share(spans.shortened) if spans.start.size else None,
        "ngram_share": _shares(words),
        "ngram_expected": [round(float(p), 4) for p in ngram_probabilities(settings)],
        "unknown_share": round(float((ids == vocabulary.unk_id).mean()), 6),
    }


def _share(chosen: NDArray[np.bool_]) -> float:
    return round(float(chosen.mean()), 4)


def _shares(counts: Integers) -> list[float]:
    return [round(float(n), 4) for n in counts / max(int(counts.sum()), 1)]


@of_damaged_shards
def length_statistics(corpus: TokenCorpus, seed: int = 0) -> dict[str, dict[str, float]]:
    """Tokens a sentence and a document: mean over all, and the 5th, 50th and 95th percentiles of a sample.

    The sample is uniform over documents, and over the sentences of every shard in proportion.
    """
    documents = below(keys(seed, Stream.STATISTICS, np.arange(_UNITS)), corpus.documents)
    number = np.searchsorted(corpus.document_starts, documents, "right") - 1
    of_documents, of_sentences, sentences = [], [], 0
    for which, shard in enumerate(corpus.shards):
        own = documents[number == which] - corpus.document_starts[which]
        ends = shard.sentences[shard.documents[np.stack([own, own + 1])]].astype(np.int64)
        of_documents.append(ends[1] - ends[0])
        size = shard.sentences.size - 1
        share = -(-_UNITS * shard.n_tokens // corpus.tokens)
        toss = below(keys(seed + 1, Stream.STATISTICS, np.arange(share) + which * _UNITS), size)
        of_sentences.append(np.diff(shard.sentences[np.stack([toss, toss + 1])].astype(np.int64), axis=0)[0])
        sentences += size
    means = {"sentence": corpus.tokens / sentences, "document": corpus.tokens / corpus.documents}
    lengths = {"sentence": np.concatenate(of_sentences), "document": np.concatenate(of_documents)}
    return {
        name: {"mean": round(means[name], 2)} | {f"p{p}": float(np.percentile(lengths[name], p)) for p in (5, 50, 95)}
        for name in lengths
    }
