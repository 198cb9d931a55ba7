"""Mask n-grams of whole words (§4.1), vectorized over a packed batch (sequences concatenated without padding).

The rule is that of the released data generator (`create_pretraining_data.py`). The words of a sequence are visited in
random order. At each word a span of n words is tried, with p(n) proportional to 1/n, until the sequence has spent its
budget of masked positions. A span that would exceed the budget is shortened, and a single word that would exceed it is
skipped, as is a span that overlaps a chosen span. Each token of a chosen span becomes [MASK] (80 %), stays (10 %) or
becomes a random token (10 %).

Intended differences from the generator: the budget is 15 % of the positions, without a maximum by default; a span never
crosses a [SEP]; a segment's first token always begins a word; random tokens are never special tokens. The generator's
permutation objective is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import Flags, Ids, concatenate_ranges, offsets_from_lengths
from albert_cli.data.pairs import PackedSequences, PairSettings
from albert_cli.randomness import HashKeys, Integers, Stream, bounded_ints, hash_keys, random_bits, uniform
from albert_cli.text.vocabulary import Vocabulary

# A token to predict has a uniform random number: below 0.8 it becomes [MASK], from 0.8 to 0.9 it stays, and from 0.9 on
# a random token replaces it (§3.1 of BERT).
_MASK_BELOW = 0.8
_KEEP_BELOW = 0.9

# A word has 64 random bits: the low 24 choose the length of its span, and the high 40 its turn among the words.
_LENGTH_BITS = 24


@dataclass(frozen=True)
class MaskedTokens:
    """A masked batch of T positions, M of which are to be predicted."""

    ids: Ids  # int32 [T]
    index: Ids  # packed positions to predict, ascending, int32 [M]
    labels: Ids  # the original tokens at these positions, int32 [M]


@dataclass(frozen=True)
class MaskedSpans:
    """The K chosen spans of a batch: packed positions [start, stop) and numbers of words, int64 [K] each.

    is_shortened: bool [K], True if the span was shortened to fit the budget or the segment.
    """

    start: Integers
    stop: Integers
    words: Integers
    is_shortened: Flags

    def positions(self) -> Integers:
        """Return the M packed positions that the spans cover, ascending: int64 [M]."""
        return np.sort(concatenate_ranges(self.start, self.stop - self.start))


@dataclass(frozen=True)
class _BatchWords:
    """The words of a batch in order, W in total; a special token counts as a word.

    start: packed position at which each word begins, and last the batch's end, int64 [W + 1].
    is_special: True for a special token, bool [W].
    sequence: index of the sequence that contains the word, int64 [W].
    words_left: number of words from this one, included, to the end of its segment, int64 [W].
    """

    start: Integers
    is_special: Flags
    sequence: Integers
    words_left: Integers


def select_spans(
    sequences: PackedSequences, vocabulary: Vocabulary, settings: PairSettings, seed: int, index: Integers
) -> MaskedSpans:
    """Choose spans to predict in each of N sequences until the sequence's budget is spent.

    index: the examples' indices, int64 [N]; with the seed, they determine the random numbers.
    """
    offsets = sequences.offsets
    begins_word = np.ones(sequences.ids.size, bool)
    if settings.whole_word:
        begins_word = vocabulary.word_boundaries(settings.word_rule).find_starts(sequences.ids)
    words = _split_into_words(begins_word, sequences.is_special, offsets)
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
    """Mask each token of the spans: replace it by [MASK] or by a random ordinary token, or leave it unchanged.

    seed, index: those of `select_spans`.
    """
    position = spans.positions()
    labels = sequences.ids[position]
    sequence = _sequence_numbers(position, sequences.offsets)
    keys = hash_keys(seed, Stream.REPLACEMENT, index)
    bits = random_bits(keys[sequence], position - sequences.offsets[sequence])
    # `uniform` depends on the upper bits, and `bounded_ints` hardly does, so the same 64 bits serve both.
    choice = uniform(bits)
    ordinary_ids = vocabulary.ordinary_ids
    replacement = ordinary_ids[bounded_ints(bits, len(ordinary_ids))]
    replacement[choice < _KEEP_BELOW] = labels[choice < _KEEP_BELOW]
    replacement[choice < _MASK_BELOW] = vocabulary.mask_id  # overwrites most of the tokens of the line above
    ids = sequences.ids.copy()
    ids[position] = replacement
    return MaskedTokens(ids, position.astype(np.int32), labels)


def _sequence_numbers(position: Integers, offsets: Integers) -> Integers:
    """Return the index of the sequence that contains each packed position; position: ascending, int64 [M]."""
    positions_of_sequence = np.diff(np.searchsorted(position, offsets))
    return np.repeat(np.arange(offsets.size - 1), positions_of_sequence)


def _split_into_words(begins_word: Flags, is_special_token: Flags, offsets: Integers) -> _BatchWords:
    """Split a batch of T positions into words; begins_word, is_special_token: bool [T]; offsets: of the sequences."""
    is_start = begins_word | is_special_token
    is_start[1:] |= is_special_token[:-1]  # a truncated segment may begin within a word
    start = np.flatnonzero(is_start)
    is_special = is_special_token[start]
    # Here a segment is a special token with the words after it, up to the next special token or the batch's end.
    segment_end = np.append(np.flatnonzero(is_special), start.size)
    words_of_segment = np.diff(segment_end, prepend=0)
    words_left = np.repeat(segment_end, words_of_segment) - np.arange(start.size)
    return _BatchWords(np.append(start, begins_word.size), is_special, _sequence_numbers(start, offsets), words_left)


def _choose_spans(words: _BatchWords, bits: HashKeys, budget: Integers, settings: PairSettings) -> MaskedSpans:
    """Try a span at each word in random order until each of N sequences has spent its budget.

    bits: random, uint64 [W]; budget: maximum number of masked positions, int64 [N]. A sequence's candidates are its
    words, shuffled. Round k tries the k-th candidate of each of the S sequences that still have a budget and a
    candidate.
    """
    requested_words = _sample_span_lengths(bits, settings)
    candidates, offsets = _shuffle_candidates(words, bits, budget.size)
    n_candidates = np.diff(offsets)
    # A taken word cannot be in another span; special tokens are taken from the start. The `ngram` additional elements
    # keep the indices `covered_words` within the array at the last words.
    is_taken = np.append(words.is_special, np.ones(settings.ngram, bool))
    index_in_span = np.arange(settings.ngram)
    budget_left = budget.copy()
    chosen_words = [np.zeros(0, np.int64)]
    chosen_lengths = [np.zeros(0, np.int64)]
    for round_number in range(n_candidates.max(initial=0)):
        active = np.flatnonzero((budget_left > 0) & (n_candidates > round_number))  # the S sequences, [S]
        if active.size == 0:
            break
        first_word = candidates[offsets[active] + round_number]
        n_words = _shorten_to_fit(words, first_word, requested_words[first_word], budget_left[active])
        n_tokens = words.start[first_word + n_words] - words.start[first_word]
        covered_words = first_word[:, None] + index_in_span  # [S, ngram]
        is_in_span = index_in_span < n_words[:, None]
        is_overlapping = (is_taken[covered_words] & is_in_span).any(axis=1)
        is_chosen = (n_tokens <= budget_left[active]) & ~is_overlapping
        is_taken[covered_words[is_in_span & is_chosen[:, None]]] = True
        budget_left[active[is_chosen]] -= n_tokens[is_chosen]
        chosen_words.append(first_word[is_chosen])
        chosen_lengths.append(n_words[is_chosen])
    first_word = np.concatenate(chosen_words)
    n_words = np.concatenate(chosen_lengths)
    start = words.start[first_word]
    stop = words.start[first_word + n_words]
    return MaskedSpans(start, stop, n_words, is_shortened=n_words < requested_words[first_word])


def _sample_span_lengths(bits: HashKeys, settings: PairSettings) -> Integers:
    """Sample the number of words of the span at each word, from the word's low bits: int64 [W]."""
    length_bits = bits & np.uint64((1 << _LENGTH_BITS) - 1)
    length = np.ones(bits.size, np.int64)
    # A span has more than n words if the random number is at least p(1) + … + p(n).
    for cumulative_probability in np.cumsum(ngram_probabilities(settings))[:-1]:
        length += length_bits >= np.uint64(cumulative_probability * (1 << _LENGTH_BITS))
    return length


