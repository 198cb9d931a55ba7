"""Compute lengths and offsets of ranges in an array, such as the sentences of a text, without Python loops."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from albert_cli.randomness import Integers

Ids: TypeAlias = NDArray[np.int32]  # token ids, and the other int32 arrays of a batch
Flags: TypeAlias = NDArray[np.bool_]


def offsets_from_lengths(lengths: Integers) -> Integers:
    """Return the start of each of N consecutive ranges with these lengths, and last the end: int64 [N + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def concatenate_ranges(starts: Integers, lengths: Integers) -> Integers:
    """Concatenate the integers in N ranges [start, start + length): int64 [sum of lengths].

    Example: the starts 7, 20 and the lengths 2, 3 give 7, 8, 20, 21, 22.
    """
    offsets = offsets_from_lengths(lengths)  # at which each range begins in the result
    # Within a range, the integers and their positions in the result differ by a constant.
    difference = np.repeat(starts - offsets[:-1], lengths)
    return np.arange(offsets[-1]) + difference


def truncated_lengths(length_a: Integers, length_b: Integers, max_tokens: Integers | int) -> tuple[Integers, Integers]:
    """Return the lengths of N segment pairs after truncation to `max_tokens` per pair: int64 [N] for A and for B.

    The released data generator removes one token at a time from the longer segment (B on a tie) until the pair fits.
    The closed form, with m = `max_tokens`: if A has at most ⌈m / 2⌉ tokens, or B at most ⌊m / 2⌋, this segment stays
    whole, and the other one gets the rest. If both are longer, A gets ⌈m / 2⌉ tokens and B gets ⌊m / 2⌋.
    """
    truncated_b = np.minimum(length_b, np.maximum(max_tokens - length_a, max_tokens // 2))
    truncated_a = np.minimum(length_a, max_tokens - truncated_b)
    return truncated_a, truncated_b
