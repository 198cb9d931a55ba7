"""Measure samples of a data directory: lengths of sentences and documents, and the first sequences of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.masking import ngram_probabilities, select_spans
from albert_cli.data.pairs import SPECIALS, PairSettings, examples_per_pass, pack_sequences, sample_pairs
from albert_cli.data.shards import Offsets, Shard, TokenCorpus
from albert_cli.randomness import Integers, Stream, bounded_ints, hash_keys
from albert_cli.text.vocabulary import Vocabulary

_SAMPLED_SEQUENCES: Final = 512  # number of sampled sequences; fractions of them have a standard error of about 2 %
LENGTH_BINS: Final = 8  # of the histogram of sequence lengths
_SAMPLED_LENGTHS: Final = 4096  # number of sentences, and of documents, whose length is read


@dataclass(frozen=True)
class LengthStatistics:
    """Tokens per sentence, or per document: the mean over the whole corpus, and percentiles of a sample."""

    mean: float
    p5: float
    p50: float
    p95: float


@dataclass(frozen=True)
class SampleStatistics:
    """Statistics of the first sequences of a run; fractions are between 0 and 1, and None if their divisor is 0.

    fill: mean length divided by the maximum length.
    short_documents: fraction of the documents that are shorter than a sequence.
    short_document_samples: average number of times that a pass samples such a document.
    full_fraction: fraction of the sequences that have the maximum length.
    length_fractions: fraction of the sequences in each of `LENGTH_BINS` equal bins of length. Bin n has the lengths
    above `max_seq_length * (n - 1) / LENGTH_BINS`, up to and including `max_seq_length * n / LENGTH_BINS`.
    one_segment_fraction: fraction of the sequences without a segment B.
    label_1_fraction: fraction of the labeled sequences that have the label 1.
    mask_rate: fraction of the positions that are to be predicted.
    tokens_per_span: mean number of tokens in a span.
    shortened_fraction: fraction of the spans that were shortened to fit the budget or their segment.
    ngram_fractions: fraction of the spans that have 1, 2, … words.
    ngram_expected: p(n), from which the numbers of words are sampled. There are fewer long spans than expected, because
    a span that overlaps a chosen span is skipped.
    unknown_fraction: fraction of the positions that are [UNK].
    """

    sequences: int
    max_seq_length: int
    examples_per_pass: int
    fill: float
    short_documents: float
    short_document_samples: float | None
    full_fraction: float
    length_fractions: list[float]
    one_segment_fraction: float
    label_1_fraction: float | None
    mask_rate: float
    tokens_per_span: float | None
    shortened_fraction: float | None
    ngram_fractions: list[float]
    ngram_expected: list[float]
    unknown_fraction: float


def measure_sample(corpus: TokenCorpus, vocabulary: Vocabulary, settings: PairSettings, seed: int) -> SampleStatistics:
    """Sample the first sequences of a run with this seed, and measure them."""
    index = np.arange(_SAMPLED_SEQUENCES, dtype=np.int64)
    pairs = sample_pairs(corpus, index, settings, seed)
    sequences = pack_sequences(corpus, pairs, vocabulary.cls_id, vocabulary.sep_id)
    spans = select_spans(sequences, vocabulary, settings, seed, index)
    # Without an unknown token, `unk_id` is [SEP]'s id.
    is_unknown = (sequences.ids == vocabulary.unk_id) & ~sequences.is_special
    lengths = np.diff(sequences.offsets)
    length_bins = -(-lengths * LENGTH_BINS // settings.max_seq_length) - 1  # rounded up: a bin includes its upper end
    word_counts = np.bincount(spans.words, minlength=settings.ngram + 1)[1:]
    labels = pairs.order_labels[pairs.order_labels >= 0]
    # A pass divides the corpus into strides of this many tokens and samples one example in each stride. So a document
    # of half a stride is sampled 0.5 times on average.
    stride = settings.max_seq_length - SPECIALS
    strides_per_document = sample_document_lengths(corpus, seed) / stride
    short = strides_per_document[strides_per_document < 1]
    return SampleStatistics(
        sequences=_SAMPLED_SEQUENCES,
        max_seq_length=settings.max_seq_length,
        examples_per_pass=examples_per_pass(corpus, settings),
        fill=round(float(lengths.mean()) / settings.max_seq_length, 4),
        short_documents=round(short.size / strides_per_document.size, 4),
        short_document_samples=_mean(short),
        full_fraction=round(float((lengths == settings.max_seq_length).mean()), 4),
        length_fractions=_normalize(np.bincount(length_bins, minlength=LENGTH_BINS)),
        one_segment_fraction=round(float((pairs.b.length == 0).mean()), 4),
        label_1_fraction=_mean(labels == 1),
        mask_rate=round(spans.positions().size / sequences.ids.size, 4),
        tokens_per_span=_mean(spans.stop - spans.start, digits=3),
        shortened_fraction=_mean(spans.is_shortened),
        ngram_fractions=_normalize(word_counts),
        ngram_expected=[round(float(p), 4) for p in ngram_probabilities(settings)],
        unknown_fraction=round(float(is_unknown.mean()), 6),
    )


def _mean(values: NDArray[np.generic], digits: int = 4) -> float | None:
    """Return the mean, rounded to `digits` decimals; None without values."""
    if values.size == 0:
        return None
    return round(float(values.astype(np.float64).mean()), digits)


def _normalize(counts: Integers) -> list[float]:
    """Return counts as rounded fractions of their sum."""
    return [round(float(fraction), 4) for fraction in counts / max(int(counts.sum()), 1)]


def sample_document_lengths(corpus: TokenCorpus, seed: int) -> Integers:
    """Sample `_SAMPLED_LENGTHS` documents uniformly, and return their numbers of tokens, int64 [N]."""
    bits = hash_keys(seed, Stream.STATISTICS, np.arange(_SAMPLED_LENGTHS))
    document = bounded_ints(bits, corpus.n_documents)
    lengths = np.empty_like(document)
    for rows, shard, _, first_document in corpus.group_by_shard(document, corpus.document_starts):
        local_document = document[rows] - first_document
        first_sentence = shard.document_offsets[local_document]
        end_sentence = shard.document_offsets[local_document + 1]
        lengths[rows] = _count_tokens(shard, first_sentence, end_sentence)
    return lengths


def _sample_sentence_lengths(corpus: TokenCorpus, seed: int) -> Integers:
    """Sample sentences of every shard, and return their numbers of tokens, int64 [N].

    The number of sentences from a shard is proportional to its tokens. All shards together give about
    `_SAMPLED_LENGTHS` sentences.
    """
    lengths = []
    for number, shard in enumerate(corpus.shards):
        sample_size = -(-_SAMPLED_LENGTHS * shard.n_tokens // corpus.n_tokens)
        # `seed + 1` makes the choice independent of the sample of documents, and different indices make the choices in
        # two shards independent.
        index = number * _SAMPLED_LENGTHS + np.arange(sample_size)
        bits = hash_keys(seed + 1, Stream.STATISTICS, index)
        sentence = bounded_ints(bits, shard.sentence_offsets.size - 1)
        lengths.append(_count_tokens(shard, sentence, sentence + 1))
    return np.concatenate(lengths)


def _count_tokens(shard: Shard, first_sentence: Integers | Offsets, end_sentence: Integers | Offsets) -> Integers:
    """Return the number of tokens from each first sentence up to its end sentence, int64 [N]."""
    start = shard.sentence_offsets[first_sentence].astype(np.int64)
    stop = shard.sentence_offsets[end_sentence].astype(np.int64)
    return stop - start


def measure_lengths(corpus: TokenCorpus, seed: int = 0) -> dict[str, LengthStatistics]:
    """Measure the numbers of tokens per sentence and per document; the keys are "sentence" and "document"."""
    n_sentences = sum(shard.sentence_offsets.size - 1 for shard in corpus.shards)
    return {
        "sentence": _summarize_lengths(corpus.n_tokens / n_sentences, _sample_sentence_lengths(corpus, seed)),
        "document": _summarize_lengths(corpus.n_tokens / corpus.n_documents, sample_document_lengths(corpus, seed)),
    }


def _summarize_lengths(mean: float, sample: Integers) -> LengthStatistics:
    """Return statistics of lengths; mean: over the whole corpus; sample: a sample of the lengths, int64 [N]."""
    p5, p50, p95 = np.percentile(sample, (5, 50, 95))
    return LengthStatistics(round(mean, 2), float(p5), float(p50), float(p95))
