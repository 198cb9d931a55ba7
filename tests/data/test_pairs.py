from __future__ import annotations

import hashlib
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest, chisquare

from albert_cli import config
from albert_cli.data.pairs import PairSettings, SegmentPairs, SentenceLoss, examples_per_pass, sample_pairs
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError
from tests.helpers.corpora import document_of, numbered_corpus, text_like_corpus

sentence = st.integers(1, 40)
document = st.lists(sentence, min_size=1, max_size=12)
corpora = st.lists(st.lists(document, min_size=1, max_size=8), min_size=1, max_size=3)
losses: st.SearchStrategy[SentenceLoss] = st.sampled_from(["sop", "nsp", "none"])


def columns(pairs: SegmentPairs) -> list[NDArray[np.int64]]:
    """Return all arrays of the pairs, [B] each."""
    arrays = (pairs.a.start, pairs.a.stop, pairs.b.start, pairs.b.stop, pairs.order_labels)
    return [array.astype(np.int64) for array in arrays]


def truncate_piece_by_piece(a: int, b: int, longest: int) -> tuple[int, int]:
    """Apply the released generator's rule: drop from the longer one, from B if they are equal."""
    while a + b > longest:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


@given(shards=corpora, loss=losses, length=st.integers(5, 64), seed=st.integers(0, 99))
def test_sample_pairs_obeys_every_rule(
    shards: list[list[list[int]]], loss: SentenceLoss, length: int, seed: int
) -> None:
    corpus = numbered_corpus(shards)
    rules = PairSettings(length, sentence_loss=loss)
    pairs = sample_pairs(corpus, np.arange(40), rules, seed)
    sizes = [len(document) for documents in shards for document in documents]
    sentence_lengths = [n for documents in shards for n in chain.from_iterable(documents)]
    starts = set(np.cumsum([0, *sentence_lengths]).tolist())
    for a, a_end, b, b_end, label in zip(
        pairs.a.start.tolist(), pairs.a.stop.tolist(), pairs.b.start.tolist(), pairs.b.stop.tolist(),
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
def test_sample_pairs_fills_sequences_if_document_is_long(shards: list[list[list[int]]], seed: int) -> None:
    corpus = numbered_corpus(shards)
    pairs = sample_pairs(corpus, np.arange(40), PairSettings(35, short_sequence_probability=0), seed)
    tokens = [sum(document) for documents in shards for document in documents]
    length = (pairs.a.length + pairs.b.length).tolist()
    for start, size in zip(pairs.a.start.tolist(), length, strict=True):
        assert size == min(32, tokens[document_of(corpus, start)])


@given(a=st.integers(1, 300), b=st.integers(1, 300), longest=st.integers(2, 200))
def test_truncation_equals_dropping_token_by_token(a: int, b: int, longest: int) -> None:
    corpus = numbered_corpus([[[a, b]]])
    rules = PairSettings(longest + 3, short_sequence_probability=0, sentence_loss="none")
    pairs = sample_pairs(corpus, np.arange(1), rules, 0)
    lengths = (int(pairs.a.length[0]), int(pairs.b.length[0]))
    assert lengths == truncate_piece_by_piece(a, b, longest)


def test_truncation_cuts_uniformly_at_front_and_back() -> None:
    corpus = numbered_corpus([[[200, 200]]])
    pairs = sample_pairs(corpus, np.arange(2000), PairSettings(103, 0, "none"), 0)
    front = np.concatenate([pairs.a.start, pairs.b.start - 200])
    assert chisquare(np.bincount(front, minlength=151)).pvalue > 1e-3


def test_sample_pairs_visits_tokens_equally_often() -> None:
    corpus = numbered_corpus([[[5] * 400], [[5] * 400]])
    rules = PairSettings(43, short_sequence_probability=0)
    passes = 200
    index = np.arange(passes * examples_per_pass(corpus, rules))
    pairs = sample_pairs(corpus, index, rules, 1)
    seen = np.zeros(corpus.n_tokens + 1, np.int64)
    for start, stop in ((pairs.a.start, pairs.a.stop), (pairs.b.start, pairs.b.stop)):
        np.add.at(seen, start, 1)
        np.add.at(seen, stop, -1)
    times = np.cumsum(seen)[:-1]
    inner = np.concatenate([times[45:1955], times[2045:3955]])
    assert abs(inner.mean() / passes - 1) < 0.03
    assert inner.std() / inner.mean() < 0.1
    # Only a sequence that begins with the first sentence contains it, and all these sequences contain the tenth.
    assert times.min() / passes > 0.4
    assert times.max() / passes < 1.7


@settings(max_examples=10)
@given(shards=st.lists(st.lists(document, min_size=1, max_size=3), min_size=1, max_size=2), loss=losses)
def test_sample_pairs_visits_every_sentence(shards: list[list[list[int]]], loss: SentenceLoss) -> None:
    corpus = numbered_corpus(shards)
    rules = PairSettings(16, sentence_loss=loss)
    pairs = sample_pairs(corpus, np.arange(200 * examples_per_pass(corpus, rules)), rules, 0)
    seen = np.zeros(corpus.n_tokens + 1, np.int64)
    for start, stop in ((pairs.a.start, pairs.a.stop), (pairs.b.start, pairs.b.stop)):
        np.add.at(seen, start, 1)
        np.add.at(seen, stop, -1)
    times = np.cumsum(seen)[:-1]
    sentence_lengths = [n for documents in shards for n in chain.from_iterable(documents)]
    starts = np.cumsum([0, *sentence_lengths])[:-1]
    assert (np.add.reduceat(times, starts) > 0).all()


def test_sample_pairs_is_unchanged_between_releases() -> None:
    shards = []
    for k in range(3):
        shards.append([[1 + (7 * d + 3 * s + k) % 23 for s in range(1 + (5 * d + k) % 9)] for d in range(12)])
    digests: dict[SentenceLoss, str] = {
        "sop": "235b189dda9c3128",
        "nsp": "5337b648346004b1",
        "three-way": "b88baf06041d33dd",
    }
    for loss, digest in digests.items():
        rules = PairSettings(64, sentence_loss=loss)
        pairs = sample_pairs(numbered_corpus(shards), np.arange(2000), rules, 7)
        assert hashlib.sha256(np.stack(columns(pairs)).astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_sample_pairs_starts_once_in_every_stride() -> None:
    corpus = numbered_corpus([[[1] * 1000]])
    rules = PairSettings(13, short_sequence_probability=0, sentence_loss="none")
    for turn in range(3):
        pairs = sample_pairs(corpus, np.arange(100) + 100 * turn, rules, 0)
        inner = pairs.a.start[(pairs.a.start > 0) & (pairs.a.start < 990)]
        # A sequence begins or ends with its anchor: it starts at the anchor or nine tokens before it.
        (phase,) = (rest for rest in set(inner % 10) if (rest + 1) % 10 in inner % 10)
        is_first = inner % 10 == phase
        anchors = np.sort(np.where(is_first, inner, inner + 9))
        assert (np.diff(anchors) == 10).all()
        assert binomtest(int(is_first.sum()), is_first.size, 0.5).pvalue > 1e-3


def test_sample_pairs_balances_labels_and_lengths() -> None:
    corpus = text_like_corpus(3000)
    pairs = sample_pairs(corpus, np.arange(20_000), PairSettings(128), 0)
    assert binomtest(int((pairs.order_labels == 1).sum()), 20_000, 0.5).pvalue > 1e-3
    length = pairs.a.length + pairs.b.length
    # Documents have two sentences or more; what is short on purpose is what an unshortened draw would fill.
    full = sample_pairs(corpus, np.arange(20_000), PairSettings(128, 0), 0)
    could = full.a.length + full.b.length == 125
    shorter = binomtest(int((length < 125)[could].sum()), int(could.sum()), 0.1)
    # A target within a sentence of the longest still comes out full.
    assert 0.06 < shorter.statistic < 0.1


def test_sample_pairs_shortens_one_sequence_in_ten() -> None:
    corpus = numbered_corpus([[[1] * 5000]])  # sentences of one piece: the length is the target
    pairs = sample_pairs(corpus, np.arange(20_000), PairSettings(103), 0)
    length = pairs.a.length + pairs.b.length
    short = length[length < 100]
    assert binomtest(short.size, 20_000, 0.1 * 98 / 99).pvalue > 1e-3
    assert chisquare(np.bincount(short - 2, minlength=98)).pvalue > 1e-3


def test_choose_chunks_inner_boundary_is_uniform() -> None:
    corpus = numbered_corpus([[[4] * 1000]])
    pairs = sample_pairs(corpus, np.arange(9_000), PairSettings(43, 0, "none"), 2)
    sentences_in_a = (pairs.a.stop - pairs.a.start) // 4
    assert chisquare(np.bincount(sentences_in_a, minlength=10)[1:10]).pvalue > 1e-3


def test_nsp_negatives_come_from_every_other_document() -> None:
    corpus = numbered_corpus([[[3] * 30] * 4, [[3] * 30] * 4])
    pairs = sample_pairs(corpus, np.arange(4000), PairSettings(43, sentence_loss="nsp"), 0)
    away = pairs.order_labels == 1
    assert binomtest(int(away.sum()), 4000, 0.5).pvalue > 1e-3
    home = pairs.a.start[away] // 90
    other = pairs.b.start[away] // 90
    assert (home != other).all()
    assert chisquare(np.bincount((other - home) % 8, minlength=8)[1:]).pvalue > 1e-3


def test_three_way_labels_are_balanced_and_correct() -> None:
    corpus = numbered_corpus([[[3] * 30] * 4, [[3] * 30] * 4])
    pairs = sample_pairs(corpus, np.arange(3000), PairSettings(43, sentence_loss="three-way"), 0)
    assert chisquare(np.bincount(pairs.order_labels, minlength=3)).pvalue > 1e-3
    home = pairs.a.start // 90
    other = pairs.b.start // 90
    assert ((home != other) == (pairs.order_labels == 2)).all()
    same = home == other
    assert ((pairs.b.stop <= pairs.a.start)[same] == (pairs.order_labels == 1)[same]).all()
    alone = sample_pairs(numbered_corpus([[[3] * 30]]), np.arange(50), PairSettings(43, sentence_loss="three-way"), 0)
    assert set(alone.order_labels.tolist()) == {0, 1}, "of one document there are two ways"


@pytest.mark.parametrize("loss", ["nsp", "three-way"])
def test_length_of_a_pair_does_not_reveal_its_label(loss: SentenceLoss) -> None:
    rng = np.random.default_rng(0)
    corpus = numbered_corpus([[[10] * int(rng.integers(6, 200)) for _ in range(300)] for _ in range(2)])
    pairs = sample_pairs(corpus, np.arange(20_000), PairSettings(503, 0, loss), 0)
    is_full = pairs.a.length + pairs.b.length == 500
    full = [float(is_full[pairs.order_labels == label].mean()) for label in range(int(pairs.order_labels.max()) + 1)]
    assert max(full) - min(full) < 0.1
    assert min(full) > 0.3


def test_nsp_on_one_document_has_no_labels() -> None:
    pairs = sample_pairs(numbered_corpus([[[3] * 30]]), np.arange(50), PairSettings(43, sentence_loss="nsp"), 0)
    assert (pairs.b.stop > pairs.b.start).all() and (pairs.order_labels == -1).all()


@settings(max_examples=30)
@given(index=st.lists(st.integers(0, 2**50), min_size=1, max_size=5), seed=st.integers(0, 2**63))
def test_sample_pairs_is_independent_of_the_batch(index: list[int], seed: int) -> None:
    corpus: TokenCorpus = text_like_corpus(60, shards=3)
    together = sample_pairs(corpus, np.array(index), PairSettings(64, sentence_loss="nsp"), seed)
    for row, one in enumerate(index):
        alone = sample_pairs(corpus, np.array([one]), PairSettings(64, sentence_loss="nsp"), seed)
        assert [values[row] for values in columns(together)] == [values[0] for values in columns(alone)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_seq_length": 4},
        {"short_sequence_probability": 1.5},
        {"sentence_loss": "sentence"},
        {"masked_lm_probability": 0.0},
        {"max_predictions": -1},
        {"ngram": 0},
    ],
)
def test_pair_settings_rejects_wrong_values_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        config.validate_recipe(PairSettings, wrong, "recipe")
