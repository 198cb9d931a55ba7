"""Runs of numbers that follow one another, and two texts cut to fit: arithmetic without loops."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from albert_cli.randomness import Integers

Ids: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]


def offsets_from_lengths(lengths: Integers) -> Integers:
    """Where each of `lengths` [N] begins when they follow one another, and where the last ends: int64 [N + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def concatenate_ranges(starts: Integers, lengths: Integers) -> Integers:
    """All of `start, start + 1, …` for each start and length, one after the other."""
    offsets = offsets_from_lengths(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def truncated_lengths(length_a: Integers, length_b: Integers, room: Integers | int) -> tuple[Integers, Integers]:
    """Tokens kept of each text, [N] each, when the longer loses a token (B on a tie) until both fit in `room`.

    The closed form of that loop: a text shorter than half the room stays whole, two longer ones share it.
    """
    kept_b = np.minimum(length_b, np.maximum(room - length_a, room // 2))
    return np.minimum(length_a, room - kept_b), kept_b
