"""N-gram masking of complete words (§4.1), vectorised over a packed batch.

The rule is the released generator's: word starts in random order, each with a span of n words, p(n)
proportional to 1/n; a span that would exceed the budget is shortened, one that touches a chosen span is
left out; every chosen piece becomes [MASK] (80 %), stays (10 %) or becomes a random piece (10 %). On
purpose different: the budget is 15 % of the positions (the generator's cap is a setting), a span never
crosses a [SEP], a segment's first piece always starts a word, and random pieces are ordinary ones, never a
special or control symbol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from albert_cli.data.pairs import PairSettings
from albert_cli.data.random import Integers, Keys, Stream, below, draw, keys, uniform
from albert_cli.errors import CheckpointError

Ids: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]

_MASK, _KEEP = 0.8, 0.9  # cumulative: 80 % [MASK], 10 % unchanged, 10 % random


class VocabularyFacts(Protocol):
    """What drawing a batch needs to know of a vocabulary; `text.vocabulary.Vocabulary` has all of it."""

    @property
    def size(self) -> int:
        """Number of pieces, V."""

    @property
    def cls_id(self) -> int:
        """Id of [CLS]."""

    @property
    def sep_id(self) -> int:
        """Id of [SEP]."""

    @property
    def mask_id(self) -> int:
        """Id of [MASK]."""

    @property
    def first_ordinary_id(self) -> int:
        """Every id from here on is a piece of text."""

    @property
    def is_word_start(self) -> NDArray[np.bool_]:
        """Whether a piece begins a word: bool [V]."""


@dataclass(frozen=True)
class Spans:
    """The chosen spans: packed positions [start, stop) and number of words n, int64 [K] each; shortened:
    bool [K]."""

    start: Integers
    stop: Integers
    words: Integers
    shortened: Flags


def mask(
    ids: Ids,
    special: Flags,
    offsets: Integers,
    vocabulary: VocabularyFacts,
    settings: PairSettings,
    seed: int,
    index: Integers,
) -> tuple[Ids, Ids, Ids]:
    """Mask a packed batch: the changed ids int32 [T], the masked positions int32 [M] (sorted), their labels
    int32 [M].

    ids: int32 [T]; special: bool [T], where [CLS] and [SEP] stand; offsets: int64 [N + 1]; index: int64 [N].
    """
    spans = select_spans(ids, special, offsets, vocabulary, settings, seed, index)
    width = spans.stop - spans.start
    position = np.repeat(spans.start - np.cumsum(width) + width, width) + np.arange(int(width.sum()))
    position.sort()
    labels = ids[position]

    sequence = np.searchsorted(offsets, position, "right") - 1
    bits = draw(keys(seed, Stream.REPLACEMENT, index)[sequence], position - offsets[sequence])
    fate = uniform(bits)
    ordinary = vocabulary.size - vocabulary.first_ordinary_id
    replaced = vocabulary.first_ordinary_id + below(bits, ordinary)  # lower bits: independent of `fate`'s upper ones
    shown = np.where(fate < _MASK, vocabulary.mask_id, np.where(fate < _KEEP, labels, replaced))
    changed = ids.copy()
    changed[position] = shown
    return changed, position.astype(np.int32), labels


def select_spans(
    ids: Ids,
    special: Flags,
    offsets: Integers,
    vocabulary: VocabularyFacts,
    settings: PairSettings,
    seed: int,
    index: Integers,
) -> Spans:
    """Choose the spans to predict, in every sequence until its budget is spent; arguments as for `mask`.

    The k-th candidates of all sequences are tried together, so the loop is as long as one sequence needs.
    Raises `CheckpointError` for an id that the vocabulary does not have.
    """
    if ids.size and int(ids.max()) >= vocabulary.size:
        raise CheckpointError(
            f"the data holds piece {int(ids.max())}, the vocabulary only {vocabulary.size} pieces",
            "the data is damaged or from another vocabulary: albert inspect DATA --verify",
        )
    starts_word = vocabulary.is_word_start[ids] if settings.whole_word else np.ones(ids.size, bool)
    starts_word[1:] |= special[:-1]  # a segment may begin within a word after truncation
    # Blocks: words and special tokens, in order; [W] of them, and the end of the batch as the last start.
    start = np.flatnonzero(starts_word | special)
    is_special = special[start]
    sequence = np.searchsorted(offsets, start, "right") - 1
    words, reach, order = _candidates(start, is_special, sequence, offsets, settings, keys(seed, Stream.SPANS, index))
    start = np.append(start, ids.size)

    taken = np.append(is_special, np.ones(settings.ngram, bool))  # room to look beyond the last block
    left = _budget(np.diff(offsets), settings)
    tries = np.bincount(sequence[~is_special], minlength=left.size)
    first = np.cumsum(tries) - tries
    active = np.flatnonzero(tries)
    nothing = np.zeros(0, np.int64)
    found = [(nothing, nothing, nothing.astype(bool))]
    rank = 0
    while active.size:
        block = order[first[active] + rank]
        drawn, room = words[block], left[active]
        n = np.minimum(drawn, reach[block])
        size = start[block + n] - start[block]
        for _ in range(settings.ngram - 1):
            n = n - ((size > room) & (n > 1))
            size = start[block + n] - start[block]
        free = size <= room
        for step in range(settings.ngram):
            free &= (n <= step) | ~taken[block + step]
        block, n, size, drawn = block[free], n[free], size[free], drawn[free]
        for step in range(settings.ngram):
            taken[(block + step)[n > step]] = True
        left[active[free]] -= size
        found.append((block, n, n < drawn))
        rank += 1
        active = active[(left[active] > 0) & (tries[active] > rank)]
    block, n, shortened = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Spans(start[block], start[block + n], n, shortened)


def ngram_probabilities(settings: PairSettings) -> NDArray[np.float64]:
    """p(n) for n = 1 to `ngram`, proportional to 1/n (§4.1), in reverse order when longer ones are
    favoured."""
    weights: NDArray[np.float64] = 1 / np.arange(1, settings.ngram + 1)
    p: NDArray[np.float64] = weights / weights.sum()
    return p if settings.favor_shorter_ngram else p[::-1]


def _budget(length: Integers, settings: PairSettings) -> Integers:
    """How many positions of each sequence may be masked; its length counts the special tokens."""
    share = np.rint(length * settings.masked_lm_probability)
    budget: Integers = np.maximum(1, share).astype(np.int64)
    return np.minimum(budget, settings.max_predictions) if settings.max_predictions else budget


def _candidates(
    start: Integers,
    is_special: Flags,
    sequence: Integers,
    offsets: Integers,
    settings: PairSettings,
    key: Keys,
) -> tuple[Integers, Integers, Integers]:
    """The span length in words drawn for every block, the words to its segment's end, and the order of trial.

    All int64 [W], the order without the special tokens: by sequence, and at random within each.
    """
    bits = draw(key[sequence], start - offsets[sequence])
    words = np.ones(start.size, np.int64)
    length_bits = bits & np.uint64((1 << 24) - 1)
    for share in np.cumsum(ngram_probabilities(settings))[:-1]:
        words += length_bits >= np.uint64(share * (1 << 24))
    barrier = np.append(np.flatnonzero(is_special), start.size)
    next_special = barrier[np.cumsum(is_special)]
    reach = next_special - np.arange(start.size)
    order = np.flatnonzero(~is_special)
    sort_key = (sequence[order].astype(np.uint64) << np.uint64(40)) | (bits[order] >> np.uint64(24))
    return words, reach, order[np.argsort(sort_key)]
