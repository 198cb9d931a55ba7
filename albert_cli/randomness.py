"""Random numbers as functions of their coordinates; every random choice of the program uses this module.

A number is a hash of (seed, stream, index, counter), or of a text. An example is therefore the same in every batch,
rank and process, and a run that resumes has no random state to restore. The hash of numbers is the finalizer of
splitmix64 (Steele, Lea and Flood, OOPSLA 2014), applied once for each coordinate. Choices that are made once for a
text or an epoch use SHA-256 and Philox.
"""

from __future__ import annotations

import hashlib
import math
from enum import IntEnum
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

HashKeys: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]

_UINT64_MAX: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: the step of splitmix64
_MULTIPLIER_1: Final = 0xBF58476D1CE4E5B9  # constant of the finalizer
_MULTIPLIER_2: Final = 0x94D049BB133111EB
_FEISTEL_ROUNDS: Final = 6


class Stream(IntEnum):
    """Purpose of a random number; two streams never share a number."""

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
    state *= np.uint64(_MULTIPLIER_1)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_MULTIPLIER_2)
    state ^= state >> np.uint64(31)
    return state


def hash_keys(seed: int, stream: Stream, index: Integers) -> HashKeys:
    """Hash (seed, stream, index) to one 64-bit key for each index, in the shape of `index`."""
    root = np.array([seed & _UINT64_MAX], dtype=np.uint64)
    root = _mix(root + np.uint64(_GOLDEN))
    root = _mix(root ^ np.uint64(int(stream) * _GOLDEN & _UINT64_MAX))
    return _mix(np.asarray(index, dtype=np.int64).astype(np.uint64) * np.uint64(_GOLDEN) + root)


def random_bits(key: HashKeys, counter: NDArray[np.integer]) -> HashKeys:
    """Return 64 random bits for each pair of a key and a counter, such as a position in the example; they broadcast."""
    return _mix(np.asarray(counter).astype(np.uint64) * np.uint64(_GOLDEN) + key)


def uniform(bits: HashKeys) -> NDArray[np.float64]:
    """Convert the upper 53 bits to numbers in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bounded_ints(bits: HashKeys, bound: Integers | int) -> Integers:
    """Convert bits to integers in [0, bound), `bound` >= 1; the bias is below bound / 2^64."""
    return (bits % np.asarray(bound).astype(np.uint64)).astype(np.int64)


def permute(index: Integers, size: int, key: HashKeys) -> Integers:
    """Apply a random bijection of range(size), selected by the key, to each index without an array of that size.

    A Feistel network on pairs of digits permutes the next larger square. An image outside the range is permuted again
    until it is inside ("cycle walking", Black and Rogaway, 2002). index, key: shape [B]; every index in [0, size).
    """
    base = np.uint64(math.isqrt(size - 1) + 1)
    image = np.asarray(index, dtype=np.int64).astype(np.uint64)
    key = np.broadcast_to(key, image.shape)
    outside = np.arange(image.size)
    while outside.size:
        left, right = np.divmod(image[outside], base)
        for round_number in range(_FEISTEL_ROUNDS):
            scrambled = random_bits(key[outside], right + (np.uint64(round_number) << np.uint64(32)))
            previous_right = right
            right = (left + scrambled % base) % base
            left = previous_right
        image[outside] = left * base + right
        outside = outside[image[outside] >= np.uint64(size)]
    return image.astype(np.int64)


def repetitions(weight: float, digest: int) -> int:
    """Return how often a pass uses a document with this 64-bit hash: `weight` on average, its floor or one more.

    With 2.25 a quarter of the documents is used three times and the others twice; with 0.25 a quarter once and the
    others never. The hash is mixed first, so that the choice is independent of the choice of held-out documents.
    """
    mixed = (digest ^ digest >> 31) * _MULTIPLIER_1 & _UINT64_MAX
    mixed = (mixed ^ mixed >> 30) * _MULTIPLIER_2 & _UINT64_MAX
    whole = int(weight)
    return whole + (mixed < int((weight - whole) * 2**64))


def hash_to_unit_interval(text: str) -> float:
    """Hash a text to a number in [0, 1), so that a split by it is the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64


@lru_cache(maxsize=4)
def epoch_order(size: int, seed: int, epoch: int) -> Integers:
    """Return the order of `size` examples in an epoch, int64 [size], read-only.

    It sorts Philox's raw numbers, which NumPy keeps between versions, unlike `Generator.permutation`.
    """
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    order.flags.writeable = False
    return order


def step_seed(seed: int, step: int, part: int) -> int:
    """Return the seed of the generators (dropout) for one micro-batch of one step: 63 bits."""
    # Odd multipliers spread the three numbers, so that neighboring steps share nothing.
    return seed * _GOLDEN + step * _MULTIPLIER_1 + part * _MULTIPLIER_2 & (_UINT64_MAX >> 1)
