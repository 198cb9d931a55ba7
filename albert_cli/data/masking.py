"""Mask n-grams of whole words (§4.1), vectorized over a packed batch.

The rule is the released generator's. Words are tried in random order as starts of spans of n words, with p(n)
proportional to 1/n. A span that would exceed the budget is shortened; one that overlaps a chosen span is left out.
Each chosen token becomes [MASK] (80 %), stays (10 %) or becomes a random token (10 %).

Intended differences: the budget is 15 % of the positions (the generator's cap is a setting), a span never crosses a
[SEP], a segment's first token always starts a word, and random tokens are never special. The generator's permutation
objective is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import Flags, Ids, concatenate_ranges, offsets_from_lengths
from albert_cli.data.pairs import PackedSequences, PairSettings
from albert_cli.randomness import HashKeys, Integers, Stream, bounded_ints, hash_keys, random_bits, uniform
from albert_cli.text.vocabulary import Vocabulary

# Thresholds of one uniform number: 80 % [MASK], 10 % unchanged, 10 % random.
_MASK_BELOW = 0.8
_KEEP_BELOW = 0.9

# Of a word's 64 random bits the low 24 choose the span's length and the high 40 the word's rank.
_LENGTH_BITS = 24


@dataclass(frozen=True)
class MaskedTokens:
    """A masked batch: all ids int32 [T], the positions to predict int32 [M], ascending, and their labels int32 [M]."""

    ids: Ids
    index: Ids
    labels: Ids


@dataclass(frozen=True)
class MaskedSpans:
    """The K chosen spans: packed positions [start, stop) and number of words, int64 [K] each.

    is_shortened: bool [K], whether a span was shortened to fit the budget or the segment.
    """

    start: Integers
    stop: Integers
    words: Integers
    is_shortened: Flags

    def positions(self) -> Integers:
        """Return the packed positions that the spans cover, ascending: int64 [M]."""
        return np.sort(concatenate_ranges(self.start, self.stop - self.start))


@dataclass(frozen=True)
class _BatchWords:
    """The W words and special tokens of a batch, in order.

    start: packed positions, int64 [W + 1], the last is the batch's end; is_special: bool [W]; sequence: int64 [W];
    words_left: words from each one to its segment's end, itself included, int64 [W].
    """

    start: Integers
    is_special: Flags
    sequence: Integers
    words_left: Integers


def select_spans(
    sequences: PackedSequences, vocabulary: Vocabulary, settings: PairSettings, seed: int, index: Integers
) -> MaskedSpans:
    """Choose spans to predict in every sequence until its budget is spent; index: the examples' numbers, int64 [N]."""
    offsets = sequences.offsets
    starts_word = np.ones(sequences.ids.size, bool)
    if settings.whole_word:
        starts_word = vocabulary.word_boundaries(settings.word_rule).find_starts(sequences.ids)
    words = _split_into_words(starts_word, sequences.is_special, offsets)
    budget = np.rint(np.diff(offsets) * settings.masked_lm_probability).astype(np.int64)
    budget = np.maximum(1, budget)
    if settings.max_predictions:
        budget = np.minimum(budget, settings.max_predictions)
    position_in_sequence = words.start[:-1] - offsets[words.sequence]
    bits = random_bits(hash_keys(seed, Stream.SPANS, index)[words.sequence], position_in_sequence)
    return _choose_spans(words, bits, budget, settings)


def mask_spans(
    sequences: PackedSequences, spans: MaskedSpans, vocabulary: Vocabulary, seed: int, index: Integers
) -> MaskedTokens:
    """Change the ids that the spans cover: to [MASK], to a random ordinary token, or not at all."""
    position = spans.positions()
    labels = sequences.ids[position]
    sequence = _sequence_numbers(position, sequences.offsets)
    keys = hash_keys(seed, Stream.REPLACEMENT, index)
    bits = random_bits(keys[sequence], position - sequences.offsets[sequence])
    # `uniform` uses the upper bits and `bounded_ints` the lower ones, so the two are independent.
    fate = uniform(bits)
    ordinary_ids = vocabulary.ordinary_ids
    replacement = ordinary_ids[bounded_ints(bits, len(ordinary_ids))]
    replacement[fate < _KEEP_BELOW] = labels[fate < _KEEP_BELOW]
    replacement[fate < _MASK_BELOW] = vocabulary.mask_id
    ids = sequences.ids.copy()
    ids[position] = replacement
    return MaskedTokens(ids, position.astype(np.int32), labels)


def _sequence_numbers(position: Integers, offsets: Integers) -> Integers:
    """Return the sequence that holds each of some ascending packed positions: int64 [M]."""
    return np.repeat(np.arange(offsets.size - 1), np.diff(np.searchsorted(position, offsets)))


