"""Random numbers as functions of their coordinates; all that the program draws comes from here.

Every number is a hash of (seed, stream, index, counter), or of a text. An example is therefore the same in whatever
batch, rank or process it is drawn, and a run that resumes has no random state to restore. The hash of numbers is the
finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), applied once for each coordinate. What is drawn once for a
text or an epoch uses what it began with (SHA-256, Philox): old splits stay.
"""

from __future__ import annotations

import hashlib
import math
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

HashKeys: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: the step of splitmix64
_FEISTEL_ROUNDS = 6


class Stream(IntEnum):
    """What a number is for; two streams never share a number."""

    ORDER = 1
    PHASE = 2
    SHORT = 3
    TARGET = 4
    BOUNDARY = 5
    SWAP = 6
    OTHER_DOCUMENT = 7
    OTHER_SENTENCE = 8
    CUT_A = 9
    CUT_B = 10
    SPANS = 11
    REPLACEMENT = 12
    STATISTICS = 15
    SENTENCE = 16


def _mix(state: HashKeys) -> HashKeys:
    """Scramble `state` in place and return it; a bijection on 64 bits."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def hash_keys(seed: int, stream: Stream, index: Integers) -> HashKeys:
    """One 64-bit key for each example: a hash of (seed, stream, index). Shape of `index`."""
    root = np.array([seed & _WORD], dtype=np.uint64)
    root = _mix(root + np.uint64(_GOLDEN))
    root = _mix(root ^ np.uint64(int(stream) * _GOLDEN & _WORD))
    return _mix(np.asarray(index, dtype=np.int64).astype(np.uint64) * np.uint64(_GOLDEN) + root)


def random_bits(key: HashKeys, counter: NDArray[np.integer]) -> HashKeys:
    """64 random bits for each pair of a key and a counter, such as a position in the example; they broadcast."""
    return _mix(np.asarray(counter).astype(np.uint64) * np.uint64(_GOLDEN) + key)


def uniform(bits: HashKeys) -> NDArray[np.float64]:
    """The 53 upper bits as numbers in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bounded_ints(bits: HashKeys, bound: Integers | int) -> Integers:
    """Integers in [0, bound), `bound` >= 1; the bias is under bound / 2^64."""
    return (bits % np.asarray(bound).astype(np.uint64)).astype(np.int64)


def permute(index: Integers, size: int, key: HashKeys) -> Integers:
    """Send each index through a random bijection of range(size) that its key selects, without an array of that size.

    A Feistel network on pairs of digits permutes the next square; an image outside the range is sent through again
    until it is inside ("cycle walking", Black and Rogaway, 2002). index, key: shape [B]; every index in [0, size).
    """
    base = np.uint64(math.isqrt(size - 1) + 1)
    image = np.asarray(index, dtype=np.int64).astype(np.uint64)
    key = np.broadcast_to(key, image.shape)
    outside = np.arange(image.size)
    while outside.size:
        left, right = np.divmod(image[outside], base)
        for turn in range(_FEISTEL_ROUNDS):
            scrambled = random_bits(key[outside], right + (np.uint64(turn) << np.uint64(32)))
            left, right = right, (left + scrambled % base) % base
        image[outside] = left * base + right
        outside = outside[image[outside] >= np.uint64(size)]
    return image.astype(np.int64)


def repetitions(weight: float, digest: int) -> int:
    """How often a document with this 64-bit hash is used in a pass: `weight` on average, its floor or one more.

    At 2.25 a quarter of the documents is used three times, the others twice; at 0.25 a quarter once, the others never.
    The hash is mixed first, so that the choice does not follow the one of the held-out documents.
    """
    mixed = (digest ^ digest >> 31) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 30) * 0x94D049BB133111EB & _WORD
    whole = int(weight)
    return whole + (mixed < int((weight - whole) * 2**64))


def hash_to_unit_interval(text: str) -> float:
    """A number in [0, 1) that depends on the text alone, so that a split is the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64


@lru_cache(maxsize=4)
def epoch_order(size: int, seed: int, epoch: int) -> Integers:
    """The order of `size` examples in an epoch, int64 [size], read-only.

    Drawn by sorting Philox's raw numbers, which NumPy keeps between versions, unlike `Generator.permutation`.
    """
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    order.flags.writeable = False
    return order


def step_seed(seed: int, step: int, part: int) -> int:
    """The seed of the computation's generators (dropout) for one micro-batch of one step: 63 bits."""
    # Odd multipliers spread the three numbers; neighbouring steps share nothing.
    return seed * _GOLDEN + step * 0xBF58476D1CE4E5B9 + part * 0x94D049BB133111EB & (_WORD >> 1)
