from __future__ import annotations

import hashlib
from dataclasses import astuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from albert_cli import config
from albert_cli.data.pairs import PairSettings, examples_per_pass, sample_pairs
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError
from tests.data.synthetic import document_of, numbered_corpus, text_like_corpus

sentence = st.integers(1, 40)
document = st.lists(sentence, min_size=1, max_size=12)
corpora = st.lists(st.lists(document, min_size=1, max_size=8), min_size=1, max_size=3)
losses = st.sampled_from(["sop", "nsp", "none"])


def truncate_piece_by_piece(a: int, b: int, longest: int) -> tuple[int, int]:
    """The released generator's rule: drop from the longer one, from B where they are equal."""
    while a + b > longest:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


@given(shards=corpora, loss=losses, length=st.integers(5, 64), seed=st.integers(0, 99))
def test_pairs_obey_every_rule(shards: list[list[list[int]]], loss: str, length: int, seed: int) -> None:
    corpus = numbered_corpus(shards)
    rules = PairSettings(length, sentence_loss=loss)  # type: ignore[arg-type]
    pairs = sample_pairs(corpus, np.arange(40), rules, seed)
    sizes = [len(document) for documents in shards for document in documents]
    starts = set(np.cumsum([0, *(n for d in shards for e in d for n in e)]).tolist())
    for a, a_end, b, b_end, label in zip(
        pairs.a_start.tolist(), pairs.a_stop.tolist(), pairs.b_start.tolist(), pairs.b_stop.tolist(),
        pairs.order_labels.tolist(), strict=True,
    ):  # fmt: skip
        home = document_of(corpus, a)
        assert a_end - a > 0
        assert a_end - a + b_end - b <= length - 3
        assert home == document_of(corpus, a_end - 1)
        if b == b_end:
            assert sizes[home] == 1, "one segment only where the document has one sentence"
            assert label == -1
            continue
        assert sizes[home] > 1
        away = document_of(corpus, b)
        assert away == document_of(corpus, b_end - 1)
        is_asked = loss == "sop" or (loss == "nsp" and len(sizes) > 1)  # all pairs of one document are in order
        assert label in (0, 1) if is_asked else label == -1
        if label == 1 and loss == "nsp":
            assert away != home
        elif label == 1:
            assert away == home
            assert b_end <= a
        else:
            assert away == home
            assert a_end <= b
            assert starts & set(range(a_end, b + 1)), "segments meet at a sentence boundary"


@given(shards=corpora, seed=st.integers(0, 99))
def test_a_sequence_is_full_wherever_its_document_is_long_enough(shards: list[list[list[int]]], seed: int) -> None:
    corpus = numbered_corpus(shards)
    pairs = sample_pairs(corpus, np.arange(40), PairSettings(35, short_sequence_probability=0), seed)
    tokens = [sum(document) for documents in shards for document in documents]
    length = (pairs.a_stop - pairs.a_start + pairs.b_stop - pairs.b_start).tolist()
    for start, size in zip(pairs.a_start.tolist(), length, strict=True):
        assert size == min(32, tokens[document_of(corpus, start)])


@given(a=st.integers(1, 300), b=st.integers(1, 300), longest=st.integers(2, 200))
def test_truncation_leaves_what_dropping_piece_by_piece_leaves(a: int, b: int, longest: int) -> None:
    corpus = numbered_corpus([[[a, b]]])
    rules = PairSettings(longest + 3, short_sequence_probability=0, sentence_loss="none")
    pairs = sample_pairs(corpus, np.arange(1), rules, 0)
    lengths = (int(pairs.a_stop[0] - pairs.a_start[0]), int(pairs.b_stop[0] - pairs.b_start[0]))
    assert lengths == truncate_piece_by_piece(a, b, longest)


def test_truncation_cuts_front_and_back() -> None:
    corpus = numbered_corpus([[[200, 200]]])
    pairs = sample_pairs(corpus, np.arange(2000), PairSettings(103, 0, "none"), 0)
    front = np.concatenate([pairs.a_start, pairs.b_start - 200])
    assert chisquare(np.bincount(front, minlength=151)).pvalue > 1e-3


def test_every_token_is_drawn_about_equally_often() -> None:
    corpus = numbered_corpus([[[5] * 400], [[5] * 400]])
    rules = PairSettings(43, short_sequence_probability=0)
    passes = 60
    index = np.arange(passes * examples_per_pass(corpus, rules))
    pairs = sample_pairs(corpus, index, rules, 1)
    seen = np.zeros(corpus.tokens + 1, np.int64)
    for start, stop in ((pairs.a_start, pairs.a_stop), (pairs.b_start, pairs.b_stop)):
        np.add.at(seen, start, 1)
        np.add.at(seen, stop, -1)
    times = np.cumsum(seen)[:-1]
    inner = np.concatenate([times[45:1955], times[2045:3955]])  # documents' ends: fewer starts reach them
    assert abs(inner.mean() / passes - 1) < 0.03
    assert inner.std() / inner.mean() < 0.12
    assert times.min() > 0