def _split_into_words(starts_word: Flags, special: Flags, offsets: Integers) -> _BatchWords:
    """Split a batch into words and special tokens; starts_word, special: bool [T]."""
    is_start = starts_word | special
    is_start[1:] |= special[:-1]  # truncation may begin a segment within a word
    start = np.flatnonzero(is_start)
    is_special = special[start]
    segment_end = np.append(np.flatnonzero(is_special), start.size)
    words_of_segment = np.diff(segment_end, prepend=0)
    words_left = np.repeat(segment_end, words_of_segment) - np.arange(start.size)
    return _BatchWords(np.append(start, starts_word.size), is_special, _sequence_numbers(start, offsets), words_left)


def _choose_spans(words: _BatchWords, bits: HashKeys, budget: Integers, settings: PairSettings) -> MaskedSpans:
    """Try words in random order as starts of spans until each of N sequences has spent its budget, int64 [N].

    bits: 64 random bits for each word, uint64 [W]. Round k tries the k-th candidate of every sequence at once.
    """
    requested_words = _sample_span_lengths(bits, settings)
    candidates, offsets = _shuffle_candidates(words, bits, budget.size)
    n_candidates = np.diff(offsets)
    # The margin lets a span look beyond the batch's last word.
    is_taken = np.append(words.is_special, np.ones(settings.ngram, bool))
    steps = np.arange(settings.ngram)
    budget_left = budget.copy()
    chosen_words = [np.zeros(0, np.int64)]
    chosen_lengths = [np.zeros(0, np.int64)]
    for round_number in range(n_candidates.max(initial=0)):
        sequence = np.flatnonzero((budget_left > 0) & (n_candidates > round_number))
        if sequence.size == 0:
            break
        word = candidates[offsets[sequence] + round_number]
        n_words = _shorten_to_fit(words, word, requested_words[word], budget_left[sequence])
        n_tokens = words.start[word + n_words] - words.start[word]
        covered = word[:, None] + steps
        is_inside = steps < n_words[:, None]
        overlaps = (is_taken[covered] & is_inside).any(axis=1)
        is_chosen = (n_tokens <= budget_left[sequence]) & ~overlaps
        is_taken[covered[is_chosen][is_inside[is_chosen]]] = True
        budget_left[sequence[is_chosen]] -= n_tokens[is_chosen]
        chosen_words.append(word[is_chosen])
        chosen_lengths.append(n_words[is_chosen])
    first = np.concatenate(chosen_words)
    length = np.concatenate(chosen_lengths)
    return MaskedSpans(words.start[first], words.start[first + length], length, length < requested_words[first])


def _sample_span_lengths(bits: HashKeys, settings: PairSettings) -> Integers:
    """Sample a span length in words for each word, from the low bits: int64 [W]."""
    length_bits = bits & np.uint64((1 << _LENGTH_BITS) - 1)
    length = np.ones(bits.size, np.int64)
    for cumulative in np.cumsum(ngram_probabilities(settings))[:-1]:
        length += length_bits >= np.uint64(cumulative * (1 << _LENGTH_BITS))
    return length


def _shuffle_candidates(words: _BatchWords, bits: HashKeys, n_sequences: int) -> tuple[Integers, Integers]:
    """Return the words without special tokens, sequence by sequence in random order, and the sequences' offsets."""
    candidates = np.flatnonzero(~words.is_special)
    sequence = words.sequence[candidates]
    rank = (sequence.astype(np.uint64) << np.uint64(64 - _LENGTH_BITS)) | (bits[candidates] >> np.uint64(_LENGTH_BITS))
    offsets = offsets_from_lengths(np.bincount(sequence, minlength=n_sequences))
    return candidates[np.argsort(rank)], offsets


def _shorten_to_fit(words: _BatchWords, word: Integers, requested: Integers, max_tokens: Integers) -> Integers:
    """Return the words of each span, at least 1: fewer than requested at a segment's end or above `max_tokens`."""
    n_words = np.minimum(requested, words.words_left[word])
    while True:
        n_tokens = words.start[word + n_words] - words.start[word]
        is_too_long = (n_tokens > max_tokens) & (n_words > 1)
        if not is_too_long.any():
            return n_words
        n_words = n_words - is_too_long


def ngram_probabilities(settings: PairSettings) -> NDArray[np.float64]:
    """Return p(n) for n = 1 to `ngram`, proportional to 1/n (§4.1), reversed if longer n-grams are favored."""
    weights: NDArray[np.float64] = 1 / np.arange(1, settings.ngram + 1)
    p: NDArray[np.float64] = weights / weights.sum()
    return p if settings.favor_shorter_ngram else p[::-1]
