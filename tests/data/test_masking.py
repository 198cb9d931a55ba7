from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare

from albert_cli.data.batches import original_ids, pack_pairs, sample_batch
from albert_cli.data.masking import MaskedSpans, mask_batch, ngram_probabilities, select_spans
from albert_cli.data.pairs import PairSettings, sample_pairs
from albert_cli.text.vocabulary import Vocabulary
from tests.data.synthetic import FIRST_ORDINARY, FakeVocabulary, numbered_corpus, text_like_corpus, word_starts

VOCABULARY = FakeVocabulary()


class Packed(NamedTuple):
    ids: NDArray[np.int32]
    special: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    examples: NDArray[np.int64]


def draw(settings: PairSettings, sequences: int = 400, seed: int = 0) -> Packed:
    index = np.arange(sequences)
    corpus = text_like_corpus(400)
    pairs = sample_pairs(corpus, index, settings, seed)
    ids, special, _, offsets = pack_pairs(corpus, pairs, VOCABULARY.cls_id, VOCABULARY.sep_id)
    return Packed(ids, special, offsets, index)


def spans_of(packed: Packed, settings: PairSettings, seed: int = 0, vocabulary: Vocabulary = VOCABULARY) -> MaskedSpans:
    return select_spans(packed.ids, packed.special, packed.offsets, vocabulary, settings, seed, packed.examples)


def words_of(packed: Packed, row: int, settings: PairSettings, vocabulary: Vocabulary = VOCABULARY) -> list[list[int]]:
    """The words of one sequence as lists of positions, an empty list where a special token stands."""
    words: list[list[int]] = []
    for position in range(int(packed.offsets[row]), int(packed.offsets[row + 1])):
        if packed.special[position]:
            words.append([])
        elif words[-1] and settings.whole_word and not vocabulary.is_word_start[packed.ids[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def plain_spans(packed: Packed, settings: PairSettings, rng: random.Random) -> list[list[tuple[list[int], bool]]]:
    """The released generator's procedure, one word at a time: each sequence's spans, and if shortened."""
    everything = []
    for row in range(packed.offsets.size - 1):
        words = words_of(packed, row, settings)
        length = int(packed.offsets[row + 1] - packed.offsets[row])
        budget = max(1, round(length * settings.masked_lm_probability))
        budget = min(budget, settings.max_predictions) if settings.max_predictions else budget
        order = [i for i, word in enumerate(words) if word]
        rng.shuffle(order)
        taken: set[int] = set()
        chosen = []
        for first in order:
            if len(taken) >= budget:
                break
            (drawn,) = rng.choices(range(1, settings.ngram + 1), ngram_probabilities(settings).tolist())
            reach = next(i for i in range(first, len(words)) if not words[i]) - first
            n = min(drawn, reach)
            while n > 1 and len(taken) + sum(map(len, words[first : first + n])) > budget:
                n -= 1
            span = [p for word in words[first : first + n] for p in word]
            if len(taken) + len(span) > budget or taken & set(span):
                continue
            taken |= set(span)
            chosen.append((span, n < drawn))
        everything.append(chosen)
    return everything


RULES = [
    PairSettings(),
    PairSettings(max_seq_length=128),
    PairSettings(max_predictions=20),
    PairSettings(max_seq_length=128, favor_shorter_ngram=False),
    PairSettings(max_seq_length=128, ngram=5, masked_lm_probability=0.3),
    PairSettings(max_seq_length=128, whole_word=False, sentence_loss="none"),
]


@pytest.mark.parametrize("settings", RULES)
def test_spans_are_distributed_as_the_plain_procedure_draws_them(settings: PairSettings) -> None:
    packed = draw(settings)
    spans = spans_of(packed, settings)
    plain = [s for row in plain_spans(packed, settings, random.Random(1)) for s in row]
    ours = Counter((spans.stop - spans.start).tolist())
    theirs = Counter(len(span) for span, _ in plain)
    common = [k for k in set(ours) | set(theirs) if ours[k] + theirs[k] >= 20]
    assert chi2_contingency([[ours[k] for k in common], [theirs[k] for k in common]]).pvalue > 1e-3
    shortened = [[int(spans.shortened.sum()), int((~spans.shortened).sum())]]
    shortened += [[sum(s for _, s in plain), sum(not s for _, s in plain)]]
    assert chi2_contingency(shortened).pvalue > 1e-3
    assert abs(sum(ours[k] * k for k in ours) - sum(theirs[k] * k for k in theirs)) <= 0.002 * packed.ids.size


def assert_rules(packed: Packed, spans: MaskedSpans, settings: PairSettings, vocabulary: Vocabulary) -> None:
    """Spans are whole words, at most `ngram`, of one segment, apart, and within the budget."""
    word_of, in_word = {}, {}
    for row in range(packed.offsets.size - 1):
        for number, word in enumerate(words_of(packed, row, settings, vocabulary)):
            for position in word:
                word_of[position], in_word[position] = (row, number), word
    taken = Counter[int]()
    covered: set[int] = set()
    chosen = (spans.start, spans.stop, spans.words)
    for start, stop, n in zip(*(part.tolist() for part in chosen), strict=True):
        span = set(range(start, stop))
        assert span <= word_of.keys(), "never a special token, so never across one"
        assert {p for position in span for p in in_word[position]} == span, "complete words"
        assert len({word_of[position] for position in span}) == n <= settings.ngram
        assert not covered & span
        covered |= span
        taken[word_of[start][0]] += stop - start
    for row, length in enumerate(np.diff(packed.offsets).tolist()):
        budget = max(1, round(length * settings.masked_lm_probability))
        budget = min(budget, settings.max_predictions) if settings.max_predictions else budget
        assert taken[row] <= budget
        shortest = min(map(len, filter(None, words_of(packed, row, settings, vocabulary))))
        assert taken[row] or shortest > budget, "nothing only where no word fits"


@pytest.mark.parametrize("settings", RULES)
def test_spans_are_whole_words_within_one_segment_and_the_budget(settings: PairSettings) -> None:
    packed = draw(settings, 100)
    spans = spans_of(packed, settings)
    assert_rules(packed, spans, settings, VOCABULARY)
    spent = (spans.stop - spans.start).sum()
    budget = np.diff(packed.offsets) * settings.masked_lm_probability
    cap = settings.max_predictions or packed.ids.size
    assert spent >= 0.95 * np.minimum(budget, cap).sum()


@given(
    documents=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=6),
    length=st.integers(5, 70),
    settings=st.builds(
        PairSettings,
        sentence_loss=st.sampled_from(["sop", "nsp", "none"]),
        masked_lm_probability=st.floats(0.01, 0.9),
        max_predictions=st.integers(0, 6),
        ngram=st.integers(1, 5),
        whole_word=st.booleans(),
    ),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**63),
)
def test_spans_obey_the_rules_in_any_text(
    documents: list[list[int]], length: int, settings: PairSettings, share: float, seed: int
) -> None:
    settings = replace(settings, max_seq_length=length)
    corpus, index = numbered_corpus([documents]), np.arange(12)
    vocabulary = FakeVocabulary(is_word_start=word_starts(30_000, share))
    pairs = sample_pairs(corpus, index, settings, seed)
    ids, special, _, offsets = pack_pairs(corpus, pairs, 2, 3)
    packed = Packed(ids, special, offsets, index)
    assert (np.diff(offsets) <= length).all()
    assert (ids[special] < FIRST_ORDINARY).all() and (ids[~special] >= FIRST_ORDINARY).all()
    assert_rules(packed, spans_of(packed, settings, seed, vocabulary), settings, vocabulary)


