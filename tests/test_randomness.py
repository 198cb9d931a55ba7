"""Tests of `albert_cli.randomness`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from albert_cli.randomness import Stream, bounded_ints, hash_keys, permute, random_bits, uniform


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63), turn=st.integers(0, 2**40))
def test_permute_visits_every_number_once(size: int, seed: int, turn: int) -> None:
    order = permute(np.arange(size), size, hash_keys(seed, Stream.ORDER, np.array([turn])))
    assert sorted(order.tolist()) == list(range(size))


@given(size=st.integers(1, 2**40), seed=st.integers(0, 2**32), data=st.data())
def test_permute_stays_in_range_for_huge_sizes(size: int, seed: int, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True)))
    image = permute(index, size, hash_keys(seed, Stream.ORDER, np.array([0])))
    assert ((image >= 0) & (image < size)).all()
    assert np.unique(image).size == index.size


def test_permute_differs_between_keys_and_looks_random() -> None:
    first, second = (permute(np.arange(1000), 1000, hash_keys(0, Stream.ORDER, np.array([turn]))) for turn in (0, 1))
    assert (first == second).sum() < 10
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.1
    steps = np.diff(first)
    assert np.unique(steps).size > 500


@pytest.mark.parametrize("stream", list(Stream))
def test_random_bits_are_uniform_in_every_byte(stream: Stream) -> None:
    bits = random_bits(hash_keys(5, stream, np.arange(20_000)), np.arange(20_000) % 512)
    for byte in bits.view(np.uint8).reshape(-1, 8).T:
        assert chisquare(np.bincount(byte, minlength=256)).pvalue > 1e-5


def test_random_bits_depend_on_every_coordinate() -> None:
    index = np.array([7])
    counter = np.array([3])
    numbers = [
        random_bits(hash_keys(1, Stream.SWAP, index), counter),
        random_bits(hash_keys(2, Stream.SWAP, index), counter),
        random_bits(hash_keys(1, Stream.SHORT, index), counter),
        random_bits(hash_keys(1, Stream.SWAP, index + 1), counter),
        random_bits(hash_keys(1, Stream.SWAP, index), counter + 1),
    ]
    assert len({int(number[0]) for number in numbers}) == len(numbers)


def test_hash_keys_are_unchanged_between_releases() -> None:
    # A run may resume with a newer release, and another hash would silently change its data.
    assert hash_keys(0, Stream.ORDER, np.array([0, 1])).tolist() == [7081529465624673171, 2077113891230206638]


def test_uniform_and_bounded_ints_stay_in_bounds() -> None:
    bits = np.array([0, 2**64 - 1], np.uint64)
    assert uniform(bits).tolist() == [0.0, 1 - 2.0**-53]
    assert bounded_ints(bits, 10).tolist() == [0, 5]
    assert bounded_ints(bits, np.array([1, 7])).tolist() == [0, (2**64 - 1) % 7]
