"""Check word vectors against counts by hand, and that words of one kind get similar vectors."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from albert_cli.data import cooccurrence
from albert_cli.data.cooccurrence import compute_word_vectors, count_cooccurrences
from albert_cli.data.shards import Shard, TokenCorpus


class Corpus(TokenCorpus):
    """A corpus in memory: each text is a shard with one sentence. size: the vocabulary size."""

    def __init__(self, *texts: list[int], size: int) -> None:
        document_offsets = np.array([0, 1], np.uint32)
        shards = []
        for ids in texts:
            sentence_offsets = np.array([0, len(ids)], np.uint32)
            shards.append(Shard(np.array(ids, np.uint16), sentence_offsets, document_offsets))
        super().__init__(shards)
        self._counts = np.bincount(np.concatenate([np.array(ids) for ids in texts]), minlength=size).astype(np.int64)

    def unigram_counts(self) -> np.ndarray:
        return self._counts


def test_count_cooccurrences_equals_counting_by_hand() -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 12, 200).tolist(), rng.integers(0, 12, 150).tolist()]
    expected: defaultdict[tuple[int, int], float] = defaultdict(float)
    for text in texts:
        for position, word in enumerate(text):
            for neighbor in range(max(0, position - 8), min(len(text), position + 9)):
                if neighbor != position:
                    expected[word, text[neighbor]] += 1 / abs(position - neighbor)
    corpus = Corpus(*texts, size=15)
    counts = count_cooccurrences(corpus)
    order = np.argsort(-corpus.unigram_counts(), kind="stable")
    assert counts.shape == (15, 16) and not counts[:, -1].any()
    for word in range(15):
        for column, context in enumerate(order):
            assert float(counts[word, column]) == pytest.approx(expected[word, int(context)], rel=1e-5)


def test_count_cooccurrences_merges_rare_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(np.random.default_rng(1).integers(0, 12, 400).tolist(), size=12)
    whole = count_cooccurrences(corpus)
    monkeypatch.setattr(cooccurrence, "_CONTEXTS", 5)
    few = count_cooccurrences(corpus)
    assert few.shape == (12, 6)
    assert torch.allclose(few[:, :5], whole[:, :5])
    assert torch.allclose(few.sum(1), whole.sum(1))
    few_pmi, whole_pmi = (cooccurrence._positive_pmi(counts) for counts in (few, whole))
    assert torch.allclose(few_pmi, whole_pmi[:, :5], atol=1e-5) and few_pmi.any()


def test_word_vectors_of_one_kind_are_similar() -> None:
    """Kind 0 has the words 0 to 19, kind 1 the words 20 to 39; a kind's first ten words precede its second ten."""
    rng = np.random.default_rng(2)
    kinds = rng.integers(0, 2, 4000)
    text = np.stack([20 * kinds + rng.integers(0, 10, 4000), 20 * kinds + 10 + rng.integers(0, 10, 4000)], 1)
    # Sorted, so that only the windows at one boundary mix the kinds.
    text = text[np.argsort(kinds, kind="stable")].reshape(-1)
    vectors = compute_word_vectors(Corpus(text.tolist(), size=41), 6, seed=0)
    assert vectors.shape == (41, 6) and not vectors[40].any()
    unit = torch.nn.functional.normalize(vectors[:40], dim=1)
    similarities = unit @ unit.T
    is_same_kind = torch.arange(40)[:, None] // 20 == torch.arange(40) // 20
    assert float(similarities[is_same_kind].mean()) > float(similarities[~is_same_kind].mean()) + 0.5
    assert torch.equal(vectors, compute_word_vectors(Corpus(text.tolist(), size=41), 6, seed=0))


def test_word_vectors_pad_missing_dimensions_with_zeros() -> None:
    vectors = compute_word_vectors(Corpus(np.random.default_rng(3).integers(0, 6, 300).tolist(), size=6), 16, seed=0)
    assert vectors.shape == (6, 16) and not vectors[:, 6:].any() and torch.isfinite(vectors).all()


def test_iter_runs_samples_a_large_corpus_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "_RUN_TOKENS", 100)
    monkeypatch.setattr(cooccurrence, "_TOKENS_PER_ENTRY", 500 / 16)  # 500 tokens in total for 16 entries
    corpus = Corpus(*([word] * 130 for word in range(16)), size=16)
    runs = list(cooccurrence._iter_runs(corpus))
    assert 480 <= sum(map(len, runs)) <= 520
    assert {int(run[0]) for run in runs} == set(range(16)), "every shard is read"
    monkeypatch.setattr(cooccurrence, "_TOKENS_PER_ENTRY", 130)
    assert sum(map(len, cooccurrence._iter_runs(corpus))) == 16 * 130


def test_word_vectors_of_real_shards_skip_special_tokens(tiny_data: Path) -> None:
    corpus = TokenCorpus.open(tiny_data, "train")
    vectors = compute_word_vectors(corpus, 8, seed=1)
    assert len(vectors) == len(corpus.unigram_counts())
    assert not vectors[:5].any(), "shards hold no special tokens"