def test_fifteen_percent_of_the_positions_are_masked() -> None:
    packed = draw(PairSettings())
    spans = spans_of(packed, PairSettings())
    assert abs((spans.stop - spans.start).sum() / packed.ids.size - 0.15) < 0.003


def test_the_first_span_of_a_sequence_has_exactly_the_papers_distribution() -> None:
    # One word a piece and a budget of three: the first candidate is never shortened but at a segment's end.
    vocabulary = FakeVocabulary(is_word_start=np.ones(30_000, bool))
    settings = PairSettings(max_predictions=3)
    packed = draw(settings, 6000)
    spans = spans_of(packed, settings, vocabulary=vocabulary)
    row = np.searchsorted(packed.offsets, spans.start, "right")
    order = np.argsort(row, kind="stable")  # spans come in the order in which they were chosen
    first = order[np.unique(row[order], return_index=True)[1]]
    words = spans.words[first][~spans.shortened[first]]
    assert words.size > 5800
    expected = np.array([6, 3, 2]) / 11 * words.size
    assert chisquare(np.bincount(words, minlength=4)[1:], expected).pvalue > 1e-3


def test_longer_ngrams_can_be_favoured() -> None:
    assert ngram_probabilities(PairSettings(favor_shorter_ngram=False)) == pytest.approx([2 / 11, 3 / 11, 6 / 11])


def test_pieces_become_mask_stay_or_change_in_the_papers_shares() -> None:
    settings = PairSettings()
    packed = draw(settings)
    changed, position, labels = mask_batch(*packed[:3], VOCABULARY, settings, 0, packed.examples)
    now = changed[position]
    masked, kept = now == VOCABULARY.mask_id, now == labels
    counts = [int(masked.sum()), int(kept.sum()), int((~masked & ~kept).sum())]
    assert chisquare(counts, np.array([0.8, 0.1, 0.1]) * position.size).pvalue > 1e-3
    random_pieces = now[~masked & ~kept]
    assert random_pieces.min() >= VOCABULARY.first_ordinary_id
    bins = np.bincount((random_pieces - VOCABULARY.first_ordinary_id) * 20 // (VOCABULARY.size - 5), minlength=20)
    assert chisquare(bins).pvalue > 1e-3


def test_random_pieces_reach_the_first_and_the_last_ordinary_one() -> None:
    small = FakeVocabulary(size=9, is_word_start=word_starts(9))
    corpus = text_like_corpus(20, size=9)
    packed = sample_batch(corpus, small, PairSettings(), 0, np.arange(200))
    now = packed.ids[packed.masked_index]
    assert set(now[now != small.mask_id].tolist()) == {5, 6, 7, 8}


@given(seed=st.integers(0, 2**63), length=st.integers(5, 40), cap=st.integers(0, 4))
def test_masking_changes_only_what_it_lists(seed: int, length: int, cap: int) -> None:
    settings = PairSettings(max_seq_length=length, max_predictions=cap)
    corpus = text_like_corpus(20, seed=seed % 7)
    pairs = sample_pairs(corpus, np.arange(8), settings, seed)
    ids, special, _, offsets = pack_pairs(corpus, pairs, 2, 3)
    packed = sample_batch(corpus, VOCABULARY, settings, seed, np.arange(8))
    assert np.array_equal(original_ids(packed), ids)
    assert (np.diff(packed.masked_index) > 0).all()
    assert not special[packed.masked_index].any()
    assert not np.isin(packed.masked_labels, [2, 3]).any()
    assert np.array_equal(packed.offsets, offsets)
