from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli.data.batches import original_ids, sample_batch
from albert_cli.data.pairs import PairSettings, sample_pairs
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import InputError
from tests.helpers.corpora import (
    FIRST_ORDINARY,
    FakeVocabulary,
    assert_equal_batches,
    concatenate_batches,
    numbered_corpus,
    text_like_corpus,
)

VOCABULARY = FakeVocabulary()
RULES = [
    PairSettings(),
    PairSettings(max_seq_length=64, sentence_loss="nsp", short_sequence_probability=0.5),
    PairSettings(max_seq_length=16, sentence_loss="none", whole_word=False, max_predictions=2),
    PairSettings(max_seq_length=512, sentence_loss="three-way"),
]


@settings(max_examples=40)
@given(
    index=st.lists(st.integers(0, 2**50), min_size=1, max_size=6),
    seed=st.integers(0, 2**63),
    rules=st.sampled_from(RULES),
)
def test_sample_batch_is_independent_of_the_other_examples(index: list[int], seed: int, rules: PairSettings) -> None:
    corpus = text_like_corpus(60, shards=3)
    together = sample_batch(corpus, VOCABULARY, rules, seed, np.array(index))
    alone = [sample_batch(corpus, VOCABULARY, rules, seed, np.array([i])) for i in index]
    assert_equal_batches(together, concatenate_batches(alone))


def test_sample_batch_is_independent_of_the_shards() -> None:
    documents = [[3, 9, 4], [7, 7], [5, 5, 5, 5], [8, 1]]
    rules = PairSettings(max_seq_length=16)
    one = numbered_corpus([documents])
    many = numbered_corpus([documents[:1], documents[1:3], documents[3:]])
    assert_equal_batches(*(sample_batch(c, VOCABULARY, rules, 3, np.arange(50)) for c in (one, many)))


@pytest.mark.parametrize("rules", RULES)
def test_sample_batch_sequence_is_cls_a_sep_b_sep(rules: PairSettings) -> None:
    corpus = numbered_corpus([[[6, 3, 5] * 20, [9]], [[4] * 50, [70, 90]]])
    index = np.arange(60)
    packed = sample_batch(corpus, VOCABULARY, rules, 0, index)
    pairs = sample_pairs(corpus, index, rules, 0)
    ids = original_ids(packed)
    for row in range(60):
        window = slice(int(packed.offsets[row]), int(packed.offsets[row + 1]))
        # In this corpus the id at position p is FIRST_ORDINARY + p.
        a = range(FIRST_ORDINARY + int(pairs.a.start[row]), FIRST_ORDINARY + int(pairs.a.stop[row]))
        b = range(FIRST_ORDINARY + int(pairs.b.start[row]), FIRST_ORDINARY + int(pairs.b.stop[row]))
        expected = [2, *a, 3, *b, 3] if len(b) else [2, *a, 3]
        assert ids[window].tolist() == expected
        assert packed.segment_ids[window].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + (len(b) > 0))
        assert packed.position_ids[window].tolist() == list(range(len(expected)))
        assert len(expected) <= rules.max_seq_length


@pytest.mark.parametrize("rules", [RULES[1], RULES[3]])
def test_sample_batch_memory_is_constant_in_the_corpus(rules: PairSettings) -> None:
    def peak(documents: int) -> int:
        corpus = text_like_corpus(documents)
        sample_batch(corpus, VOCABULARY, rules, 0, np.arange(64))
        tracemalloc.start()
        sample_batch(corpus, VOCABULARY, rules, 0, np.arange(64))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(8000) < 1.2 * peak(250)


def test_sample_batch_differs_by_seed_example_and_pass() -> None:
    corpus = text_like_corpus(60)
    first = sample_batch(corpus, VOCABULARY, PairSettings(), 0, np.array([0]))
    # These are another seed, the next example, and an example of a later pass.
    for seed, index in ((1, 0), (0, 1), (0, 10**6)):
        other = sample_batch(corpus, VOCABULARY, PairSettings(), seed, np.array([index]))
        assert not np.array_equal(first.ids, other.ids)


def test_sample_batch_without_examples_is_empty() -> None:
    packed = sample_batch(text_like_corpus(20), VOCABULARY, PairSettings(), 0, np.zeros(0, np.int64))
    assert packed.ids.size == packed.masked_index.size == packed.order_labels.size == 0
    assert packed.offsets.tolist() == [0]


def test_sample_batch_empty_corpus_is_rejected() -> None:
    for directory, name in ((None, "the corpus"), (Path("some/data"), "some/data")):
        with pytest.raises(InputError, match=f"{name}: has no tokens to sample from"):
            sample_batch(TokenCorpus([], directory), VOCABULARY, PairSettings(), 0, np.arange(2))