@settings(max_examples=10)
@given(shards=st.lists(st.lists(document, min_size=1, max_size=3), min_size=1, max_size=2), loss=losses)
def test_every_sentence_is_drawn_sooner_or_later(shards: list[list[list[int]]], loss: str) -> None:
    corpus = numbered_corpus(shards)
    rules = PairSettings(16, sentence_loss=loss)  # type: ignore[arg-type]
    pairs = sample_pairs(corpus, np.arange(200 * examples_per_pass(corpus, rules)), rules, 0)
    seen = np.zeros(corpus.tokens + 1, np.int64)
    for start, stop in ((pairs.a_start, pairs.a_stop), (pairs.b_start, pairs.b_stop)):
        np.add.at(seen, start, 1)
        np.add.at(seen, stop, -1)
    times = np.cumsum(seen)[:-1]
    starts = np.cumsum([0, *(n for documents in shards for d in documents for n in d)])[:-1]
    assert (np.add.reduceat(times, starts) > 0).all()


@given(
    shards=corpora, again=st.booleans(), length=st.integers(5, 300), block=st.integers(1, 4), seed=st.integers(0, 99)
)
def test_a_pass_draws_every_short_document_once(
    shards: list[list[list[int]]], again: bool, length: int, block: int, seed: int
) -> None:
    corpus = numbered_corpus(shards)
    if again:  # a text of weight two: its shards are named twice
        corpus = TokenCorpus([*corpus.shards, *corpus.shards])
    stride, rules = length - 3, PairSettings(length, sentence_loss="none", short_documents="once")
    tokens = np.array([sum(document) for documents in shards for document in documents] * (1 + again))
    starts = np.cumsum(tokens) - tokens
    with patch("albert_cli.data.shards._BLOCK", block):
        size = examples_per_pass(corpus, rules)
        assert size == -(-np.maximum(tokens, stride).sum() // stride)
        for turn in range(3):
            pairs = sample_pairs(corpus, np.arange(size) + turn * size, rules, seed)
            times = np.bincount(np.searchsorted(starts, pairs.a_start, "right") - 1, minlength=tokens.size)
            assert (times >= np.maximum(tokens // stride, 1)).all()
            over = times - np.maximum(-(-tokens // stride), 1)
            assert over.max() <= 1 and (over == 1).sum() <= 1, "where the last stride laps over the first"
            if (tokens <= stride).all():
                assert (times == 1).all()


@given(shards=corpora, least=st.integers(1, 300), block=st.integers(1, 4))
def test_a_short_document_is_stretched_evenly(shards: list[list[list[int]]], least: int, block: int) -> None:
    corpus = numbered_corpus(shards)
    with patch("albert_cli.data.shards._BLOCK", block):
        drawn = corpus.token_at(np.arange(corpus.stretched_axis(least)[-1]), least)
    assert (np.diff(drawn) >= 0).all()
    times = np.bincount(drawn, minlength=corpus.tokens)
    for tokens in (sum(document) for documents in shards for document in documents):
        own, times = times[:tokens], times[tokens:]
        assert own.sum() == max(tokens, least) and own.max() - own.min() <= 1
    assert not times.size


def test_by_length_every_seed_draws_what_it_always_drew() -> None:
    lengths = [
        [[1 + (7 * d + 3 * s + k) % 23 for s in range(1 + (5 * d + k) % 9)] for d in range(12)] for k in range(3)
    ]
    for loss, seen in (("sop", "3f09f61c82a9f23c"), ("nsp", "4f53650bd759912f"), ("three-way", "9e6c873c35bb1920")):
        rules = PairSettings(64, sentence_loss=loss)  # type: ignore[arg-type]
        pairs = astuple(sample_pairs(numbered_corpus(lengths), np.arange(2000), rules, 7))
        assert hashlib.sha256(np.stack(pairs).astype("<i8").tobytes()).hexdigest()[:16] == seen


def test_one_pass_starts_once_in_every_stride() -> None:
    corpus = numbered_corpus([[[1] * 1000]])
    rules = PairSettings(13, short_sequence_probability=0, sentence_loss="none")
    for turn in range(3):
        pairs = sample_pairs(corpus, np.arange(100) + 100 * turn, rules, 0)
        starts = np.sort(pairs.a_start)
        assert (np.diff(starts) <= 10).all()
        assert np.unique(starts).size >= 99  # a start near the end is moved back


def test_shares_of_labels_and_short_sequences() -> None:
    corpus = text_like_corpus(3000)
    pairs = sample_pairs(corpus, np.arange(20_000), PairSettings(128), 0)
    assert binomtest(int((pairs.order_labels == 1).sum()), 20_000, 0.5).pvalue > 1e-3
    length = pairs.a_stop - pairs.a_start + pairs.b_stop - pairs.b_start
    # Documents have two sentences or more; what is short on purpose is what an unshortened draw would fill.
    full = sample_pairs(corpus, np.arange(20_000), PairSettings(128, 0), 0)
    could = full.a_stop - full.a_start + full.b_stop - full.b_start == 125
    shorter = binomtest(int((length < 125)[could].sum()), int(could.sum()), 0.1)
    # A target within a sentence of the longest still comes out full.
    assert 0.06 < shorter.statistic < 0.1


def test_short_targets_are_drawn_in_one_sequence_of_ten() -> None:
    corpus = numbered_corpus([[[1] * 5000]])  # sentences of one piece: the length is the target
    pairs = sample_pairs(corpus, np.arange(20_000), PairSettings(103), 0)
    length = pairs.a_stop - pairs.a_start + pairs.b_stop - pairs.b_start
    short = length[length < 100]
    assert binomtest(short.size, 20_000, 0.1 * 98 / 99).pvalue > 1e-3
    assert chisquare(np.bincount(short - 2, minlength=98)).pvalue > 1e-3


def test_the_inner_boundary_is_uniform() -> None:
    corpus = numbered_corpus([[[4] * 1000]])
    pairs = sample_pairs(corpus, np.arange(9_000), PairSettings(43, 0, "none"), 2)
    sentences_in_a = (pairs.a_stop - pairs.a_start) // 4
    assert chisquare(np.bincount(sentences_in_a, minlength=10)[1:10]).pvalue > 1e-3


def test_next_sentence_negatives_come_from_every_other_document() -> None:
    corpus = numbered_corpus([[[3] * 30] * 4, [[3] * 30] * 4])
    pairs = sample_pairs(corpus, np.arange(4000), PairSettings(43, sentence_loss="nsp"), 0)
    away = pairs.order_labels == 1
    assert binomtest(int(away.sum()), 4000, 0.5).pvalue > 1e-3
    home, other = pairs.a_start[away] // 90, pairs.b_start[away] // 90
    assert (home != other).all()
    assert chisquare(np.bincount((other - home) % 8, minlength=8)[1:]).pvalue > 1e-3


def test_three_ways_are_equally_frequent_and_what_they_are_called() -> None:
    corpus = numbered_corpus([[[3] * 30] * 4, [[3] * 30] * 4])
    pairs = sample_pairs(corpus, np.arange(3000), PairSettings(43, sentence_loss="three-way"), 0)
    assert chisquare(np.bincount(pairs.order_labels, minlength=3)).pvalue > 1e-3
    home, other = pairs.a_start // 90, pairs.b_start // 90
    assert ((home != other) == (pairs.order_labels == 2)).all()
    same = home == other
    assert ((pairs.b_stop <= pairs.a_start)[same] == (pairs.order_labels == 1)[same]).all()
    alone = sample_pairs(numbered_corpus([[[3] * 30]]), np.arange(50), PairSettings(43, sentence_loss="three-way"), 0)
    assert set(alone.order_labels.tolist()) == {0, 1}, "of one document there are two ways"


def test_next_sentence_with_one_document_is_not_asked() -> None:
    """Every pair would be in order, and whoever says so always right."""
    pairs = sample_pairs(numbered_corpus([[[3] * 30]]), np.arange(50), PairSettings(43, sentence_loss="nsp"), 0)
    assert (pairs.b_stop > pairs.b_start).all() and (pairs.order_labels == -1).all()


@settings(max_examples=30)
@given(index=st.lists(st.integers(0, 2**50), min_size=1, max_size=5), seed=st.integers(0, 2**63))
def test_an_example_does_not_depend_on_its_batch(index: list[int], seed: int) -> None:
    corpus: TokenCorpus = text_like_corpus(60, shards=3)
    together = sample_pairs(corpus, np.array(index), PairSettings(64, sentence_loss="nsp"), seed)
    for row, one in enumerate(index):
        alone = sample_pairs(corpus, np.array([one]), PairSettings(64, sentence_loss="nsp"), seed)
        for name in ("a_start", "a_stop", "b_start", "b_stop", "order_labels"):
            assert getattr(together, name)[row] == getattr(alone, name)[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_seq_length": 4},
        {"short_sequence_probability": 1.5},
        {"sentence_loss": "sentence"},
        {"masked_lm_probability": 0.0},
        {"max_predictions": -1},
        {"ngram": 0},
        {"short_documents": "twice"},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        config.validate_recipe(PairSettings, wrong, "recipe")
