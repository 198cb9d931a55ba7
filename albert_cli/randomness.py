"""Compute the random numbers of data and training as hashes, without a generator that has a state.

A random number is a hash of its coordinates (seed, stream, index, counter), or of a text. An example is therefore the
same in every batch, rank and process, and a resumed run has no random state to restore. The hash of numbers is the
finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), applied once for each coordinate. A text is hashed by
SHA-256. The order of the examples in an epoch uses Philox.
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
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: the increment of splitmix64
_MULTIPLIER_1: Final = 0xBF58476D1CE4E5B9  # the two constants of the finalizer
_MULTIPLIER_2: Final = 0x94D049BB133111EB
_FEISTEL_ROUNDS: Final = 6  # four suffice for a pseudorandom permutation (Luby and Rackoff, 1988)


class Stream(IntEnum):
    """Purpose of a random number; numbers with equal seeds and indices are independent if their streams differ."""

    ORDER = 1  # the order of a pass's sequences
    PHASE = 2  # the token at which a pass begins
    SHORT = 3  # whether a sequence is short
    TARGET = 4  # the length of a short sequence
    CHUNK = 5  # where a chunk of sentences grows first, and the boundary between its segments
    SWAP = 6  # whether the segments are swapped
    OTHER_ANCHOR = 7  # the token of another document around which the second segment is chosen (NSP)
    OTHER_CHUNK = 8  # where that segment grows first
    CUT_A = 9  # the number of tokens that are cut from the front of segment A
    CUT_B = 10  # the same for segment B
    SPANS = 11  # the n-grams to mask
    REPLACEMENT = 12  # what replaces a masked token
    STATISTICS = 15  # the samples of documents and sentences whose lengths are measured
    SENTENCE = 16  # the sample of sentences for a vocabulary


def _mix(state: HashKeys) -> HashKeys:
    """Scramble each 64-bit number in place, by a bijection, and return the array."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(_MULTIPLIER_1)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_MULTIPLIER_2)
    state ^= state >> np.uint64(31)
    return state


def hash_keys(seed: int, stream: Stream, index: Integers) -> HashKeys:
    """Hash (seed, stream, index) to a 64-bit key for each index: uint64, in the shape of `index`.

    A key serves as 64 random bits. If an example needs more bits, the key is the argument of `random_bits`.
    """
    root = np.array([seed & _UINT64_MAX], dtype=np.uint64)
    root = _mix(root + np.uint64(_GOLDEN))
    root = _mix(root ^ np.uint64(int(stream) * _GOLDEN & _UINT64_MAX))
    return _mix(np.asarray(index, dtype=np.int64).astype(np.uint64) * np.uint64(_GOLDEN) + root)


def random_bits(key: HashKeys, counter: NDArray[np.integer]) -> HashKeys:
    """Return 64 random bits for each pair of a key and a counter, such as a position in the example: uint64.

    `key` and `counter` are broadcast against each other.
    """
    return _mix(np.asarray(counter).astype(np.uint64) * np.uint64(_GOLDEN) + key)


def uniform(bits: HashKeys) -> NDArray[np.float64]:
    """Convert the upper 53 of 64 random bits to uniform numbers in [0, 1): float64."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bounded_ints(bits: HashKeys, bound: Integers | int) -> Integers:
    """Convert 64 random bits to uniform integers in [0, bound), int64; `bound` is at least 1.

    The probability of an integer differs from 1 / bound by less than 1 / 2^64.
    """
    return (bits % np.asarray(bound).astype(np.uint64)).astype(np.int64)


def permute(index: Integers, size: int, key: HashKeys) -> Integers:
    """Apply a random permutation of range(size), which the key selects, to each index: int64 [B].

    index: int64 [B], each in [0, size); key: uint64, [B] or broadcast to it. No array of `size` elements is needed. A
    Feistel network permutes the numbers below base², the smallest square of at least `size`, as pairs of digits in this
    base. If a number is mapped to `size` or more, the result is permuted again until it is below `size` ("cycle
    walking", Black and Rogaway, 2002).
    """
    base = np.uint64(math.isqrt(size - 1) + 1)
    image = np.asarray(index, dtype=np.int64).astype(np.uint64)
    key = np.broadcast_to(key, image.shape)
    rows = np.arange(image.size)  # of the images that are still to be permuted
    while rows.size > 0:
        left, right = np.divmod(image[rows], base)
        for round_number in range(_FEISTEL_ROUNDS):
            scrambled = random_bits(key[rows], right + (np.uint64(round_number) << np.uint64(32)))
            previous_right = right
            right = (left + scrambled % base) % base
            left = previous_right
        image[rows] = left * base + right
        rows = rows[image[rows] >= np.uint64(size)]
    return image.astype(np.int64)


def repetitions(weight: float, digest: int) -> int:
    """Return how often a pass uses a document, `weight` times on average: the floor of `weight`, or one more.

    digest: the 64-bit hash of the document's text, which decides between the two. With the weight 2.25, a quarter of
    the documents is used three times and the others twice; with 0.25, a quarter is used once and the others never. The
    hash is mixed first, because the unmixed hash selects the held-out documents.
    """
    mixed = (digest ^ (digest >> 31)) * _MULTIPLIER_1 & _UINT64_MAX
    mixed = (mixed ^ (mixed >> 30)) * _MULTIPLIER_2 & _UINT64_MAX
    whole = int(weight)
    return whole + (mixed < int((weight - whole) * 2**64))


def hash_to_unit_interval(text: str) -> float:
    """Hash a text to a number in [0, 1), to divide examples into splits in the same way on every machine."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@lru_cache(maxsize=4)
def epoch_order(size: int, seed: int, epoch: int) -> Integers:
    """Return a random permutation of `size` examples for an epoch: int64 [size], read-only.

    The examples are sorted by raw numbers of Philox, which are the same in every version of NumPy. The results of
    `Generator.permutation` are not.
    """
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    order.flags.writeable = False
    return order


def step_seed(seed: int, step: int, part: int) -> int:
    """Return the seed of torch's generators, which dropout uses, for the micro-batch `part` of a step: 63 bits."""
    # With large odd multipliers, neighboring seeds, steps and parts give very different results.
    mixed = seed * _GOLDEN + step * _MULTIPLIER_1 + part * _MULTIPLIER_2
    return mixed & (_UINT64_MAX >> 1)
