from __future__ import annotations

import pytest

from albert_cli.data.pairs import PairSettings
from albert_cli.data.sample_statistics import LengthStatistics, measure_lengths, measure_sample
from tests.helpers.corpora import FakeVocabulary, numbered_corpus, text_like_corpus


def test_measure_lengths_reads_every_shard() -> None:
    corpus = numbered_corpus([[[4, 4]] * 50, [[8] * 5] * 30])
    assert measure_lengths(corpus) == {
        "document": LengthStatistics(mean=20.0, p5=8, p50=8, p95=40),
        "sentence": LengthStatistics(mean=6.4, p5=4, p50=8, p95=8),
    }


def test_measure_sample_agrees_with_the_settings() -> None:
    sample = measure_sample(text_like_corpus(400), FakeVocabulary(), PairSettings(max_seq_length=128), 0)
    assert sample.mask_rate == pytest.approx(0.15, abs=0.005)
    assert sample.label_1_fraction == pytest.approx(0.5, abs=0.07)
    assert sample.ngram_fractions == pytest.approx(sample.ngram_expected, abs=0.08)
    assert sample.one_segment_fraction == 0


@pytest.mark.parametrize(("length", "samples", "examples"), [(103, 0.1, 106), (13, None, 1060)])
def test_measure_sample_counts_short_documents(length: int, samples: float | None, examples: int) -> None:
    corpus = numbered_corpus([[[5, 5]] * 60, [[500]] * 20])
    sample = measure_sample(corpus, FakeVocabulary(), PairSettings(length), 0)
    assert sample.short_documents == pytest.approx(0.75 if samples else 0, abs=0.03)
    assert (sample.short_document_samples, sample.examples_per_pass) == (samples, examples)


def test_measure_sample_counts_length_in_bin_that_ends_there() -> None:
    corpus = numbered_corpus([[[29]] * 50])  # 31 positions with [CLS] and [SEP]
    of_248 = measure_sample(corpus, FakeVocabulary(), PairSettings(248), 0)
    assert of_248.length_fractions == [1, 0, 0, 0, 0, 0, 0, 0]
    of_62 = measure_sample(corpus, FakeVocabulary(), PairSettings(62, short_sequence_probability=0), 0)
    assert of_62.length_fractions == [0, 0, 0, 1, 0, 0, 0, 0]


def test_measure_sample_without_labels_has_no_fraction() -> None:
    sample = measure_sample(numbered_corpus([[[9]] * 50]), FakeVocabulary(), PairSettings(64), 0)
    assert sample.label_1_fraction is None and sample.one_segment_fraction == 1


def test_measure_sample_counts_unknown_tokens_not_sep() -> None:
    corpus = numbered_corpus([[[5, 5]] * 50])  # every id from 5 on once
    sample = measure_sample(corpus, FakeVocabulary(unk_id=3), PairSettings(64), 0)
    assert sample.unknown_fraction == 0, "a vocabulary without [UNK] has the id of [SEP] instead"
    assert measure_sample(corpus, FakeVocabulary(unk_id=7), PairSettings(64), 0).unknown_fraction > 0
