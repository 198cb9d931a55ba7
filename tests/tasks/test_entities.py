"""Entities and the words that they overlap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.errors import InputError
from albert_cli.tasks.entities import Entity, entities_to_tags


@given(st.lists(st.integers(1, 5), min_size=2, max_size=12), st.integers(0, 40), st.integers(1, 20))
def test_entities_to_tags_equals_a_scan_of_all_words(lengths: list[int], start: int, length: int) -> None:
    """Words and the gaps between them have random lengths; some words touch each other."""
    words = [(first, end) for first, end in pairwise(accumulate(lengths)) if end % 3]
    entity = Entity(start, start + length, "PER")
    inside = [first < entity.end and end > entity.start for first, end in words]
    if not any(inside):
        with pytest.raises(InputError, match="no word"):
            entities_to_tags([entity], words, "x")
        return
    tags = entities_to_tags([entity], words, "x")
    assert [tag != "O" for tag in tags] == inside
    assert [tag for tag in tags if tag != "O"] == ["B-PER", *["I-PER"] * (sum(inside) - 1)]


class CountingWords(Sequence[tuple[int, int]]):
    """Words of one character that count how often one of them is read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads = 0

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        assert isinstance(index, int)
        if index >= self.size:
            raise IndexError(index)
        self.reads += 1
        return 2 * index, 2 * index + 1


def test_entities_to_tags_does_not_read_all_words_for_each() -> None:
    words = CountingWords(1000)
    tags = entities_to_tags([Entity(2 * i, 2 * i + 1, "PER") for i in range(1000)], words, "x")
    assert tags == ("B-PER",) * 1000
    assert words.reads < 50_000
