"""Arithmetic on consecutive runs of numbers, without Python loops."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from albert_cli.randomness import Integers

Ids: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]


def offsets_from_lengths(lengths: Integers) -> Integers:
    """Return the start of each of N consecutive runs and the end of the last one: int64 [N + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def concatenate_ranges(starts: Integers, lengths: Integers) -> Integers:
    """Return `start, start + 1, …` for each start and length, one run after the other."""
    offsets = offsets_from_lengths(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def truncated_lengths(length_a: Integers, length_b: Integers, max_tokens: Integers | int) -> tuple[Integers, Integers]:
    """Return the lengths of two segments after truncation to `max_tokens` together: int64 [N] each.

    This is the closed form of a loop in which the longer segment loses one token (B on a tie) until both fit.
    A segment shorter than half of `max_tokens` stays whole; two longer ones get half each.
    """
    truncated_b = np.minimum(length_b, np.maximum(max_tokens - length_a, max_tokens // 2))
    truncated_a = np.minimum(length_a, max_tokens - truncated_b)
    return truncated_a, truncated_b
