"""N-gram masking of complete words (§4.1), vectorised over a packed batch.

The rule is the released generator's: word starts in random order, each with a span of n words, p(n) proportional to
1/n; a span that would exceed the budget is shortened, one that overlaps a chosen span is left out; every chosen token
becomes [MASK] (80 %), stays (10 %) or becomes a random token (10 %). On purpose different: the budget is 15 % of the
positions (the generator's cap is a setting), a span never crosses a [SEP], a segment's first token always starts a
word, and random tokens are ordinary ones. Its permutation objective is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.arrays import Flags, Ids, concatenate_ranges
from albert_cli.data.pairs import PairSettings
from albert_cli.randomness import HashKeys, Integers, Stream, bounded_ints, hash_keys, random_bits, uniform
from albert_cli.text.vocabulary import Vocabulary

_MASK, _KEEP = 0.8, 0.9  # cumulative: 80 % [MASK], 10 % unchanged, 10 % random


@dataclass(frozen=True)
class MaskedSpans:
    """The chosen spans: packed positions [start, stop) and number of words, int64 [K] each.

    shortened: bool [K], to fit the budget or the segment.
    """

    start: Integers
    stop: Integers
    words: Integers
    shortened: Flags

    def positions(self) -> Integers:
        """The packed positions that the spans cover, ascending: int64 [M]."""
        return np.sort(concatenate_ranges(self.start, self.stop - self.start))


def mask_batch(
    ids: Ids,
    special: Flags,
    offsets: Integers,
    vocabulary: Vocabulary,
    settings: PairSettings,
    seed: int,
    index: Integers,
) -> tuple[Ids, Ids, Ids]:
    """The changed ids int32 [T], the positions to predict int32 [M] (sorted) and their labels int32 [M] of a batch.

    special: bool [T], where [CLS] and [SEP] stand; index: int64 [N], the examples' numbers.
    """
    spans = select_spans(ids, special, offsets, vocabulary, settings, seed, index)
    position = spans.positions()
    row = _sequence_numbers(position, offsets)
    bits = random_bits(hash_keys(seed, Stream.REPLACEMENT, index)[row], position - offsets[row])
    fate = uniform(bits)
    ordinary = vocabulary.size - vocabulary.first_ordinary_id
    replaced = vocabulary.first_ordinary_id + bounded_ints(
        bits, ordinary
    )  # lower bits: independent of `fate`'s upper ones
    changed = ids.copy()
    changed[position] = np.where(fate < _MASK, vocabulary.mask_id, np.where(fate < _KEEP, ids[position], replaced))
    return changed, position.astype(np.int32), ids[position]


def _sequence_numbers(position: Integers, offsets: Integers) -> Integers:
    """The sequence that holds each of some ascending packed positions: int64 [M]."""
    return np.repeat(np.arange(offsets.size - 1), np.diff(np.searchsorted(position, offsets)))


@dataclass(frozen=True)
class _BatchWords:
    """Words and special tokens in the order of the batch; W of them.

    start: packed positions, int64 [W + 1], the last the end of the batch; is_special: bool [W]; sequence:
    int64 [W]; reach: how many words there are from each to its segment's end, int64 [W].
    """

    start: Integers
    is_special: Flags
    sequence: Integers
    reach: Integers


def select_spans(
    ids: Ids,
    special: Flags,
    offsets: Integers,
    vocabulary: Vocabulary,
    settings: PairSettings,
    seed: int,
    index: Integers,
) -> MaskedSpans:
    """Choose the spans to predict, in every sequence until its budget is spent; arguments as for `mask`."""
    starts_word = vocabulary.is_word_start[ids] if settings.whole_word else np.ones(ids.size, bool)
    words = _split_into_words(starts_word, special, offsets)
    share = np.rint(np.diff(offsets) * settings.masked_lm_probability)  # of its length, special tokens included
    budget = np.maximum(1, share).astype(np.int64)
    if settings.max_predictions:
        budget = np.minimum(budget, settings.max_predictions)
    bits = random_bits(hash_keys(seed, Stream.SPANS, index)[words.sequence], words.start[:-1] - offsets[words.sequence])
    return _choose_spans(words, bits, budget, settings)


def _split_into_words(starts_word: Flags, special: Flags, offsets: Integers) -> _BatchWords:
    """Cut a batch into words and special tokens; starts_word, special: bool [T]."""
    begins = starts_word | special
    begins[1:] |= special[:-1]  # a segment may begin within a word after truncation
    start = np.flatnonzero(begins)
    is_special = special[start]
    sequence = _sequence_numbers(start, offsets)
    barrier = np.append(np.flatnonzero(is_special), start.size)
    width = np.diff(barrier, prepend=0)  # from each barrier, or the begin, to the next
    reach = np.repeat(barrier, width) - np.arange(start.size)
    return _BatchWords(np.append(start, starts_word.size), is_special, sequence, reach)


def _choose_spans(words: _BatchWords, bits: HashKeys, budget: Integers, settings: PairSettings) -> MaskedSpans:
    """Try words in random order as starts of spans until every sequence has spent its budget, int64 [N].

    bits: 64 random ones for each word, [W]. The k-th candidates of all sequences are tried together, so the loop is as
    long as one sequence needs.
    """
    # Of the 64 bits 24 draw a span's length in words and 40 its turn; special tokens have none.
    drawn_words = np.ones(bits.size, np.int64)
    length_bits = bits & np.uint64((1 << 24) - 1)
    for share in np.cumsum(ngram_probabilities(settings))[:-1]:
        drawn_words += length_bits >= np.uint64(share * (1 << 24))
    order = np.flatnonzero(~words.is_special)
    turn = (words.sequence[order].astype(np.uint64) << np.uint64(40)) | (bits[order] >> np.uint64(24))
    order = order[np.argsort(turn)]
    taken = np.append(words.is_special, np.ones(settings.ngram, bool))  # room to look beyond the last word
    start, left = words.start, budget.copy()
    tries = np.bincount(words.sequence[order], minlength=left.size)
    first = np.cumsum(tries) - tries
    ahead = np.arange(settings.ngram)
    nothing = np.zeros(0, np.int64)
    found = [(nothing, nothing, nothing.astype(bool))]
    active, rank = np.flatnonzero(tries), 0
    while active.size:
        word, room = order[first[active] + rank], left[active]
        drawn = drawn_words[word]
        n = np.minimum(drawn, words.reach[word])
        size = start[word + n] - start[word]
        while (too_long := (size > room) & (n > 1)).any():  # shorten until it fits
            n -= too_long
            size = start[word + n] - start[word]
        covers = word[:, None] + ahead
        beyond = ahead >= n[:, None]
        free = (size <= room) & (beyond | ~taken[covers]).all(1)  # every word of it
        taken[covers[free][~beyond[free]]] = True
        left[active[free]] -= size[free]
        found.append((word[free], n[free], (n < drawn)[free]))
        rank += 1
        active = active[(left[active] > 0) & (tries[active] > rank)]
    word, n, shortened = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return MaskedSpans(start[word], start[word + n], n, shortened)


def ngram_probabilities(settings: PairSettings) -> NDArray[np.float64]:
    """p(n) for n = 1 to `ngram`, proportional to 1/n (§4.1), in reverse order when longer ones are favoured."""
    weights: NDArray[np.float64] = 1 / np.arange(1, settings.ngram + 1)
    p: NDArray[np.float64] = weights / weights.sum()
    return p if settings.favor_shorter_ngram else p[::-1]
