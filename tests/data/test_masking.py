from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from albert_cli.data.batches import original_ids, sample_batch
from albert_cli.data.masking import MaskedSpans, mask_spans, ngram_probabilities, select_spans
from albert_cli.data.pairs import PackedSequences, PairSettings, pack_sequences, sample_pairs
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.words import WordRule, find_word_boundaries
from tests.helpers.corpora import FIRST_ORDINARY, FakeVocabulary, numbered_corpus, text_like_corpus, word_starts

VOCABULARY = FakeVocabulary()


def sample_sequences(settings: PairSettings, sequences: int = 400, seed: int = 0) -> PackedSequences:
    corpus = text_like_corpus(400)
    pairs = sample_pairs(corpus, np.arange(sequences), settings, seed)
    return pack_sequences(corpus, pairs, VOCABULARY.cls_id, VOCABULARY.sep_id)


def select(
    packed: PackedSequences, settings: PairSettings, seed: int = 0, vocabulary: Vocabulary = VOCABULARY
) -> MaskedSpans:
    return select_spans(packed, vocabulary, settings, seed, np.arange(packed.offsets.size - 1))


def words_of(
    packed: PackedSequences, row: int, settings: PairSettings, vocabulary: Vocabulary = VOCABULARY
) -> list[list[int]]:
    """Return the words of one sequence as lists of positions, with an empty list for a special token."""
    words: list[list[int]] = []
    starts = vocabulary.word_boundaries().starts
    for position in range(int(packed.offsets[row]), int(packed.offsets[row + 1])):
        if packed.is_special[position]:
            words.append([])
        elif words[-1] and settings.whole_word and not starts[packed.ids[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def plain_spans(
    packed: PackedSequences, settings: PairSettings, rng: random.Random
) -> list[list[tuple[list[int], bool]]]:
    """Run the released generator's procedure one word at a time; return each sequence's (span, was shortened)."""
    everything = []
    probabilities = ngram_probabilities(settings).tolist()
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
            (drawn,) = rng.choices(range(1, settings.ngram + 1), probabilities)
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
def test_select_spans_matches_the_generators_distribution(settings: PairSettings) -> None:
    packed = sample_sequences(settings)
    spans = select(packed, settings)
    plain = [chosen for row in plain_spans(packed, settings, random.Random(1)) for chosen in row]
    ours = Counter((spans.stop - spans.start).tolist())
    theirs = Counter(len(span) for span, _ in plain)
    common = [k for k in set(ours) | set(theirs) if ours[k] + theirs[k] >= 20]
    assert chi2_contingency([[ours[k] for k in common], [theirs[k] for k in common]]).pvalue > 1e-3
    shortened = [[int(spans.is_shortened.sum()), int((~spans.is_shortened).sum())]]
    n_shortened = sum(was_shortened for _, was_shortened in plain)
    shortened += [[n_shortened, len(plain) - n_shortened]]
    assert chi2_contingency(shortened).pvalue > 1e-3
    assert abs(sum(ours[k] * k for k in ours) - sum(theirs[k] * k for k in theirs)) <= 0.002 * packed.ids.size


def assert_rules(packed: PackedSequences, spans: MaskedSpans, settings: PairSettings, vocabulary: Vocabulary) -> None:
    """Check that spans are whole words, at most `ngram`, in one segment, disjoint, and within the budget."""
    word_of: dict[int, tuple[int, int]] = {}
    in_word: dict[int, list[int]] = {}
    for row in range(packed.offsets.size - 1):
        for number, word in enumerate(words_of(packed, row, settings, vocabulary)):
            for position in word:
                word_of[position] = (row, number)
                in_word[position] = word
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
def test_select_spans_obeys_every_rule_on_text(settings: PairSettings) -> None:
    packed = sample_sequences(settings, 100)
    spans = select(packed, settings)
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
    word_start_fraction=st.floats(0, 1),
    seed=st.integers(0, 2**63),
)
def test_select_spans_obeys_every_rule_on_any_corpus(
    documents: list[list[int]], length: int, settings: PairSettings, word_start_fraction: float, seed: int
) -> None:
    settings = replace(settings, max_seq_length=length)
    corpus = numbered_corpus([documents])
    vocabulary = FakeVocabulary(is_word_start=word_starts(30_000, word_start_fraction))
    pairs = sample_pairs(corpus, np.arange(12), settings, seed)
    packed = pack_sequences(corpus, pairs, 2, 3)
    assert (np.diff(packed.offsets) <= length).all()
    assert (packed.ids[packed.is_special] < FIRST_ORDINARY).all()
    assert (packed.ids[~packed.is_special] >= FIRST_ORDINARY).all()
    assert_rules(packed, select(packed, settings, seed, vocabulary), settings, vocabulary)


def test_select_spans_covers_15_percent_of_positions() -> None:
    packed = sample_sequences(PairSettings())
    spans = select(packed, PairSettings())
    assert abs((spans.stop - spans.start).sum() / packed.ids.size - 0.15) < 0.003


def test_select_spans_first_length_follows_the_paper() -> None:
    # Every piece is a word and the budget is three words, so the first span of a sequence is shortened only at a
    # segment's end.
    vocabulary = FakeVocabulary(is_word_start=np.ones(30_000, bool))
    settings = PairSettings(max_predictions=3)
    packed = sample_sequences(settings, 6000)
    spans = select(packed, settings, vocabulary=vocabulary)
    row = np.searchsorted(packed.offsets, spans.start, "right")
    order = np.argsort(row, kind="stable")  # spans come in the order in which they were chosen
    first = order[np.unique(row[order], return_index=True)[1]]
    words = spans.words[first][~spans.is_shortened[first]]
    assert words.size > 5800
    expected = np.array([6, 3, 2]) / 11 * words.size
    assert chisquare(np.bincount(words, minlength=4)[1:], expected).pvalue > 1e-3


def test_ngram_probabilities_can_favor_longer_ngrams() -> None:
    assert ngram_probabilities(PairSettings(favor_shorter_ngram=False)) == pytest.approx([2 / 11, 3 / 11, 6 / 11])


def test_mask_spans_replaces_80_keeps_10_randomizes_10() -> None:
    settings = PairSettings()
    packed = sample_sequences(settings)
    result = mask_spans(packed, select(packed, settings), VOCABULARY, 0, np.arange(400))
    shown = result.ids[result.index]
    is_mask = shown == VOCABULARY.mask_id
    is_unchanged = shown == result.labels
    counts = [int(is_mask.sum()), int(is_unchanged.sum()), int((~is_mask & ~is_unchanged).sum())]
    assert chisquare(counts, np.array([0.8, 0.1, 0.1]) * shown.size).pvalue > 1e-3
    random_pieces = shown[~is_mask & ~is_unchanged]
    assert random_pieces.min() >= FIRST_ORDINARY
    bins = np.bincount((random_pieces - FIRST_ORDINARY) * 20 // (VOCABULARY.size - 5), minlength=20)
    assert chisquare(bins).pvalue > 1e-3


def test_mask_spans_random_tokens_cover_all_ordinary_ids() -> None:
    small = FakeVocabulary(size=9, is_word_start=word_starts(9))
    corpus = text_like_corpus(20, size=9)
    packed = sample_batch(corpus, small, PairSettings(), 0, np.arange(200))
    now = packed.ids[packed.masked_index]
    assert set(now[now != small.mask_id].tolist()) == {5, 6, 7, 8}


@given(seed=st.integers(0, 2**63), length=st.integers(5, 40), cap=st.integers(0, 4))
def test_sample_batch_changes_only_masked_positions(seed: int, length: int, cap: int) -> None:
    settings = PairSettings(max_seq_length=length, max_predictions=cap)
    corpus = text_like_corpus(20, seed=seed % 7)
    pairs = sample_pairs(corpus, np.arange(8), settings, seed)
    sequences = pack_sequences(corpus, pairs, 2, 3)
    packed = sample_batch(corpus, VOCABULARY, settings, seed, np.arange(8))
    assert np.array_equal(original_ids(packed), sequences.ids)
    assert (np.diff(packed.masked_index) > 0).all()
    assert not sequences.is_special[packed.masked_index].any()
    assert not np.isin(packed.masked_labels, [2, 3]).any()
    assert np.array_equal(packed.offsets, sequences.offsets)


@pytest.mark.parametrize("rule", ["script", "reference"])
def test_select_spans_cuts_words_only_by_the_reference_rule(rule: WordRule) -> None:
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁прав", "ительств", "о", "▁народ", "ный", "."]
    text_pieces = ["" if index < FIRST_ORDINARY else piece for index, piece in enumerate(pieces)]
    boundaries = find_word_boundaries(text_pieces, rule)
    vocabulary = FakeVocabulary(size=len(pieces), boundaries={rule: boundaries})
    corpus = text_like_corpus(50, size=len(pieces))
    settings = PairSettings(128, word_rule=rule)
    packed = pack_sequences(corpus, sample_pairs(corpus, np.arange(50), settings, 0), 2, 3)
    spans = select(packed, settings, vocabulary=vocabulary)
    follows_special = np.append(True, packed.is_special[:-1])
    # "." begins no word: by the rule "script", punctuation belongs to the word that it touches.
    word_start_ids = [index for index, piece in enumerate(pieces) if piece.startswith("▁")]
    is_boundary = np.isin(packed.ids, word_start_ids) | packed.is_special | follows_special
    is_cut = ~is_boundary[spans.start] | ~is_boundary[spans.stop]
    assert is_cut.any() == (rule == "reference")
    assert spans.start.size > 200