def _shuffle_candidates(words: _BatchWords, bits: HashKeys, n_sequences: int) -> tuple[Integers, Integers]:
    """Shuffle the words of each sequence, special tokens excepted, by their high bits.

    Returns the indices of the words, sequence by sequence, int64; and the offset in this array at which each of N
    sequences begins, and last the array's length, int64 [N + 1].
    """
    candidates = np.flatnonzero(~words.is_special)
    sequence = words.sequence[candidates]
    high_bits = bits[candidates] >> np.uint64(_LENGTH_BITS)
    # The sequence is the upper part of the key, so sorting shuffles the words within each sequence only.
    sort_key = (sequence.astype(np.uint64) << np.uint64(64 - _LENGTH_BITS)) | high_bits
    offsets = offsets_from_lengths(np.bincount(sequence, minlength=n_sequences))
    return candidates[np.argsort(sort_key)], offsets


def _shorten_to_fit(words: _BatchWords, first_word: Integers, n_words: Integers, max_tokens: Integers) -> Integers:
    """Shorten each of S spans until it fits its segment and `max_tokens`, but to no fewer than one word.

    first_word, n_words: the spans, max_tokens: int64 [S]. Returns the new numbers of words, int64 [S]. A span of one
    word may still exceed `max_tokens`.
    """
    n_words = np.minimum(n_words, words.words_left[first_word])
    while True:
        n_tokens = words.start[first_word + n_words] - words.start[first_word]
        is_too_long = (n_tokens > max_tokens) & (n_words > 1)
        if not is_too_long.any():
            return n_words
        n_words = n_words - is_too_long  # one word less


def ngram_probabilities(settings: PairSettings) -> NDArray[np.float64]:
    """Return p(n) for n = 1 to `ngram`, float64 [ngram]: proportional to 1/n (§4.1).

    Without `favor_shorter_ngram`, returns the same probabilities in reverse order.
    """
    weights: NDArray[np.float64] = 1 / np.arange(1, settings.ngram + 1)
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities if settings.favor_shorter_ngram else probabilities[::-1]
