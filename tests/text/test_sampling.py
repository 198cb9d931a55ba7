from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.sampling import SentenceSample, clean_in_place


def make_sample(size: int, *texts: int, seed: int = 0) -> SentenceSample:
    """Sample texts with these numbers of numbered sentences, added in some order."""
    whole = SentenceSample(size, seed)
    first = 0
    parts = []
    for number, length in enumerate(texts):
        part = SentenceSample(size, seed)
        part.add((number << 40) + np.arange(length), [f"Number {first + i}." for i in range(length)])
        part.sentences_read += length
        parts.append(part)
        first += length
    for part in random.Random(size).sample(parts, len(parts)):
        whole.merge(part)
    whole.finish()
    return whole


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 100))
def test_sample_has_its_size_and_no_sentence_twice(sizes: list[int], size: int) -> None:
    sample = make_sample(size, *sizes)
    assert sample.sentences_read == sum(sizes)
    assert len(set(sample.sentences)) == len(sample.sentences) == min(size, sum(sizes))
    numbers = [int(sentence[7:-1]) for sentence in sample.sentences]
    assert numbers == sorted(numbers), "in the order of the text"


def test_sample_positions_are_equally_likely() -> None:
    """Test ten parts of the text by chi-square, with 200 samples of 50 out of 1,000: the 0.1 % point is 27.9."""
    parts = [0] * 10
    for seed in range(200):
        for sentence in make_sample(50, *[1] * 10, 90, 400, 500, seed=seed).sentences:
            parts[int(sentence[7:-1]) // 100] += 1
    assert sum(parts) == 200 * 50
    assert sum((n - 1000) ** 2 / 1000 for n in parts) < 27.9


def test_clean_in_place_equals_cleaning_each() -> None:
    texts = [" A  b", "", "É!", "\t", "\N{COMBINING ACUTE ACCENT}", "c"] * 6000
    expected = list(filter(None, (clean(text, Cleaning()) for text in texts)))
    clean_in_place(texts, Cleaning())
    assert texts == expected == ["a b", "e!", "c"] * 6000
    for nothing in ([], ["", " "]):
        clean_in_place(nothing, Cleaning())
        assert nothing == []
